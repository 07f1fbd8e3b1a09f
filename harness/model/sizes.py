"""The widths of DLRM's layers."""

from dataclasses import dataclass
from itertools import pairwise

from harness.core.model_options import CRITEO, DlrmOptions, ModelOptions, Shape


@dataclass(frozen=True)
class ModelSize:
    """Embedding dim D, widths of DLRM's bottom MLP (output D) and of its top MLP (output 1), the data's shape."""

    embedding_dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]
    shape: Shape = CRITEO

    @property
    def top_inputs(self) -> int:
        """Inputs of the top MLP: the bottom's output and all pairs of F + 1 vectors (367 for D = 16, F = 26)."""
        num_vectors = self.shape.num_tables + 1
        return self.embedding_dim + num_vectors * (num_vectors - 1) // 2

    @property
    def num_parameters(self) -> int:
        """Number of the dense parameters."""
        layers = [*pairwise((self.shape.num_dense, *self.bottom_mlp)), *pairwise((self.top_inputs, *self.top_mlp))]
        return sum(fan_in * fan_out + fan_out for fan_in, fan_out in layers)


SIZES: dict[str, ModelSize] = {name: ModelSize(**values) for name, values in DlrmOptions.sizes.items()}
"""Published sizes of DLRM (facebookresearch/dlrm bench scripts, MLPerf, uw-mad-dash/bagpipe), and a tiny one."""


def model_size(options: ModelOptions, shape: Shape = CRITEO) -> ModelSize:
    """The size of DLRM that its ``options`` ask for. Raises ConfigError if its parts do not fit each other."""
    options.check(shape)
    whole = options.filled()
    assert isinstance(whole, DlrmOptions)
    return ModelSize(whole.embedding_dim or 0, whole.bottom_mlp or (), whole.top_mlp or (), shape)
