"""The kind of recovery ``parity``: a lost shard is the XOR of its group's parity and the group's other shards.

The rank that applies a push replies with the XOR of the rows' bits before and after. The trainer passes these changes
on to the holder of the parity, in a message that the holder gets anyway: that of the next step. Where something is due
after a step, and before a lost shard is restored, it sends them at once. So the parity is then that of all updates to
which a rank has replied. An update to which a dead rank had not replied is sent to its replacement, as always.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.cluster.protocol import (
    Ask,
    BuildReplica,
    Exchange,
    LoadState,
    Push,
    Reply,
    Request,
    RestoreFromParity,
    Save,
    Several,
    WriteBack,
    exchanges_of,
    with_exchanges,
)
from harness.core.plans import Progress, Rank, ps_index
from harness.recovery.kinds import LostRanks, Recovery, RunFacts, Serve


class ParityRecovery(Recovery):
    """``parity``: restores a lost shard with all its updates, if no rank of its group and no holder died with it.

    R PS ranks. Updates are counted of all tables, and of the tracked ones.

    Attributes:
        wire_bytes: bytes of changes to the trainer and from it, and of the shards that new parities were built from.
            What is read for a restored shard counts as loaded instead.
    """

    loses_updates = False
    reads_rows = True
    reads_group = True
    _state = (*Recovery._state, "_changes", "_number", "_applied", "_unsaved_R2", "_saving_R2")

    def __init__(self, run: RunFacts) -> None:
        super().__init__(run)
        assert run.strategy.groups is not None, "a strategy with this kind has groups"
        self._groups = run.strategy.groups
        self._changes: dict[Rank, list[tuple[Tensor, Tensor]]] = {holder: [] for holder in self._groups.members}
        self._unanswered: dict[Rank, Push] = {}  # the message of changes that a holder has not answered
        self._number = 0  # of the last message
        self._applied = dict.fromkeys(self._groups.holder_of, 0)  # last step to which a rank has replied
        self._unsaved_R2 = np.zeros((run.placement.num_ps, 2), np.int64)  # replied to; in no committed save
        self._saving_R2 = self._unsaved_R2.copy()  # of them, those in the save under way

    def summary(self) -> dict[str, Any]:
        return {"replica_bytes": self.wire_bytes}

    def accompany(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Return ``requests``, in which the first exchange with each holder has the changes for its parity."""
        sent = dict(requests)
        for holder in self._groups.members:
            if (exchanges := exchanges_of(requests.get(holder))) and (message := self._message(holder)):
                first = replace(exchanges[0], replica=message)
                sent[holder] = with_exchanges(requests[holder], (first, *exchanges[1:]))
        return sent

    def _message(self, holder: Rank) -> Push | None:
        """The message that ``holder`` has not answered, or else a new one with all changes, if there are any."""
        if holder not in self._unanswered and self._changes[holder]:
            rows_N, bits_NX = (torch.cat(parts) for parts in zip(*self._changes[holder], strict=True))
            self._changes[holder] = []
            self._number += 1
            self._unanswered[holder] = Push(
                step=self._number,
                rows_N=rows_N,
                grads_ND=bits_NX,
                counts_N=torch.zeros(len(rows_N), dtype=torch.int32),
                sampled_N=torch.zeros(len(rows_N), dtype=torch.bool),
                learning_rate=0.0,
            )
        return self._unanswered.get(holder)

    def received(self, requests: Mapping[Rank, Request], replies: Mapping[Rank, Reply]) -> Mapping[Rank, Reply]:
        """Take the changes out of replies, and note what the ranks have applied."""
        without = dict(replies)
        for rank, reply in replies.items():
            request = requests[rank]
            if isinstance(request, Exchange):
                without[rank] = self._take(rank, request, reply)
            elif isinstance(request, Several):
                without[rank] = tuple(self._take(rank, *pair) for pair in zip(request.exchanges, reply, strict=True))
        return without

    def _take(self, rank: Rank, exchange: Exchange, reply: Tensor | None) -> Tensor | None:
        if exchange.replica is self._unanswered.get(rank):
            self._unanswered.pop(rank, None)
        push, num_lookups = exchange.push, 0 if exchange.pull_N is None else exchange.pull_N.shape[0]
        if push is not None:
            self._applied[rank] = max(self._applied[rank], push.step)
            if reply is not None and reply.shape[0] > num_lookups:
                self._note(rank, push, reply[num_lookups:])
        return None if exchange.pull_N is None or reply is None else reply[:num_lookups]

    def _note(self, rank: Rank, push: Push | WriteBack, changes_NX: Tensor) -> None:
        """Note the changes and the updates of a push that ``rank`` had not applied before."""
        self._changes[self._groups.holder_of[rank]].append((push.rows_N, changes_NX))
        # In the reply, and in the message with row ids, counts and flags: 8, 4 and 1 bytes.
        self.wire_bytes += changes_NX.shape[0] * (2 * torch.float32.itemsize * self.run.width + 13)
        if self.run.has_counts:
            k = ps_index(rank)
            self._unsaved_R2[k] += self.run.count_updates.of_rank(k, push.rows_N.numpy(), push.counts_N.numpy())

    async def settle(self, ask: Ask, progress: Progress) -> None:
        """Send all changes to their holders."""
        if holders := [holder for holder, changes in self._changes.items() if changes]:
            await ask(dict.fromkeys(holders, Exchange()), progress)

    def requests(self, ranks: Sequence[Rank], loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        living = self._groups.members.keys() - loss.ranks
        while messages := {holder: message for holder in sorted(living) if (message := self._message(holder))}:
            serve({holder: Exchange(replica=message) for holder, message in messages.items()})
            for holder in messages:
                del self._unanswered[holder]
        unsaved = {rank: self._unsaved_R2[ps_index(rank)].tolist() for rank in ranks}
        return {rank: RestoreFromParity(self._applied[rank], *unsaved[rank]) for rank in ranks}

    def restored(self, loss: LostRanks, requests: Mapping[Rank, Request], serve: Serve) -> None:
        """Build the parities anew that died, and those of shards that are not as they were."""
        kept = RestoreFromParity | LoadState
        otherwise = {rank for rank, request in requests.items() if not isinstance(request, kept)}
        for rank in otherwise:
            self._applied[rank] = loss.progress.step
            self._unsaved_R2[ps_index(rank)] = self._saving_R2[ps_index(rank)] = 0
        groups = self._groups.members
        built = [holder for holder in groups if holder in loss.ranks or not otherwise.isdisjoint(groups[holder])]
        serve(dict.fromkeys(built, BuildReplica(number=self._number)))
        for holder in built:
            self._changes[holder] = []
            self._unanswered.pop(holder, None)
        read = [self.run.placement.num_rows(ps_index(member)) for holder in built for member in groups[holder]]
        self.wire_bytes += sum(read) * self.run.width * torch.float32.itemsize

    def freeze(self, *, closes_interval: bool) -> None:
        """Note the updates that the present save holds: all, since all saves are full."""
        self._saving_R2 = self._unsaved_R2.copy()

    def committed(self) -> None:
        self._unsaved_R2 -= self._saving_R2

    async def wrote_late(self, saves: Mapping[Rank, Save], ask: Ask, progress: Progress) -> None:
        """Count all updates of replacements as saved, which wrote their present rows."""
        self._unsaved_R2[[*map(ps_index, saves)]] = 0
