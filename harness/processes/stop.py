"""The request to a run to stop at its next boundary, made by a signal handler."""

import os


class StopRequest:
    """Is set once, and stays set. Can be waited for, as a connection can."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        self.is_set = False

    def set(self) -> None:
        """Ask. May be called by a signal handler."""
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
