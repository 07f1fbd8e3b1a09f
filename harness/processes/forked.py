"""The fork server of this process, and handles on the processes that it forked: their end, signals and exit code.

The server may die or be stopped, so every wait for it has a deadline.
"""

import signal
import threading
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.core.errors import RunFailed
from harness.processes.pidfd import Pidfd

END_S = 1.0
"""Longest time, in seconds, from the first sign of the end of a process to its end."""
_UNTOLD = 255  # multiprocessing's exit code of a process whose fork server ended first
_TELL_S = 10.0  # for a fork server to report how a process ended
_FIRST_ANSWER_S = 300.0  # a new server imports everything before it answers, and may compile (20 s when idle)


def signal_name(number: int) -> str:
    """Name of a signal, ``signal 35`` for one of the real-time signals without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ForkServer(Pidfd):
    """A running fork server.

    Attributes:
        has_answered: whether it has started a process.
        given_up: why :meth:`give_up` has killed it, in words; empty if it has not.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.has_answered = False
        self.given_up = ""

    def give_up(self, timeout_s: float, what: str) -> None:
        """Kill the server because it did not do ``what`` within ``timeout_s``. A no-op if it has ended."""
        if self.has_ended():
            return
        self.given_up = f"was killed, since it took more than {timeout_s:g} s to {what}"
        self.send(signal.SIGKILL)

    def failure(self) -> RunFailed:
        end = f"was ended by {self.killed_by}" if self.killed_by else "has ended"
        return RunFailed(f"the fork server (pid {self.pid}) {self.given_up or end}")

    @property
    def killed_by(self) -> str | None:
        """Name of the signal that killed the server; None if it runs, ended by itself, or was reaped elsewhere."""
        code = self.exit_code
        return signal_name(-code) if code is not None and code < 0 else None


_current: ForkServer | None = None


def current() -> ForkServer | None:
    """The fork server of this process; None before it starts, and where Python's version hides its process id."""
    global _current  # noqa: PLW0603 - as multiprocessing's own, one for each process
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is None:
        return None
    if _current is None or _current.pid != pid:
        with suppress(ProcessLookupError):
            _current = ForkServer(pid)
    return _current


def start(process: BaseProcess, timeout_s: float) -> None:
    """Start ``process`` by the running fork server.

    Raises RunFailed if the server does not answer within ``timeout_s`` (at least 300 s for its first answer), and kills
    it then, since a signal may have stopped it. Raises OSError or EOFError if the server has ended or could not fork.
    """
    server = current()
    if server is None:
        process.start()
        return
    if not server.has_answered:
        timeout_s = max(timeout_s, _FIRST_ANSWER_S)
    deadline = threading.Timer(timeout_s, server.give_up, (timeout_s, f"start {process.name}"))
    deadline.daemon = True
    deadline.start()
    try:
        process.start()
    except (OSError, EOFError) as error:
        if server.given_up:
            raise server.failure() from error
        raise
    finally:
        deadline.cancel()
    server.has_answered = True


class ForkedProcess:
    """A process that a fork server forked on this machine.

    Its end is detected by a pidfd, even after the server's end. The exit code is known only to the server, its parent.

    Args:
        server: the fork server; None where Python's version hides its process id.
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
        """Exit code, or minus the number of the signal that ended the process; None until the server has reported it.

        Raises RunFailed if the server has ended before it reported: the exit code is then unknown.
        """
        if not self.has_ended():
            return None
        self._process.join(END_S)  # the server tells how a moment later
        if self._process.exitcode == _UNTOLD and self._server is not None and self._server.has_ended(END_S):
            raise self._server.failure()
        return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """File descriptor, readable once the server has reported the end of the process, or has ended itself."""
        return self._process.sentinel

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; a no-op if it has ended."""
        if self._handle is not None:
            self._handle.send(number)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    @property
    def is_paused(self) -> bool:
        return self.has_ended() or _states(self.pid, "task/*/stat") <= set("TtZX")

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process. False if it has ended, or a debugger has stopped it."""
        return not self.has_ended() and _states(self.pid, "stat") == {"T"}

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
