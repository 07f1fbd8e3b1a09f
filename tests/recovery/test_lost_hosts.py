"""Hosts that a trace ends, on engines without other hosts: their ranks die together."""

from pathlib import Path

import analysis
from harness.config.model import Config
from harness.core.events import Lost
from harness.record.rundir import read_config
from harness.run.verify import compare_records
from tests.injected import is_loss
from tests.runs import changed, run, saving_every

TRACE = "hour,rank\n5,host1\n12,ps1\n20,ps3\n20,host2\n30,ps5\n40,2\n"


def test_ranks_of_a_host_die_together_on_both_engines(config: Config, tmp_path: Path) -> None:
    """Law: one failure; ``full`` ends with the bits of no failure, and processes of one machine agree to the bit."""
    (tmp_path / "trace.csv").write_text(TRACE)
    config = changed(config, cluster__num_ps=6, data__max_train_samples=256, strategy__name="full")
    config = saving_every(changed(config, cluster__hosts=("a", "b", "c")), 80)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    config = changed(config, trace__path=str(tmp_path / "trace.csv"))
    finished, events = run(config, tmp_path / "local")
    run(changed(config, engine="rpc"), tmp_path / "rpc")
    assert compare_records(tmp_path / "local", tmp_path / "rpc") == []
    assert analysis.check(events, read_config(tmp_path / "local")) == []
    assert finished.digests == reference.digests
    assert [event.ranks for event in events if isinstance(event, Lost)][:2] == [["ps1", "ps4"], ["ps1"]]
    assert {event.lost_host for event in events if is_loss(event)} == {"host1", "host2", None}
