"""Runs that start from the checkpoint of another run, which may have another number of PS ranks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement
from harness.core.plans import ps_rank
from harness.core.shard import Shard
from harness.run.spec import RunSpec
from harness.store import FileStore, newest_checkpoint
from tests.runs import changed, losses_of, run, run_on_both, saving_every, under

PLACES = [("row", 4), ("row", 3), ("row", 7), ("row", 1), ("table", 3)]


@pytest.fixture
def config(config: Config, tmp_path: Path) -> Config:
    """A run that starts from the model of another one, of four ranks."""
    config = changed(config, trace__path=None, data__max_train_samples=160, trainer__optimizer="rowwise_adagrad")
    config = changed(config, strategy__name="none", trainer__dense_optimizer="adagrad", store__keep_finished=True)
    run(config, tmp_path / "first")
    return changed(config, init__checkpoint=str(tmp_path / "first"))


def tables_of(model: Path, placement: Placement, dim: int) -> list[torch.Tensor]:
    """The rows of each table, by id, with their states, that a final model holds."""
    manifest, _ = newest_checkpoint(model)
    assert manifest is not None
    tables = [torch.empty(num, dim + 1) for num in placement.cardinalities]
    for index in range(placement.num_ps):
        shard = Shard(*(placement, index, dim), seed=0, counts_updates=False, optimizer=OPTIMIZERS["rowwise_adagrad"])
        FileStore(model).read_rows(manifest.shards[ps_rank(index)], shard.rows_MD)
        for table, rows in enumerate(tables):
            if len(part := shard.rows_MD[shard.span(table)]):
                first, stride = placement.table_rows(index, table)
                rows[first::stride] = part
    return tables


@pytest.mark.parametrize(("kind", "num"), PLACES)
def test_a_checkpoint_holds_the_same_rows_on_any_number_of_ranks(
    config: Config, tmp_path: Path, kind: str, num: int
) -> None:
    """Law: each row and its state, by table and id, from a row-wise placement and back from another one."""
    spec = RunSpec(changed(config, cluster__placement=kind, cluster__num_ps=num))
    assert spec.initial is not None
    dim, optimizer = spec.model.row_values, spec.run_facts.optimizer
    expected = tables_of(tmp_path / "first" / "model", spec.initial.placement, dim)
    for index in range(num):
        shard = Shard(spec.placement, index, dim, seed=5, counts_updates=False, optimizer=optimizer)
        shard.initialise(applied_step=0)
        spec.initial.fill(shard)
        for table, rows in enumerate(expected):
            if len(part := shard.rows_MD[shard.span(table)]):
                first, stride = spec.placement.table_rows(index, table)
                assert torch.equal(part, rows[first::stride])


def test_training_goes_on_with_another_number_of_ranks(config: Config, tmp_path: Path) -> None:
    """Law: to the losses and metrics of the number before; other than those of a run without the checkpoint."""
    found = [run(changed(config, cluster__num_ps=num), tmp_path / str(num)) for num in (4, 3)]
    judged = [(losses_of(events), finished.auc, finished.log_loss) for finished, events in found]
    assert judged[0] == judged[1]
    _, of_fresh = run(changed(config, init__checkpoint=None), tmp_path / "fresh")
    assert judged[0][0][0] != losses_of(of_fresh)[0]
    onward = changed(config, init__checkpoint=str(tmp_path / "3"), cluster__placement="table")
    again = changed(config, init__checkpoint=str(tmp_path / "4"))
    (_, third), (_, fourth) = run(onward, tmp_path / "onward"), run(again, tmp_path / "again")
    assert losses_of(third) == losses_of(fourth)


@pytest.mark.parametrize("name", ["full", "never_save", "buddy"])
def test_lost_shards_come_back_to_the_checkpoint(config: Config, tmp_path: Path, name: str) -> None:
    """Law: on both engines; full recovery and replicas end as without failures; initial values are the checkpoint's."""
    calm, _ = run(changed(config, cluster__num_ps=3), tmp_path / "calm")
    config = under(config, tmp_path, "hour,rank\n0,ps1\n30,ps2\n", strategy__name=name, cluster__num_ps=3)
    config = config if name == "never_save" else saving_every(config, 36)
    finished, _ = run_on_both(config, tmp_path)
    assert (finished.digests == calm.digests) == (name != "never_save")
    early = under(config, tmp_path, "hour,rank\n0,ps1\n")
    assert run(changed(early, engine="local"), tmp_path / "early")[0].digests == calm.digests


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"init__checkpoint": "nowhere"}, "init.checkpoint: nowhere: "),
        ({"trainer__optimizer": "sgd"}, "expected trainer.optimizer of this run (sgd), got rowwise_adagrad"),
        ({"trainer__dense_optimizer": "sgd"}, "expected trainer.dense_optimizer of this run (sgd), got adagrad"),
        ({"model__size": "kaggle"}, "expected model of this run"),
    ],
    ids=str,
)
def test_a_checkpoint_that_does_not_fit_is_refused(config: Config, keys: dict[str, Any], words: str) -> None:
    """Law: in one line that names the key and the run."""
    with pytest.raises(ConfigError) as refused:
        RunSpec(changed(config, **keys)).validate()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_of_other_tables_is_refused(config: Config, tmp_path: Path) -> None:
    """Law: also of tables that have as many rows in all, whose ids would name rows of other tables."""
    env = tmp_path / "first" / "env.json"
    record = json.loads(env.read_text())
    record["data"]["table_rows"] = [*reversed(record["data"]["table_rows"])]
    env.write_text(json.dumps(record))
    ours = RunSpec(changed(config, init__checkpoint=None)).dataset.cardinalities
    words = rf"init\.checkpoint: .*/first: expected {ours[0]} rows of table 0, got {ours[-1]}$"
    with pytest.raises(ConfigError, match=words):
        RunSpec(config).validate()


