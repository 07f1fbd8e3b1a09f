"""Laws of a rank's rows. N rows of a request, D embedding dim, M rows of the shard."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from harness.core.placement import Placement
from harness.core.shard import Shard

PLACEMENT = Placement("row", (5, 1, 70, 2), 3)
DIM = 4
Kind = Literal["row", "table"]


def make_shard(placement: Placement = PLACEMENT, rank: int = 0, *, seed: int = 0, counts_updates: bool = True) -> Shard:
    """An initialised shard."""
    shard = Shard(placement, rank, DIM, seed=seed, counts_updates=counts_updates)
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
    shard, fresh, none = make_shard(), make_shard(), torch.empty(0, dtype=torch.int64)
    rows = torch.tensor([0, 4]), torch.ones(2, DIM), torch.tensor([1, 2], dtype=torch.int32)
    with pytest.raises(AssertionError, match="step 2 after 0"):
        shard.apply(2, *rows, 0.5)
    assert shard.apply(1, none, torch.empty(0, DIM), none.int(), 0.5)
    assert shard.apply(2, *rows, 0.5)
    assert not shard.apply(2, *rows, 0.5), "a step that is sent again is applied once"
    assert shard.reset_pending(torch.tensor([4])) == 2
    shard.initialise(applied_step=7)
    assert torch.equal(shard.rows_MD, fresh.rows_MD)
    assert shard.applied_step == 7
    assert shard.reset_pending(slice(None)) == 0
