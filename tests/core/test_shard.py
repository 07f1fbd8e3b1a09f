"""Laws of a rank's rows. N rows of a request, D embedding dim, M rows of the shard."""

import math
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.placement import Placement
from harness.core.shard import Shard

CARDINALITIES = (5, 1, 70, 2)
DIM = 4
Kind = Literal["row", "table"]


def make_shard(
    cardinalities: tuple[int, ...] = CARDINALITIES,
    rank_index: int = 0,
    *,
    num_ps: int = 3,
    kind: Kind = "row",
    seed: int = 0,
    dim: int = DIM,
    count_updates: bool = True,
) -> Shard:
    """An initialised shard."""
    placement = Placement(kind, cardinalities, num_ps)
    shard = Shard(placement, rank_index, dim, seed=seed, count_updates=count_updates)
    shard.initialise(applied_step=0)
    return shard


def all_tables(cardinalities: tuple[int, ...], *, num_ps: int, kind: Kind, seed: int = 0, dim: int = DIM) -> Tensor:
    """Initial values of all rows, table after table, put together from all ranks."""
    tables = [torch.full((size, dim), torch.nan) for size in cardinalities]
    for rank in range(num_ps):
        shard = make_shard(cardinalities, rank, num_ps=num_ps, kind=kind, seed=seed, dim=dim)
        for t, table_ND in enumerate(tables):
            first, stride = shard.placement.table_rows(rank, t)
            rows_ND = shard.rows_MD[shard.span(t)]
            table_ND[first + torch.arange(len(rows_ND)) * stride] = rows_ND
    return torch.cat(tables)


def push(shard: Shard, step: int, rows: list[int], counts: list[int] | None = None) -> bool:
    """One step of gradients 1, 2, ... for ``rows``, at learning rate 0.5."""
    grads_ND = torch.arange(1, len(rows) * DIM + 1, dtype=torch.float32).view(-1, DIM)
    counts_N = torch.tensor(counts or [1] * len(rows), dtype=torch.int32)
    return shard.apply(step, torch.tensor(rows, dtype=torch.int64), grads_ND, counts_N, 0.5)


@pytest.mark.parametrize("kind", ["row", "table"])
@pytest.mark.parametrize("num_ps", [1, 3, 8])
def test_an_initial_value_depends_on_seed_table_and_row_alone(kind: Kind, num_ps: int) -> None:
    """Any placement over any number of ranks gives each row the same bits, and leaves none without a value."""
    cardinalities = (5, 1, 20_000, 3)
    values = all_tables(cardinalities, num_ps=num_ps, kind=kind)
    assert not values.isnan().any()
    assert torch.equal(values, all_tables(cardinalities, num_ps=1, kind="table"))


def test_seeds_tables_and_rows_differ() -> None:
    """Another seed gives other values, and no two tables or rows of one size are alike."""
    cardinalities = (50, 50)
    values = all_tables(cardinalities, num_ps=2, kind="row")
    assert (values != all_tables(cardinalities, num_ps=2, kind="row", seed=1)).float().mean() > 0.99
    assert len(values.unique(dim=0)) == 100
    assert len(values.unique()) == values.numel()


@pytest.mark.parametrize("num_rows", [1, 3, 20_000])
def test_initial_values_are_uniform(num_rows: int) -> None:
    """U(-1/sqrt(n), 1/sqrt(n)): within the bounds, mean and variance within 4 standard errors, all 64 bins even."""
    dim = 320_000 // num_rows
    values = all_tables((num_rows,), num_ps=1, kind="row", dim=dim).double().flatten() * math.sqrt(num_rows)
    assert values.abs().max() <= 1 + 1e-7  # the bound itself is rounded to float32
    assert abs(values.mean()) < 4 * math.sqrt(1 / 3 / len(values))
    assert abs(values.square().mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / len(values))
    expected = len(values) / 64
    bins = torch.histc(values, 64, -1, 1)
    assert ((bins - expected).square() / expected).sum() < 63 + 4 * math.sqrt(2 * 63)


def test_initialising_again_restores_the_values_and_forgets_the_counts() -> None:
    """A shard that is initialised anew is one that was never trained, at the step it is told."""
    shard, fresh = make_shard(), make_shard()
    push(shard, 1, [0, 4])
    shard.initialise(applied_step=7)
    assert torch.equal(shard.rows_MD, fresh.rows_MD)
    assert shard.applied_step == 7
    assert shard.take_pending(slice(None)) == 0


def test_a_step_that_leaves_one_out_is_a_bug() -> None:
    """No shard skips a step, not even one that touches nothing of it."""
    shard = make_shard()
    with pytest.raises(AssertionError, match="step 2 after 0"):
        push(shard, 2, [0])
    assert push(shard, 1, [])
    assert shard.applied_step == 1
    assert push(shard, 2, [0])


def test_an_update_counts_once_and_until_it_is_taken() -> None:
    """Random steps, each of which is sent again, and takes of some rows, against a dictionary.

    A shard that does not count learns the same, and has nothing pending.
    """
    rng, pending = np.random.default_rng(0), Counter[int]()
    shard, silent = make_shard(), make_shard(count_updates=False)
    for step in range(1, 41):
        rows, counts = (
            np.sort(rng.choice(len(shard.rows_MD), 5, replace=False)).tolist(),
            rng.integers(1, 9, 5).tolist(),
        )
        assert push(shard, step, rows, counts)
        assert push(silent, step, rows, counts)
        before_MD = shard.rows_MD.clone()
        assert not push(shard, int(rng.integers(1, step + 1)), rows, [9] * 5)
        assert shard.applied_step == step
        assert torch.equal(shard.rows_MD, before_MD)
        pending.update(dict(zip(rows, counts, strict=True)))
        taken = slice(4, 9) if step % 6 else torch.tensor(rows[:3] + rows[4:])
        ids = range(4, 9) if isinstance(taken, slice) else taken.tolist()
        if step % 3 == 0:
            assert shard.take_pending(taken) == sum(pending.pop(row, 0) for row in ids)
            assert silent.take_pending(taken) == 0
    assert torch.equal(silent.rows_MD, shard.rows_MD)
    assert silent.pending_M is None
    assert shard.take_pending(slice(None)) == pending.total() > 0
    assert shard.take_pending(slice(None)) == 0
