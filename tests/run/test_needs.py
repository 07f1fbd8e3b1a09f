"""What a run is said to need, against what it takes."""

from pathlib import Path

import pytest

from harness.core.strategies import STRATEGIES
from harness.record.rundir import RunDir
from harness.run import assemble
from harness.run.needs import needs_of
from harness.run.spec import RunSpec
from tests.runs import OF_STRATEGY, changed, small_config

FEW = ("full", "cpr_mfu", "cpr_mirror", "differential", "buddy")
"""Strategies of which `make test` has one of each kind of save; `.ci/run` has all."""
HEADERS = 1.02  # of files, of which sizes of rows know nothing


@pytest.mark.parametrize(
    "strategy",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in STRATEGIES],
)
def test_a_run_takes_no_more_disk_than_is_said(click_data: Path, tmp_path: Path, strategy: str) -> None:
    """Law: bytes written, on disk at once and kept are bounds; of strategies that save whole shards they are exact."""
    config = changed(small_config(click_data), strategy__name=strategy, model__embedding_dim=64, model__bottom_mlp=[64])
    config = changed(config, **OF_STRATEGY.get(strategy, {}))
    config = changed(config, resume__every_s=None, data__max_train_samples=512 if strategy == "differential" else 256)
    needs, run = needs_of(RunSpec(config)), RunDir(tmp_path / "run")
    most = 0

    def measure(_: assemble.RunStatus) -> None:
        nonlocal most
        most = max(most, bytes_in(run.path))

    finished = assemble.run(config, run.path, on_status=measure)
    initial = RunSpec(config).bytes_full if STRATEGIES[strategy].saves_initially else 0
    assert finished.payload_bytes + initial <= needs.written_bytes
    assert most <= needs.disk_bytes * HEADERS
    kept = bytes_in(run.path)
    assert kept <= needs.kept_bytes * HEADERS
    if strategy in {"full", "partial", "cpr_vanilla"}:
        assert finished.payload_bytes + initial == needs.written_bytes
        assert needs.least_disk_bytes <= most
        assert kept >= needs.kept_bytes


def test_nothing_is_kept_of_a_run_that_keeps_nothing(click_data: Path) -> None:
    """With ``store.keep_finished=false`` only the disk of runs at work is needed."""
    config = changed(small_config(click_data), strategy__name="full")
    assert needs_of(RunSpec(config)).kept_bytes > 0
    assert needs_of(RunSpec(changed(config, store__keep_finished=False))).kept_bytes == 0


def bytes_in(folder: Path) -> int:
    """Bytes of the content files in ``folder``."""
    sizes = []
    for path in folder.rglob("*.bin"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # removed meanwhile
            continue
    return sum(sizes)
