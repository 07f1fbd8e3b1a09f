"""A process of this machine, held by its pidfd: a later process with the same pid is never mistaken for it."""

import os
import select
import signal
import weakref
from contextlib import suppress


class Pidfd:
    """The process ``pid``, also if it has ended but is not reaped. Raises ProcessLookupError if there is none."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self.fd)

    def fileno(self) -> int:
        return self.fd

    def has_ended(self, timeout_s: float | None = 0.0) -> bool:
        """Whether the process has ended or ends within ``timeout_s`` (None: wait without limit)."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1e3 * max(0.0, timeout_s)))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process; a no-op if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, or minus the number of the signal that ended it; does not reap it.

        None if it runs, has been reaped, or is no child of this process.
        """
        try:
            status = os.waitid(os.P_PIDFD, self.fd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
