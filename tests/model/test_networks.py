"""Laws of the dense networks, held against the papers' equations, which torch differentiates.

B batch, F tables, D embedding dim, N distinct rows of a batch, I dense features, W values of a row.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.cluster.server import RankServer, RankSpec
from harness.config.derived import group_of
from harness.config.model import BackendName, Config
from harness.core.errors import ConfigError
from harness.core.model_options import CRITEO, DlrmOptions, ModelOptions, Shape, options_of
from harness.core.plans import Rank
from harness.data.dataset import Batch as Samples
from harness.data.dataset import Dataset
from harness.model.dlrm import PREDICT_SAMPLES, DenseNetwork, Network
from harness.model.metrics import exact_auc
from harness.model.models import MODELS, Draws, footprint, make_model, num_top_inputs
from harness.model.network import AutogradNetwork
from harness.record.event_log import read_events
from harness.run import assemble
from harness.run.spec import RunSpec
from tests.model.batches import BACKENDS, Batch, batch_of, dlrm_of, initial_tables
from tests.runs import changed, losses_of

VARIANTS: dict[str, dict[str, Any]] = {
    "dlrm": {"name": "dlrm"},
    "wide_deep": {"name": "wide_deep"},
    "wide_deep-embeddings": {"name": "wide_deep", "wide": "embeddings"},
    "dcn": {"name": "dcn"},
    "dcn-parallel": {"name": "dcn", "structure": "parallel", "cross_rank": 0, "bottom_mlp": (16,)},
    "dcn-bare": {"name": "dcn", "bottom_mlp": ()},
    "deepfm": {"name": "deepfm"},
    "deepfm-norm": {"name": "deepfm", "batch_norm": True, "dense": "ignored"},
}
"""Each model with small layers, and each way that its options can turn."""
SMALL = Shape(num_dense=3, num_tables=5)
ODD = dlrm_of("tiny", embedding_dim=3, bottom_mlp=(7, 3), top_mlp=(5, 9, 1))
"""Widths that no vector register divides."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}
ARITHMETICS = [*((name, torch.float32) for name in BACKENDS), ("torch", torch.float64)]


def options_for(variant: str) -> ModelOptions:
    """The options of a variant."""
    values = VARIANTS[variant]
    return options_of(values["name"], size="tiny", **{key: v for key, v in values.items() if key != "name"})


def mlp(p: Mapping[str, Tensor], name: str, x_BX: Tensor, *, ends_in_relu: bool) -> Tensor:
    """All layers whose parameters begin with ``name.NUMBER``, with batch normalisation where there is any."""
    number = 0
    while f"{name}.{number}.weight" in p:
        x_BX = x_BX @ p[f"{name}.{number}.weight"].T + p.get(f"{name}.{number}.bias", torch.zeros(()))
        if f"{name}.{number}.norm.weight" in p:
            x_BX = (x_BX - x_BX.mean(0)) / (x_BX.var(0, unbiased=False) + 1e-5).sqrt()
            x_BX = x_BX * p[f"{name}.{number}.norm.weight"] + p[f"{name}.{number}.norm.bias"]
        number += 1
        if ends_in_relu or f"{name}.{number}.weight" in p:
            x_BX = x_BX.clamp(min=0)
    return x_BX


