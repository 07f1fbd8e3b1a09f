"""Laws of the small values of the core: hours, boundaries, ranks and hosts, random streams, tables of parts."""

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from harness.config.model import OneOf
from harness.core.choices import PartTable
from harness.core.clock import boundary_at, exact, hour_to_samples, samples_to_hours
from harness.core.errors import RankLost
from harness.core.faults import PlannedFault, Strike, merge_faults
from harness.core.plans import HostMap, all_ranks, ps_rank, rank_order
from harness.core.seeds import derive, generator, words


@pytest.mark.parametrize(
    ("samples", "step"), [(0, 0), (Fraction(1, 1000), 1), (127, 1), (128, 1), (Fraction(128001, 1000), 2), (129, 2)]
)
def test_the_boundary_is_the_first_that_holds_as_many_samples(samples: Fraction | int, step: int) -> None:
    """Due at sample s means: after the fewest whole batches of 128 that hold s."""
    assert boundary_at(samples, 128) == step


def test_an_hour_maps_to_samples_without_rounding() -> None:
    """44.8 of 56 hours is 4/5 of the samples exactly, though neither 44.8 nor 0.8 is a binary fraction."""
    assert exact(0.1) * 10 == 1
    assert hour_to_samples(44.8, job_h=56, total_samples=1000) == 800
    assert samples_to_hours(800, job_h=56, total_samples=1000) == pytest.approx(44.8, rel=1e-15)


def test_a_lost_rank_survives_pickling() -> None:
    """Who died, what the others answered and the transport's words reach another process; dead ranks answer nothing."""
    lost = pickle.loads(pickle.dumps(RankLost(["ps3"], {"ps0": 1, "ps3": 2}, {"ps3": "eof"})))
    assert (lost.ranks, lost.replies, lost.detail) == (frozenset({"ps3"}), {"ps0": 1}, {"ps3": "eof"})
    assert str(lost) == "lost ps3 (eof)"


def test_ranks_are_sorted_by_number_and_trainers_come_last() -> None:
    ranks = [*map(ps_rank, range(12)), *(f"trainer{k}" for k in range(12))]
    assert sorted(sorted(ranks), key=rank_order) == ranks
    assert all_ranks(2) == ("ps0", "ps1", "trainer0")
    kills = [PlannedFault(step=1, strikes={rank: Strike(1.0, 2)}) for rank in ("trainer1", "ps10", "ps9")]
    assert merge_faults(1, kills).ranks == ("ps9", "ps10", "trainer1")


# --- hosts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_ps", "num_hosts", "place", "expected"),
    [
        (6, 3, {"trainer0": 2}, [0, 1, 2, 0, 1, 2, 2]),
        (4, 2, {"ps0": 1, "ps1": 1}, [1, 1, 0, 0, 0]),
        (3, 0, {}, []),
    ],
)
def test_ranks_are_placed_in_turn(num_ps: int, num_hosts: int, place: dict[str, int], expected: list[int]) -> None:
    """On the host with the fewest so far, the first of equal ones; by hand where ``place`` says so."""
    assert [*HostMap(num_ps, num_hosts, place).values()] == expected


def test_ranks_of_a_lost_host_move_to_the_emptiest_and_no_other_rank_moves() -> None:
    """In rank order, whatever is lost; the last host keeps its ranks."""
    for number in range(100):
        rng = generator(5, "hosts", number)
        num_ps, num_hosts = int(rng.integers(1, 20)), int(rng.integers(2, 8))
        hosts = HostMap(num_ps, num_hosts, {f"ps{k}": int(rng.integers(num_hosts)) for k in range(0, num_ps, 3)})
        left = [*range(num_hosts)]
        for host in rng.permutation(num_hosts).tolist():
            expected = dict(hosts)
            left.remove(host)
            for rank in hosts.on(host) if left else ():
                del expected[rank]
                expected[rank] = min(left, key=[*expected.values()].count)
            for _ in range(2):  # a host that is lost twice is lost once
                hosts.lose(host)
            assert (hosts.left, dict(hosts)) == (left, expected)


# --- random streams ---------------------------------------------------------------------------------------------------


def test_keys_are_what_they_were() -> None:
    """Keys are stable over platforms and versions, so that a recorded run can be run again; words are SplitMix64's."""
    assert derive(0) == 8493733112532773764
    assert derive(0, "embedding", 3) == 3612748695307070979
    assert derive(2**63, "trace", 12, "x") == 6076429030561679818
    assert generator(7, "evict", 1).integers(0, 1000, 5).tolist() == [212, 172, 32, 307, 676]
    published = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    counters = np.arange(1, 6, dtype=np.uint64)
    assert words(1234567, counters).tolist() == published
    assert words(1234567, counters[::-2]).tolist() == published[::-2], "in any order"


def test_every_difference_in_seed_and_labels_is_another_key() -> None:
    """Labels differ by value, by type, by order and by how they are cut."""
    names: list[tuple[int, tuple[str | int, ...]]] = [
        (0, ()), (1, ()), (-1, ()), (0, (0,)), (0, ("0",)), (0, (0, 0)), (0, (1, 0)), (0, (0, 1)), (0, ("a", "b")),
        (0, ("b", "a")), (0, ("ab",)), (0, ("a", "", "b")), (0, ("int:0",)), (1, (0,)), (10, ()), (1, ("0",)),
    ]  # fmt: skip
    assert len({derive(seed, *labels) for seed, labels in names}) == len(names)


# --- tables of parts --------------------------------------------------------------------------------------------------


def _or(table: PartTable[int]) -> None:
    table |= {"new": 2}


@pytest.mark.parametrize(
    "add",
    [lambda table: table.__setitem__("new", 2), _or, lambda table: table.update(new=2)],
    ids=["item", "or", "update"],
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
    assert (dict(table), names) == ({"old": 1, "new": 2}, ["old", "new"])
