"""Published sizes of DLRM (facebookresearch/dlrm bench scripts and MLPerf; PAPERS [read]), and a tiny one."""

from dataclasses import dataclass
from itertools import pairwise

from harness.config.model import ModelConfig, TrainerConfig
from harness.core.errors import ConfigError
from harness.core.optimizers import OPTIMIZERS, row_width

NUM_INTEGERS = 13
NUM_TABLES = 26


@dataclass(frozen=True)
class ModelSize:
    """Embedding dim D, widths of the bottom MLP (input 13, output D) and of the top MLP (output 1)."""

    embedding_dim: int
    bottom_mlp: tuple[int, ...]
    top_mlp: tuple[int, ...]

    @property
    def top_inputs(self) -> int:
        """Number of inputs of the top MLP: the bottom's output and all pairs of 27 vectors (367 for D = 16)."""
        num_vectors = NUM_TABLES + 1
        return self.embedding_dim + num_vectors * (num_vectors - 1) // 2

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense parameters, float32."""
        bottom = (NUM_INTEGERS, *self.bottom_mlp)
        top = (self.top_inputs, *self.top_mlp)
        layers = [*pairwise(bottom), *pairwise(top)]
        return 4 * sum(fan_in * fan_out + fan_out for fan_in, fan_out in layers)


SIZES: dict[str, ModelSize] = {
    "tiny": ModelSize(16, (64, 16), (64, 1)),
    "kaggle": ModelSize(16, (512, 256, 64, 16), (512, 256, 1)),
    "terabyte": ModelSize(64, (512, 256, 64), (512, 512, 256, 1)),
    "mlperf": ModelSize(128, (512, 256, 128), (1024, 1024, 512, 256, 1)),
}


def model_size(config: ModelConfig) -> ModelSize:
    """The size that ``config`` asks for. Raises ConfigError if its parts do not fit each other."""
    named = SIZES[config.size]
    for key in ("bottom_mlp", "top_mlp"):
        if getattr(config, key) == ():
            raise ConfigError(
                f"model.{key}: expected a list of layer widths, got an empty list; use null for the size's default"
            )
    size = ModelSize(
        config.embedding_dim or named.embedding_dim,
        config.bottom_mlp or named.bottom_mlp,
        config.top_mlp or named.top_mlp,
    )
    if size.bottom_mlp[-1] != size.embedding_dim:
        raise ConfigError(
            f"model.bottom_mlp: expected the last width to equal model.embedding_dim ({size.embedding_dim}), "
            f"got {size.bottom_mlp[-1]}"
        )
    if size.top_mlp[-1] != 1:
        raise ConfigError(
            f"model.top_mlp: expected the last width to be 1, the number of logits, got {size.top_mlp[-1]}"
        )
    return size


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Sizes of a trained model, state of the optimizers included.

    ``row_width``: float32 numbers of an embedding row. ``dense_bytes``: of the dense network.
    """

    row_width: int
    dense_bytes: int

    def num_bytes(self, num_rows: int) -> int:
        """Bytes of the whole model: the payload of a full save."""
        return 4 * self.row_width * num_rows + self.dense_bytes


def footprint(size: ModelSize, trainer: TrainerConfig) -> Footprint:
    """The sizes of a model of ``size`` that ``trainer`` trains."""
    return Footprint(
        row_width=row_width(OPTIMIZERS[trainer.optimizer], size.embedding_dim),
        dense_bytes=size.dense_bytes * (2 if trainer.dense_optimizer == "adagrad" else 1),
    )
