"""The options of models: the ``model`` group of a configuration. Imports no torch.

A model has named sizes, most of them published. ``model.size`` names one of them. A size gives a value to each other
option that is null.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from harness.core import choices
from harness.core.choices import DEFAULTS, OneOf, Options, enter
from harness.core.errors import ConfigError

PositiveInt = Annotated[int, Field(ge=1)]
Widths = tuple[PositiveInt, ...]
Rate = Annotated[float, Field(ge=0, lt=1)]


class Shape(NamedTuple):
    """What a model reads of each sample: ``num_dense`` dense features, and one row of each of ``num_tables`` tables."""

    num_dense: int = 13
    num_tables: int = 26


CRITEO = Shape()


class ModelOptions(Options):
    """The ``model`` group of a configuration: a model's name and the options of that model alone.

    A subclass with ``sizes`` declares the field ``size`` again, so that these names are allowed. Its other options are
    null by default.
    """

    group = "model"
    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    """Values of the options, by the name of a size."""

    name: str
    """The network on top of the embedding rows; the other keys of this group are this model's options."""
    size: Annotated[str, OneOf([*sizes])] = "default"
    """Size of the model, by name: it gives the value of every other key that is null."""
    embedding_dim: PositiveInt | None = None
    """D, the number of values of an embedding."""

    def filled(self) -> Self:
        """A copy in which each option that is null has the value of the size."""
        own = self.sizes[self.size]
        return self.model_copy(update={key: value for key, value in own.items() if getattr(self, key) is None})

    @property
    def dim(self) -> int:
        """D, of these options or of the size that they name."""
        found = self.filled().embedding_dim
        assert found is not None, "each size has an embedding_dim"
        return found

    @property
    def row_values(self) -> int:
        """Number of values of a row that the model reads: D, and one more if each row has a first-order weight."""
        return self.dim

    def check(self, shape: Shape) -> None:
        """Raise ConfigError if the options do not fit each other or the data's shape. By default all options fit."""


class DlrmOptions(ModelOptions):
    """DLRM: bottom MLP of dense features, dot products of all pairs of vectors, top MLP (Naumov et al. 2019)."""

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"embedding_dim": 16, "bottom_mlp": (64, 16), "top_mlp": (64, 1)},
        "kaggle": {"embedding_dim": 16, "bottom_mlp": (512, 256, 64, 16), "top_mlp": (512, 256, 1)},
        "terabyte": {"embedding_dim": 64, "bottom_mlp": (512, 256, 64), "top_mlp": (512, 512, 256, 1)},
        "mlperf": {"embedding_dim": 128, "bottom_mlp": (512, 256, 128), "top_mlp": (1024, 1024, 512, 256, 1)},
        "bagpipe": {
            "embedding_dim": 48,
            "bottom_mlp": (512, 256, 64, 48),
            "top_mlp": (1024, 1024, 1024, 256, 128, 1),
        },
    }

    size: Annotated[str, OneOf([*sizes])] = "kaggle"
    bottom_mlp: Widths | None = None
    """Widths of the layers after the dense features; the last must equal embedding_dim."""
    top_mlp: Widths | None = None
    """Widths of the layers after the interaction; the last must be 1."""

    def check(self, shape: Shape) -> None:
        """Raise ConfigError unless the bottom MLP ends in D values and the top MLP in one, and neither is empty."""
        for key in ("bottom_mlp", "top_mlp"):
            if getattr(self, key) == ():
                raise ConfigError(
                    f"model.{key}: expected a list of layer widths, got an empty list; use null for the size's default"
                )
        whole = self.filled()
        assert whole.bottom_mlp
        assert whole.top_mlp
        if whole.bottom_mlp[-1] != whole.embedding_dim:
            raise ConfigError(
                f"model.bottom_mlp: expected the last width to equal model.embedding_dim ({whole.embedding_dim}), "
                f"got {whole.bottom_mlp[-1]}"
            )
        if whole.top_mlp[-1] != 1:
            raise ConfigError(
                f"model.top_mlp: expected the last width to be 1, the number of logits, got {whole.top_mlp[-1]}"
            )


class _DeepOptions(ModelOptions):
    """Options of models with one deep MLP beside something else."""

    mlp: Widths | None = None
    """Widths of the hidden layers of the deep MLP."""
    batch_norm: bool | None = None
    """Whether each hidden layer of the deep MLP is normalised over the batch, before its ReLU."""
    dropout: Rate | None = None
    """Probability that a hidden value of the deep MLP is set to 0 in training. The draw follows from seed and step."""


_PLAIN: Mapping[str, Any] = {"batch_norm": False, "dropout": 0.0}
_STACKED: Mapping[str, Any] = {"structure": "stacked", "cross_layers": 2, "cross_rank": 8, **_PLAIN}
_PARALLEL: Mapping[str, Any] = {
    "structure": "parallel",
    "bottom_mlp": (16,),
    "cross_layers": 3,
    "cross_rank": 0,
    **_PLAIN,
}
_FIVE, _FOUR = (1000,) * 5, (2000,) * 4  # hidden layers of BARS: Criteo_x4, Avazu_x4


