"""The processes of engine ``rpc``: the main functions of PS and trainer ranks, and the trainer's cluster client.

A request of the trainer calls ``serve`` in the PS rank: one message, one reply.
"""

import dataclasses
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from harness.cluster import control, group, wire
from harness.cluster.launcher import RankContext
from harness.cluster.leash import hold_leash, ignore_interrupts
from harness.cluster.protocol import (
    Cluster,
    Copy,
    Exchange,
    Push,
    Reply,
    Request,
    Several,
    SupervisorClient,
    WriteBack,
    in_rank_order,
    raise_failures,
)
from harness.cluster.server import RankServer, RankSpec
from harness.core.errors import HarnessError, RankLost, RunFailed
from harness.core.plans import Rank, ps_rank
from harness.store import Manifest


class Stopped(Exception):
    """The supervisor ordered this rank to end."""


class ControlLink:
    """A rank's end of the control channel. Used by the rank's main thread alone."""

    def __init__(self, rank_context: RankContext) -> None:
        self.rank_context = rank_context
        self._timeout_s = rank_context.options.join_timeout_s
        self._connection: Connection = control.connect(
            rank_context.host, rank_context.port, rank_context.authkey, self._timeout_s
        )
        self._world: object = None  # keeps a generation's store alive
        self._orders: list[control.Message] = []
        self.send("hello", rank_context.rank, os.getpid(), rank_context.generation)

    def send(self, *message: Any) -> None:
        """Send a message without waiting for a reply."""
        self._connection.send(message)

    def order(self) -> control.Message:
        """Wait without limit for the next order of the supervisor, and return it."""
        return self._orders.pop(0) if self._orders else self._connection.recv()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the supervisor and wait for its result."""
        self.send("call", method, args)
        message = self._connection.recv()
        while message[0] in ("value", "broken"):  # late answers about an abandoned generation
            message = self._connection.recv()
        if message[0] == "stop":
            raise Stopped
        kind, value, error = message
        assert kind == "result", kind
        if error is not None:
            raise error
        return value

    def join(self, generation: int) -> None:
        """Leave the present world and join ``generation``. Raises WorldBroken."""
        group.leave()
        rank_context = self.rank_context
        self._world = group.join(
            rank_context.rank,
            rank_context.index,
            generation,
            rank_context.world_size,
            ask=lambda kind, *args: self._rendezvous(kind, generation, *args),
            options=rank_context.options,
        )

    def _rendezvous(self, kind: str, generation: int, *args: Any) -> bytes:
        self.send(kind, generation, *args)
        if kind == "set":
            return b""
        while self._connection.poll(self._timeout_s):
            message = self._connection.recv()
            if message[0] not in ("value", "broken"):
                self._orders.append(message)
            elif message[1] != generation:
                continue  # a late answer about an abandoned generation
            elif message[0] == "value":
                return message[2]
            raise group.WorldBroken(
                f"generation {generation} of the RPC world was abandoned: a rank died before all had joined"
            )
        raise group.WorldIncomplete(
            f"generation {generation} of the RPC world: expected all ranks to join within {self._timeout_s:g} s"
        )


# The server of this process. RPC calls a module-level function, which finds its rank here.
_server: RankServer | None = None
_serving = threading.Lock()
_timeout_s: float | None = None  # of requests to other ranks


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
        return rpc.rpc_sync(workers[rank], serve_rank, args=(request,), timeout=_timeout_s)
    except RuntimeError as error:
        raise RankLost([rank], {}, {rank: _words(error)}) from error


def serve_rank(request: Request) -> Reply:
    """Serve a request of another rank, which only reads. It waits for no other request, so ranks may ask in a ring."""
    assert _server is not None, "not a PS rank"
    return _server.handle(request)


def ps_main(rank_context: RankContext, spec: RankSpec) -> None:
    """Main function of a PS rank: RPC threads serve while this thread waits for orders."""
    global _server, _timeout_s  # noqa: PLW0603 - see above
    ignore_interrupts()
    hold_leash(rank_context.supervisor_pid)
    torch.set_num_threads(1)
    _server = RankServer(spec, rank_context.rank)
    _timeout_s = rank_context.options.rpc_timeout_s
    wire.serve_by(serve)
    try:
        link = ControlLink(rank_context)
        order: control.Message = ("join", rank_context.generation)
        while order[0] == "join":
            try:
                link.join(order[1])
            except group.WorldBroken:
                group.leave()
            order = link.order()
            while order[0] not in ("join", "stop"):
                order = link.order()
    except (EOFError, OSError):
        pass  # the supervisor is gone, and so is the world
    _server.close()
    group.leave()


def trainer_main(rank_context: RankContext, job: Callable[[Cluster, SupervisorClient], None]) -> None:
    """Main function of a trainer rank: runs ``job`` and reports how it ended."""
    ignore_interrupts()
    hold_leash(rank_context.supervisor_pid)
    link = ControlLink(rank_context)
    try:
        cluster = RpcCluster(link)
        job(cluster, RemoteSupervisor(link))
        link.send("finished")
        link.order()  # "stop"
    except HarnessError as error:
        link.send("failed", error)
        link.order()
    except (Stopped, EOFError, ConnectionError):
        pass  # the supervisor ended the run, and has the reason
    except Exception as error:  # noqa: BLE001 - the boundary of a rank: the supervisor must hear of any bug
        words = f"{rank_context.rank} raised {type(error).__name__}: {error}"
        link.send("failed", RunFailed(f"{words}\n{traceback.format_exc()}"))
        link.order()
    group.leave()


class RemoteSupervisor:
    """The supervisor, over the control channel."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    def record(self, event: Any) -> None:
        """Append an event to the record, in the order of calls."""
        self._link.send("tell", "record", {"event": event})

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest."""
        self._link.call("commit", manifest)

    def status(self, **values: Any) -> None:
        """Report the progress of the run: fields of ``RunStatus``."""
        self._link.send("tell", "status", values)


@dataclass(frozen=True)
class Underway:
    """Requests in flight, and ranks to which sending failed, with the transport's error texts."""

    futures: dict[Rank, Future[Reply] | tuple[Future[Reply], ...]]
    detail: dict[Rank, str]


