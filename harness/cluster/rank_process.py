"""The processes of engine ``rpc``: the main functions of the trainer, and of all ranks that serve it.

A request of the trainer calls :meth:`PsProcess.serve` in another rank.
"""

import os
import secrets
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.distributed import rpc

from harness import sources
from harness.cluster import group, wire
from harness.cluster.compute import ComputeServer
from harness.cluster.launcher import RankContext
from harness.cluster.link import ControlLink, Stopped, limit_silence_of_hosts
from harness.cluster.protocol import Cluster, Reply, Request
from harness.cluster.rpc import RpcCluster, words_of
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import HarnessError, RankLost, RunFailed
from harness.core.plans import Rank, is_ps, is_spare
from harness.core.resumable import State
from harness.files import hold_also
from harness.processes import control
from harness.processes.parent_death import end_with_parent
from harness.store import name_files_by

_HEARTBEAT = 0.1  # of the deadline for a sign of life


class PsProcess:
    """The process of PS ranks, of a compute rank, or of a spare, which is neither yet. RPC threads call its methods.

    It serves one request at a time, except that :meth:`read` does not wait for :meth:`serve`. It serves several PS
    ranks if survivors take over the shards of dead ranks (``cluster.on_loss: shrink``).
    """

    def __init__(self, spec: RankSpec, rank_context: RankContext) -> None:
        self._spec = spec
        self._context = rank_context
        self._serving = threading.Lock()
        self._servers: dict[Rank, RankServer | ComputeServer] = {}

    def follow_orders(self, link: ControlLink) -> None:
        """Join one generation after another, in the main thread, until the order to end: it raises Stopped."""
        torch.set_num_threads(1)
        formation = self._context.formation
        order = link.order() if formation is None else (self._context.rank, formation)
        while True:
            if not is_spare(order[0]):
                self.adopt(*order[1].served_by(order[0]))
            try:
                link.join(*order)
            except group.WorldBroken:
                group.leave()
            order = link.order()

    def adopt(self, *ranks: Rank) -> None:
        """Serve ``ranks`` alone from now on; a PS rank that this process does not serve yet has an empty shard."""
        with self._serving:
            for rank in self._servers.keys() - {*ranks}:
                self._servers.pop(rank).close()
            for rank in ranks:
                if rank not in self._servers:
                    spec = self._spec
                    new = RankServer(spec, rank) if is_ps(rank) else ComputeServer(rank, spec.make_share_trainer)
                    self._servers[rank] = new

    def serve(self, rank: Rank, request: Request, workers: Mapping[Rank, str] | None = None) -> Reply:
        """Serve one request to ``rank``.

        ``workers``: the ranks' names in the RPC world, with a request for which this rank asks other ranks.
        """
        with self._serving:
            server = self._servers[rank]
            if workers is not None and isinstance(server, RankServer):
                server.reach = partial(self._reach, workers)
            return server.handle(request)

    def read(self, rank: Rank, request: Request) -> Reply:
        """Serve a read-only request of another rank. It does not wait for :meth:`serve`, as ranks may ask in a ring."""
        return self._servers[rank].handle(request)

    def take(self, rank: Rank, source: str) -> None:
        """Take the state of ``rank`` over from the process that has served it, with the worker name ``source``."""
        state = rpc.rpc_sync(source, wire.on_rank, args=("give", rank), timeout=self._context.options.rpc_timeout_s / 2)
        server = self._servers[rank]
        assert isinstance(server, RankServer)
        server.load(state)

    def give(self, rank: Rank) -> State:
        """The state of ``rank``, which this process serves no more."""
        server = self._servers.pop(rank)
        assert isinstance(server, RankServer)
        return server.state()

    def _reach(self, workers: Mapping[Rank, str], rank: Rank, request: Request) -> Reply:
        """Send a read-only request to another PS rank (:meth:`read`), and return its reply; a ``server.Reach``.

        Raises RankLost if the connection fails, or if no reply comes within half of ``rpc_timeout_s``.
        """
        if rank in self._servers:
            return self.read(rank, request)
        timeout_s = self._context.options.rpc_timeout_s / 2  # the trainer waits twice as long: it hears who hangs
        try:
            reply = rpc.rpc_sync(workers[rank], wire.on_rank, args=("read", rank, request), timeout=timeout_s)
        except RuntimeError as error:  # of the transport: code of the rank that raises replies with a Failure
            raise RankLost([rank], replies={}, detail={rank: words_of(error)}) from error
        limit_silence_of_hosts(self._context)  # the call may have opened a connection, which has no limit yet
        return reply

    def close(self) -> None:
        """Abandon pending saves."""
        for server in self._servers.values():
            server.close()


def _run_rank(rank_context: RankContext, work: Callable[[ControlLink], None]) -> None:
    """Carry out ``work`` in the process of a rank, until the order to stop or the end of the control connection."""
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # Ctrl-Z: a stopped rank would miss deadlines
    parent = os.getppid()
    if rank_context.supervisor_pid is None:
        name_files_by(secrets.token_hex(4))
    try:
        hold_also(rank_context.held, rank_context.supervisor_pid)  # inside the namespace, they cannot be opened
        if rank_context.entrance is not None:
            rank_context.entrance.enter()
            end_with_parent(parent)  # which entering has undone
    except FileNotFoundError:
        if rank_context.supervisor_pid is None:
            raise
        return  # the supervisor has ended
    try:
        with sources.modules_fixed():
            work(ControlLink(rank_context))
    except (Stopped, EOFError, OSError):
        pass  # if the trainer's job has not ended, the supervisor has, or it knows why
    group.leave()


def ps_main(spec: RankSpec, rank_context: RankContext) -> None:
    """Main function of a PS rank, a compute rank or a spare."""
    process = PsProcess(spec, rank_context)
    wire.serve_by(process)
    _run_rank(rank_context, process.follow_orders)
    process.close()


def trainer_main(job: Callable[[Cluster, SupervisorClient], None], rank_context: RankContext) -> None:
    """Main function of a trainer rank: runs ``job``, reports how it ended, and waits for the order to stop."""

    def work(link: ControlLink) -> None:
        link.start_heartbeats(rank_context.options.rpc_timeout_s * _HEARTBEAT)
        link.send(*_carry_out(job, link))
        link.order()

    _run_rank(rank_context, work)


def _carry_out(job: Callable[[Cluster, SupervisorClient], None], link: ControlLink) -> control.Message:
    """Run ``job``; returns the message that reports its end. Raises Stopped, EOFError, ConnectionError."""
    try:
        job(RpcCluster(link), SupervisorClient(link))
    except HarnessError as error:
        return "failed", error
    except (Stopped, EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - the boundary of a rank: the supervisor must hear of any bug
        words = f"{link.rank_context.rank} raised {type(error).__name__}: {error}"
        return "failed", RunFailed(f"{words}\n{traceback.format_exc()}")
    return ("finished",)
