"""A request, which a signal handler sets, that a run stop at its next boundary between two steps."""

import os


class StopRequest:
    """A request to stop, set at most once. A thread can wait for it by ``select``, as for a connection."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        self.is_set = False

    def set(self) -> None:
        """Set the request. A signal handler may call this."""
        if not self.is_set:
            self.is_set = True
            os.write(self._writable, b"1")

    def fileno(self) -> int:
        """A file descriptor that is readable once the request is set."""
        return self._readable

    def close(self) -> None:
        """Release the descriptors; :attr:`is_set` stays."""
        os.close(self._readable)
        os.close(self._writable)
