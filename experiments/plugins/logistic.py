"""Model ``logistic``."""

from torch import Tensor, nn

from harness.core.model_options import ModelOptions, Shape
from harness.model.models import MODELS, Draws, Model


class Logistic(Model):
    """Logistic regression: a weight of each row, and weights of the dense features."""

    class Options(ModelOptions):
        """Options of ``logistic``."""

        embedding_dim: int | None = 1
        """Values of a row: one weight each."""

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.dense = nn.Linear(shape.num_dense, 1)

    def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
        """See Model."""
        return self.dense(dense_BI).squeeze(1) + rows_BFW.sum(dim=(1, 2))


MODELS["logistic"] = Logistic
