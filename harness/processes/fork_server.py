"""The fork server of this process. It may die or be stopped, so every wait for it has a deadline."""

import signal
import threading
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess

from harness.core.errors import RunFailed
from harness.processes.pidfd import Pidfd

END_S = 1.0
"""Between the first sign of the end of a process and its end."""
_FIRST_ANSWER_S = 300.0  # a new server imports everything before it answers, and may compile (20 s when idle)


class ForkServer(Pidfd):
    """A running fork server."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.has_answered = False
        self._why = ""

    def give_up(self, timeout_s: float, what: str) -> None:
        """Kill the server because it did not do ``what`` within ``timeout_s``. A no-op if it has ended."""
        if self.has_ended():
            return
        self._why = f"was killed, since it took more than {timeout_s:g} s to {what}"
        self.send(signal.SIGKILL)

    @property
    def is_given_up(self) -> bool:
        """Whether :meth:`give_up` has killed the server."""
        return bool(self._why)

    def failure(self) -> RunFailed:
        """A RunFailed that says how the server ended."""
        return RunFailed(f"the fork server (pid {self.pid}) {self._why or self._end()}")

    @property
    def killed_by(self) -> str | None:
        """Name of the signal that killed the server; None if it runs, ended by itself, or was reaped elsewhere."""
        code = self.exit_code
        return signal.Signals(-code).name if code is not None and code < 0 else None

    def _end(self) -> str:
        killed_by = self.killed_by
        return "has ended" if killed_by is None else f"was ended by {killed_by}"


_current: ForkServer | None = None


def current() -> ForkServer | None:
    """The fork server of this process; None before it starts, and if this Python version hides its process id."""
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

    Raises RunFailed if the server does not answer within ``timeout_s`` (300 s for its first answer); it is then killed,
    since a signal may have stopped it. Raises OSError or EOFError if it could not fork.
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
        if server.is_given_up:
            raise server.failure() from error
        raise
    finally:
        deadline.cancel()
    server.has_answered = True
