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

PLACEMENT = Placement("row", (5, 1, 70, 2), 3)
DIM = 4
Kind = Literal["row", "table"]


def make_shard(placement: Placement = PLACEMENT, rank: int = 0, *, seed: int = 0, count_updates: bool = True) -> Shard:
    """An initialised shard."""
    shard = Shard(placement, rank, DIM, seed=seed, count_updates=count_updates)
    shard.initialise(applied_step=0)
    return shard


def all_tables(cardinalities: tuple[int, ...], *, num_ps: int, kind: Kind, seed: int = 0) -> Tensor:
    """Initial values of all rows, table after table, put together from all ranks."""
    tables = [torch.full((size, DIM), torch.nan) for size in cardinalities]
    for rank in range(num_ps):
        shard = make_shard(Placement(kind, cardinalities, num_ps), rank, seed=seed)
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


def test_initial_values_fill_their_interval_and_differ() -> None:
    """U(-1/sqrt(n), 1/sqrt(n)) (the bits: tests/kernels); other seeds give others, no two tables or rows are alike."""
    cardinalities = (50, 2000)
    values = all_tables(cardinalities, num_ps=2, kind="row")
    assert (values != all_tables(cardinalities, num_ps=2, kind="row", seed=1)).float().mean() > 0.99
    assert len(values.unique()) > 0.99 * values.numel()
    for part, size in zip(values.split(cardinalities), cardinalities, strict=True):
        assert 0.9 < part.abs().max() * math.sqrt(size) <= 1 + 1e-7  # the bound itself is rounded to float32


def test_a_shard_that_is_initialised_anew_is_one_that_was_never_trained() -> None:
    """At the step it is told. No step may be left out, not even one that touches nothing of the shard."""
    shard, fresh = make_shard(), make_shard()
    with pytest.raises(AssertionError, match="step 2 after 0"):
        push(shard, 2, [0])
    assert push(shard, 1, [])
    assert push(shard, 2, [0, 4])
    shard.initialise(applied_step=7)
    assert torch.equal(shard.rows_MD, fresh.rows_MD)
    assert shard.applied_step == 7
    assert shard.take_pending(slice(None)) == 0


def test_an_update_counts_once_and_until_it_is_taken() -> None:
    """Random steps, each of which is sent again, and takes of some rows, against a dictionary.

    A shard that does not count learns the same, and has nothing pending.
    """
    rng, pending = np.random.default_rng(0), Counter[int]()
    shard, silent = make_shard(), make_shard(count_updates=False)
    for step in range(1, 41):
        rows = np.sort(rng.choice(len(shard.rows_MD), 5, replace=False)).tolist()
        counts = rng.integers(1, 9, 5).tolist()
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
