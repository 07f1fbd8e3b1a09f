"""The supervisor's handle on a process that a fork server forked on this machine: its end, signals and exit code."""

import signal
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.processes import partition
from harness.processes.fork_server import END_S, ForkServer
from harness.processes.pidfd import Pidfd

_UNTOLD = 255  # multiprocessing's exit code of a process whose fork server ended first
_TELL_S = 10.0  # for a fork server to report how a process ended


class ForkedProcess:
    """A process that a fork server forked on this machine.

    Its end is detected by a pidfd, even after the server's end; the exit code is known only to the server, its parent.

    Args:
        server: the fork server, its parent; None where this Python does not give its process id.
    """

    host: None = None

    def __init__(self, process: BaseProcess, server: ForkServer | None) -> None:
        assert process.pid is not None, "it was started"
        self._process = process
        self._server = server
        self.pid = process.pid
        try:
            self._handle = Pidfd(self.pid)
        except ProcessLookupError:  # it has ended and been reaped
            self._handle = None

    @property
    def exitcode(self) -> int | None:
        """Exit code, or minus the number of the signal that ended the process; None while it runs.

        Raises RunFailed if the server has ended: the exit code is then unknown.
        """
        if not self.has_ended():
            return None
        self._process.join(END_S)  # the server tells how a moment later
        if self._process.exitcode == _UNTOLD and self._server is not None and self._server.has_ended(END_S):
            raise self._server.failure()
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """File descriptor that is readable once the server has reported the end of the process, or has ended itself."""
        return self._process.sentinel

    def kill(self) -> None:
        """Send SIGKILL to the process; a no-op if it has ended."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; a no-op if it has ended."""
        if self._handle is not None:
            self._handle.send(number)

    def pause(self) -> None:
        """Send SIGSTOP without waiting; a no-op if the process has ended."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT; a no-op if the process has ended."""
        self.send(signal.SIGCONT)

    @property
    def is_paused(self) -> bool:
        """Whether no thread of the process runs: the process is stopped, or has ended."""
        return self.has_ended() or _states(self.pid, "task/*/stat") <= set("TtZX")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal holds the process stopped. False if it has ended, or a debugger holds it."""
        return not self.has_ended() and _states(self.pid, "stat") == {"T"}

    def cut_off(self) -> None:
        """Cut the process, which must be stopped, off the network; a no-op if it has ended. Raises CannotCutOff."""
        if self._handle is not None:
            partition.cut_off(self._handle)

    @property
    def cut_problem(self) -> str | None:
        """Why :meth:`cut_off` would fail, in one line, or None. The process must have a TCP socket."""
        return None if self._handle is None else partition.problem(self._handle)

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the process to end.

        Raises RunFailed if the process has ended and the fork server does not report its exit code. The server is then
        killed: a signal may have stopped it.
        """
        if not self.has_ended(timeout_s):
            return
        self._process.join(_TELL_S)
        if self._process.exitcode is None and self._server is not None:
            self._server.give_up(_TELL_S, f"tell how {self._process.name} ended")
            raise self._server.failure()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether the process ends within ``timeout_s``."""
        return self._handle is None or self._handle.has_ended(timeout_s)


def _states(pid: int, pattern: str) -> set[str]:
    """The kernel's states of a process or its threads, a letter each ("R", "S", "T", …: ``man 5 proc``).

    ``pattern``: of the stat files below ``/proc/PID`` to read. "?" alone if one of them ended meanwhile.
    """
    try:
        stats = [file.read_text() for file in Path(f"/proc/{pid}").glob(pattern)]
    except OSError:
        return {"?"}
    return {stat.rpartition(")")[2].split()[0] for stat in stats}
