"""The contract of objects whose state outlives the process: a run that ended early goes on from it, to the bit.

A resume point is the state of all such objects at one boundary between steps (docs/ARCHITECTURE.md, "Resume").
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

State = dict[str, Any]
"""Plain data by field: None, bool, int, float, str, numpy arrays, torch tensors, and lists and string-keyed dicts of
these. Names are those of the object's fields, without a leading underscore."""


@runtime_checkable
class Resumable(Protocol):
    """An object with a state. Both methods are called at boundaries between steps, with no request in flight."""

    def state(self) -> State:
        """All that an object made anew lacks to go on as this one. It may share memory with this object."""
        ...

    def load(self, state: State) -> None:
        """Set what :meth:`state` gave, in an object that was just made from the same config. Takes over no memory."""
        ...


@dataclass(frozen=True, kw_only=True)
class EventsPosition:
    """The record of a run up to a resume point: bytes of events.jsonl, number of events, digest (hex) of the bytes."""

    num_bytes: int
    num_events: int
    digest: str
