"""The trainer's cluster on engine ``rpc``, which asks PS ranks and compute ranks over torch RPC."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from torch.distributed import rpc
from torch.futures import Future

from harness.cluster import group, wire
from harness.cluster.group import Formation
from harness.cluster.link import ControlLink, limit_silence_of_hosts
from harness.cluster.protocol import (
    BuildReplica,
    Cluster,
    CopyShard,
    Exchange,
    Failure,
    Reply,
    Request,
    RestoreFromParity,
    Several,
    no_op,
    raise_failures,
)
from harness.core.errors import RankLost, RunFailed
from harness.core.plans import CHIEF, Rank, is_compute, is_ps, is_spare, ps_index, rank_order

Call: TypeAlias = "Future[Any] | tuple[Call, ...]"
"""A call in flight; a tuple for a :class:`Several`. The future of a call that could not be sent has failed."""


@dataclass(frozen=True)
class Underway:
    """Requests in flight. ``finds_all``: whether they find the ranks that a planned fault has struck, asked or not."""

    calls: Mapping[Rank, Call]
    finds_all: bool


class RpcCluster(Cluster):
    """The cluster of engine ``rpc``: calls ranks over torch RPC.

    The constructor joins the present generation. If that cannot be formed, as a rank has died, no request is sent, and
    the first one raises RankLost.
    """

    overlaps = True

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._options = link.rank_context.options
        self._workers: dict[Rank, str] = {}
        self._generation = -1  # that this process is a member of
        self._num_in_flight = 0
        self._expects_losses = False
        self._answered: set[Rank] = set()  # in this generation
        formation = self._membership()[0]
        served = [*formation.members, *formation.hosted]
        self.ranks = tuple(sorted(filter(is_ps, served), key=rank_order))
        self.compute_ranks = tuple(filter(is_compute, formation.members))
        with suppress(RankLost):
            self._form(formation)

    @property
    def _all_ranks(self) -> tuple[Rank, ...]:
        return self.ranks + self.compute_ranks

    def start(self, requests: Mapping[Rank, Request]) -> Underway:
        """Send all requests at once, without waiting for replies.

        If spares have connected, a generation that includes them is formed first, before requests of a step with none
        in flight.
        """
        is_step = all(isinstance(request, Exchange | Several) for request in requests.values())
        if self._options.spares and self._num_in_flight == 0 and is_step and self._link.take_spares():
            with suppress(RankLost):  # these requests are then not sent, and :meth:`finish` raises it
                self._form(self._link.ask("regroup"))
        self._num_in_flight += 1
        asked = [rank for rank in self._all_ranks if rank in requests and self._generation >= 0]
        return Underway(
            {rank: self._send(rank, requests[rank]) for rank in asked},
            finds_all=not any(map(is_compute, requests)),
        )

    def _send(self, rank: Rank, request: Request) -> Call:
        """Send a request without waiting: messages of a step as words, all others pickled."""
        if isinstance(request, Several):
            return tuple(self._send(rank, exchange) for exchange in request.exchanges)
        if wire.is_plain(request):
            return self._call(rank, wire.serve_words, wire.words_of(request), ps_index(rank))
        asks_others = isinstance(request, CopyShard | RestoreFromParity | BuildReplica)
        workers = self._workers if asks_others else None
        return self._call(rank, wire.on_rank, "serve", rank, wire.without_slices(request), workers)

    def _call(self, rank: Rank, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function on a rank, without waiting. The future of a call that cannot be sent has failed."""
        try:
            return rpc.rpc_async(self._workers[rank], function, args=args, timeout=self._options.rpc_timeout_s)
        except RuntimeError as error:
            return _failed(error)

    def finish(self, underway: Underway) -> dict[Rank, Reply]:
        self._num_in_flight -= 1
        replies, detail = _wait(underway.calls)
        lost: Mapping[Rank, str] = detail
        if detail or self._generation < 0 or (self._expects_losses and underway.finds_all):
            self._expects_losses = self._expects_losses and not underway.finds_all
            lost = self._membership(detail)[1]
        if lost:  # a rank that read from one of the dead is served again
            replies = {
                rank: reply
                for rank, reply in replies.items()
                if not (isinstance(reply, Failure) and isinstance(reply.error, RankLost))
            }
        raise_failures(replies.values())
        if lost:
            raise RankLost(lost, replies, detail=lost)
        if not replies.keys() <= self._answered:
            limit_silence_of_hosts(self._link.rank_context)
            self._answered |= replies.keys()
        return replies

    def _membership(self, found: Mapping[Rank, str] = MappingProxyType({})) -> tuple[Formation, dict[Rank, str]]:
        """The present generation, and all lost ranks with the reasons. ``found``: those that did not answer."""
        return self._link.ask("membership", dict(found))

    def expect_losses(self) -> None:
        self._expects_losses = True

    def replace(self, lost: Iterable[Rank]) -> None:
        """Have spares take over the ranks, if the generation stays; else join the one with the replacements."""
        formation = self._membership()[0]
        taken = {rank: spare for rank, spare in formation.takeovers.items() if rank in [*lost]}
        self._form(formation)  # no-op if the generation stays
        self._workers |= {rank: group.worker_name(spare, self._generation) for rank, spare in taken.items()}
        detail = _wait({rank: self._call(rank, wire.on_rank, "adopt", rank) for rank in taken})[1]
        if again := self._membership(detail)[1]:
            raise RankLost(again, replies={}, detail=again)

    def move(self) -> None:
        """See Cluster. A new process whose shard did not arrive is killed, and the next request finds it dead."""
        formation = self._membership()[0]
        with suppress(RankLost):
            self._form(formation)
        calls = {
            rank: self._call(rank, wire.on_rank, "take", rank, group.worker_name(source, self._generation))
            for rank, source in formation.moves.items()
        }
        if failed := [*_wait(calls)[1]]:
            self._link.ask("kill", failed)

    def _form(self, formation: Formation) -> None:
        """Join the RPC world of ``formation``, or of its successor if a spare dies before all have joined.

        Raises RankLost if other ranks died before all had joined; RunFailed if it fails without a death.
        """
        while formation.generation != self._generation:
            try:
                self._join(formation)
            except group.WorldBroken as error:
                if lost := self._membership()[1]:
                    raise RankLost(lost, replies={}, detail=lost) from error
                broken, formation = formation, self._link.ask("regroup")
                if formation == broken:
                    raise RunFailed(f"the RPC world could not be formed again: {error}") from error

    def _join(self, formation: Formation) -> None:
        """Join the RPC world of ``formation`` alone. If that fails, this process is a member of none."""
        self._generation = -1
        self._answered = set()
        self._link.join(CHIEF, formation)
        self._generation = formation.generation
        self._workers = {
            rank: group.worker_name(formation.hosted.get(rank, rank), self._generation) for rank in self._all_ranks
        }
        for member in formation.members:
            if is_spare(member):
                rpc.rpc_async(group.worker_name(member, self._generation), no_op)  # opens the connection


def _failed(error: RuntimeError) -> Future[Any]:
    failed: Future[Any] = Future()
    failed.set_exception(error)
    return failed


def _wait(calls: Mapping[Rank, Call]) -> tuple[dict[Rank, Reply], dict[Rank, str]]:
    """Wait for all calls; returns by rank the replies and the transport's error texts.

    A rank's own exceptions travel as Failure values, so an error raised here is the transport's: end of file, broken
    pipe, connection refused, or no answer within the timeout.
    """
    replies: dict[Rank, Reply] = {}
    detail: dict[Rank, str] = {}
    for rank, sent in calls.items():
        try:
            replies[rank] = _reply_to(sent)
        except RuntimeError as error:
            detail[rank] = words_of(error)
    return replies, detail


def _reply_to(call: Call) -> Reply:
    return tuple(map(_reply_to, call)) if isinstance(call, tuple) else wire.reply_of(call.wait())


def words_of(error: RuntimeError) -> str:
    """The first line of the transport's error text, cut to 200 characters."""
    return next(iter(str(error).splitlines()), "")[:200]
