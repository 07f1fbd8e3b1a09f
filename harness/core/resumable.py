"""Objects whose state can be saved, so that a later process continues a run to the bit.

A resume point is the state of all such objects at one boundary between steps. A class names its fields of
state once; fields that are constants of the run, or follow from others, are left out. ``tests/run/test_resumable.py``
has the table of them, so that a new field cannot be forgotten.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from harness.core.errors import StoreError

State = dict[str, Any]
"""Plain data by name of a field, without its leading underscore. Plain data are None, bool, int, float, str, numpy
arrays, torch tensors, and lists and string-keyed dicts of these."""

Types = tuple[type, ...]

_TYPE = "!"  # key of a dict that stands for a value of the type of that name; it is no name of a field
_FLOATS = "floats"  # a list of floats, in an array: text would change the bits of a NaN
_COLLECTIONS: dict[str, type] = {kind.__name__: kind for kind in (dict, tuple, set, frozenset, deque)}


class Resumable:
    """Base of objects whose state can be saved and loaded, at a boundary, with no request in flight.

    The state is the fields that the class names. All other fields are constants of the run, or follow from the state. A
    field holds None, a bool, a number, a string, an array, a tensor, a Resumable, an object of ``_state_types``, or a
    list, tuple, set, deque or dict of these. Collections keep their types.

    Class attributes:
        _state: names of fields that get new values when a state is loaded. A Resumable is kept and loads its own state.
        _state_in_place: names of fields that keep their object, and are filled with the loaded values: an array that
            other objects share, or a dict of arrays or Resumables.
        _state_types: the dataclasses and named tuples that fields may hold.
    """

    _state: ClassVar[tuple[str, ...]] = ()
    _state_in_place: ClassVar[tuple[str, ...]] = ()
    _state_types: ClassVar[Types] = ()

    def state(self) -> State:
        """The state as plain data, which may share memory with this object.

        Raises StoreError that names a field with a value of another type.
        """
        return {key: _pack(getattr(self, name), self._state_types, where) for key, name, where in self._named()}

    def load(self, state: State) -> None:
        """Set the fields of this object, made from the same config, from a :meth:`state`. The arrays are copied.

        Raises StoreError that names fields that are missing, unknown, or of another form.
        """
        _check_names(state, [key for key, _, _ in self._named()], type(self).__name__)
        for key, name, where in self._named():
            present, packed = getattr(self, name), state[key]
            if isinstance(present, Resumable) or name in self._state_in_place:
                _load_into(present, packed, where)
            else:
                setattr(self, name, _unpack(packed, self._state_types, where))
        self._loaded()

    def _loaded(self) -> None:
        """A hook, called after the fields were loaded, to set other fields that follow from them."""

    def _named(self) -> list[tuple[str, str, str]]:
        """For each field of the state: its key in the state, the attribute's name, and its name in error messages."""
        names = (*self._state, *self._state_in_place)
        return [(key := name.lstrip("_"), name, f"{type(self).__name__}.{key}") for name in names]


def _pack(value: Any, types: Types, where: str) -> Any:
    """``value`` as plain data: a collection or an object of ``types`` becomes a dict that names its type."""
    from torch import Tensor  # noqa: PLC0415 - the command line imports this module, and torch takes seconds

    match value:
        case None | bool() | int() | float() | str() | np.ndarray() | Tensor():
            return value
        case Resumable():
            return value.state()
        case _ if type(value) in types:
            parts = {name: _pack(getattr(value, name), types, where) for name in _parts_of(type(value))}
            return {_TYPE: type(value).__name__, **parts}
        case list() if value and all(type(each) is float for each in value):
            return {_TYPE: _FLOATS, "of": np.array(value)}
        case list():
            return [_pack(each, types, where) for each in value]
        case dict():
            items = [list(item) for item in value.items()]
        case set() | frozenset():
            items = sorted(value)
        case tuple() | deque() if type(value) in (tuple, deque):
            items = value
        case _:
            kind = type(value).__name__
            raise StoreError(f"{where}: expected plain data, or a Resumable, got {kind}; see EXTENDING.md")
    return {_TYPE: type(value).__name__, "of": [_pack(each, types, where) for each in items]}


def _unpack(packed: Any, types: Types, where: str) -> Any:
    """The value that :func:`_pack` packed, in new memory."""
    from torch import Tensor  # noqa: PLC0415 - the command line imports this module, and torch takes seconds

    match packed:
        case Tensor():
            return packed.clone()
        case np.ndarray():
            return packed.copy()
        case list():
            return [_unpack(each, types, where) for each in packed]
        case Mapping():
            return _make(dict(packed), types, where)
    return packed


def _make(packed: State, types: Types, where: str) -> Any:
    """The collection, or object of one of ``types``, that :func:`_pack` has turned into the dict ``packed``."""
    name = packed.pop(_TYPE, "state of an object")
    if name == _FLOATS:
        return packed["of"].tolist()
    if name in _COLLECTIONS:
        return _COLLECTIONS[name](_unpack(each, types, where) for each in packed["of"])
    for kind in types:
        if kind.__name__ == name:
            _check_names(packed, _parts_of(kind), f"{where}: {name}")
            return kind(**{part: _unpack(each, types, where) for part, each in packed.items()})
    raise StoreError(f"{where}: expected plain data, got a {name}")


def _parts_of(kind: type) -> tuple[str, ...]:
    return getattr(kind, "_fields", None) or tuple(field.name for field in fields(kind))


def _load_into(present: Any, packed: Any, where: str) -> None:
    """Load packed data into ``present``: an object with a state, an array, or a dict of these."""
    if isinstance(present, Resumable):
        if not isinstance(packed, dict):
            raise StoreError(f"{where}: expected the state of a {type(present).__name__}, got {packed!r}")
        present.load(packed)
        return
    if isinstance(present, dict):
        loaded = dict(packed["of"])
        _check_names(loaded, present, where)
        for key, each in present.items():
            _load_into(each, loaded[key], f"{where}[{key}]")
        return
    expected, given = (getattr(array, "shape", None) for array in (present, packed))
    if expected != given:
        raise StoreError(f"{where}: expected an array of shape {expected}, got {given}")
    if present is not None:
        present[...] = packed


def _check_names(given: Collection[Any], expected: Collection[Any], where: str) -> None:
    missing, unknown = (
        sorted(map(str, set(left) - set(right))) for left, right in ((expected, given), (given, expected))
    )
    if missing or unknown:
        raise StoreError(f"{where}: expected a state of the same fields; missing {missing}, unknown {unknown}")


@dataclass(frozen=True, kw_only=True)
class EventsPosition:
    """The length of events.jsonl at a resume point: bytes and events, and the digest (hex) of these bytes."""

    num_bytes: int
    num_events: int
    digest: str
