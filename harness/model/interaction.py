"""The dot interaction of DLRM, forward and backward, in buffers that are made once.

B batch, F tables, V = F + 1 vectors of a sample, A = B*F accesses, D embedding dim, P = V (V - 1) / 2 pairs, T = D + P.
"""

import torch
from torch import Tensor


class Interaction:
    """For one batch size: ``z = [v_0, (v_i · v_j for i = 1 .. F, j < i)]``, v_0 the bottom MLP's output, then F rows.

    With V (V, D) the vectors of a sample and S = V Vᵀ, z takes S below its diagonal, row by row. Let G be zero on the
    diagonal, hold dL/dz below it, and the same mirrored above. S_ij moves with v_i by v_j and with v_j by v_i, so::

        dL/dV = G V,    and v_0 stands in z itself: dL/dv_0 = (G V)_0 + dL/dz[:D]

    What it returns is overwritten by the next batch.
    """

    def __init__(
        self, num_samples: int, num_tables: int, dim: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        num_vectors = num_tables + 1
        self._dim = dim
        self._vectors_BVD = torch.empty((num_samples, num_vectors, dim), device=device, dtype=dtype)
        self._vectors_BDV = self._vectors_BVD.transpose(1, 2)
        self._bottom_BD, self._embeddings_BFD = self._vectors_BVD[:, 0], self._vectors_BVD[:, 1:]
        self._grad_BVD = torch.empty_like(self._vectors_BVD)
        self._bottom_grad_BD, self._embeddings_grad_BFD = self._grad_BVD[:, 0], self._grad_BVD[:, 1:]
        self._grad_AD = torch.empty((num_samples * num_tables, dim), device=device, dtype=dtype)
        self._grad_BFD = self._grad_AD.view(num_samples, num_tables, dim)
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

    def forward(self, bottom_BD: Tensor, embeddings_AD: Tensor, out_BT: Tensor) -> None:
        """Write z to ``out_BT``."""
        self._bottom_BD.copy_(bottom_BD)
        self._embeddings_BFD.copy_(embeddings_AD.view_as(self._embeddings_BFD))
        torch.bmm(self._vectors_BVD, self._vectors_BDV, out=self._products_BVV)
        out_BT[:, : self._dim] = bottom_BD
        torch.gather(self._products_BX, 1, self._pairs_BP, out=out_BT[:, self._dim :])

    def backward(self, grad_BZ: Tensor) -> tuple[Tensor, Tensor]:
        """From dL/dz of the last :meth:`forward` and a column of zeros behind it, (B, T + 1): dL/d(bottom), (B, D), and
        dL/d(embeddings), (A, D).
        """
        torch.gather(grad_BZ, 1, self._places_BX, out=self._products_BX)  # G, where S was
        torch.bmm(self._products_BVV, self._vectors_BVD, out=self._grad_BVD)
        self._bottom_grad_BD.add_(grad_BZ[:, : self._dim])
        self._grad_BFD.copy_(self._embeddings_grad_BFD)
        return self._bottom_grad_BD, self._grad_AD
