"""Laws of the dot interaction. B batch, F tables, A = B*F accesses, N distinct rows, D embedding dim."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.core.lookup import BatchPlan, plan_batch
from harness.core.placement import Placement
from harness.model.interaction import CompiledInteraction, Interaction, TorchInteraction

B, F, D = 5, 4, 3
NUM_PAIRS = (F + 1) * F // 2


def in_float64() -> Interaction:
    """Torch's own operations."""
    return TorchInteraction(B, F, D, device=torch.device("cpu"), dtype=torch.float64)


def in_float32() -> Interaction:
    """Compiled loops."""
    return CompiledInteraction(B, F, D)


MAKERS = pytest.mark.parametrize(
    ("make_interaction", "dtype", "atol"),
    [(in_float64, torch.float64, 1e-13), (in_float32, torch.float32, 2e-6)],
    ids=["torch", "compiled"],
)


def make(seed: int, dtype: torch.dtype) -> tuple[BatchPlan, Tensor, Tensor, Tensor]:
    """A plan in which samples share rows, bottom_BD, rows_ND, and a gradient of z."""
    rng = torch.Generator().manual_seed(seed)
    ids_BF = np.random.default_rng(seed).integers(0, 3, (B, F)).astype(np.int32)
    plan = plan_batch(ids_BF, Placement("row", (3,) * F, 2), np.zeros(B, dtype=bool))
    shapes = ((B, D), (len(plan.keys_N), D), (B, D + NUM_PAIRS))
    bottom_BD, rows_ND, grad_BT = (torch.randn(s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes)
    assert len(rows_ND) < B * F
    return plan, bottom_BD, rows_ND, grad_BT


def plain(bottom_BD: Tensor, rows_ND: Tensor, plan: BatchPlan) -> Tensor:
    """The definition, pair by pair."""
    vectors = [bottom_BD, *rows_ND[plan.inverse_A].view(B, F, D).unbind(1)]
    dots = [(vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(F + 1) for j in range(i)]
    return torch.cat([bottom_BD, *dots], dim=1)


@MAKERS
@pytest.mark.parametrize("padding", [0, 3], ids=["dense", "padded"])
def test_it_is_all_pairs_of_vectors_in_order(
    make_interaction: Callable[[], Interaction], dtype: torch.dtype, atol: float, padding: int
) -> None:
    """z holds the bottom's output and the dot products of vectors i > j, by i and then j; also the second time, and
    where the rows it is written to stand further apart than they are long, with something else between them.
    """
    interaction = make_interaction()
    for seed in (0, 1):
        plan, bottom_BD, rows_ND, grad_BT = make(seed, dtype)
        whole_BX = torch.full((B, grad_BT.shape[1] + padding), 7.0, dtype=dtype)
        top_BT = whole_BX[:, : grad_BT.shape[1]]
        interaction.forward(bottom_BD, rows_ND, plan.inverse_A, top_BT)
        torch.testing.assert_close(top_BT, plain(bottom_BD, rows_ND, plan), rtol=0, atol=atol)
        assert (whole_BX[:, grad_BT.shape[1] :] == 7).all()


@MAKERS
def test_it_is_differentiated_as_by_autograd(
    make_interaction: Callable[[], Interaction], dtype: torch.dtype, atol: float
) -> None:
    """Gradients of the bottom's output and of every distinct row equal autograd's of the definition, batch after batch;
    what is given stays as it is.
    """
    interaction = make_interaction()
    for seed in (0, 1):
        plan, bottom_BD, rows_ND, grad_BT = make(seed, dtype)
        leaves = bottom_BD.clone().requires_grad_(), rows_ND.clone().requires_grad_()
        plain(*leaves, plan).backward(grad_BT)
        given = functional.pad(grad_BT, (0, 1))
        interaction.forward(bottom_BD, rows_ND, plan.inverse_A, torch.empty_like(grad_BT))
        gradients = interaction.backward(given), interaction.row_gradients(plan)
        for gradient, leaf in zip(gradients, leaves, strict=True):
            torch.testing.assert_close(gradient, leaf.grad, rtol=0, atol=atol)
        assert torch.equal(given[:, :-1], grad_BT)
