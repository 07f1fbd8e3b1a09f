"""The processes of engine ``rpc``: the main functions of PS and trainer ranks, and the trainer's cluster client.

A request of the trainer calls ``serve`` in the PS rank: one message, one reply.
"""

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed import rpc
from torch.futures import Future

from harness.cluster import group, wire
from harness.cluster.effects import Effects
from harness.cluster.formation import Formation
from harness.cluster.launcher import RankContext
from harness.cluster.link import ControlLink, Stopped
from harness.cluster.packing import packed
from harness.cluster.protocol import (
    Cluster,
    Copy,
    Exchange,
    Failure,
    Reply,
    Request,
    Several,
    in_rank_order,
    no_op,
    raise_failures,
)
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.underway import Underway, words_of
from harness.core.errors import HarnessError, RankLost, RunFailed
from harness.core.plans import Rank, is_ps, is_spare, ps_rank
from harness.processes import control
from harness.processes.leash import Leash, hold_leash, ignore_interrupts, ignore_stops

_BEAT = 0.1  # of the time after which a mute trainer is given up

# The server of this process. RPC calls a module-level function, which finds its rank here.
_server: RankServer | None = None
_serving = threading.Lock()
_spec: RankSpec | None = None
_timeout_s: float | None = None  # of requests to other ranks


_guard: Callable[[], None] = no_op  # called when another rank has answered


def serve(request: Request) -> Reply:
    """Serve one request on this process's rank. Called by RPC threads, one at a time."""
    assert _server is not None, "not a PS rank"
    with _serving:
        return _server.handle(request)


def serve_copy(request: Copy, workers: Mapping[Rank, str]) -> Reply:
    """As :func:`serve`, for a request that needs other ranks; ``workers``: their names in the RPC world."""
    assert _server is not None, "not a PS rank"
    _server.reach = partial(_reach, workers)
    return serve(request)


def _reach(workers: Mapping[Rank, str], rank: Rank, request: Request) -> Reply:
    """Send a request to another rank and wait. Raises RankLost."""
    assert _timeout_s is not None, "not a PS rank"
    try:
        reply = rpc.rpc_sync(workers[rank], serve_rank, args=(request,), timeout=_timeout_s)
    except RuntimeError as error:
        raise RankLost([rank], {}, {rank: words_of(error)}) from error
    _guard()
    return reply


def serve_rank(request: Request) -> Reply:
    """Serve a request of another rank, which only reads. It waits for no other request, so ranks may ask in a ring."""
    assert _server is not None, "not a PS rank"
    return _server.handle(request)


def adopt(rank: Rank) -> None:
    """Serve as ``rank`` from now on, with an empty shard, if this process does not do so yet."""
    global _server  # noqa: PLW0603 - see above
    assert _spec is not None, "not a PS process"
    with _serving:
        if _server is None or _server.rank != rank:
            _server = RankServer(_spec, rank)


def _begin(rank_context: RankContext) -> Leash:
    """What every rank does first. Entering a namespace comes before the leash: that is a thread, and entering would
    undo what ties this process to its parent."""
    ignore_interrupts()
    ignore_stops()
    if rank_context.entrance is not None:
        try:
            rank_context.entrance.enter()
        except FileNotFoundError:  # it ends with the supervisor
            hold_leash(rank_context.supervisor_pid).follow()
            raise
    return hold_leash(rank_context.supervisor_pid, parent=rank_context.parent_pid)


def ps_main(rank_context: RankContext, spec: RankSpec) -> None:
    """Main function of a PS rank or a spare: RPC threads serve while this thread waits for orders."""
    global _spec, _timeout_s, _guard  # noqa: PLW0603 - see above
    leash = _begin(rank_context)
    torch.set_num_threads(1)
    _spec = spec
    _timeout_s = rank_context.options.rpc_timeout_s / 2  # to say who hangs before the trainer gives up this rank
    wire.serve_by(serve)
    try:
        link = ControlLink(rank_context)
        _guard = link.give_up_silent_hosts
        place = rank_context.place
        order: control.Message = link.order() if place is None else ("join", place)
        while order[0] == "join":
            if is_ps(order[1].rank):
                adopt(order[1].rank)
            try:
                link.join(order[1])
            except group.WorldBroken:
                group.leave()
            order = link.order()
            while order[0] not in ("join", "stop"):
                order = link.order()
    except (EOFError, OSError):
        leash.follow()  # unless the supervisor lives, and has closed the connection
    if _server is not None:
        _server.close()
    group.leave()


