"""A rank's process whose end is noted."""

from collections.abc import Callable

from harness.cluster.launcher import RankProcess


class Noted:
    """A process behind another one's methods; ``note`` is told its pid before it is killed."""

    def __init__(self, inner: RankProcess, note: Callable[[int], object] = lambda _: None) -> None:
        self.inner, self.pid, self.host, self._note = inner, inner.pid, inner.host, note

    @property
    def exitcode(self) -> int | None:
        """As of the inner one."""
        return self.inner.exitcode

    def kill(self) -> None:
        """Note it, and do it."""
        self._note(self.pid)
        self.inner.kill()

    def pause(self) -> None:
        """As the inner one."""
        self.inner.pause()

    def resume(self) -> None:
        """As the inner one."""
        self.inner.resume()

    @property
    def is_paused(self) -> bool:
        """As of the inner one."""
        return self.inner.is_paused

    def cut_off(self) -> None:
        """As the inner one."""
        self.inner.cut_off()

    @property
    def cut_problem(self) -> str | None:
        """As of the inner one."""
        return self.inner.cut_problem

    def join(self, timeout_s: float) -> None:
        """As the inner one."""
        self.inner.join(timeout_s)
