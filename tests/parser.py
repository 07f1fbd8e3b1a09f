"""A parser under test."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.damage import Rng

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Parser:
    """``sound``: an input that is accepted. ``read``: reads the file and checks what it promises; raises UserError."""

    sound: Callable[[Rng], bytes]
    read: Read


def same(one: Any, other: Any) -> None:
    """Raise AssertionError unless both are equal; a NaN equals itself."""
    assert repr(one) == repr(other), f"read again: {one!r:.300} is not {other!r:.300}"
