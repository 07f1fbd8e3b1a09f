"""Laws of the requests of a batch. B batch, F features, N distinct rows, D embedding dim, A = B*F accesses."""

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch

from harness.core.lookup import coalesce, plan_batch
from harness.core.placement import Placement

CARDINALITIES = (3, 40, 1, 500, 7)
Kind = Literal["row", "table"]


def skewed_ids(batch_size: int, seed: int) -> np.ndarray:
    """Row ids of which some are met often: int32 (B, F)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    columns = [np.minimum(rng.geometric(min(1.0, 4 / size), batch_size) - 1, size - 1) for size in CARDINALITIES]
    return np.stack(columns, axis=1).astype(np.int32)


@pytest.mark.parametrize("kind", ["row", "table"])
@pytest.mark.parametrize("num_ps", [1, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 97])
def test_a_plan_is_what_a_dictionary_would_count(kind: Kind, num_ps: int, batch_size: int) -> None:
    """Rows, counts and sampled flags of every rank are those of a plain dictionary, and each access finds its row."""
    ids_BF = skewed_ids(batch_size, seed=batch_size)
    placement = Placement(kind, CARDINALITIES, num_ps)
    sampled_B = np.arange(1000, 1000 + batch_size) % 3 == 0
    plan = plan_batch(ids_BF, placement, sampled_B)

    naive: list[dict[int, tuple[int, bool]]] = [{} for _ in range(num_ps)]
    asked_A: list[int] = []  # the place of each access's row among the rows of all ranks
    for b in range(batch_size):
        for table, row in enumerate(ids_BF[b].tolist()):
            rank = row % num_ps if kind == "row" else int(placement.table_owner_T[table])
            local = row // num_ps if kind == "row" else row
            place = int(placement.offsets_RT[rank, table]) + local
            count, is_sampled = naive[rank].get(place, (0, False))
            naive[rank][place] = (count + 1, is_sampled or bool(sampled_B[b]))
            asked_A.append(int(placement.rank_base_R[rank]) + place)
    assert [rows.tolist() for rows in plan.rows] == [sorted(asked) for asked in naive]
    parts = [slice(first, last) for first, last in pairwise(plan.bounds)]
    assert [plan.counts_N[part].tolist() for part in parts] == [[asked[r][0] for r in sorted(asked)] for asked in naive]
    sampled = [[asked[r][1] for r in sorted(asked)] for asked in naive]
    assert [plan.sampled_N[part].tolist() for part in parts] == sampled
    places_N = torch.cat([rows + int(placement.rank_base_R[rank]) for rank, rows in enumerate(plan.rows)])
    assert places_N[plan.inverse_A].tolist() == asked_A
    assert {rows.dtype for rows in plan.rows} == {torch.int64}
    assert (plan.counts_N.dtype, plan.sampled_N.dtype) == (np.int32, bool)
    ends = [*plan.starts_N.tolist()[1:], len(plan.order_A)]
    for row, (start, end) in enumerate(zip(plan.starts_N.tolist(), ends, strict=True)):
        accesses = plan.order_A[start:end].tolist()
        assert accesses == torch.nonzero(plan.inverse_A == row).squeeze(1).tolist(), "in the order of the batch"


@pytest.mark.parametrize("dim", [5, 64])
def test_gradients_of_a_row_are_summed_in_the_order_of_the_batch(dim: int) -> None:
    """Bit for bit the float32 sum of one access after the other; any other order would round differently.

    Of the V = F + 1 vectors of a sample the first is of no row.
    """
    plan = plan_batch(skewed_ids(128, 0), Placement("row", CARDINALITIES, 3), np.ones(128, bool))
    grads_BVD = torch.randn((128, len(CARDINALITIES) + 1, dim), generator=torch.Generator().manual_seed(dim))
    summed_ND, grads_AD = coalesce(grads_BVD, plan), grads_BVD[:, 1:].reshape(-1, dim)
    expected_ND, backwards_ND = torch.zeros_like(summed_ND), torch.zeros_like(summed_ND)
    for access, row in enumerate(plan.inverse_A.tolist()):
        expected_ND[row] += grads_AD[access]
    assert torch.equal(summed_ND, expected_ND)
    backwards_ND.index_add_(0, plan.inverse_A.flip(0), grads_AD.flip(0))
    assert not torch.equal(summed_ND, backwards_ND)
