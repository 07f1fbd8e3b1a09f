"""One small grid for all tests of the analysis, and its report: they are only read."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import analysis
from harness.record.recorder import Recorder
from tests.made_runs import made_config, made_events, write_run

STRATEGIES = ("none", "full", "cpr_vanilla", "cpr_mfu")


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four strategies by three seeds on local; full alone on rpc; one failed and one unfinished cell."""
    root = tmp_path_factory.mktemp("grid")
    for strategy in STRATEGIES:
        for seed in range(3):
            write_run(root / f"{strategy}-s{seed}", made_config(strategy, seed=seed))
    write_run(root / "deeper" / "rpc-full-s0", made_config("full", engine="rpc"))
    failed = Recorder(root / "failed-s0", made_config("partial"))
    failed.record(made_events(made_config("partial"))[0])
    failed.fail("RunFailed: ps2 <kept> dying")
    unfinished = Recorder(root / "unfinished-s0", made_config("cpr_ssu"))
    for event in made_events(made_config("cpr_ssu"))[:12]:
        unfinished.record(event)
    yield root
    unfinished.fail()


@pytest.fixture(scope="session")
def page(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the grid, at a margin of 2·10⁻³."""
    root = tmp_path_factory.mktemp("copy") / "grid"
    shutil.copytree(grid, root)
    path = analysis.report(root, margin=2e-3, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    assert path == root / "report.html"
    return path.read_text()
