"""The bytes of a model that is trained."""

from dataclasses import dataclass

from harness.core.model_options import CRITEO, DlrmOptions, ModelOptions, Shape
from harness.core.optimizers import OPTIMIZERS, row_width
from harness.model.dense_optimizers import DENSE_OPTIMIZERS
from harness.model.models import counted
from harness.model.sizes import model_size


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
        parameters, buffers_bytes = counted(options, shape)
    dense = DENSE_OPTIMIZERS[dense_optimizer]
    steps_bytes = 8 * (dense.counts_steps or not isinstance(options, DlrmOptions))
    return Footprint(
        row_width=row_width(OPTIMIZERS[optimizer], options.row_values),
        num_parameters=parameters,
        dense_bytes=4 * (1 + len(dense.states)) * parameters + buffers_bytes + steps_bytes,
    )