def trainer_main(rank_context: RankContext, job: Callable[[Cluster, Effects], None]) -> None:
    """Main function of a trainer rank: runs ``job`` and reports how it ended."""
    leash = _begin(rank_context)
    try:
        link = ControlLink(rank_context)
        link.begin_beats(rank_context.options.rpc_timeout_s * _BEAT)
        _carry_out(job, link)
    except (EOFError, ConnectionError):
        leash.follow()  # see ps_main
    group.leave()


def _carry_out(job: Callable[[Cluster, Effects], None], link: ControlLink) -> None:
    """Run ``job``, report how it ended, and wait for the order to stop. Raises EOFError, ConnectionError."""
    try:
        effects = Effects(link)
        job(RpcCluster(link, effects), effects)
        link.send("finished")
        link.order()  # "stop"
    except HarnessError as error:
        link.send("failed", error)
        link.order()
    except Stopped:
        pass  # the supervisor ended the run, and has the reason
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - the boundary of a rank: the supervisor must hear of any bug
        words = f"{link.rank_context.rank} raised {type(error).__name__}: {error}"
        link.send("failed", RunFailed(f"{words}\n{traceback.format_exc()}"))
        link.order()


class RpcCluster:
    """The :class:`harness.cluster.protocol.Cluster` of engine ``rpc``: calls PS ranks over torch RPC."""

    overlaps = True

    def __init__(self, link: ControlLink, effects: Effects) -> None:
        self._link = link
        self._effects = effects
        self._ranks = tuple(ps_rank(k) for k in range(link.rank_context.num_ps))
        self._timeout_s = link.rank_context.options.rpc_timeout_s
        self._workers: dict[Rank, str] = {}
        self._generation = -1  # that this process is a member of
        self._num_in_flight = 0
        self._awaits_spares = False
        self._seeks_dead = False  # among all ranks, since ranks were killed
        self._was_in_flight = False  # whether requests were in flight then
        self._has_hosts = link.rank_context.dead_after_s is not None
        self._answered: set[Rank] = set()  # in this generation, where ranks are on several hosts
        try:
            self._join(self._link.ask("formation"))
        except group.WorldBroken as error:
            dead = self._link.ask("dead")
            words = "; ".join(f"{rank}: {how}" for rank, how in dead.items()) or str(error)
            raise RunFailed(f"the first RPC world was not formed: {words}") from error

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All PS ranks, in order."""
        return self._ranks

    def call(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply]:
        return self.finish(self.start(requests))

    def start(self, requests: Mapping[Rank, Request]) -> Underway:
        """Send all requests at once, without waiting. Between two steps spares are admitted first, if there are any."""
        if self._awaits_spares and self._num_in_flight == 0 and _is_step(requests) and self._effects.take_spares():
            self._awaits_spares = False
            try:
                self._form(self._link.ask("regroup"))
            except RankLost as lost:
                return Underway(detail=lost.detail)  # nothing was sent
        self._num_in_flight += 1
        futures: dict[Rank, Future[Reply] | tuple[Future[Reply], ...]] = {}
        detail: dict[Rank, str] = {}
        for rank, request in requests.items():
            parts = request.exchanges if isinstance(request, Several) else (request,)
            calls = [self._call(part) for part in parts]  # an error here is no rank's death
            try:
                sent = tuple(self._send(rank, *call) for call in calls)
            except RuntimeError as error:
                detail[rank] = words_of(error)
            else:
                futures[rank] = sent if isinstance(request, Several) else sent[0]
        return Underway(futures, detail)

    def _call(self, request: Request) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function to call on a rank to serve ``request``, and its arguments."""
        if wire.is_plain(request):
            return wire.serve_words, (wire.words_of(request),)
        if isinstance(request, Copy):
            return serve_copy, (request, self._workers)
        return serve, (packed(request),)

    def _send(self, rank: Rank, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Reply]:
        return rpc.rpc_async(self._workers[rank], function, args=args, timeout=self._timeout_s)

    def finish(self, underway: Underway) -> dict[Rank, Reply]:
        """Wait for all replies. Raises RankLost if ranks are dead."""
        self._num_in_flight = max(0, self._num_in_flight - 1)
        probes = self._probe(underway) if self._seeks_dead else None
        replies, detail = underway.replies()
        if probes is not None:
            detail = self._find_dead(detail, probes)
        if detail:  # a rank that read from one of the dead is served again
            replies = {rank: reply for rank, reply in replies.items() if not _met_a_death(reply)}
        replies = in_rank_order(replies, self._ranks)
        raise_failures(replies)
        if detail:
            raise self._lost(detail, replies)
        if self._has_hosts and not replies.keys() <= self._answered:
            self._link.give_up_silent_hosts()
            self._answered |= replies.keys()
        return replies

    def _lost(self, detail: Mapping[Rank, str], replies: Mapping[Rank, Reply]) -> RankLost:
        """The error that ranks are dead: all of a host's if that was lost, as one failure."""
        lost = {**detail, **(self._link.ask("lost_with", [*detail]) if self._has_hosts else {})}
        return RankLost(lost, replies, lost)

    def _probe(self, underway: Underway) -> Underway:
        """Send a no-op to each rank that may have been killed unnoticed: all whose answer to ``underway`` is no proof.

        The answer to a request that was in flight at the kill is none: the rank may have given it before. Deadlines of
        requests and no-ops begin together, so that any number of ranks that hang cost one. Without a world nothing is
        sent: the next one is not formed while ranks are dead.
        """
        if self._generation < 0:
            return Underway()
        known = {*underway.detail, *(() if self._was_in_flight else underway.futures)}
        return self._ask({rank: (no_op,) for rank in self._ranks if rank not in known})

    def _find_dead(self, dead: Mapping[Rank, str], probes: Underway) -> dict[Rank, str]:
        """The ``dead`` and all ranks that do not answer ``probes``, with the transport's error texts; and those that
        were killed by plan, even if they answer: a stopped rank may be continued from outside."""
        self._seeks_dead = False
        if self._generation < 0:
            return dict(dead)
        dead = {**probes.replies()[1], **dead}
        return {**dead, **dict.fromkeys(self._link.call("survivors", [*dead]), _CONTINUED)}

    def _ask(self, calls: Mapping[Rank, tuple[Any, ...]]) -> Underway:
        """Call a function with arguments on each rank, without waiting."""
        futures: dict[Rank, Future[Any]] = {}
        detail: dict[Rank, str] = {}
        for rank, (function, *args) in calls.items():
            try:
                futures[rank] = self._send(rank, function, tuple(args))
            except RuntimeError as error:
                detail[rank] = words_of(error)
        return Underway(futures, detail)

    def expect_losses(self) -> None:
        is_first = not self._seeks_dead
        self._was_in_flight = self._num_in_flight > 0 or (self._was_in_flight and not is_first)
        self._seeks_dead = True

    def replace(self, lost: Iterable[Rank]) -> None:
        """Let spares take over, or join a new world with the replacements."""
        formation: Formation = self._link.ask("formation")
        self._awaits_spares = formation.keeps_spares
        if formation.generation == self._generation:
            self._let_spares_take_over({rank: formation.takeovers[rank] for rank in lost})
        else:
            self._form(formation)
        if self._seeks_dead and (dead := self._find_dead({}, self._probe(Underway()))):
            raise RankLost(dead, {}, dead)

    def _let_spares_take_over(self, takeovers: Mapping[Rank, Rank]) -> None:
        """Raises RankLost if a spare has died."""
        workers = {rank: group.worker_name(spare, self._generation) for rank, spare in takeovers.items()}
        self._workers = {**self._workers, **workers}
        detail = self._ask({rank: (adopt, rank) for rank in takeovers}).replies()[1]
        if self._seeks_dead:
            detail = self._find_dead(detail, self._probe(Underway(detail=detail)))
        if detail:
            raise self._lost(detail, {})

    def _form(self, formation: Formation) -> None:
        """Join the RPC world of ``formation``, or of the one that replaces it if a spare dies before all have joined.

        Raises RankLost if PS ranks died before all had joined.
        """
        while formation.generation != self._generation:
            try:
                self._join(formation)
            except group.WorldBroken as error:
                dead = self._link.ask("dead")
                if dead:
                    raise RankLost(dead, {}, dead) from error
                broken, formation = formation, self._link.ask("regroup")
                if formation == broken:
                    raise RunFailed(f"the RPC world could not be formed again: {error}") from error

    def _join(self, formation: Formation) -> None:
        self._generation = -1
        self._answered = set()
        self._link.join(formation.place(self._link.rank_context.rank))
        self._generation = formation.generation
        self._workers = {rank: group.worker_name(rank, self._generation) for rank in self._ranks}
        self._link.ask("formed", self._generation)
        for member in formation.members:
            if is_spare(member):
                rpc.rpc_async(group.worker_name(member, self._generation), no_op)  # opens the connection


_CONTINUED = "it answered: something else continued it after the trace had stopped it (SIGCONT, a shell's `fg`)"


def _is_step(requests: Mapping[Rank, Request]) -> bool:
    """Whether these are messages of a step or an evaluation, and not of a recovery."""
    return all(isinstance(request, Exchange | Several) for request in requests.values())


def _met_a_death(reply: Reply) -> bool:
    """Whether the rank could not serve a request because a rank that it reads from is dead."""
    return isinstance(reply, Failure) and isinstance(reply.error, RankLost)
