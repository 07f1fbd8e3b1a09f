"""A state is declared once: the same values and types after a load, in memory of their own."""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.core.resumable import Resumable
from harness.store import read_state, write_state


class Pair(NamedTuple):
    left: int
    right: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    where: Pair
    values_N: Tensor


class Inner(Resumable):
    _state = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count


class Holder(Resumable):
    """Every kind of field."""

    _state = ("plain", "nans", "_absent", "_inner", "_without", "collections", "points", "arrays")
    _state_in_place = ("rows_M", "_tables", "nothing")
    _state_types = (Point, Pair)

    def __init__(self) -> None:
        self.plain: Any = None
        self.nans: list[float] = []
        self._absent: Pair | None = None
        self._inner = Inner()
        self._without: Inner | None = None
        self.collections: Any = None
        self.points: list[Point] = []
        self.arrays: Any = None
        self.rows_M = np.zeros(3)
        self._tables = {0: torch.zeros(2), 4: torch.zeros(1)}
        self.nothing: Tensor | None = None
        self.constant = object()
        self.total = 0

    def _loaded(self) -> None:
        self.total = self._inner.count


def filled() -> Holder:
    holder = Holder()
    holder.plain = [1, 2.5, True, "a", None, []]
    holder.nans = [float("-nan"), float("nan"), -0.0]
    holder._absent = Pair(3, ("x",))
    holder._inner = Inner(7)
    holder.collections = {
        3: {2, 1},
        (1, 2): frozenset("b"),
        "d": deque([(1, np.arange(2))]),
        "t": (1, [2, (3,)]),
        "e": {},
    }
    holder.points = [Point(where=Pair(1), values_N=torch.arange(3))]
    holder.arrays = [np.arange(4, dtype=np.uint64), torch.ones((2, 2)), np.zeros((0, 3), np.float32)]
    holder.rows_M[:] = 5
    holder._tables[4][:] = 9
    return holder


def same(left: Any, right: Any) -> bool:
    """Equal values of the same types, in other memory."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | Tensor):
        shares = np.shares_memory(np.asarray(left), np.asarray(right))
        return left.dtype == right.dtype and np.array_equal(left, right) and not shares
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple | deque):
        return len(left) == len(right) and all(map(same, left, right))
    return same(vars(left), vars(right)) if isinstance(left, Point) else left == right


@pytest.mark.parametrize("in_a_file", [False, True])
def test_values_keep_their_types_and_share_no_memory(tmp_path: Path, *, in_a_file: bool) -> None:
    """Law: state -> load in a new object -> the same fields, whether or not the state was in a file between.

    Arrays in place keep their memory, and a part stays the object that it is.
    """
    holder, other = filled(), Holder()
    present = other.rows_M, other._tables[4], other._inner
    state = holder.state()
    assert list(state) == [name.lstrip("_") for name in (*Holder._state, *Holder._state_in_place)]
    if in_a_file:
        state = read_state(tmp_path, write_state(tmp_path, "ps0", 0, 0, state, fsync=False))
    other.load(state)
    for name in ("plain", "_absent", "_without", "collections", "points", "arrays", "rows_M", "_tables", "nothing"):
        assert same(getattr(other, name), getattr(holder, name)), name
    assert (other._inner.count, other.total) == (7, 7)
    assert all(
        each is before for each, before in zip((other.rows_M, other._tables[4], other._inner), present, strict=True)
    )
    assert np.array(other.nans).tobytes() == np.array(holder.nans).tobytes(), "losses are compared by their bits"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plain": ...}, r"Holder: .* missing \['plain'\], unknown \[\]"),
        ({"more": 1}, r"Holder: .* missing \[\], unknown \['more'\]"),
        ({"inner": {}}, r"Inner: .* missing \['count'\]"),
        ({"inner": None}, "Holder.inner: expected the state of a Inner, got None"),
        ({"without": {"count": 1}}, "Holder.without: expected plain data, got a state of an object"),
        ({"absent": {"!": "Pair", "left": 1}}, r"Holder.absent: Pair: .* missing \['right'\]"),
        ({"absent": {"!": "Other", "left": 1}}, "Holder.absent: expected plain data, got a Other"),
        ({"rows_M": np.zeros(4)}, r"Holder.rows_M: expected an array of shape \(3,\), got \(4,\)"),
        ({"nothing": np.zeros(4)}, r"Holder.nothing: expected an array of shape None, got \(4,\)"),
        ({"tables": {"!": "dict", "of": [[0, np.zeros(2)]]}}, r"Holder.tables: .* missing \['4'\]"),
    ],
)
def test_another_state_is_one_clear_error(change: dict[str, Any], message: str) -> None:
    """Law: what is missing, unknown or of another form is named."""
    state = {name: value for name, value in {**filled().state(), **change}.items() if value is not ...}
    with pytest.raises(StoreError, match=message):
        Holder().load(state)


@pytest.mark.parametrize("value", [object(), {1: object()}, lambda: 0, [range(3)], type("Point", (tuple,), {})()])
def test_what_is_no_plain_data_is_named(value: Any) -> None:
    """A field of an undeclared type is found when the state is saved, not when it is loaded."""
    holder = Holder()
    holder.plain = value
    with pytest.raises(StoreError, match=r"Holder.plain: expected plain data, or a Resumable, got \w+"):
        holder.state()
