"""The exported model of a run is that of its record, and gives its predictions again."""

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.config.model import Config
from harness.core.errors import StoreError, UserError
from harness.core.events import Finished
from harness.model.metrics import exact_auc
from harness.run.export import export
from tests.runs import changed, run

ROOT = Path(__file__).parents[2]


def silent(done: int, total: int) -> None:
    """A progress that shows nothing."""


def exported(config: Config, tmp_path: Path) -> tuple[Path, Finished]:
    """The export of a run of ``config``, and the run's results."""
    finished, _ = run(changed(config, data__max_train_samples=200, trace__path=None), tmp_path / "one")
    export(tmp_path / "one", tmp_path / "out", silent)
    return tmp_path / "out", finished


def predictions(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and probabilities of predictions.csv, float64."""
    with (folder / "predictions.csv").open() as file:
        rows = [(float(row["label"]), float(row["probability"])) for row in csv.DictReader(file)]
    labels, probabilities = torch.tensor(rows, dtype=torch.float64).T
    return labels, probabilities


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": "rpc", "cluster__num_ps": 3, "trainer__optimizer": "adagrad", "trainer__dense_optimizer": "adagrad"},
        {"cluster__placement": "table", "trainer__dense_optimizer": "adam"},
        {"model__name": "deepfm", "strategy__name": "none"},
    ],
)
def test_predictions_have_the_auc_of_the_record(config: Config, tmp_path: Path, keys: dict[str, object]) -> None:
    """Law: on both engines, with both placements, without state of optimizers in the files."""
    folder, finished = exported(changed(config, **keys), tmp_path)
    labels, probabilities = predictions(folder)
    assert exact_auc(torch.logit(probabilities).float(), labels) == finished.auc
    loss = torch.nn.functional.binary_cross_entropy(probabilities, labels)
    assert float(loss) == pytest.approx(finished.log_loss, rel=1e-12)
    about = json.loads((folder / "run.json").read_text())
    assert about["results"]["auc"] == finished.auc
    layers = torch.load(folder / "dense.pt", weights_only=True)
    assert {name: [*tensor.shape] for name, tensor in layers.items()} == about["dense"]
    assert not [name for name in layers if name.endswith((".sum", ".m", ".v")) or name == "steps"]
    width = 16 + (about["config"]["model"]["name"] == "deepfm")
    assert {np.load(folder / name).shape[1] for name in about["tables"]} == {width}


def test_the_forward_pass_of_the_guide_gives_the_predictions(config: Config, tmp_path: Path) -> None:
    """Law: docs/forward.py, with plain torch, equals predictions.csv but for rounding."""
    folder, _ = exported(config, tmp_path)
    _, expected = predictions(folder)
    probabilities = runpy.run_path(str(ROOT / "docs" / "forward.py"))["probabilities"](folder)
    torch.testing.assert_close(probabilities.double(), expected, rtol=1e-5, atol=1e-7)


def test_a_model_of_another_run_is_refused(config: Config, tmp_path: Path) -> None:
    """Law: the line names rank and digests, and nothing is written."""
    short = changed(config, data__max_train_samples=40, trace__path=None)
    run(short, tmp_path / "one")
    run(changed(short, seed=1), tmp_path / "other")
    (tmp_path / "one/model").rename(tmp_path / "own")
    (tmp_path / "other/model").rename(tmp_path / "one/model")
    with pytest.raises(
        StoreError, match=r"one/model: ps0: expected the parameters of the run's record \(xxh3 \w+\), g"
    ):
        export(tmp_path / "one", tmp_path / "out", silent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "own"]


def test_a_run_without_its_model_says_how_to_get_it(config: Config, tmp_path: Path) -> None:
    """Law: results and config are written anyway; the line has the command, with its key."""
    short = changed(config, data__max_train_samples=40, trace__path=None, store__keep_finished=False)
    finished, _ = run(short, tmp_path / "one")
    words = r"has not kept its model, .* `run\.py train .*one/config\.yaml store\.keep_finished=true out=.*one-model`"
    with pytest.raises(UserError, match=words):
        export(tmp_path / "one", tmp_path / "out", silent)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.json"]
    assert json.loads((tmp_path / "out/run.json").read_text())["results"]["digests"] == finished.digests
