"""SplitMix64 (Steele, Lea & Flood, OOPSLA 2014), counter-based: a word follows from its key and number alone."""

from typing import Any

from numpy import uint64

_GOLDEN = uint64(0x9E3779B97F4A7C15)
_MIX1 = uint64(0xBF58476D1CE4E5B9)
_MIX2 = uint64(0x94D049BB133111EB)
_27, _30, _31 = uint64(27), uint64(30), uint64(31)


def word(key: Any, number: Any) -> Any:
    """Word ``number`` of the stream ``key``: uint64, or arrays of them that broadcast. Compiled loops inline it."""
    mixed = number * _GOLDEN + key
    mixed ^= mixed >> _30
    mixed *= _MIX1
    mixed ^= mixed >> _27
    mixed *= _MIX2
    mixed ^= mixed >> _31
    return mixed
