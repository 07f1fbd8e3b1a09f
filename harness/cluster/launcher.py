"""The interface of launchers, which start, watch and end the processes of ranks; and the launcher of this machine.

The table of launchers is in ``harness/run/assemble.py``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness.cluster.group import Formation
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed
from harness.core.plans import Rank
from harness.processes.forked import END_S, ForkedProcess, ForkServer, current, start
from harness.processes.network import Entrance
from harness.processes.spawn import fork_server


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The parameters with which the process of a rank starts; can be pickled.

    Attributes:
        rank: its name at the start; a spare may later take over the name of a dead rank.
        formation: the first generation to join; None for a process that waits for an order.
        supervisor_pid: the process on the rank's machine, supervisor or agent, whose end must also end the rank.
        port, authkey: of the supervisor's control channel, on ``options.host``.
        dead_after_s: seconds of silence after which another host counts as lost; None if all ranks are on one machine.
        entrance: to the private network of the ranks; None without one.
        held: the folders that the process ``supervisor_pid`` holds, and so the rank (``harness.files.hold_also``).
        parent_pid: the fork server that forks this process; None until the launcher sets it, and if its id is unknown.
    """

    rank: Rank
    formation: Formation | None
    supervisor_pid: int
    port: int
    authkey: bytes
    options: ClusterConfig
    dead_after_s: float | None = None
    entrance: Entrance | None = None
    held: Mapping[int, str] = field(default_factory=dict)
    parent_pid: int | None = None


Main = Callable[[RankContext], None]
"""Main function of a rank's process. It can be pickled."""


class RankProcess(Protocol):
    """A handle with which the supervisor watches and kills the process of one rank."""

    @property
    def pid(self) -> int:
        """Process id, on the host of the process."""
        ...

    @property
    def host(self) -> str | None:
        """Name of the host of the process; None with a launcher that starts all processes here."""
        ...

    @property
    def exitcode(self) -> int | None:
        """Exit code, or minus the number of the signal that ended the process; None while it runs.

        ``ORPHANED`` if its host was lost before its end was seen. Raises RunFailed if the code cannot be known any
        more.
        """
        ...

    def kill(self) -> None:
        """Send SIGKILL without waiting. A no-op if the process has ended."""
        ...

    def pause(self) -> None:
        """Send SIGSTOP without waiting. A no-op if the process has ended."""
        ...

    def resume(self) -> None:
        """Send SIGCONT. A no-op if the process has ended."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether no thread of the process runs, because it is stopped or has ended."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the process to end; :attr:`exitcode` is None if it still runs.

        While its host is silent, the wait goes on until the host answers or counts as lost. Raises RunFailed if the
        process has ended and its exit code cannot be known any more.
        """
        ...


class Launcher(Protocol):
    """Starts the processes of ranks. Used by one thread of the supervisor.

    Attributes:
        dead_after_s: seconds of silence after which another host is lost; None if all processes are on this machine.
    """

    dead_after_s: float | None = None

    def lost_hosts(self) -> Mapping[str, str]:
        """The lost hosts, whose processes all count as ended, and the reason for each."""
        return {}

    def end_hosts(self, hosts: Sequence[int]) -> None:
        """Kill all processes of the run on ``hosts``, indices into ``cluster.hosts``; wait until the hosts are lost.

        By default a no-op, for a launcher that starts all processes here: its hosts are names, and the caller kills
        their ranks itself. Raises RunFailed.
        """

    def spawn(self, context: RankContext, main: Main) -> RankProcess:
        """Start ``main(context)`` in a process that ends when the supervisor ends. Raises RunFailed."""
        ...

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        """Objects for ``multiprocessing.connection.wait``; one is ready once one of ``processes`` has ended.

        One is also ready when :meth:`check` would raise.
        """
        ...

    def check(self) -> None:
        """Raise RunFailed if processes cannot be started or watched any more."""
        ...

    def close(self) -> None:
        """Release the launcher's own resources. Called after all its processes have ended."""


class ForkLauncher(Launcher):
    """Forks ranks on this machine from a server that has torch loaded: 10 ms instead of 1.3 s of import.

    If the server ends, the kernel ends its ranks, and the run fails.
    """

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def spawn(self, context: RankContext, main: Main) -> ForkedProcess:
        self.check()
        forks = fork_server()
        self._server = current()
        context = replace(context, parent_pid=self._server and self._server.pid)
        process = forks.Process(target=main, args=(context,), name=context.rank)
        try:
            start(process, context.options.join_timeout_s)
        except (OSError, EOFError) as error:  # the fork server has ended: killed, or it failed to fork
            if self._server is not None and self._server.has_ended(END_S) and self._server.killed_by:
                raise self._server.failure() from error
            raise RunFailed(f"{context.rank} could not be started: {error}; check memory and limits") from error
        return ForkedProcess(process, self._server)

    def watched(self, processes: Iterable[RankProcess]) -> list[Any]:
        sentinels = [process.sentinel for process in processes if isinstance(process, ForkedProcess)]
        return sentinels if self._server is None else [*sentinels, self._server]

    def check(self) -> None:
        if self._server is not None and self._server.has_ended():
            raise self._server.failure()