def plain_logits(values: Mapping[str, Any], p: Mapping[str, Tensor], dense_BI: Tensor, rows_BFW: Tensor) -> Tensor:
    """Logits, (B,), by the papers' equations, written without the harness's classes."""
    first_B = rows_BFW[:, :, 16:].sum(dim=(1, 2))
    if "wide.weight_I" in p and values.get("dense") != "ignored":
        first_B = first_B + dense_BI @ p["wide.weight_I"]
    flat_BX = rows_BFW[:, :, :16].reshape(len(rows_BFW), -1)
    both_BX = torch.cat([dense_BI, flat_BX], dim=1)
    match values["name"]:
        case "dlrm":
            bottom_BD = mlp(p, "bottom", dense_BI, ends_in_relu=True)
            vectors = [bottom_BD, *rows_BFW.unbind(1)]
            dots = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
            return mlp(p, "top", torch.cat([bottom_BD, torch.stack(dots, 1)], 1), ends_in_relu=False)[:, 0]
        case "wide_deep" if values.get("wide") == "embeddings":
            head_BX = torch.cat([mlp(p, "deep", dense_BI, ends_in_relu=True), flat_BX], dim=1)
        case "wide_deep":
            head_BX = mlp(p, "deep", both_BX, ends_in_relu=True)
        case "dcn":
            x0_BL = both_BX
            if "bottom.0.weight" in p:
                x0_BL = torch.cat([mlp(p, "bottom", dense_BI, ends_in_relu=True), flat_BX], dim=1)
            x_BL = x0_BL
            for number in range(sum(name.endswith(".up.weight") for name in p)):
                w_LL = p[f"cross.{number}.up.weight"]
                if f"cross.{number}.down.weight" in p:
                    w_LL = w_LL @ p[f"cross.{number}.down.weight"]
                x_BL = x0_BL * (x_BL @ w_LL.T + p[f"cross.{number}.up.bias"]) + x_BL
            if values.get("structure") == "parallel":
                head_BX = torch.cat([x_BL, mlp(p, "deep", x0_BL, ends_in_relu=True)], dim=1)
            else:
                head_BX = mlp(p, "deep", x_BL, ends_in_relu=True)
        case "deepfm":
            v = rows_BFW[:, :, :16]
            pairs = [(v[:, i] * v[:, j]).sum(1) for i in range(v.shape[1]) for j in range(i)]
            first_B = first_B + torch.stack(pairs).sum(0)
            head_BX = mlp(p, "deep", flat_BX if values.get("dense") == "ignored" else both_BX, ends_in_relu=True)
        case name:
            raise AssertionError(name)
    return (head_BX @ p["last.weight"].T + p["last.bias"])[:, 0] + first_B


