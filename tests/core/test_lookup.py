"""Laws of the requests of a batch. B batch, F features, N distinct rows, D embedding dim, A = B*F accesses."""

from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.lookup import BatchPlan, coalesce, plan_batch
from harness.core.placement import Placement
from harness.kernels.row_loops import sum_runs

CARDINALITIES = (3, 40, 1, 500, 7)
Kind = Literal["row", "table"]


def skewed_ids(batch_size: int, seed: int) -> np.ndarray:
    """Row ids of which some are met often: int32 (B, F)."""
    rng = np.random.Generator(np.random.PCG64(seed))
    columns = [np.minimum(rng.geometric(min(1.0, 4 / size), batch_size) - 1, size - 1) for size in CARDINALITIES]
    return np.stack(columns, axis=1).astype(np.int32)


def make_plan(batch_size: int = 64, *, kind: Kind = "row", num_ps: int = 3, seed: int = 0) -> BatchPlan:
    """A plan in which every second sample is sampled."""
    ids_BF = skewed_ids(batch_size, seed)
    return plan_batch(ids_BF, Placement(kind, CARDINALITIES, num_ps), np.arange(batch_size) % 2 == 0)


def summed(grads_AD: Tensor, plan: BatchPlan) -> Tensor:
    """The gradients of accesses of each row, summed."""
    return torch.from_numpy(sum_runs(grads_AD.numpy(), plan.order_A.numpy(), plan.starts_N.numpy(), 1, 1))


def naive_sum(grads_AD: Tensor, plan: BatchPlan) -> Tensor:
    """One access after the other, in the order of the batch, in the type of ``grads_AD``."""
    summed_ND = torch.zeros((len(plan.starts_N), grads_AD.shape[1]), dtype=grads_AD.dtype)
    for access, row in enumerate(plan.inverse_A.tolist()):
        summed_ND[row] += grads_AD[access]
    return summed_ND


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
    assert [plan.sampled_N[part].tolist() for part in parts] == [
        [asked[r][1] for r in sorted(asked)] for asked in naive
    ]
    places_N = torch.cat([rows + int(placement.rank_base_R[rank]) for rank, rows in enumerate(plan.rows)])
    assert places_N[plan.inverse_A].tolist() == asked_A
    assert {rows.dtype for rows in plan.rows} == {torch.int64}
    assert (plan.counts_N.dtype, plan.sampled_N.dtype) == (np.int32, bool)


def test_order_and_starts_list_each_rows_accesses_in_batch_order() -> None:
    """``order_A`` between two ``starts_N`` holds just the accesses of that row, ascending."""
    plan = make_plan()
    ends = [*plan.starts_N.tolist()[1:], len(plan.order_A)]
    for row, (start, end) in enumerate(zip(plan.starts_N.tolist(), ends, strict=True)):
        accesses = plan.order_A[start:end].tolist()
        assert accesses == torch.nonzero(plan.inverse_A == row).squeeze(1).tolist()
    assert list(accumulate(plan.counts_N.tolist(), initial=0))[:-1] == plan.starts_N.tolist()


@pytest.mark.parametrize("dim", [5, 16, 64, 128])
def test_sum_of_runs_adds_in_the_order_of_the_batch(dim: int) -> None:
    """Bit for bit the float32 sum of one access after the other; any other order would round differently."""
    plan = make_plan(batch_size=128)
    grads_AD = torch.randn((len(plan.inverse_A), dim), generator=torch.Generator().manual_seed(dim))
    summed_ND = summed(grads_AD, plan)
    assert torch.equal(summed_ND, naive_sum(grads_AD, plan))
    backwards_ND = torch.zeros_like(summed_ND).index_add_(0, plan.inverse_A.flip(0), grads_AD.flip(0))
    assert not torch.equal(summed_ND, backwards_ND)


def test_of_all_vectors_of_a_sample_the_first_is_no_row() -> None:
    """From (B, V, D), V = F + 1, it sums what it sums from the (A, D) behind each sample's first vector."""
    plan = make_plan(batch_size=128)
    num_tables = len(plan.inverse_A) // 128
    grads_BVD = torch.randn((128, num_tables + 1, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(coalesce(grads_BVD, plan), summed(grads_BVD[:, 1:].reshape(-1, 16), plan))
