"""Laws of the published sizes (PAPERS: facebookresearch/dlrm bench scripts, MLPerf)."""

from typing import Any

import pytest

from harness.core.errors import ConfigError
from harness.core.model_options import options_of
from harness.model.dlrm import DenseNetwork
from harness.model.sizes import ModelSize, model_size

# Written out by hand from the layers 13-512-256-64-16 / 367-512-256-1 and so on, weights and biases.
PUBLISHED = {
    "kaggle": (16, 367, (7168 + 131_328 + 16_448 + 1_040) + (188_416 + 131_328 + 257)),
    "terabyte": (64, 415, (7168 + 131_328 + 16_448) + (212_992 + 262_656 + 131_328 + 257)),
    "mlperf": (128, 479, (7168 + 131_328 + 32_896) + (491_520 + 1_049_600 + 524_800 + 131_328 + 257)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_as_published(name: str) -> None:
    """Embedding dim, inputs of the top MLP and number of dense parameters; the network really has so many."""
    size = model_size(options_of(size=name))
    dim, top_inputs, num_parameters = PUBLISHED[name]
    assert (size.embedding_dim, size.top_inputs, size.num_parameters) == (dim, top_inputs, num_parameters)
    state = DenseNetwork(size, seed=0, learning_rate=0.1).state()
    assert sum(parameter.numel() for parameter in state.values()) == num_parameters
    assert state["top.0.weight"].shape[1] == top_inputs
    assert state["bottom.0.weight"].shape[1] == 13


def test_given_parts_replace_those_of_the_named_size() -> None:
    """embedding_dim, bottom_mlp and top_mlp each stand in for the size's own."""
    config = options_of(size="tiny", embedding_dim=8, bottom_mlp=[32, 8], top_mlp=[9, 1])
    assert model_size(config) == ModelSize(8, (32, 8), (9, 1))
    assert model_size(config).top_inputs == 8 + 351
    assert model_size(options_of(top_mlp=[1])) == ModelSize(16, (512, 256, 64, 16), (1,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"embedding_dim": 32}, r"model\.bottom_mlp: expected .* model\.embedding_dim \(32\), got 16"),
        ({"bottom_mlp": [64, 8]}, r"model\.bottom_mlp: expected .* \(16\), got 8"),
        ({"top_mlp": [64, 2]}, r"model\.top_mlp: expected the last width to be 1, .* got 2"),
        ({"bottom_mlp": []}, r"model\.bottom_mlp: expected a list of layer widths, got an empty list"),
        ({"top_mlp": []}, r"model\.top_mlp: expected a list of layer widths, got an empty list"),
    ],
)
def test_parts_that_do_not_fit_are_refused(values: dict[str, Any], message: str) -> None:
    """One line that names the key and what would be right."""
    with pytest.raises(ConfigError, match=message) as caught:
        model_size(options_of(size="tiny", **values))
    assert "\n" not in str(caught.value)