class RpcCluster:
    """The :class:`harness.cluster.protocol.Cluster` of engine ``rpc``: calls PS ranks over torch RPC."""

    overlaps = True

    def __init__(self, link: ControlLink) -> None:
        self._link = link
        self._ranks = tuple(ps_rank(k) for k in range(link.rank_context.num_ps))
        self._timeout_s = link.rank_context.options.rpc_timeout_s
        self._generation = link.rank_context.generation
        try:
            self._link.join(self._generation)
        except group.WorldBroken as error:
            dead = ", ".join(self._link.call("dead")) or "no rank"
            raise RunFailed(f"the first RPC world was not formed: {error}; dead ranks: {dead}") from error

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All PS ranks, in order."""
        return self._ranks

    def call(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply]:
        """See :class:`harness.cluster.protocol.Cluster`."""
        return self.finish(self.start(requests))

    def start(self, requests: Mapping[Rank, Request]) -> Underway:
        """Send all requests at once, without waiting."""
        futures: dict[Rank, Future[Reply] | tuple[Future[Reply], ...]] = {}
        detail: dict[Rank, str] = {}
        for rank, request in requests.items():
            parts = request.exchanges if isinstance(request, Several) else (request,)
            calls = [self._call(part) for part in parts]  # an error here is no rank's death
            try:
                sent = tuple(self._send(rank, *call) for call in calls)
            except RuntimeError as error:
                detail[rank] = _words(error)
            else:
                futures[rank] = sent if isinstance(request, Several) else sent[0]
        return Underway(futures, detail)

    def _call(self, request: Request) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function to call on a rank to serve ``request``, and its arguments."""
        if wire.is_plain(request):
            return wire.serve_words, (wire.words_of(request),)
        if isinstance(request, Copy):
            return serve_copy, (request, {rank: self._worker(rank) for rank in self._ranks})
        return serve, (packed(request),)

    def _worker(self, rank: Rank) -> str:
        return group.worker_name(rank, self._generation)

    def _send(self, rank: Rank, function: Callable[..., Any], args: tuple[Any, ...]) -> Future[Reply]:
        return rpc.rpc_async(self._worker(rank), function, args=args, timeout=self._timeout_s)

    def finish(self, underway: Underway) -> dict[Rank, Reply]:
        """Wait for all replies. Raises RankLost if ranks are dead."""
        detail = dict(underway.detail)
        replies: dict[Rank, Reply] = {}
        for rank, future in underway.futures.items():
            # A rank's own exceptions travel as Failure values, so an error raised here is the transport's:
            # end of file, broken pipe, connection refused, or no answer within the timeout.
            try:
                replies[rank] = (
                    tuple(wire.reply_of(each.wait()) for each in future)
                    if isinstance(future, tuple)
                    else wire.reply_of(future.wait())
                )
            except RuntimeError as error:
                detail[rank] = _words(error)
        replies = in_rank_order(replies, self._ranks)
        raise_failures(replies)
        if detail:
            raise RankLost(detail, replies, detail)
        return replies

    def kill_planned(self, step: int, samples: int) -> float | None:
        """See :class:`harness.cluster.protocol.Cluster`; waits until the killed ranks are reaped."""
        return self._link.call("kill_planned", step, samples)

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Have the supervisor start replacements, and join the new world with them."""
        self._generation = self._link.call("replace", dict(lost), step, samples, seconds)
        try:
            self._link.join(self._generation)
        except group.WorldBroken as error:
            dead = self._link.call("absent" if isinstance(error, group.WorldIncomplete) else "dead")
            if not dead:
                raise RunFailed(f"step {step}: the RPC world could not be formed again: {error}") from error
            raise RankLost(dead, {}, dict.fromkeys(dead, str(error))) from error


def packed(request: Request) -> Request:
    """``request`` with its row tensors copied to contiguous memory of their own.

    A rank's rows are a slice of those of all ranks. Of a slice that is more than half of a tensor torch sends the whole
    tensor (``cloneSparseTensors`` of its rpc), so that with two ranks one of them always got the other's rows, too.
    """
    if not isinstance(request, Exchange):
        return request
    pushes = {"push": request.push, "replica": request.replica}
    owned = {name: _with_own_memory(push) for name, push in pushes.items() if push is not None}
    request = _with_own_memory(request)
    if all(push is pushes[name] for name, push in owned.items()):
        return request
    return dataclasses.replace(request, **owned)


_Sent = TypeVar("_Sent", bound=Exchange | Push | WriteBack)


def _with_own_memory(message: _Sent) -> _Sent:
    slices = {
        name: value.clone()
        for name, value in vars(message).items()
        if isinstance(value, Tensor) and value.untyped_storage().nbytes() != value.nbytes
    }
    return dataclasses.replace(message, **slices) if slices else message


def _words(error: RuntimeError) -> str:
    return str(error).splitlines()[0][:200]
