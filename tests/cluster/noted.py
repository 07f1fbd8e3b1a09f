"""Processes of ranks behind others, which note or change what the supervisor does to them."""

from collections.abc import Callable, Iterable
from typing import Any

from harness.cluster.launcher import ForkLauncher, Main, RankContext


class Noted:
    """A process behind another one's methods; ``note`` is told its pid before it is killed."""

    def __init__(self, inner: Any, note: Callable[[int], object] = lambda _: None) -> None:
        self.inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def kill(self) -> None:
        """Note it, and do it."""
        self._note(self.pid)
        self.inner.kill()


class NotingLauncher(ForkLauncher):
    """Forks processes behind ``noted(process, context)``."""

    def __init__(self, noted: Callable[[Any, RankContext], Noted]) -> None:
        super().__init__()
        self._noted = noted

    def spawn(self, context: RankContext, main: Main) -> Any:
        """Fork one."""
        return self._noted(super().spawn(context, main), context)

    def watched(self, processes: Iterable[Any]) -> list[Any]:
        """Of the innermost ones."""
        return super().watched(map(_innermost, processes))


def _innermost(process: Any) -> Any:
    return _innermost(process.inner) if isinstance(process, Noted) else process