@pytest.mark.parametrize("folder", ["model", "checkpoints"])
def test_a_damaged_checkpoint_is_refused(config: Config, tmp_path: Path, folder: str) -> None:
    """Law: an older checkpoint does not take the place of a damaged model, or of a newest one that is damaged."""
    earlier = changed(saving_every(changed(config, strategy__name="full"), 36), init__checkpoint=None)
    run(earlier, tmp_path / "saves")
    if folder == "checkpoints":
        shutil.rmtree(tmp_path / "saves" / "model")
    RunSpec(config := changed(config, init__checkpoint=str(tmp_path / "saves"))).validate()
    damaged = max((tmp_path / "saves" / folder / "ps1").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=rf"init\.checkpoint: .*/saves: manifest-.*{damaged.name}: damaged: "):
        RunSpec(config).validate()


def test_a_model_that_was_not_written_whole_is_none(config: Config, tmp_path: Path) -> None:
    """Law: of a run that was killed while it wrote its model, the newest checkpoint is taken."""
    run(saving_every(changed(config, strategy__name="full", init__checkpoint=None), 36), tmp_path / "saves")
    for manifest in (tmp_path / "saves" / "model").glob("manifest-*"):
        manifest.unlink()
    initial = RunSpec(changed(config, init__checkpoint=str(tmp_path / "saves"))).initial
    assert initial is not None
    assert (initial.root, initial.manifest.samples) == (tmp_path / "saves" / "checkpoints", 144)


def test_rows_without_survivors_start_from_the_checkpoint(config: Config, tmp_path: Path) -> None:
    """Law: a table that lies on one rank has no surviving row, so `start: mean` is `start: initial`."""
    config = under(config, tmp_path, "hour,rank\n20,ps1\n", strategy__name="never_save", cluster__placement="table")
    digests = [
        run(changed(config, strategy__start=start), tmp_path / start)[0].digests for start in ("initial", "mean")
    ]
    assert digests[0] == digests[1]
