"""Who takes the events of a run: the contract, and silence as a value."""

from typing import Protocol

from harness.core.events import Event


class EventSink(Protocol):
    """Takes the events of one run, in order."""

    def record(self, event: Event) -> None:
        """Take the next event."""
        ...

    def close(self, ok: bool, reason: str | None = None) -> None:
        """No more events. ``reason`` says why a run is not ``ok``. May be called again; the first call counts."""
        ...


class NullSink:
    """For runs whose record nobody keeps."""

    def record(self, event: Event) -> None:
        """Ignore it."""

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Nothing to close."""
