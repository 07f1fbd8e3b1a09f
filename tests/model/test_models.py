"""Laws of the models that autograd differentiates, held against plain modules that share nothing with them.

B batch, F tables, D embedding dim, I dense features, W values of a row.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.config.derived import group_of
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.events import Finished, Trained
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.model_options import CRITEO, ModelOptions, Shape, options_of
from harness.core.placement import Placement
from harness.data.dataset import Dataset
from harness.model.dlrm import DenseNetwork
from harness.model.footprint import footprint
from harness.model.metrics import exact_auc
from harness.model.models import MODELS, make_model
from harness.model.network import AutogradNetwork
from harness.model.sizes import model_size
from harness.record.event_log import read_events
from harness.run import assemble
from harness.run.spec import RunSpec
from tests.model.batches import BACKENDS, initial_tables
from tests.runs import changed

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


def batch_of(
    shape: Shape, num_samples: int, width: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, BatchPlan, Tensor]:
    """What train() takes: features, rows, plan, labels; many rows are met more than once."""
    rng = np.random.default_rng(seed)
    cardinalities = tuple(3 + 5 * table for table in range(shape.num_tables))
    ids_BF = np.stack([rng.integers(0, size, num_samples) for size in cardinalities], axis=1).astype(np.int32)
    plan = plan_batch(ids_BF, Placement("row", cardinalities, 1), np.zeros(num_samples, dtype=bool))
    rows_ND, dense_BI = rng.normal(0, 0.3, (len(plan.keys_N), width)), rng.random((num_samples, shape.num_dense))
    dense_BI, rows_ND, labels_B = (
        torch.tensor(each, dtype=dtype) for each in (dense_BI, rows_ND, rng.random(num_samples) < 0.3)
    )
    return dense_BI, rows_ND, plan, labels_B


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_five_steps_are_those_of_the_equations(variant: str, optimizer: str) -> None:
    """In float64, to 1e-9 of each tensor's norm: losses, gradients of rows, parameters after torch's own optimizer."""
    options = options_for(variant)
    network = AutogradNetwork(options, SMALL, seed=3, learning_rate=0.05, optimizer=optimizer, dtype=torch.float64)
    names = [name for name, _ in make_model(options, SMALL, seed=3).named_parameters()]
    before = {name: value.clone() for name, value in network.state().items()}
    plain = {name: before[name].clone().requires_grad_() for name in names}
    of_torch = OPTIMIZERS[optimizer](plain.values(), lr=0.05)
    for seed in range(5):
        dense_BI, rows_NW, plan, labels_B = batch_of(SMALL, 40, options.row_values, seed, torch.float64)
        leaf_NW = rows_NW.clone().requires_grad_()
        rows_BFW = leaf_NW[plan.inverse_A].view(40, SMALL.num_tables, -1)
        logits_B = plain_logits(VARIANTS[variant], plain, dense_BI, rows_BFW)
        expected = functional.binary_cross_entropy_with_logits(logits_B, labels_B)
        of_torch.zero_grad()
        expected.backward()
        of_torch.step()
        loss, grads_NW = network.train(dense_BI, rows_NW, plan, labels_B)
        assert loss == pytest.approx(expected.item(), rel=1e-9)
        assert leaf_NW.grad is not None
        assert (grads_NW - leaf_NW.grad).norm() < 1e-9 * leaf_NW.grad.norm()
    state = network.state()
    for name, value in plain.items():
        assert (state[name] - value).norm() <= 1e-9 * value.norm(), name
    assert all(not torch.equal(state[name], before[name]) for name in names if name.endswith("weight"))


class PlainModule(nn.Module):
    """A model of one process: a table is an ``nn.EmbeddingBag``, and the logits are those of the equations."""

    def __init__(self, values: Mapping[str, Any], dense: nn.Module, tables: list[Tensor]) -> None:
        super().__init__()
        self.values, self.dense = values, dense
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(table_NW, freeze=False, mode="sum") for table_NW in tables
        )

    def forward(self, dense_BI: Tensor, ids_BF: Tensor) -> Tensor:
        """Logits, (B,)."""
        rows = [table(ids_BF[:, number : number + 1]) for number, table in enumerate(self.tables)]
        return plain_logits(self.values, dict(self.dense.named_parameters()), dense_BI, torch.stack(rows, dim=1))


@pytest.mark.parametrize(
    "variant", ["wide_deep", "wide_deep-embeddings", "dcn", "dcn-parallel", "deepfm", "deepfm-norm"]
)
def test_fifty_steps_are_those_of_a_plain_module(config: Config, tmp_path: Path, variant: str) -> None:
    """The real trainer over four PS ranks has the losses of a single-process module, to 1e-4 (DCN-v2 multiplies
    values of 10 thrice; all others are within 1e-5)."""
    settings = {f"model__{key}": value for key, value in VARIANTS[variant].items()}
    config = changed(
        config,
        **settings,
        trainer__batch_size=16,
        trainer__learning_rate=0.01,
        data__max_train_samples=800,
        strategy__name="none",
    )
    assemble.run(config, tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    losses = [loss for event in events if isinstance(event, Trained) for loss in event.losses]
    dataset = Dataset.open(Path(config.data.path), split="dlrm", seed=config.seed)
    options = RunSpec(config).model
    tables = initial_tables(options.row_values, config.seed, dataset.cardinalities)
    module = PlainModule(VARIANTS[variant], make_model(options, CRITEO, seed=config.seed), tables)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    expected = []
    for step in range(50):
        batch = dataset.train_batch(step, 16)
        optimizer.zero_grad()
        logits_B = module(batch.dense_BI, torch.from_numpy(batch.ids_BF).long())
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=0, abs=1e-4)
    assert max(losses) - min(losses) > 0.01, "the model moves"
    finished = events[-1]
    assert isinstance(finished, Finished)
    if "norm" not in variant:  # which predicts with the statistics of all batches
        (batch,) = dataset.eval_batches("test", 10_000)
        logits_B = module(batch.dense_BI, torch.from_numpy(batch.ids_BF).long())
        assert finished.auc == pytest.approx(exact_auc(logits_B.detach(), batch.labels_B), abs=1e-3)


def test_a_state_restores_a_model_to_the_bit() -> None:
    """Statistics of batch normalisation, Adam's moments and the place in the stream of dropout are part of it."""
    options = options_of("deepfm", size="tiny", batch_norm=True, dropout=0.5)
    batches = [batch_of(SMALL, 40, options.row_values, seed, torch.float64) for seed in range(5)]

    def network(seed: int) -> AutogradNetwork:
        return AutogradNetwork(options, SMALL, seed=seed, learning_rate=0.01, optimizer="adam", dtype=torch.float64)

    one, other = network(1), network(1)
    for batch in batches[:3]:
        one.train(*batch)
    state = {name: value.clone() for name, value in one.state().items()}
    assert {"deep.0.norm.running_mean", "deep.0.weight.m", "deep.0.weight.v", "steps"} <= state.keys()
    losses = [one.train(*batch)[0] for batch in batches[3:]]
    other.train(*batches[4])  # which the state replaces
    other.load(state)
    assert [other.train(*batch)[0] for batch in batches[3:]] == losses
    assert all(torch.equal(value, other.state()[name]) for name, value in one.state().items())
    other.load({**state, "steps": state["steps"] + 1})
    assert other.train(*batches[3])[0] != losses[0], "the comparison can fail: dropout follows from the step"


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
@pytest.mark.parametrize("shape", [CRITEO, SMALL, Shape(0, 22)], ids=["criteo", "small", "no dense features"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_bytes_are_those_of_the_state(variant: str, shape: Shape, optimizer: str) -> None:
    """What a save is charged for is what it writes: parameters, buffers, state of the optimizer, number of steps."""
    options = options_for(variant)
    if variant == "wide_deep-embeddings" and not shape.num_dense:
        with pytest.raises(ConfigError, match=r"model\.wide: expected ids for data without dense features"):
            footprint(options, "sgd", optimizer, shape)
        return
    if options.name == "dlrm" and optimizer != "adam":
        network = DenseNetwork(model_size(options, shape), seed=0, learning_rate=0.1, optimizer=optimizer)  # pyright: ignore[reportArgumentType]
    else:
        network = AutogradNetwork(options, shape, seed=0, learning_rate=0.1, optimizer=optimizer)
    sizes = footprint(options, "sgd", optimizer, shape)
    assert sizes.dense_bytes == sum(value.nbytes for value in network.state().values())
    assert sizes.row_width == 16 + (variant.startswith("deepfm") or variant == "wide_deep")


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "wide_deep-embeddings"])
def test_data_of_another_shape_trains(variant: str) -> None:
    """Law: with 22 tables and no dense features, as Avazu's, the loss falls, and predictions are of every sample."""
    options, shape = options_for(variant), Shape(0, 22)
    network = AutogradNetwork(options, shape, seed=0, learning_rate=0.05)
    dense_BI, rows_NW, plan, labels_B = batch_of(shape, 64, options.row_values, 0)
    losses = [network.train(dense_BI, rows_NW, plan, labels_B)[0] for _ in range(30)]
    assert losses[-1] < losses[0] - 0.01
    assert network.predict(dense_BI, rows_NW, plan).shape == (64,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [SMALL, Shape(0, 22), Shape(7, 1)], ids=str)
