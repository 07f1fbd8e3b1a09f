"""The kind of recovery ``parity``: a lost shard is the XOR of its group's parity and the group's other shards.

The rank that applies a push replies with the XOR of the rows' bits before and after. The trainer passes these changes
on to the holder of the parity, in a message that the holder gets anyway: that of the next step. Where something is due
after a step, and before a lost shard is restored, it sends them at once. So the parity is then that of all updates to
which a rank has replied. An update to which a dead rank had not replied is sent to its replacement, as always.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.cluster.protocol import (
    Ask,
    BuildParity,
    Exchange,
    Failure,
    LoadState,
    Push,
    Reply,
    Request,
    RestoreFromParity,
    Save,
    Several,
    exchanges_of,
)
from harness.core.plans import Progress, Rank, ps_index
from harness.core.shard import SavedCounts
from harness.recovery.kinds import LostRanks, Recovery, RunFacts, Serve


class ParityRecovery(Recovery):
    """``parity``: restores a lost shard with all its updates, if no rank of its group and no holder died with it.

    Attributes:
        wire_bytes: bytes of changes to the trainer and from it, and of the shards that new parities were built from.
            What is read for a restored shard counts as loaded instead.
    """

    loses_updates = False
    reads_rows = True
    reads_group = True
    _state = (*Recovery._state, "_changes", "_numbers", "_applied", "_unsaved", "_saved")
    _state_types = (SavedCounts,)

    def __init__(self, run: RunFacts) -> None:
        super().__init__(run)
        assert run.strategy.groups is not None, "a strategy with this kind has groups"
        self._groups = run.strategy.groups
        ranks = self._groups.holder_of
        self._changes: dict[Rank, list[tuple[Tensor, Tensor]]] = {holder: [] for holder in self._groups.members}
        self._unanswered: dict[Rank, list[Push]] = {holder: [] for holder in self._groups.members}  # messages
        self._numbers = dict.fromkeys(self._groups.members, 0)  # of the last message of changes to each holder
        self._applied = dict.fromkeys(ranks, 0)  # last step to which a rank has replied
        # Unsaved updates to which a rank has replied: of all tables, and of tracked ones.
        self._unsaved: dict[Rank, tuple[int, int]] = dict.fromkeys(ranks, (0, 0))
        self._saved = dict.fromkeys(ranks, SavedCounts())

    def summary(self) -> dict[str, Any]:
        return {"replica_bytes": self.wire_bytes}

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests`` with the changes for each holder to which pushes are sent."""
        sent = dict(requests)
        for holder in self._groups.members:
            exchanges = exchanges_of(requests.get(holder))
            if self._changes[holder] and any(exchange.push is not None for exchange in exchanges):
                first = replace(exchanges[0], replica=self._message(holder))
                sent[holder] = Several((first, *exchanges[1:])) if isinstance(requests[holder], Several) else first
        return sent

    def _messages(self) -> dict[Rank, Push]:
        """New messages with all changes that are in none yet, by holder."""
        return {holder: self._message(holder) for holder, changes in self._changes.items() if changes}

    def _message(self, holder: Rank) -> Push:
        """A new message with the changes for ``holder``, which is sent again until the holder has answered."""
        rows_N, bits_NX = (torch.cat(parts) for parts in zip(*self._changes[holder], strict=True))
        self._changes[holder] = []
        self._numbers[holder] += 1
        message = Push(
            step=self._numbers[holder],
            rows_N=rows_N,
            grads_ND=bits_NX,
            counts_N=torch.zeros(len(rows_N), dtype=torch.int32),
            sampled_N=torch.zeros(len(rows_N), dtype=torch.bool),
            learning_rate=0.0,
        )
        self._unanswered[holder].append(message)
        return message

    def received(self, rank: Rank, request: Request, reply: Reply) -> Reply:
        """Take the changes out of a reply, and note what the rank has applied and saved."""
        if isinstance(reply, Failure):
            return reply
        if isinstance(request, Save):
            if request.mode != "finish" or reply.is_late:
                self._note_saved(rank, request.sequence)
        elif isinstance(request, Several):
            return tuple(self._take(rank, *pair) for pair in zip(request.exchanges, reply, strict=True))
        elif isinstance(request, Exchange):
            return self._take(rank, request, reply)
        return reply

    def _note_saved(self, rank: Rank, sequence: int) -> None:
        """Count all updates as saved, as the shard does (``Shard.mark_saved``)."""
        before = saved if (saved := self._saved[rank]).sequence == sequence else SavedCounts()
        updates, tracked = self._unsaved[rank]
        self._saved[rank] = SavedCounts(sequence, before.updates + updates, before.tracked + tracked)
        self._unsaved[rank] = 0, 0

    def _take(self, rank: Rank, exchange: Exchange, reply: Reply) -> Reply:
        push = exchange.push
        if isinstance(reply, Failure):
            return reply
        if (changes := exchange.replica) is not None:
            self._unanswered[rank] = [each for each in self._unanswered[rank] if each.step > changes.step]
        if push is None:
            return reply
        self._applied[rank] = max(self._applied[rank], push.step)
        num_lookups = 0 if exchange.pull_N is None else len(exchange.pull_N)
        if reply is None or len(reply) == num_lookups:  # applied before, or a push of no rows
            return None if exchange.pull_N is None else reply
        self._changes[self._groups.holder_of[rank]].append((push.rows_N, reply[num_lookups:]))
        # In the reply, and in the message with row ids, counts and flags: 8, 4 and 1 bytes.
        self.wire_bytes += len(push.rows_N) * (2 * torch.float32.itemsize * self.run.width + 13)
        counts = self.run.count_updates.of_rank(ps_index(rank), push.rows_N.numpy(), push.counts_N.numpy())
        self._unsaved[rank] = self._unsaved[rank][0] + counts[0], self._unsaved[rank][1] + counts[1]
        return None if exchange.pull_N is None else reply[:num_lookups]

    async def settle(self, ask: Ask, progress: Progress) -> None:
        """Send all changes to their holders."""
        if messages := self._messages():
            await ask({holder: Exchange(replica=message) for holder, message in messages.items()}, progress)

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        self._messages()  # which are unanswered now
        late = {holder: messages for holder, messages in self._unanswered.items() if holder not in loss.ranks}
        for turn in range(max(map(len, late.values()), default=0)):  # a holder takes them in order
            of_turn = {holder: messages[turn] for holder, messages in late.items() if turn < len(messages)}
            serve({holder: Exchange(replica=message) for holder, message in of_turn.items()})
        for holder in late:
            self._unanswered[holder] = []
        return {rank: self._restore(rank) for rank in ranks}

    def _restore(self, rank: Rank) -> RestoreFromParity:
        holder = self._groups.holder_of[rank]
        return RestoreFromParity(
            holder=holder,
            others=tuple(sorted(self._groups.needed_for(rank) - {holder})),
            step=self._applied[rank],
            saved_counts=self._saved[rank],
            unsaved=self._unsaved_by_table(rank),
        )

    def _unsaved_by_table(self, rank: Rank) -> dict[int, int]:
        """Sums of unsaved updates, each under one table: of the tracked tables, and of the others."""
        updates, tracked = self._unsaved[rank]
        placement, by_table = self.run.placement, dict[int, int]()
        for is_tracked, count in ((True, tracked), (False, updates - tracked)):
            tables = (t for t in range(len(placement.cardinalities)) if (t in self.run.tracked) == is_tracked)
            if count:
                by_table[next(t for t in tables if placement.num_local_rows(ps_index(rank), t))] = count
        return by_table

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Build the parities anew that died, and those of shards that are not as they were."""
        kept = RestoreFromParity | LoadState
        otherwise = {rank for rank, request in requests.items() if not isinstance(request, kept)}
        for rank in otherwise:
            self._applied[rank], self._unsaved[rank], self._saved[rank] = loss.progress.step, (0, 0), SavedCounts()
        groups = self._groups.members
        built = [holder for holder in groups if holder in loss.ranks or not otherwise.isdisjoint(groups[holder])]
        serve({holder: BuildParity(number=self._numbers[holder]) for holder in built})
        for holder in built:
            self._changes[holder], self._unanswered[holder] = [], []
        read = [self.run.placement.num_rows(ps_index(member)) for holder in built for member in groups[holder]]
        self.wire_bytes += sum(read) * self.run.width * torch.float32.itemsize
