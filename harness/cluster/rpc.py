"""The trainer's cluster on engine ``rpc``, which asks PS ranks over torch RPC."""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch.distributed import rpc
from torch.futures import Future

from harness.cluster import group, wire
from harness.cluster.effects import Effects
from harness.cluster.group import Formation
from harness.cluster.link import ControlLink, give_up_silent_hosts
from harness.cluster.mesh import Mesh
from harness.cluster.protocol import (
    Cluster,
    CopyShard,
    Exchange,
    Failure,
    Reply,
    Request,
    Several,
    no_op,
    raise_failures,
)
from harness.cluster.trainers import SeveralTrainers
from harness.core.errors import RankLost, RunFailed
from harness.core.plans import Rank, is_ps, is_spare, is_trainer, rank_order, trainer_rank
from harness.core.resumable import Resumable

Calls = Mapping[Rank, Future[Any] | tuple[Future[Any], ...]]
"""Calls in flight by rank; a tuple for a :class:`Several`. The future of a call that could not be sent has failed."""

Underway = Callable[[], list["_Outcome"]]
"""Requests in flight: a function that waits for the calls of all trainers, and returns their outcomes by number."""


class RpcCluster(Cluster, Resumable):
    """The cluster of engine ``rpc``: calls PS ranks over torch RPC.

    The constructor joins the present generation, and raises RunFailed if that cannot be formed. A trainer that replaces
    a dead one while others live joins none before :meth:`enter`.
    """

    overlaps = True
    _state = ("_num_started", "_num_losses", "_num_found")

    def __init__(self, link: ControlLink, effects: Effects, mesh: Mesh | None = None) -> None:
        self._link, self._effects, self._group, self._mesh = link, effects, effects.group, mesh
        self._rank, self._options = link.rank_context.rank, link.rank_context.options
        self._workers: dict[Rank, str] = {}
        self._generation = -1  # that this process is a member of
        self._num_in_flight = self._num_started = 0
        self._num_losses = self._num_found = 0  # planned faults that killed ranks, now and at the last search
        self._was_in_flight = False  # whether requests were in flight at the last kill
        self._answered: set[Rank] = set()  # in this generation
        self._ended: Mapping[Rank, str] = {}  # PS ranks that had ended when a trainer died, and how
        self._replaced: set[Rank] = set()  # dead trainers whose replacements do not take part yet
        self._known_lost: Mapping[Rank, str] = {}  # ranks that died between two requests, found before the next one
        self._predecessors: frozenset[Rank] = frozenset()  # all former trainers, if they died together
        formation: Formation = link.ask("formation")
        self.ranks = tuple(filter(is_ps, formation.members))
        self._is_new = link.rank_context.formation is None
        try:
            if not self._is_new:
                self._form(formation)
        except RankLost as lost:
            words = "; ".join(f"{rank}: {how}" for rank, how in lost.detail.items())
            raise RunFailed(f"the first RPC world was not formed: {words}") from lost

    def start(self, requests: Mapping[Rank, Request]) -> Underway:
        """Send all requests at once, without waiting for replies.

        With several trainers, each sends the requests to its own share of the ranks, and gets all replies. If spares
        have connected, a generation that includes them is formed first, before requests of a step with none in flight.
        """
        is_step = all(isinstance(request, Exchange | Several) for request in requests.values())
        if self._options.spares and self._num_in_flight == 0 and is_step and self._effects.take_spares():
            self._form_between_requests(self._effects.once(lambda: self._link.ask("regroup")))
        refused: Calls = {rank: _failed(RuntimeError(words)) for rank, words in self._known_lost.items()}
        self._num_in_flight += 1
        self._num_started += 1
        number = None if self._mesh is None else self._num_started

        def send(index: int) -> Calls:
            asked = self._asked(index, requests)
            return refused or {rank: self._send(rank, requests[rank], number) for rank in asked}

        return self._outcomes("replies", send)

    def _outcomes(self, what: str, send: Callable[[int], Calls]) -> Underway:
        """Send the calls of this trainer's share. The result waits for all trainers' calls.

        If another trainer dies meanwhile, the acting trainer sends the calls of its share, perhaps a second time.
        """
        own = self._group.index
        calls = send(own)

        def outcome(index: int) -> _Outcome:
            if index == own:
                return self._outcome(calls, index)
            self._ended = self._link.ask("dead")
            return self._outcome(send(index), index)

        later = self._group.share_later(what, outcome)
        return lambda: self._resend_refused(what, send, later())

    def _resend_refused(self, what: str, send: Callable[[int], Calls], outcomes: list["_Outcome"]) -> list["_Outcome"]:
        """The ``outcomes``, after calls for dead trainers that living ranks refused have been sent again.

        A rank closes its listener when a caller dies between connecting and its first message, and so refuses all later
        callers (TensorPipe, core/listener_impl.cc, ``onAccept``). It accepts them again in a new generation.
        """
        if not self._group.dead:
            return outcomes
        failed = [*chain.from_iterable(outcomes[index].detail.items() for index in self._group.dead)]
        refused = {rank for rank, words in failed if not _IS_LATE.search(words)}
        if not refused or not (refusing := self._effects.once(lambda: self._link.ask("alive", refused))):
            return outcomes
        try:
            self._form(self._effects.once(lambda: self._link.ask("form_anew")))
        except RankLost as lost:  # the refused requests are sent again after the dead ranks have been replaced
            heard = [
                replace(each, detail={rank: words for rank, words in each.detail.items() if rank not in refusing})
                for each in outcomes
            ]
            return [*heard, _Outcome({}, lost.detail, self._num_losses)]

        def send_again(index: int) -> _Outcome | None:
            return self._outcome(send(index), index) if outcomes[index].detail.keys() & refusing else None

        again = self._group.share(what, send_again)
        return [new or old for new, old in zip(again, outcomes, strict=True)]

    def _asked(self, number: int, ranks: Container[Rank]) -> list[Rank]:
        """The members of ``ranks`` in the share of trainer ``number``."""
        span = self._group.spans(len(self.ranks))[number]
        return [rank for rank in self.ranks[span.start : span.stop] if rank in ranks]

    def _send(self, rank: Rank, request: Request, number: int | None) -> Future[Any] | tuple[Future[Any], ...]:
        """Send a request. A rank recognises a repetition by ``number``, or a message of a step by its step."""
        if isinstance(request, Several):
            return tuple(self._call(rank, *_message(exchange)) for exchange in request.exchanges)
        if wire.is_plain(request):
            return self._call(rank, *_message(request))
        workers = self._workers if isinstance(request, CopyShard) else None
        number = None if isinstance(request, Exchange) else number
        return self._call(rank, wire.on_rank, "serve", wire.packed(request), workers, number)

    def _call(self, rank: Rank, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function on a rank, without waiting. The future of a call that cannot be sent has failed.

        A call to a rank known to have ended is not sent: on a lost host it would wait until its deadline.
        """
        if rank in self._ended:
            return _failed(RuntimeError(self._ended[rank]))
        try:
            return rpc.rpc_async(self._workers[rank], function, args=args, timeout=self._options.rpc_timeout_s)
        except RuntimeError as error:
            return _failed(error)

    def finish(self, underway: Underway) -> dict[Rank, Reply]:
        self._num_in_flight -= 1
        replies, detail = self._replies(underway())
        detail |= self._dead_trainers(detail)
        if detail:  # a rank that read from one of the dead is served again
            replies = {
                rank: reply
                for rank, reply in replies.items()
                if not (isinstance(reply, Failure) and isinstance(reply.error, RankLost))
            }
        raise_failures(replies.values())
        if detail:
            raise self._lost(detail, replies)
        if not replies.keys() <= self._answered:
            give_up_silent_hosts(self._link.rank_context)
            self._answered |= replies.keys()
        return replies

    def _lost(self, detail: Mapping[Rank, str], replies: Mapping[Rank, Reply]) -> RankLost:
        """The RankLost for the ranks in ``detail`` and, if hosts of these were lost, all other PS ranks there.

        A trainer there may have answered before: its death is found while the others ask for these ranks.
        """
        lost = {**detail, **self._effects.once(lambda: self._link.ask("lost_with", [*detail]))}
        lost |= self._dead_trainers(lost)
        return RankLost(lost, replies, lost)

    def _outcome(self, calls: Calls, index: int) -> "_Outcome":
        """Wait for the calls of trainer ``index``: the replies, and the transport's error texts for dead ranks.

        The first time after a planned fault, each rank of the trainer's share gets a no-op call as well, so that all
        dead ranks are found; if no request was in flight at the fault, only the ranks that ``calls`` leaves out do. A
        process that is in no generation (none can be formed while ranks are dead) sends no such call. All deadlines run
        at once: several hanging ranks take no longer than one.
        """
        num_losses, probes = self._num_losses, dict[Rank, Future[Any]]()
        if num_losses > self._num_found and self._generation >= 0:
            asked = self._asked(index, self.ranks)
            probes = {rank: self._call(rank, no_op) for rank in asked if self._was_in_flight or rank not in calls}
        replies, detail = _wait(calls)
        return _Outcome(replies, {**_wait(probes)[1], **detail}, num_losses)

    def _replies(self, outcomes: list["_Outcome"]) -> tuple[dict[Rank, Reply], dict[Rank, str]]:
        """The replies to all trainers, and the error texts for dead ranks.

        Ranks killed by plan count as dead even if they answer: a stopped rank may be continued from outside.
        """
        if any(outcome.num_losses < self._num_losses for outcome in outcomes):  # from before the last fault
            outcomes += self._outcomes("dead", lambda _: {})()
        replies = {rank: reply for outcome in outcomes for rank, reply in outcome.replies.items()}
        detail = {rank: words for outcome in outcomes for rank, words in outcome.detail.items()}
        seeks = self._num_losses > self._num_found and self._generation >= 0
        self._num_found, self._was_in_flight = self._num_losses, False
        if seeks:
            detail |= self._dead_trainers(detail)
            survivors = self._effects.once(lambda: self._link.call("survivors", [*detail]))
            detail |= {rank: _KILLED_AGAIN if rank in self._replaced else _CONTINUED for rank in survivors}
        return replies, detail

    def _dead_trainers(self, known: Container[Rank]) -> dict[Rank, str]:
        """The trainers not in ``known`` that have died and are not replaced, and how each died."""
        dead = {trainer_rank(number): number for number in sorted(self._group.dead)}
        lost = {rank: number for rank, number in dead.items() if rank not in self._replaced and rank not in known}
        return {rank: self._link.dead.get(number, "") for rank, number in lost.items()}

    def expect_losses(self) -> None:
        self._num_losses += 1
        self._was_in_flight = self._was_in_flight or self._num_in_flight > 0

    def replace(self, lost: Iterable[Rank]) -> None:
        """Have spares take over the PS ranks, if the generation stays; else join the one with the replacements."""
        self._replaced.update(rank for rank in lost if is_trainer(rank) and rank not in self._predecessors)
        self._predecessors, self._known_lost = frozenset(), {}
        self._ended, spares = {}, dict[Rank, str]()
        if lost := [*filter(is_ps, lost)]:
            formation: Formation = self._effects.once(lambda: self._link.ask("formation"))
            if formation.generation == self._generation:
                taken = {rank: formation.takeovers[rank] for rank in lost if rank in formation.takeovers}
                spares = {rank: group.worker_name(spare, self._generation) for rank, spare in taken.items()}
                self._workers = {**self._workers, **spares}
            else:
                self._form(formation)

        def adopt(index: int) -> Calls:
            return {rank: self._call(rank, wire.on_rank, "adopt", rank) for rank in self._asked(index, spares)}

        detail = self._replies(self._outcomes("adopted", adopt)())[1]
        if detail := {**detail, **self._dead_trainers(detail)}:
            raise self._lost(detail, {})

    @property
    def awaits_trainers(self) -> bool:
        return bool(self._replaced)

    def admit(self, state: Callable[[], Any]) -> None:
        """Form a generation with the new trainers, and give them ``state()``."""
        assert isinstance(self._group, SeveralTrainers), "one of several has died"
        assert self._mesh is not None, "one of several has died"
        self._form_between_requests(self._effects.once(self._link.await_trainers))
        if self._known_lost or not self._mesh.new_trainers:
            return
        self._group.admit(lambda: (self.state(), state()))
        self._replaced = {rank for rank in self._replaced if rank_order(rank)[1] in self._group.dead}
        self._effects.once(lambda: self._link.ask("entered"))

    def hand_over(self) -> Any:
        """The counters of requests, by which PS ranks recognise a repeated request, and of planned losses."""
        return self.state()

    def take_over(self, given: Any, lost: Mapping[Rank, str]) -> None:
        self.load(given)
        self._known_lost, self._predecessors = lost, frozenset(filter(is_trainer, lost))

    def enter(self) -> Any:
        """Wait, without limit, to be admitted. A spare trainer gets its name and number then."""
        if not self._is_new:
            return None
        assert isinstance(self._group, SeveralTrainers), "there are others"
        assert self._mesh is not None, "there are others"
        self._link.send("ready")
        self._link.is_waiting = True
        while self._generation < 0:
            self._rank, formation = self._link.order()
            self._mesh.index = rank_order(self._rank)[1]
            with suppress(group.WorldBroken):  # another process then replaces this one
                self._join(formation)
        own, state = self._group.enter()
        self.load(own)
        self._effects.once(lambda: self._link.ask("entered"))
        return state

    def _form_between_requests(self, formation: Formation) -> None:
        """Join as :meth:`_form` does; if that raises RankLost, the next request raises it instead."""
        try:
            self._form(formation)
        except RankLost as lost:
            self._known_lost = lost.detail

    def _form(self, formation: Formation) -> None:
        """Join the RPC world of ``formation``, or of its successor if a spare dies before all have joined.

        Raises RankLost, for dead trainers too, if PS ranks died before all had joined; RunFailed if it fails without a
        death.
        """
        while formation.generation != self._generation:
            try:
                self._join(formation)
            except group.WorldBroken as error:
                dead = self._effects.once(lambda: self._link.ask("dead"))
                if dead:
                    dead |= self._dead_trainers(dead)
                    raise RankLost(dead, {}, dead) from error
                broken, formation = formation, self._effects.once(lambda: self._link.ask("regroup"))
                if formation == broken:
                    raise RunFailed(f"the RPC world could not be formed again: {error}") from error

    def _join(self, formation: Formation) -> None:
        self._generation = -1
        self._answered, self._ended = set(), {}
        self._link.join(self._rank, formation)
        self._generation, self._known_lost = formation.generation, {}
        self._workers = {rank: group.worker_name(rank, self._generation) for rank in self.ranks}
        if self._mesh is not None:
            self._mesh.meet(self._link.trainer_addresses)
        for member in formation.members:
            if is_spare(member):
                rpc.rpc_async(group.worker_name(member, self._generation), no_op)  # opens the connection


@dataclass(frozen=True)
class _Outcome:
    """The replies and error texts by rank of one trainer's calls, after ``num_losses`` faults meant to kill ranks."""

    replies: dict[Rank, Reply]
    detail: dict[Rank, str]
    num_losses: int


_IS_LATE = re.compile("timeout|timed out")  # in the error text of a call that was not answered in time
_KILLED_AGAIN = "it was killed before it took part again"
_CONTINUED = "it answered: something else continued it after the trace had stopped it (SIGCONT, a shell's `fg`)"


def _message(exchange: Exchange) -> tuple[Any, ...]:
    """The function to call on a rank to serve ``exchange``, and its arguments."""
    if wire.is_plain(exchange):
        return wire.serve_words, wire.words_of(exchange)
    return wire.on_rank, "serve", wire.packed(exchange)


def _failed(error: RuntimeError) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(error)
    return failed


def _wait(calls: Calls) -> tuple[dict[Rank, Reply], dict[Rank, str]]:
    """Wait for all calls; returns replies and the transport's error texts by rank. A tuple of calls has a tuple.

    A rank's own exceptions travel as Failure values, so an error raised here is the transport's: end of file, broken
    pipe, connection refused, or no answer within the timeout.
    """
    replies: dict[Rank, Reply] = {}
    detail: dict[Rank, str] = {}
    for rank, sent in calls.items():
        try:
            if isinstance(sent, tuple):
                replies[rank] = tuple(wire.reply_of(each.wait()) for each in sent)
            else:
                replies[rank] = wire.reply_of(sent.wait())
        except RuntimeError as error:
            detail[rank] = words_of(error)
    return replies, detail


def words_of(error: RuntimeError) -> str:
    """The first line of the transport's error text, cut to 200 characters."""
    return next(iter(str(error).splitlines()), "")[:200]
