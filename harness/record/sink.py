"""The consumer of a run's events: its protocol, and a null implementation."""

from typing import Protocol

from harness.core.events import Event


class EventSink(Protocol):
    """Consumer of the events of one run, in order."""

    def record(self, event: Event) -> None:
        """Take the next event."""
        ...

    def close(self, ok: bool, reason: str | None = None) -> None:
        """End the sequence; ``reason`` says why a run is not ``ok``. Later calls have no effect."""
        ...


class NullSink:
    """Discards every event."""

    def record(self, event: Event) -> None:
        """Discard the event."""

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Do nothing: a null sink holds no resource."""
