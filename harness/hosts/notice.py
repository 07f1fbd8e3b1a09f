"""A notice by other threads that something has changed, for a thread that waits for file descriptors."""

import os
from contextlib import suppress
from threading import Lock


class Notice:
    """Is given by any thread, and taken by the one that waits for it. After :meth:`close` it may be given to nobody."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._giving = Lock()  # a descriptor that was closed meanwhile may be another file's

    def give(self) -> None:
        """Let who waits go on."""
        with self._giving:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> None:
        """Be ready for the next one."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def fileno(self) -> int:
        """A file descriptor that is readable once the notice is given, until it is taken."""
        return self._fd

    def close(self) -> None:
        """Release the descriptor."""
        with self._giving:
            fd, self._fd = self._fd, -1
        os.close(fd)
