"""The dot interaction of DLRM, forward and backward, in buffers that are made once.

B batch, F tables, V = F + 1 vectors of a sample, D embedding dim, P = V (V - 1) / 2 pairs, T = D + P.
"""

import torch
from torch import Tensor


class Interaction:
    """For one batch size: ``z = [v_0, (v_i · v_j for i = 1 .. F, j < i)]``, v_0 the bottom MLP's output, then F rows.

    With V (V, D) the vectors of a sample and S = V Vᵀ, z takes S below its diagonal, row by row. Let G be zero on the
    diagonal, hold dL/dz below it, and the same mirrored above. S_ij moves with v_i by v_j and with v_j by v_i, so::

        dL/dV = G V,    and v_0 stands in z itself: dL/dv_0 = (G V)_0 + dL/dz[:D]
    """

    def __init__(
        self, num_samples: int, num_tables: int, dim: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        num_vectors = num_tables + 1
        self.num_samples = num_samples
        self._dim = dim
        self._vectors_BVD = torch.empty((num_samples, num_vectors, dim), device=device, dtype=dtype)
        self._products_BVV = torch.empty((num_samples, num_vectors, num_vectors), device=device, dtype=dtype)
        i_P, j_P = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
        self._top_BT = torch.empty((num_samples, dim + len(i_P)), device=device, dtype=dtype)
        # gather() wants an index for every element; expanded, they are one row, and it runs on all threads.
        pairs_P = i_P * num_vectors + j_P  # where S holds what z takes
        self._pairs_BP = pairs_P.expand(num_samples, -1)
        places_VV = torch.zeros((num_vectors, num_vectors), device=device, dtype=torch.int64)
        places_VV[i_P, j_P] = places_VV[j_P, i_P] = torch.arange(dim, dim + len(i_P), device=device)
        # where dL/dz holds what G takes, and anything on the diagonal
        self._places_BX = places_VV.view(-1).expand(num_samples, -1)

    def forward(self, bottom_BD: Tensor, embeddings_BFD: Tensor) -> Tensor:
        """z, (B, T): a buffer that the next call overwrites."""
        torch.cat([bottom_BD.unsqueeze(1), embeddings_BFD], dim=1, out=self._vectors_BVD)
        torch.bmm(self._vectors_BVD, self._vectors_BVD.transpose(1, 2), out=self._products_BVV)
        self._top_BT[:, : self._dim] = bottom_BD
        torch.gather(self._products_BVV.flatten(1), 1, self._pairs_BP, out=self._top_BT[:, self._dim :])
        return self._top_BT

    def backward(self, grad_BT: Tensor) -> tuple[Tensor, Tensor]:
        """From dL/dz of the last :meth:`forward`: dL/d(bottom), (B, D), and dL/d(embeddings), (B, F, D)."""
        grad_BVV = self._products_BVV
        torch.gather(grad_BT, 1, self._places_BX, out=grad_BVV.flatten(1))
        grad_BVV.diagonal(dim1=1, dim2=2).zero_()
        bottom_BD = torch.baddbmm(grad_BT[:, None, : self._dim], grad_BVV[:, :1], self._vectors_BVD).squeeze(1)
        return bottom_BD, torch.bmm(grad_BVV[:, 1:], self._vectors_BVD)
