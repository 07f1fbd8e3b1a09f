"""Criteo's Terabyte log, if it is at hand: real rows train through two kills."""

from pathlib import Path

import pytest

from harness.core.events import Recovered, Saved
from harness.data.prepare import prepare
from tests.injected import is_loss
from tests.runs import changed, run, small_config

SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "terabyte_day0_first10000.tsv"


@pytest.mark.skipif(not SAMPLE.exists(), reason=f"no Terabyte rows at {SAMPLE}")
def test_real_rows_train_through_two_kills(tmp_path: Path) -> None:
    """On rpc with 4 PS ranks, two of them killed after at least one save each; the record adds up."""
    prepare([SAMPLE], tmp_path / "data")  # 10,000 rows
    trace = tmp_path / "two.csv"
    trace.write_text("hour,rank\n20.5,ps1\n45.3,ps2\n")
    settings = {"engine": "rpc", "strategy__name": "cpr_ssu", "trace__path": str(trace)}
    settings |= {"data__max_train_samples": None, "trainer__batch_size": 128}
    _, events = run(changed(small_config(tmp_path / "data"), **settings), tmp_path / "run")
    kills = [event for event in events if is_loss(event)]
    told = [(event.rank, event.machine["signal"], event.machine["exitcode"]) for event in kills]
    assert told == [("ps1", 9, -9), ("ps2", 9, -9)]
    saves = [event.step for event in events if isinstance(event, Saved) and event.charged]
    assert min(saves) < kills[0].step
    assert any(kills[0].step < step <= kills[1].step for step in saves)
    assert [event.ranks for event in events if isinstance(event, Recovered)] == [["ps1"], ["ps2"]]