def test_backends_of_dlrm_take_data_of_any_shape(backend: str, shape: Shape) -> None:
    """Losses, row gradients and parameters of ten steps are those of the model that autograd differentiates."""
    options = options_for("dlrm")
    network = DenseNetwork(model_size(options, shape), seed=2, learning_rate=0.1, backend=backend)  # pyright: ignore[reportArgumentType]
    plain = AutogradNetwork(options, shape, seed=2, learning_rate=0.1)
    batch = batch_of(shape, 33, 16, seed=0)
    for seed in range(10):
        batch = dense_BI, rows_NW, plan, labels_B = batch_of(shape, 33, 16, seed)
        (loss, grads_ND), (other, expected_ND) = (
            each.train(dense_BI, rows_NW, plan, labels_B) for each in (network, plain)
        )
        assert loss == pytest.approx(other, abs=1e-5)
        torch.testing.assert_close(grads_ND, expected_ND, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(network.predict(*batch[:3]), plain.predict(*batch[:3]))


def test_only_the_options_of_its_model_are_in_a_config(config: Config) -> None:
    """Each in its own hash only; one that a model lacks is refused with the models that have it."""
    hashes = {
        RunSpec(changed(config, **settings)).result_hash
        for settings in (
            {},
            {"model__name": "dcn"},
            {"model__name": "dcn", "model__cross_rank": 4},
            {"model__name": "deepfm"},
            {"model__name": "deepfm", "model__dropout": 0.5},
        )
    }
    assert len(hashes) == 5
    assert "cross_rank" not in RunSpec(changed(config, model__name="deepfm")).identity["model"]


def test_a_grid_over_models_is_one_group_of_wandb(config: Config) -> None:
    """The group's hash is of what all cells share, in any order, though models have different keys."""
    configs = [changed(config, model__name=name) for name in MODELS]
    assert group_of(configs) == group_of(configs[::-1]) != group_of(configs[1:2])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trainer__backend": "compiled"}, "trainer.backend: compiled, but it computes model dlrm only, not dcn"),
        ({"cluster__num_trainers": 2, "engine": "rpc"}, "cluster.num_trainers: expected 1 with backend torch"),
        (
            {"model__batch_norm": True, "trainer__batch_size": 1},
            "trainer.batch_size: expected at least 2 with model.ba",
        ),
    ],
)
def test_what_other_models_lack_is_refused(config: Config, settings: dict[str, Any], words: str) -> None:
    """One line, before anything starts."""
    with pytest.raises(ConfigError) as refused:
        RunSpec(changed(config, model__name="dcn", **settings)).validate()
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


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
        network.train(*batch_of(SMALL, 8, options.row_values, 0))
    assert str(refused.value).startswith(f"model.name: dcn: {words}")


def test_every_model_has_its_options() -> None:
    """The table of models and the options from which configurations are built name the same models."""
    assert all(issubclass(type(options_of(name)), model.Options) for name, model in MODELS.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: torch sees no CUDA device")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_on_cuda_is_one_on_the_cpu(variant: str) -> None:
    """Loss, row gradients and parameters of a GPU are the CPU's to float32's accuracy, dropout's draws included."""
    options = options_for(variant)
    batch = batch_of(SMALL, 128, options.row_values, 0)
    networks = [AutogradNetwork(options, SMALL, seed=0, learning_rate=0.1, device=name) for name in ("cpu", "cuda")]
    (loss, grads_NW), (cuda_loss, cuda_grads_NW) = (each.train(*batch) for each in networks)
    assert cuda_loss == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(cuda_grads_NW, grads_NW, rtol=1e-3, atol=1e-5)
    for name, value in networks[0].state().items():
        torch.testing.assert_close(networks[1].state()[name], value, rtol=1e-3, atol=1e-5)
