"""Numbers of a model: the widths of DLRM's layers, and the bytes of a model that is trained."""

from dataclasses import dataclass
from itertools import pairwise

from harness.core.optimizers import OPTIMIZERS, row_width
from harness.model.dense_optimizers import DENSE_OPTIMIZERS
from harness.model.options import CRITEO, DlrmOptions, ModelOptions, Shape


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


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Sizes of a trained model.

    ``row_width``: float32 numbers of an embedding row, state of its optimizer included. ``num_parameters``: of the
    dense network. ``dense_bytes``: of its parameters, buffers and optimizer.
    """

    row_width: int
    num_parameters: int
    dense_bytes: int

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of the whole model: the payload of a full save."""
        return 4 * self.row_width * num_rows + self.dense_bytes


def footprint(options: ModelOptions, optimizer: str, dense_optimizer: str, shape: Shape = CRITEO) -> Footprint:
    """The sizes of the model of ``options`` with these optimizers. Raises ConfigError for options that do not fit."""
    if isinstance(options, DlrmOptions):
        parameters, buffers_bytes = model_size(options, shape).num_parameters, 0
    else:
        from harness.model.models import counted  # noqa: PLC0415 - it imports this module

        parameters, buffers_bytes = counted(options, shape)
    dense = DENSE_OPTIMIZERS[dense_optimizer]
    steps_bytes = 8 * (dense.counts_steps or not isinstance(options, DlrmOptions))
    return Footprint(
        row_width=row_width(OPTIMIZERS[optimizer], options.row_values),
        num_parameters=parameters,
        dense_bytes=4 * (1 + len(dense.states)) * parameters + buffers_bytes + steps_bytes,
    )