def distance(actual: Tensor, expected: Tensor) -> float:
    """Of two tensors, relative to the second's norm."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


def expected_step(
    values: Mapping[str, Any], parameters: Mapping[str, Tensor], batch: Batch
) -> tuple[Tensor, float, Tensor]:
    """Logits, loss and gradients of the rows by autograd in float64, which leaves those of ``parameters`` at them."""
    dense_BI, rows_NW, plan, labels_B = batch
    leaf_NW = rows_NW.double().clone().requires_grad_()
    rows_BFW = leaf_NW[plan.inverse_A].view(len(labels_B), -1, rows_NW.shape[1])
    logits_B = plain_logits(values, parameters, dense_BI.double(), rows_BFW)
    loss = functional.binary_cross_entropy_with_logits(logits_B, labels_B.double())
    loss.backward()
    assert leaf_NW.grad is not None
    return logits_B.detach(), loss.item(), leaf_NW.grad


@pytest.mark.parametrize(("backend", "dtype"), ARITHMETICS)
@pytest.mark.parametrize(
    ("options", "num_samples"),
    [(ODD, 1), (ODD, 3), (ODD, 128), (dlrm_of("kaggle"), 128), (dlrm_of("terabyte"), 1), (dlrm_of("mlperf"), 3)],
    ids=str,
)
def test_logits_and_gradients_of_dlrm_are_autograds(
    backend: BackendName, dtype: torch.dtype, options: DlrmOptions, num_samples: int
) -> None:
    """Loss, row gradients and the gradient of every parameter are autograd's, to 2e-6 of their norm in float32 and to
    1e-13 in float64. The step is so long that the parameter itself vanishes beside its gradient.
    """
    learning_rate = 2.0**40
    bound = 1e-13 if dtype == torch.float64 else 2e-6
    network = DenseNetwork(options, CRITEO, seed=3, learning_rate=learning_rate, dtype=dtype, backend=backend)
    batch = batch_of(num_samples, 5, options.dim, dtype=dtype)
    before = {name: value.clone() for name, value in network.state().items()}
    plain = {name: value.double().clone().requires_grad_() for name, value in before.items()}
    logits_B, expected_loss, expected_ND = expected_step({"name": "dlrm"}, plain, batch)
    torch.testing.assert_close(network.predict(*batch[:3]).double(), logits_B, rtol=1e-5, atol=1e-6)
    assert len(logits_B) == 1 or logits_B.std() > 1e-3, "the logits tell samples apart"
    loss, grads_ND = network.train(*batch)
    network.apply_pending()
    assert loss == pytest.approx(expected_loss, rel=bound)
    assert grads_ND.dtype == dtype
    assert distance(grads_ND, expected_ND) < bound
    for name, value in network.state().items():
        grad = plain[name].grad
        assert grad is not None
        assert distance((before[name] - value) / learning_rate, grad) < bound, name


def check_steps(network: Network, values: Mapping[str, Any], shape: Shape, width: int, optimizer: str) -> None:
    """Five steps of ``network`` are those of the equations and of torch's own optimizer, in float64."""
    before = {name: value.clone() for name, value in network.state().items()}
    dtype = before["top.0.weight" if "top.0.weight" in before else "last.weight"].dtype
    bound = 1e-9 if dtype == torch.float64 else 1e-5  # a first step divides a gradient by its own size
    of_model = [name for name in before if name.endswith(("weight", "bias", "weight_I"))]
    plain = {name: before[name].double().clone().requires_grad_() for name in of_model}
    of_torch = OPTIMIZERS[optimizer](plain.values(), lr=0.05)
    for seed in range(5):
        batch = batch_of(40, seed, width, shape, dtype)
        of_torch.zero_grad()
        _, expected_loss, expected_NW = expected_step(values, plain, batch)
        of_torch.step()
        loss, grads_NW = network.train(*batch)
        assert loss == pytest.approx(expected_loss, rel=bound)
        assert distance(grads_NW, expected_NW) < bound
    state = network.state()
    for name, value in plain.items():
        assert distance(state[name], value.detach()) < bound, name
        assert not (name.endswith("weight") and value.numel() and torch.equal(state[name], before[name])), name
        if optimizer == "adagrad":
            assert distance(state[f"{name}.sum"], of_torch.state[value]["sum"]) < bound, name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_five_steps_are_those_of_the_equations(variant: str, optimizer: str) -> None:
    """Losses, gradients of rows, parameters after torch's own optimizer, to 1e-9 of each tensor's norm.

    The data has the shape of Avazu's, too, with 22 tables and no dense features.
    """
    options, has_dense = options_for(variant), optimizer != "adagrad" or variant == "wide_deep-embeddings"
    shape = SMALL if has_dense else Shape(0, 22)
    network = AutogradNetwork(options, shape, seed=3, learning_rate=0.05, optimizer=optimizer, dtype=torch.float64)
    check_steps(network, VARIANTS[variant], shape, options.row_values, optimizer)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("shape", [SMALL, Shape(0, 22), Shape(7, 1)], ids=str)
@pytest.mark.parametrize(("backend", "dtype"), ARITHMETICS)
def test_five_steps_of_a_backend_are_those_of_the_equations(
    backend: BackendName, dtype: torch.dtype, shape: Shape, optimizer: Any
) -> None:
    """The same of DLRM's backends, on data of any shape."""
    network = DenseNetwork(ODD, shape, seed=3, learning_rate=0.05, optimizer=optimizer, backend=backend, dtype=dtype)
    check_steps(network, {"name": "dlrm"}, shape, ODD.dim, optimizer)


RUNS: list[Any] = [
    ("dlrm", {"trainer__backend": BACKENDS[0], "cluster__placement": "row"}),
    ("dlrm", {"trainer__backend": "torch", "cluster__placement": "table"}),
    *((name, {}) for name in VARIANTS if "-" not in name and name != "dlrm"),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in VARIANTS if "-" in name and name != "dcn-bare"),
]


