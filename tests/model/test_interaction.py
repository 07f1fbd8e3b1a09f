"""Laws of the dot interaction. B batch, F tables, A = B*F accesses, D embedding dim."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.model.interaction import Interaction

B, F, D = 5, 4, 3


def make(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """bottom_BD, embeddings_AD, and a gradient of z: float64."""
    rng = torch.Generator().manual_seed(seed)
    num_inputs = D + (F + 1) * F // 2
    shapes = ((B, D), (B * F, D), (B, num_inputs))
    bottom_BD, embeddings_AD, grad_BT = (torch.randn(s, generator=rng, dtype=torch.float64) for s in shapes)
    return bottom_BD, embeddings_AD, grad_BT


def plain(bottom_BD: Tensor, embeddings_AD: Tensor) -> Tensor:
    """The definition, pair by pair."""
    vectors = [bottom_BD, *embeddings_AD.view(B, F, D).unbind(1)]
    dots = [(vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(F + 1) for j in range(i)]
    return torch.cat([bottom_BD, *dots], dim=1)


@pytest.fixture
def interaction() -> Interaction:
    """In float64 on the CPU."""
    return Interaction(B, F, D, device=torch.device("cpu"), dtype=torch.float64)


def test_it_is_all_pairs_of_vectors_in_order(interaction: Interaction) -> None:
    """z holds the bottom's output and the dot products of vectors i > j, by i and then j; also the second time."""
    for seed in (0, 1):
        bottom_BD, embeddings_AD, grad_BT = make(seed)
        top_BT = torch.empty_like(grad_BT)
        interaction.forward(bottom_BD, embeddings_AD, top_BT)
        torch.testing.assert_close(top_BT, plain(bottom_BD, embeddings_AD))


def test_it_is_differentiated_as_by_autograd(interaction: Interaction) -> None:
    """Gradients of both inputs equal autograd's of the definition, batch after batch; what is given stays as it is."""
    for seed in (0, 1):
        bottom_BD, embeddings_AD, grad_BT = make(seed)
        leaves = bottom_BD.clone().requires_grad_(), embeddings_AD.clone().requires_grad_()
        plain(*leaves).backward(grad_BT)
        given = functional.pad(grad_BT, (0, 1))
        interaction.forward(bottom_BD, embeddings_AD, torch.empty_like(grad_BT))
        for gradient, leaf in zip(interaction.backward(given), leaves, strict=True):
            torch.testing.assert_close(gradient, leaf.grad, rtol=0, atol=1e-13)
        assert torch.equal(given[:, :-1], grad_BT)
