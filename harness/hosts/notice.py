"""A file descriptor by which any thread wakes a thread that waits in ``select``."""

import os
from contextlib import suppress
from threading import Lock


class Notice:
    """An eventfd that any thread makes readable, and that one thread waits for, clears and closes.

    :meth:`give` after :meth:`close` is a no-op, and never writes to a file that has got the same descriptor since.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._giving = Lock()

    def give(self) -> None:
        """Wake the waiting thread: make the descriptor readable."""
        with self._giving:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> None:
        """Clear the wake-up: make the descriptor unreadable. A no-op if it is not readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def fileno(self) -> int:
        """The file descriptor, readable from :meth:`give` to :meth:`take`; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Release the descriptor."""
        with self._giving:
            fd, self._fd = self._fd, -1
        os.close(fd)