@pytest.mark.parametrize(("variant", "settings"), RUNS)
def test_twenty_steps_of_the_trainer_are_those_of_one_process(
    config: Config, tmp_path: Path, variant: str, settings: dict[str, Any]
) -> None:
    """The real trainer over four PS ranks has the losses, rows and AUC of a plain model in one process, to 1e-4
    (DCN-v2 multiplies values of 10 thrice; all others are within 1e-5)."""
    config = changed(
        config,
        **{f"model__{key}": value for key, value in VARIANTS[variant].items()},
        **settings,
        trainer__batch_size=16,
        trainer__learning_rate=0.01,
        data__max_train_samples=320,
        eval__every_steps=7,  # splits the messages of some steps
        strategy__name="none",
    )
    servers: list[RankServer] = []

    def make_server(spec: RankSpec, rank: Rank) -> RankServer:
        servers.append(RankServer(spec, rank))
        return servers[-1]

    finished = assemble.run(config, tmp_path / "run", parts=assemble.Parts(make_server=make_server))
    losses = losses_of(read_events(tmp_path / "run" / "events.jsonl"))
    dataset = Dataset.open(Path(config.data.path), split="dlrm", seed=config.seed)
    options = RunSpec(config).model
    tables = [each.requires_grad_() for each in initial_tables(options.row_values, config.seed, dataset.cardinalities)]
    dense = dict(make_model(options, CRITEO, seed=config.seed).named_parameters())
    optimizer = torch.optim.SGD([*dense.values(), *tables], lr=0.01)

    def logits(batch: Samples) -> Tensor:
        ids_BF = torch.from_numpy(batch.ids_BF).long()
        rows = [functional.embedding(ids_BF[:, number], table_NW) for number, table_NW in enumerate(tables)]
        return plain_logits(VARIANTS[variant], dense, batch.dense_BI, torch.stack(rows, dim=1))

    expected = []
    for step in range(20):
        batch = dataset.train_batch(step, 16)
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(logits(batch), batch.labels_B)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=0, abs=1e-4)
    assert max(losses) - min(losses) > 0.01, "the model moves"
    for (index, server), (number, table_NW) in product(enumerate(servers), enumerate(tables)):
        first, stride = server.shard.placement.table_rows(index, number)
        rows_NW = server.shard.rows_MD[server.shard.span(number)]
        torch.testing.assert_close(rows_NW, table_NW.detach()[first::stride][: len(rows_NW)], rtol=0, atol=1e-4)
    if "norm" not in variant:  # which predicts with the statistics of all batches
        (batch,) = dataset.eval_batches("test", 10_000)
        assert finished.auc == pytest.approx(exact_auc(logits(batch).detach(), batch.labels_B), abs=1e-3)


def network_of(name: str, **settings: Any) -> Network:
    """The network of a backend of DLRM, or of a variant, for small data."""
    settings |= {"seed": 2, "learning_rate": 0.02}
    if name in BACKENDS:
        return DenseNetwork(dlrm_of("tiny"), SMALL, backend=name, **settings)
    return AutogradNetwork(options_for(name), SMALL, **settings)


@pytest.mark.parametrize(("name", "optimizer"), [*((name, "adagrad") for name in BACKENDS), ("deepfm-norm", "adam")])
def test_a_state_restores_a_network_to_the_bit(name: str, optimizer: str) -> None:
    """From a copy of an earlier state the same batches give the same bits again.

    The optimizer's state, statistics of batches and the place in the stream of dropout are part of it.
    """
    network = network_of(name, optimizer=optimizer)
    batches = [batch_of(40, seed, 17 if name == "deepfm-norm" else 16, SMALL) for seed in range(3)]

    def end(state: dict[str, Tensor]) -> tuple[list[float], dict[str, Tensor]]:
        network.load(state)
        losses = [network.train(*batch)[0] for batch in batches[1:]]
        return losses, {name: value.clone() for name, value in network.state().items()}

    network.train(*batches[0])
    saved = {name: value.clone() for name, value in network.state().items()}
    losses, first = end(saved)
    network.train(*batches[0])  # gradients that a restore must drop
    again_losses, again = end(saved)
    assert losses == again_losses
    assert all(torch.equal(first[name], again[name]) for name in first)
    states = ("steps", ".sum", ".m", ".v")
    for part in [part for part in states if any(name.endswith(part) for name in saved)]:
        _, other = end({key: value + 1 if key.endswith(part) else value for key, value in saved.items()})
        assert any(not torch.equal(first[key], other[key]) for key in first if not key.endswith(part)), part


