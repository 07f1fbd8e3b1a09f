"""Laws of the small values of the core: hours and boundaries, lost ranks, names of ranks, tables of parts."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.config.model import OneOf
from harness.core.clock import boundary_at, exact, hour_to_samples, samples_to_hours
from harness.core.errors import RankLost
from harness.core.faults import PlannedFault, Strike, merge_faults
from harness.core.names import PartTable
from harness.core.plans import all_ranks, ps_rank, rank_order


def test_a_float_means_the_decimal_that_was_written() -> None:
    """0.1 is one tenth, and ten of them are one."""
    assert exact(0.1) * 10 == 1
    assert exact(3) == 3


@pytest.mark.parametrize(
    ("samples", "step"), [(0, 0), (Fraction(1, 1000), 1), (127, 1), (128, 1), (Fraction(128001, 1000), 2), (129, 2)]
)
def test_the_boundary_is_the_first_that_holds_as_many_samples(samples: Fraction | int, step: int) -> None:
    """Due at sample s means: after the fewest whole batches of 128 that hold s."""
    assert boundary_at(samples, 128) == step


def test_an_hour_maps_to_samples_without_rounding() -> None:
    """44.8 of 56 hours is 4/5 of the samples exactly, though neither 44.8 nor 0.8 is a binary fraction."""
    assert hour_to_samples(44.8, job_h=56, total_samples=1000) == 800
    assert samples_to_hours(800, job_h=56, total_samples=1000) == pytest.approx(44.8, rel=1e-15)


def test_a_lost_rank_survives_pickling() -> None:
    """Who died, what the others answered and the transport's words reach another process unchanged."""
    lost = pickle.loads(pickle.dumps(RankLost(["ps3"], {"ps0": 1}, {"ps3": "eof"})))
    assert (lost.ranks, lost.replies, lost.detail) == (frozenset({"ps3"}), {"ps0": 1}, {"ps3": "eof"})
    assert str(lost) == "lost ps3 (eof)"


def test_what_a_dead_rank_had_answered_is_void() -> None:
    """Law: the replies of a loss are those of the ranks that live, on either engine."""
    assert RankLost(["ps1"], {"ps0": 0, "ps1": 1}).replies == {"ps0": 0}


def test_ranks_are_sorted_by_number_and_trainers_come_last() -> None:
    ranks = [*map(ps_rank, range(12)), *(f"trainer{k}" for k in range(12))]
    assert sorted(sorted(ranks), key=rank_order) == ranks
    assert all_ranks(2) == ("ps0", "ps1", "trainer0")


def test_a_kill_may_name_trainers() -> None:
    kills = [PlannedFault(step=1, strikes={rank: Strike(1.0, 2)}) for rank in ("trainer1", "ps10", "ps9")]
    assert merge_faults(1, kills).ranks == ("ps9", "ps10", "trainer1")


def _or(table: PartTable[int]) -> None:
    table |= {"new": 2}


@pytest.mark.parametrize(
    "add",
    [
        lambda table: table.__setitem__("new", 2),
        _or,
        lambda table: table.update({"new": 2}),
        lambda table: table.update(new=2),
        lambda table: table.setdefault("new", 2),
    ],
    ids=["item", "or", "update", "keyword", "setdefault"],
)
def test_a_new_part_is_allowed_however_it_is_entered(add: Callable[[PartTable[int]], object]) -> None:
    """A configuration accepts its name, and still refuses others."""
    names = ["old"]
    allowed = TypeAdapter(Annotated[str, OneOf(names)])
    table = PartTable(names, {"old": 1})
    with pytest.raises(ValidationError, match="expected one of old, got 'new'"):
        allowed.validate_python("new")
    add(table)
    assert allowed.validate_python("new") == "new"
    assert dict(table) == {"old": 1, "new": 2}
    assert names == ["old", "new"]
