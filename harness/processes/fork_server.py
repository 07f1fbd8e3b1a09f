"""The fork server of this process. It may end or be stopped, so every wait for it has a deadline."""

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
        """Kill it, since it has not done ``what`` within ``timeout_s``. A no-op if it has ended."""
        if self.has_ended():
            return
        self._why = f"was killed, since it took more than {timeout_s:g} s to {what}"
        self.send(signal.SIGKILL)

    @property
    def is_given_up(self) -> bool:
        """Whether it was killed since it was late."""
        return bool(self._why)

    def failure(self) -> RunFailed:
        """The error that says how it ended."""
        return RunFailed(f"the fork server (pid {self.pid}) {self._why or self._end()}")

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it; None if it runs, has ended by itself, or multiprocessing has reaped it."""
        code = self.exit_code
        return signal.Signals(-code).name if code is not None and code < 0 else None

    def _end(self) -> str:
        killed_by = self.killed_by
        return "has ended" if killed_by is None else f"was ended by {killed_by}"


_current: ForkServer | None = None


def current() -> ForkServer | None:
    """The fork server of this process; None before it starts, and where this Python does not tell its process id."""
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

    Raises RunFailed if that does not answer within ``timeout_s``, longer at first; it is then killed, since it may be
    stopped. Raises OSError or EOFError if it could not fork.
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