def test_a_buffer_that_a_model_assigns_anew_is_part_of_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the state has its present value, and the model gets back the one that is loaded."""

    class Centred(MODELS["wide_deep"]):
        mean: Tensor

        def __init__(self, options: ModelOptions, shape: Shape) -> None:
            super().__init__(options, shape)
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, dense_BI: Tensor, rows_BFW: Tensor, draws: Draws) -> Tensor:
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * dense_BI.mean()
            return super().forward(dense_BI, rows_BFW, draws) - self.mean

    monkeypatch.setitem(MODELS, "wide_deep", Centred)
    network, (first, second) = network_of("wide_deep"), (batch_of(40, seed, 17, SMALL) for seed in range(2))
    network.train(*first)
    saved = {name: value.clone() for name, value in network.state().items()}
    assert saved["mean"] == pytest.approx(0.1 * float(first[0].mean()))
    losses = []
    for _ in range(2):
        losses.append(network.train(*second)[0])
        network.load(saved)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_behind_the_values_of_a_row_change_nothing(backend: str) -> None:
    """Rows with five columns of state, in order or in the slots of a cache: the bits of rows without."""
    plain, wide = (network_of(backend) for _ in range(2))
    dense_BI, rows_ND, plan, labels_B = batch_of(32, 4, shape=SMALL)
    rows_NX = torch.cat([rows_ND, torch.full((len(rows_ND), 5), torch.nan)], dim=1)
    slots_N = torch.randperm(2 * len(rows_ND), generator=torch.Generator().manual_seed(0))[: len(rows_ND)]
    rows_SX = torch.full((2 * len(rows_ND), rows_NX.shape[1]), torch.nan)
    rows_SX[slots_N] = rows_NX
    assert torch.equal(wide.predict(dense_BI, rows_NX, plan), plain.predict(dense_BI, rows_ND, plan))
    for given, slots in ((rows_NX, None), (rows_SX, slots_N)):
        loss, grads_ND = wide.train(dense_BI, given, plan, labels_B, slots)
        expected_loss, expected_ND = plain.train(dense_BI, rows_ND, plan, labels_B)
        assert loss == expected_loss
        assert torch.equal(grads_ND, expected_ND)


@pytest.mark.parametrize("name", ["torch", "dlrm"])
def test_large_batches_are_predicted_in_parts(name: str) -> None:
    """A batch beyond PREDICT_SAMPLES gives every sample the logit that it has in a small batch."""
    network = network_of(name)
    dense_BI, rows_ND, plan, _ = batch_of(2 * PREDICT_SAMPLES + 7, 8, shape=SMALL)
    logits_B = network.predict(dense_BI, rows_ND, plan)
    inverse_BF = plan.inverse_A.view(len(dense_BI), -1)
    assert logits_B.shape == (len(dense_BI),)
    for first in (0, PREDICT_SAMPLES - 3, 2 * PREDICT_SAMPLES, len(dense_BI) - 5):
        span = slice(first, first + 5)
        few = network.predict(dense_BI[span], rows_ND, replace(plan, inverse_A=inverse_BF[span].flatten()))
        torch.testing.assert_close(logits_B[span], few, rtol=1e-5, atol=1e-6)


def test_dropout_is_of_training_only() -> None:
    """A prediction draws nothing; in training, as many hidden values are 0 as the rate says, others are scaled up."""
    options = options_of("wide_deep", size="tiny", mlp=(2000,), dropout=0.3)
    layer = make_model(options, SMALL, seed=0).get_submodule("deep.0")
    x_BX = torch.rand(50, 83)
    plain_BO = layer(x_BX, None)
    dropped_BO = layer(x_BX, np.random.default_rng(0))
    is_active = plain_BO > 0
    share = float((dropped_BO[is_active] == 0).double().mean())
    assert share == pytest.approx(0.3, abs=0.01)
    kept = is_active & (dropped_BO > 0)
    torch.testing.assert_close(dropped_BO[kept], plain_BO[kept] / 0.7)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_bytes_are_those_of_the_state(variant: str, optimizer: str) -> None:
    """What a save is charged for is what it writes: parameters, buffers, state of the optimizer, number of steps."""
    options = options_for(variant)
    for shape in (CRITEO, SMALL, Shape(0, 22)):
        if variant == "wide_deep-embeddings" and not shape.num_dense:
            with pytest.raises(ConfigError, match=r"model\.wide: expected ids for data without dense features"):
                footprint(options, "sgd", optimizer, shape)
            continue
        if isinstance(options, DlrmOptions) and optimizer != "adam":
            network = DenseNetwork(options, shape, seed=0, learning_rate=0.1, optimizer=optimizer)  # pyright: ignore[reportArgumentType]
        else:
            network = AutogradNetwork(options, shape, seed=0, learning_rate=0.1, optimizer=optimizer)
        sizes = footprint(options, "sgd", optimizer, shape)
        assert sizes.dense_bytes == sum(value.nbytes for value in network.state().values())
        assert sizes.row_width == 16 + (variant.startswith("deepfm") or variant == "wide_deep")


def test_initial_weights_are_normal() -> None:
    """Weights ~ N(0, sqrt(2/(fan_in+fan_out))), biases ~ N(0, sqrt(1/fan_out)): mean and variance within 4 standard
    errors, tails included. A seed gives them again, and no layer's values are those of another, rescaled.
    """
    state, same, other = (
        DenseNetwork(dlrm_of("mlperf"), CRITEO, seed=seed, learning_rate=0.1).state() for seed in (0, 0, 1)
    )
    assert all(torch.equal(same[name], value) and not torch.equal(other[name], value) for name, value in state.items())
    heads = torch.stack([value.flatten()[:800] for name, value in state.items() if name.endswith("weight")][:-1])
    assert (torch.corrcoef(heads) - torch.eye(len(heads))).abs().max() < 5 / math.sqrt(800)
    standardised: dict[str, list[Tensor]] = {"weight": [], "bias": []}
    for name, values in state.items():
        kind = name.rpartition(".")[2]
        fan_out = len(values)
        fan_in = state[name.replace("bias", "weight")].shape[1]
        variance = 2 / (fan_in + fan_out) if kind == "weight" else 1 / fan_out
        standardised[kind].append(values.double().flatten() / math.sqrt(variance))
        assert abs(standardised[kind][-1].mean()) < 4 / math.sqrt(values.numel()), name
    for kind, parts in standardised.items():
        values = torch.cat(parts)
        assert abs(values.var() - 1) < 4 * math.sqrt(2 / len(values)), kind
        assert abs((values.abs() > 2).double().mean() - 0.0455) < 4 * math.sqrt(0.0455 / len(values)), kind


# Written out by hand from the layers 13-512-256-64-16 / 367-512-256-1 and so on, weights and biases.
PUBLISHED = {
    "kaggle": (16, 367, (7168 + 131_328 + 16_448 + 1_040) + (188_416 + 131_328 + 257)),
    "terabyte": (64, 415, (7168 + 131_328 + 16_448) + (212_992 + 262_656 + 131_328 + 257)),
    "mlperf": (128, 479, (7168 + 131_328 + 32_896) + (491_520 + 1_049_600 + 524_800 + 131_328 + 257)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_as_published(name: str) -> None:
    """Embedding dim, inputs of the top MLP and number of dense parameters; the network really has so many.

    Parts that are given replace those of the named size.
    """
    options = dlrm_of(name)
    num_parameters = footprint(options, "sgd", "sgd").num_parameters
    assert (options.dim, num_top_inputs(options.dim, CRITEO), num_parameters) == PUBLISHED[name]
    state = DenseNetwork(options, CRITEO, seed=0, learning_rate=0.1).state()
    assert sum(parameter.numel() for parameter in state.values()) == num_parameters
    parts = {"embedding_dim": 8, "bottom_mlp": (32, 8), "top_mlp": (9, 1)}
    assert dlrm_of(name, **parts).filled() == dlrm_of("tiny", **parts).model_copy(update={"size": name})
    assert dlrm_of(name, top_mlp=(1,)).filled() == options.filled().model_copy(update={"top_mlp": (1,)})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model__embedding_dim": 32}, "model.bottom_mlp: expected .* model.embedding_dim .32., got 16"),
        ({"model__bottom_mlp": [64, 8]}, "model.bottom_mlp: expected .* .16., got 8"),
        ({"model__top_mlp": [64, 2]}, "model.top_mlp: expected the last width to be 1, .* got 2"),
        ({"model__bottom_mlp": []}, "model.bottom_mlp: expected a list of layer widths, got an empty list"),
        ({"model__top_mlp": []}, "model.top_mlp: expected a list of layer widths, got an empty list"),
        ({"model__name": "dcn", "trainer__backend": "compiled"}, "trainer.backend: compiled, .* model dlrm only, not"),
        ({"model__name": "dcn", "cluster__num_trainers": 2, "engine": "rpc"}, "cluster.num_trainers: expected 1 with"),
        (
            {"model__name": "dcn", "model__batch_norm": True, "trainer__batch_size": 1},
            "trainer.batch_size: expected at least 2 with model.ba",
        ),
    ],
)
def test_what_does_not_fit_a_model_is_refused(config: Config, settings: dict[str, Any], message: str) -> None:
    """One line that names the key and what would be right, before anything starts."""
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        RunSpec(changed(config, **settings)).validate()
    assert "\n" not in str(refused.value)


def test_a_grid_over_models_is_one_group_of_wandb(config: Config) -> None:
    """The group's hash is of what all cells share, in any order, though models have different keys."""
    configs = [changed(config, model__name=name).model_dump(mode="json") for name in MODELS]
    assert group_of(configs) == group_of(configs[::-1]) != group_of(configs[1:2])


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (lambda dense_BI, rows_BFW: rows_BFW.sum(dim=(1, 2)).unsqueeze(1), "expected logits of shape (8,), got (8, 1)"),
        (lambda dense_BI, rows_BFW: dense_BI.sum(dim=1).requires_grad_(), "expected logits that depend on the rows"),
    ],
)
def test_a_model_of_ones_own_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, logits: Callable[[Tensor, Tensor], Tensor], words: str
) -> None:
    """One line that says what a model must return."""
    monkeypatch.setattr(MODELS["dcn"], "forward", lambda self, dense_BI, rows_BFW, draws: logits(dense_BI, rows_BFW))
    options = options_for("dcn")
    network = AutogradNetwork(options, SMALL, seed=0, learning_rate=0.1)
    with pytest.raises(ConfigError) as refused:
        network.train(*batch_of(8, 0, options.row_values, SMALL))
    assert str(refused.value).startswith(f"model.name: dcn: {words}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch sees no CUDA device")
@pytest.mark.parametrize("name", ["torch", *VARIANTS])
def test_a_step_on_cuda_is_one_on_the_cpu(name: str) -> None:
    """Loss, row gradients, parameters and logits of a GPU are the CPU's to float32's accuracy, and on the CPU."""
    batch = batch_of(128, 0, 16 if name == "torch" else options_for(name).row_values, SMALL)
    networks = [network_of(name, device=device) for device in ("cpu", "cuda")]
    (loss, grads_NW), (cuda_loss, cuda_grads_NW) = (each.train(*batch) for each in networks)
    assert cuda_loss == pytest.approx(loss, abs=1e-5)
    state, cuda_state = ({**each.state(), "logits": each.predict(*batch[:3])} for each in networks)
    for key, value in {**state, "grads": grads_NW}.items():
        cuda_value = {**cuda_state, "grads": cuda_grads_NW}[key]
        assert cuda_value.device.type == "cpu"
        torch.testing.assert_close(cuda_value, value, rtol=1e-3, atol=1e-5)
