"""Laws of whole runs with each optimizer of embedding rows; the dense network is trained by Adagrad beside Adagrad."""

from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.events import Finished, Saved
from harness.core.plans import CHIEF
from harness.run.spec import RunSpec
from harness.store import newest_checkpoint
from tests.runs import changed, run
from tests.store.helpers import read_dense


def with_optimizer(config: Config, name: str) -> Config:
    """A run of 128 steps with that optimizer in both places."""
    dense = "sgd" if name == "sgd" else "adagrad"
    return changed(config, trainer__optimizer=name, trainer__dense_optimizer=dense, data__max_train_samples=512)


def test_a_checkpoint_has_the_sums_of_the_dense_network(config: Config, tmp_path: Path) -> None:
    """They change what it learns, and a full save is charged O_save whole."""
    config = changed(with_optimizer(config, "adagrad"), strategy__name="full", data__max_train_samples=128)
    finished, events = run(config, tmp_path / "full")
    plain, _ = run(changed(config, trainer__dense_optimizer="sgd"), tmp_path / "plain")
    assert plain.digests[CHIEF] != finished.digests[CHIEF]
    assert {event.payload_bytes for event in events if isinstance(event, Saved)} == {RunSpec(config).bytes_full}
    manifest, _ = newest_checkpoint(tmp_path / "full" / "checkpoints")
    assert manifest is not None
    tensors, extra = read_dense(tmp_path / "full" / "checkpoints", manifest.trainer)
    assert extra["optimizer"] == "adagrad"
    assert tensors["top.0.weight.sum"].any()


def test_bytes_count_the_state(config: Config) -> None:
    """A full save of D = 16 is larger by one value a row, by sixteen or by 33, and by the sums of the dense network."""

    def num_bytes(rows: str, dense: str) -> int:
        return RunSpec(changed(config, trainer__optimizer=rows, trainer__dense_optimizer=dense)).bytes_full

    run_spec = RunSpec(config)
    plain, dense = run_spec.bytes_full, run_spec.footprint.dense_bytes
    assert plain == run_spec.num_rows * 16 * 4 + dense
    assert num_bytes("rowwise_adagrad", "sgd") == plain + run_spec.num_rows * 4
    assert num_bytes("adam", "sgd") == plain + run_spec.num_rows * (2 * 16 + 1) * 4
    assert num_bytes("adagrad", "adagrad") == plain + run_spec.num_rows * 16 * 4 + dense


@pytest.mark.parametrize("name", ["sgd", "rowwise_adagrad", "adam"])
def test_a_reset_of_the_state_changes_what_a_restored_shard_learns(config: Config, tmp_path: Path, name: str) -> None:
    """One failure at a save: no update is lost, and only an optimizer that has state goes another way without it.

    With the state the run is that without failures (``test_equivalence``).
    """
    (tmp_path / "one.csv").write_text("hour,rank\n28,ps2\n")  # the boundary after 64 of 128 steps
    config = changed(
        with_optimizer(config, name),
        strategy__name="partial",
        strategy__interval_samples=64 * 4,
        trace__path=str(tmp_path / "one.csv"),
    )
    finished: dict[str, Finished] = {}
    for choice in ("with_rows", "reset"):
        finished[choice], _ = run(changed(config, strategy__restore_optimizer=choice), tmp_path / choice)
        assert finished[choice].lost_updates == 0
        assert finished[choice].num_failures == 1
    assert (finished["reset"].digests == finished["with_rows"].digests) == (name == "sgd")


def test_a_cache_is_charged_for_the_state(config: Config, tmp_path: Path) -> None:
    """Rows that travel are wider by their state, gradients are not: bytes of a stale run without failures, by hand."""
    config = changed(with_optimizer(config, "adagrad"), strategy__name="none", cache__mode="stale")
    cache = run(config, tmp_path / "run")[0].cache
    assert cache is not None
    assert cache["received_bytes"] == cache["fetched_rows"] * 2 * 16 * 4
    assert cache["sent_bytes"] == cache["fetched_rows"] * 8 + cache["written_rows"] * (8 + 16 * 4 + 4 + 1)
