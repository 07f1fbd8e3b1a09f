"""Laws of the trackers that measure how far rows moved, and of the one that tells which rows changed."""

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.trackers import ChangedTracker, distances
from tests.core.test_trackers import TRACKED, Rank, random_steps


def gradients(rows: list[int], step: int) -> Tensor:
    """Gradients of a step, of many magnitudes; every fifth step reverses the one before it on the rows they share."""
    rng = torch.Generator().manual_seed(step - step % 5 // 4)
    grads_MD = torch.randn((1000, 2), generator=rng) * torch.logspace(-3, 1, 1000)[:, None]
    return grads_MD[rows] * (-1 if step % 5 == 4 else 1)


@pytest.mark.parametrize("kind", ["scar", "mass", "mfu"])
def test_the_choice_is_a_brute_force_sort(kind: str) -> None:
    """Over many steps and saves, some of them whole: the K rows of the largest measure, ties to the lower row.

    Rows that a step moves and the next one moves back have mass, and no distance but for rounding.
    """
    rank = Rank(kind)
    saved_MD = rank.shard.rows_MD.clone()
    mass_M, accesses_M = torch.zeros(len(saved_MD)), torch.zeros(len(saved_MD))
    num_differing = 0
    for rows, counts, _ in random_steps(60, seed=0):
        before_MD = rank.shard.rows_MD.clone()
        step = rank.touch(rows, counts=counts, grads_ND=gradients(rows, rank.shard.applied_step + 1))
        mass_M += distances(rank.shard.rows_MD, before_MD)
        accesses_M[rows] += torch.tensor(counts)
        if step % 7:
            continue
        far_M = distances(rank.shard.rows_MD, saved_MD)
        measures = {"scar": far_M, "mass": mass_M, "mfu": accesses_M}
        measure_M = measures.pop(kind)
        for table in TRACKED:
            moved = [row for row in rank.rows_of(table) if measure_M[row] > 0]
            expected = sorted(moved, key=lambda row: (-measure_M[row], row))[: rank.budgets[table]]
            for other_M in measures.values():
                other = sorted(moved, key=lambda row: (-other_M[row], row))[: rank.budgets[table]]
                num_differing += set(expected) != set(other)
            assert rank.save(table) == sorted(expected)
            if step == 35:
                rank.shard.take_pending(rank.shard.span(table))
                rank.tracker.saved(table, rank.shard.span(table))
                expected = [*rank.rows_of(table)]
            saved_MD[expected], mass_M[expected], accesses_M[expected] = rank.shard.rows_MD[expected], 0, 0
    assert num_differing > 8, "the measures would not be told apart"


def test_a_restored_row_has_not_moved() -> None:
    """The copy follows the shard wherever it is set as a whole: after a restore nothing is left to save."""
    rank = Rank("scar")
    rank.touch([0, 3])
    rank.shard.rows_MD += 1.0
    rank.tracker.reset()
    assert [rank.choose(table) for table in TRACKED] == [[], []]
    rank.touch([3])
    assert rank.choose(0) == [3]


def test_changed_are_all_rows_since_the_base() -> None:
    """Of every table, tracked or not, whatever deltas have held; a base or a restore begins anew."""
    rank = Rank("changed")
    tracker = rank.tracker
    assert isinstance(tracker, ChangedTracker)
    changed: set[int] = set()
    num_deltas = num_rows = 0
    for rows, counts, _ in random_steps(60, seed=3, rows_per_step=6):
        step = rank.touch(rows, counts=counts)
        changed |= set(rows)
        chosen = {table: rank.choose(table) for table in range(4)}
        assert set().union(*chosen.values()) == changed
        assert tracker.num_changed == len(changed)
        if step % 6:
            continue
        is_base = step % 24 == 0
        for table, chosen_rows in chosen.items():
            saved = rank.shard.span(table) if is_base else torch.tensor(chosen_rows, dtype=torch.int64)
            rank.shard.take_pending(saved)
            tracker.saved(table, saved)
        num_deltas, num_rows = (0, 0) if is_base else (num_deltas + 1, num_rows + len(changed))
        assert (tracker.num_deltas, tracker.num_delta_rows) == (num_deltas, num_rows)
        changed = set() if is_base else changed
    rank.shard.reset_counts(applied_step=60)
    tracker.reset()
    assert (tracker.num_changed, tracker.num_deltas, tracker.num_delta_rows) == (0, 0, 0)


def test_mass_is_at_least_the_distance() -> None:
    """The triangle inequality, up to rounding: what SCAR would save, mass does not overlook."""
    scar, mass = Rank("scar"), Rank("mass", r=1.0)
    for rows, _, _ in random_steps(20, seed=5):
        for rank in (scar, mass):
            step = rank.shard.applied_step + 1
            rank.touch(rows, grads_ND=gradients(rows, step))
    first_MD = Rank("scar").shard.rows_MD
    far_M = distances(scar.shard.rows_MD, first_MD).numpy()
    for table in TRACKED:
        assert set(np.flatnonzero(far_M)) & set(mass.rows_of(table)) <= set(mass.choose(table))
