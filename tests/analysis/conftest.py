"""One small grid for all tests of the analysis: it is only read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    failed.close(ok=False, reason="RunFailed: ps2 <kept> dying")
    unfinished = Recorder(root / "unfinished-s0", made_config("cpr_ssu"))
    for event in made_events(made_config("cpr_ssu"))[:12]:
        unfinished.record(event)
    yield root
    unfinished.close(ok=False)
