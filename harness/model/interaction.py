"""The dot interaction of DLRM, forward and backward, in buffers that are made once.

With V (V, D) the vectors of a sample, v_0 the bottom MLP's output, then a row of each table, and S = V Vᵀ::

    z = [v_0, (v_i · v_j for i = 1 .. F, j < i)]

takes S below its diagonal, row by row. Let G be zero on the diagonal, hold dL/dz below it, and the same mirrored above.
S_ij moves with v_i by v_j and with v_j by v_i, so::

    dL/dV = G V,    and v_0 stands in z itself: dL/dv_0 = (G V)_0 + dL/dz[:D]

B batch, F tables, V = F + 1 vectors of a sample, A = B*F accesses, N distinct rows of a batch, D embedding dim,
P = V (V - 1) / 2 pairs, T = D + P.
"""

from typing import Protocol

import torch
from torch import Tensor

from harness.core.lookup import BatchPlan, coalesce, coalesce_vectors
from harness.kernels import compiled


class Interaction(Protocol):
    """At work on batches of one size. What it returns is overwritten by the next batch."""

    def forward(self, bottom_BD: Tensor, rows_ND: Tensor, inverse_A: Tensor, out_BT: Tensor) -> None:
        """Write z to ``out_BT``. Access a reads ``rows_ND[inverse_A[a]]``, both on the CPU."""
        ...

    def backward(self, grad_BZ: Tensor) -> Tensor:
        """From dL/dz of the last :meth:`forward` and a column of zeros behind it, (B, T + 1): dL/d(bottom), (B, D)."""
        ...

    def row_gradients(self, plan: BatchPlan) -> Tensor:
        """dL/d(row) of the last :meth:`backward` for each of the N distinct rows, (N, D) on the CPU; new."""
        ...


class TorchInteraction:
    """By torch's operations, on any device and in any precision."""

    def __init__(
        self, num_samples: int, num_tables: int, dim: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        num_vectors = num_tables + 1
        self._dim = dim
        self._rows_AD = torch.empty((num_samples * num_tables, dim), dtype=dtype)  # where rows come from: on the CPU
        self._vectors_BVD = torch.empty((num_samples, num_vectors, dim), device=device, dtype=dtype)
        self._vectors_BDV = self._vectors_BVD.transpose(1, 2)
        self._bottom_BD, self._embeddings_BFD = self._vectors_BVD[:, 0], self._vectors_BVD[:, 1:]
        self._grad_BVD = torch.empty_like(self._vectors_BVD)
        self._products_BVV = torch.empty((num_samples, num_vectors, num_vectors), device=device, dtype=dtype)
        self._products_BX = self._products_BVV.view(num_samples, -1)  # X = V V
        i_P, j_P = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
        # gather() wants an index for every element; expanded, they are one row, and it runs on all threads.
        pairs_P = i_P * num_vectors + j_P  # where S holds what z takes
        self._pairs_BP = pairs_P.expand(num_samples, -1)
        # Where dL/dz holds what G takes: on the diagonal the zero behind it.
        places_VV = torch.full((num_vectors, num_vectors), dim + len(i_P), device=device, dtype=torch.int64)
        places_VV[i_P, j_P] = places_VV[j_P, i_P] = torch.arange(dim, dim + len(i_P), device=device)
        self._places_BX = places_VV.view(-1).expand(num_samples, -1)

    def forward(self, bottom_BD: Tensor, rows_ND: Tensor, inverse_A: Tensor, out_BT: Tensor) -> None:
        """Write z to ``out_BT``."""
        torch.index_select(rows_ND, 0, inverse_A, out=self._rows_AD)
        self._bottom_BD.copy_(bottom_BD)
        self._embeddings_BFD.copy_(self._rows_AD.view_as(self._embeddings_BFD))
        torch.bmm(self._vectors_BVD, self._vectors_BDV, out=self._products_BVV)
        out_BT[:, : self._dim] = bottom_BD
        torch.gather(self._products_BX, 1, self._pairs_BP, out=out_BT[:, self._dim :])

    def backward(self, grad_BZ: Tensor) -> Tensor:
        """dL/d(bottom), (B, D)."""
        torch.gather(grad_BZ, 1, self._places_BX, out=self._products_BX)  # G, where S was
        torch.bmm(self._products_BVV, self._vectors_BVD, out=self._grad_BVD)
        return self._grad_BVD[:, 0].add_(grad_BZ[:, : self._dim])

    def row_gradients(self, plan: BatchPlan) -> Tensor:
        """dL/d(row), (N, D)."""
        return coalesce(self._grad_BVD[:, 1:].cpu().reshape(-1, self._dim), plan)


class CompiledInteraction:
    """For float32 on the CPU: what surrounds the two batched products is one compiled loop each."""

    def __init__(self, num_samples: int, num_tables: int, dim: int) -> None:
        num_vectors = num_tables + 1
        self._vectors_BVD = torch.empty((num_samples, num_vectors, dim))
        self._vectors_BDV = self._vectors_BVD.transpose(1, 2)
        self._grad_BVD = torch.empty_like(self._vectors_BVD)
        self._products_BVV = torch.empty((num_samples, num_vectors, num_vectors))
        self._bottom_BD = torch.empty((num_samples, dim))
        # The same memory, as compiled loops take it.
        self._vectors, self._grad = self._vectors_BVD.numpy(), self._grad_BVD.numpy()
        self._products, self._bottom = self._products_BVV.numpy(), self._bottom_BD.numpy()

    def forward(self, bottom_BD: Tensor, rows_ND: Tensor, inverse_A: Tensor, out_BT: Tensor) -> None:
        """Write z to ``out_BT``."""
        compiled.embed(rows_ND.numpy(), inverse_A.numpy(), bottom_BD.numpy(), self._vectors)
        torch.bmm(self._vectors_BVD, self._vectors_BDV, out=self._products_BVV)
        compiled.take_pairs(self._vectors, self._products, _with_padding(out_BT).numpy())

    def backward(self, grad_BZ: Tensor) -> Tensor:
        """dL/d(bottom), (B, D)."""
        grad = _with_padding(grad_BZ).numpy()
        compiled.mirror_pairs(grad, self._bottom.shape[1], self._products)  # G, where S was
        torch.bmm(self._products_BVV, self._vectors_BVD, out=self._grad_BVD)
        compiled.add_first(self._grad, grad, self._bottom)
        return self._bottom_BD

    def row_gradients(self, plan: BatchPlan) -> Tensor:
        """dL/d(row), (N, D)."""
        return coalesce_vectors(self._grad_BVD, plan)


def _with_padding(values_BT: Tensor) -> Tensor:
    """Rows that may stand further apart in memory than they are long, with what is between them: contiguous."""
    return values_BT.as_strided((len(values_BT), values_BT.stride(0)), (values_BT.stride(0), 1))