class WideDeepOptions(_DeepOptions):
    """Wide & Deep: a linear model and an MLP whose outputs are added (Cheng et al. 2016)."""

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"embedding_dim": 16, "wide": "ids", "mlp": (64, 32), **_PLAIN},
        "bagpipe": {"embedding_dim": 48, "wide": "embeddings", "mlp": (256, 256, 256), **_PLAIN},
        "bars": {"embedding_dim": 16, "wide": "ids", "mlp": _FIVE, **_PLAIN},
        "bars_avazu": {"embedding_dim": 16, "wide": "ids", "mlp": _FOUR, **_PLAIN},
    }

    size: Annotated[str, OneOf([*sizes])] = "tiny"
    wide: Literal["ids", "embeddings"] | None = None
    """What the linear part reads. `ids`: the dense features, and a first-order weight of each row, which is stored as
    one more value of the row; the MLP then reads dense features and embeddings. `embeddings`: all embeddings; the MLP
    then reads the dense features alone (BagPipe)."""

    def check(self, shape: Shape) -> None:
        """Raise ConfigError if the MLP would read nothing."""
        if self.filled().wide == "embeddings" and shape.num_dense == 0:
            raise ConfigError(
                "model.wide: expected ids for data without dense features, got embeddings; the MLP would read nothing"
            )

    @property
    def row_values(self) -> int:
        return super().row_values + (self.filled().wide == "ids")


class DcnOptions(_DeepOptions):
    """DCN-v2: layers that cross the input with itself, and an MLP (Wang et al. 2021)."""

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"embedding_dim": 16, "bottom_mlp": (64, 16), "mlp": (64,), **_STACKED},
        "bagpipe": {"embedding_dim": 48, "bottom_mlp": (1024, 512, 256, 64, 48), "mlp": (1024, 512, 256), **_STACKED},
        "mlperf": {
            "embedding_dim": 128,
            "bottom_mlp": (512, 256, 128),
            "mlp": (1024, 1024, 512, 256),
            **_STACKED,
            "cross_layers": 3,
            "cross_rank": 512,
        },
        "bars": {"embedding_dim": 16, "mlp": _FIVE, **_PARALLEL, "batch_norm": True, "dropout": 0.1},
        "bars_avazu": {"embedding_dim": 16, "mlp": _FOUR, **_PARALLEL},
    }

    size: Annotated[str, OneOf([*sizes])] = "tiny"
    bottom_mlp: Widths | None = None
    """Widths of an MLP of the dense features, whose outputs are concatenated with the embeddings. If neither this key
    nor the size gives any, the dense features themselves are."""
    cross_layers: Annotated[int, Field(ge=1)] | None = None
    """Number of cross layers."""
    cross_rank: Annotated[int, Field(ge=0)] | None = None
    """Rank of the matrix of a cross layer; 0: a matrix of full rank."""
    structure: Literal["stacked", "parallel"] | None = None
    """`stacked`: the MLP reads the output of the cross layers. `parallel`: it reads their input, and the last layer
    reads both outputs."""


class DeepFmOptions(_DeepOptions):
    """DeepFM: first-order weights, dot products of all pairs of embeddings, and an MLP (Guo et al. 2017)."""

    sizes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "tiny": {"embedding_dim": 16, "dense": "read", "mlp": (64, 32), **_PLAIN},
        "bagpipe": {"embedding_dim": 48, "dense": "ignored", "mlp": (64, 64, 64), "batch_norm": True, "dropout": 0.5},
        "bars": {"embedding_dim": 16, "dense": "read", "mlp": _FIVE, **_PLAIN},
        "bars_avazu": {"embedding_dim": 16, "dense": "read", "mlp": _FOUR, **_PLAIN},
    }

    size: Annotated[str, OneOf([*sizes])] = "tiny"
    dense: Literal["read", "ignored"] | None = None
    """Whether the MLP, and a linear part, read the dense features."""

    @property
    def row_values(self) -> int:
        return super().row_values + 1


def options_of(name: str = DEFAULTS["model"], /, **values: Any) -> ModelOptions:
    """The options of model ``name``: ``values``, and defaults for the rest.

    Raises KeyError for an unknown name, and pydantic's ValidationError for invalid values.
    """
    options = choices.options_of("model", name, **values)
    assert isinstance(options, ModelOptions)
    return options


for _name, _options in {
    "dlrm": DlrmOptions,
    "wide_deep": WideDeepOptions,
    "dcn": DcnOptions,
    "deepfm": DeepFmOptions,
}.items():
    enter(_name, _options, _options.__doc__)
