"""The processes of a world by rank: started and watched by a launcher, stopped, killed and reaped."""

import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from harness.cluster.launcher import END_S, Launcher, Main, RankContext
from harness.core.errors import RunFailed
from harness.core.events import Machine
from harness.core.plans import Rank
from harness.processes.forked import ForkedProcess

_LOOK_S = 0.0005  # between two checks whether a process has stopped
_STOP_S = 2.0  # from the order to stop to SIGKILL
_DYING_S = 0.1  # longest time from the end of connections to that of their processes


class Processes:
    """The process of each rank and spare. The launcher is closed with them."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self._by_rank: dict[Rank, ForkedProcess] = {}

    def __getitem__(self, rank: Rank) -> ForkedProcess:
        return self._by_rank[rank]

    @property
    def pids(self) -> dict[Rank, int]:
        return {rank: process.pid for rank, process in self._by_rank.items()}

    @property
    def hosts(self) -> dict[Rank, str]:
        """Host of each rank and spare; empty with a launcher that starts all processes here."""
        return {rank: process.host for rank, process in self._by_rank.items() if process.host is not None}

    def await_ends(self, ranks: Iterable[Rank]) -> None:
        """Wait at most 0.1 s for the ends of all ``ranks``, and of a host that gives no answer until it is lost."""
        ends_s = time.monotonic() + _DYING_S
        for rank in ranks:
            if rank in self._by_rank:
                self[rank].join(max(0.0, ends_s - time.monotonic()))

    @property
    def on_lost_hosts(self) -> dict[Rank, str]:
        """All ranks and spares whose host was lost, and why each ended, in words."""
        lost = self.launcher.lost_hosts()
        servers = {rank: process.server for rank, process in self._by_rank.items()} if lost else {}
        return {
            rank: f"its host {server.host} was lost: {server.lost}"
            for rank, server in servers.items()
            if server.lost is not None
        }

    def spawn(self, context: RankContext, main: Main) -> None:
        """Start the process of a rank. Raises RunFailed."""
        self._by_rank[context.rank] = self.launcher.spawn(context, main)

    def has_ended(self, rank: Rank) -> bool:
        """Whether the process of ``rank`` has ended, or was forgotten after its end."""
        return rank not in self._by_rank or self[rank].exitcode is not None

    def kill(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Send SIGKILL to all of ``ranks``, then reap them. Returns, by rank, pid, signal, exit code and host, if any.

        Raises RunFailed if a process has not ended ten seconds later.
        """
        for rank in ranks:
            self._by_rank[rank].kill()
        return {rank: self._reap(rank) for rank in ranks}

    def _reap(self, rank: Rank) -> Machine:
        process = self[rank]
        process.join(END_S)
        if process.exitcode is None:
            raise RunFailed(f"{rank} (pid {process.pid}) did not end within {END_S:g} s of SIGKILL")
        host = {} if process.host is None else {"host": process.host}
        return {"pid": process.pid, "signal": int(signal.SIGKILL), "exitcode": process.exitcode, **host}

    def hang(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Stop all of ``ranks`` by SIGSTOP; returns each one's pid and signal. Raises RunFailed."""
        self._pause(ranks)
        return {rank: {"pid": self[rank].pid, "signal": int(signal.SIGSTOP)} for rank in ranks}

    def _pause(self, ranks: Sequence[Rank]) -> None:
        """Send SIGSTOP to ``ranks``, and wait until no thread of them runs.

        A process that still runs gets the signal again, since something else may have continued it. Raises RunFailed if
        one runs after ``END_S`` seconds.
        """
        for rank in ranks:
            self[rank].pause()
        ends_s = time.monotonic() + END_S
        while running := [rank for rank in ranks if not self[rank].is_paused]:
            if time.monotonic() > ends_s:
                raise RunFailed(f"{running[0]} (pid {self[running[0]].pid}) did not stop within {END_S:g} s of SIGSTOP")
            time.sleep(_LOOK_S)
            for rank in running:
                self[rank].pause()

    def end(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Reap all of ``ranks``; kill those that do not end within 0.1 s. Returns pid and action of each one killed."""
        self.await_ends(ranks)
        killed = self.kill([rank for rank in ranks if not self.has_ended(rank)])
        return {rank: {"pid": machine["pid"], "action": "killed"} for rank, machine in killed.items()}

    def rename(self, old: Rank, new: Rank) -> None:
        self._by_rank[new] = self._by_rank.pop(old)

    def host(self, hosted: Mapping[Rank, Rank]) -> None:
        """Let ranks share a process: by rank in ``hosted``, the rank whose process serves it too."""
        for rank, node in hosted.items():
            self._by_rank[rank] = self._by_rank[node]

    def forget(self, rank: Rank) -> None:
        del self._by_rank[rank]

    def close(self) -> None:
        """Wait ``_STOP_S`` for processes that were ordered to stop; kill the others, and wait ``END_S`` for them."""
        self._await_all(_STOP_S)
        for process in self._by_rank.values():
            process.kill()
        self._await_all(END_S)  # one that still lives then is left: it ends when the kernel lets it
        self.launcher.close()

    def _await_all(self, timeout_s: float) -> None:
        ends_s = time.monotonic() + timeout_s
        for process in self._by_rank.values():
            process.join(max(0.0, ends_s - time.monotonic()))
