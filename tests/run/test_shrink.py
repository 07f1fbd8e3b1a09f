"""Training that goes on with fewer PS ranks after a death, and with all of them once the node has returned."""

from pathlib import Path

import numpy as np
import pytest

import analysis
from harness.config.model import Config
from harness.core.events import Event, Grown, Injected, Recovered, Regrouped
from harness.core.plans import is_ps
from harness.planning.simulate import simulate
from harness.planning.spread import planned_kills_at
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run.spec import RunSpec
from harness.run.verify import compare_records
from harness.wandb.history import History
from tests.known_jobs import job_of
from tests.made_runs import altered
from tests.run.stops import resumed, stopped
from tests.runs import changed, losses_of, run, run_on_both, saving_every, under

TRACE = """hour,rank,fault,repair_h
7,ps1,,12
14,ps2,,
15,ps1,,1
15,ps0,hang,14
35,ps1,,0
48,ps2,,8
49,4,,3
56,ps0,,9
"""
"""ps1 dies, and dies while it is away; ps0 hangs while it serves ps1 too; then all die at once."""


def told(events: list[Event]) -> list[str]:
    """Recoveries, returns and faults that strike nobody, in order."""
    found = list[str]()
    for event in events:
        if isinstance(event, Recovered | Grown):
            found.append(f"{event.step}: {event.kind} {' '.join(event.ranks)}")
        elif isinstance(event, Injected) and event.fault == "away":
            found.append(f"{event.step}: away {event.rank}")
    return found


def shared(pids: dict[str, int]) -> str:
    """Which PS ranks share a process."""
    ranks = {pid: [rank for rank in sorted(pids) if pids[rank] == pid and is_ps(rank)] for pid in pids.values()}
    return " ".join(sorted("+".join(each) for each in ranks.values() if each))


def test_shards_die_with_the_node_that_hosts_them(config: Config, tmp_path: Path) -> None:
    """Law: on both engines alike; a node that is away does not die, and returns with its own shard alone.

    Processes that no fault strikes keep their pids. If no node is left, all that died are replaced.
    """
    config = under(config, tmp_path, TRACE, cluster__on_loss="shrink", cluster__rpc_timeout_s=1.5)
    config = saving_every(changed(config, strategy__name="cpr_mfu", data__max_train_samples=224), 36)
    _, events = run_on_both(config, tmp_path)
    assert told(events) == [
        "7: recover ps1",
        "14: recover ps2",
        "15: away ps1",
        "15: recover ps0 ps1",
        "19: grow ps1",
        "29: grow ps0",
        "35: recover ps1",
        "36: grow ps1",
        "48: away ps2",
        "49: away ps2",
        "49: recover ps0 ps1 ps2 ps3",
        "55: recover ps0",
    ]
    pids = [event.machine["pids"] for event in events if isinstance(event, Regrouped)]
    assert [shared(each) for each in pids] == [
        *("ps0+ps1 ps2 ps3", "ps0+ps1 ps2+ps3", "ps0+ps1+ps2+ps3"),
        *("ps0+ps1 ps2+ps3", "ps0 ps1 ps2+ps3", "ps0+ps1 ps2+ps3"),
    ]
    assert len({each["ps3"] for each in pids[:-2]}) == 1
    assert len({*pids[2].values()}) == 2, "one process of PS ranks, and the trainer"


@pytest.mark.parametrize("prices", [{}, {"profile__load": "by_bytes", "profile__shrink_o_res_h": 0.125}], ids=len)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_regroups_and_moved_shards_are_charged(
    config: Config, tmp_path: Path, prices: dict[str, object], mode: str
) -> None:
    """Law: a regroup for each failure and each return, and a load; the simulator says the same; node-hours are unknown.

    Without a price a regroup takes O_res.
    """
    config = under(config, tmp_path, TRACE, cluster__on_loss="shrink", profile__num_trainers=3, save__mode=mode)
    config = changed(
        config, profile__network_gbps=25, profile__snapshot_gbps=100, data__max_train_samples=224, **prices
    )
    config = saving_every(changed(config, strategy__name="partial"), 36)
    finished, events = run(config, tmp_path / "run")
    simulated = simulate(RunSpec(config).strategy, job_of(config), RunSpec(config).planned_faults)
    for name in ("save_h", "load_h", "lost_h", "reschedule_h", "pls"):
        assert getattr(finished, name) == pytest.approx(getattr(simulated, name), rel=1e-12), name
    regroups = sum(isinstance(event, Recovered | Grown) for event in events)
    assert finished.reschedule_h == pytest.approx(regroups * (0.125 if prices else config.profile.o_res_h))
    assert (finished.num_failures, finished.node_h, simulated.node_h) == (6, None, None)
    history = History(config.profile.job_h)
    rows = [row for event in events for row in history.rows(event)]
    assert rows[-1]["hours"] == pytest.approx(
        config.profile.job_h + finished.load_h + finished.reschedule_h + finished.save_h
    )
    (grown, *_) = (place for place, event in enumerate(events) if isinstance(event, Grown))
    for lie, words in (({"load_bytes": 1}, "load_bytes"), ({"ranks": ["ps3"]}, "took shards over, but ['ps1']")):
        lying = [*events[:grown], altered(events[grown], **lie), *events[grown + 1 :]]
        assert any(words in line for line in analysis.check(lying, read_config(tmp_path / "run")))


def test_a_run_goes_on_with_another_number_of_processes(config: Config, tmp_path: Path) -> None:
    """Law: from a resume point, with the record of the run that was not interrupted; shards share processes."""
    config = changed(config, trace__path=None, engine="rpc", strategy__name="cpr_ssu", data__max_train_samples=224)
    config = saving_every(config, 36)
    finished, _ = run(changed(config, engine="local"), tmp_path / "whole")
    for num, at in ((None, 11), (3, 20)):
        assert stopped(changed(config, cluster__num_nodes=num), tmp_path / "run", at, resumes=num is not None)
    assert resumed(changed(config, cluster__num_nodes=1), tmp_path / "run").digests == finished.digests
    assert compare_records(tmp_path / "whole", tmp_path / "run") == []
    events = read_events(tmp_path / "run" / "events.jsonl")
    facts = [events[0].machine, *(each for event in events for each in event.machine.get("resumed", ()))]
    assert [shared(each["pids"]) for each in facts] == ["ps0 ps1 ps2 ps3", "ps0+ps3 ps1 ps2", "ps0+ps1+ps2+ps3"]


@pytest.mark.parametrize("placement", ["row", "table"])
def test_the_number_of_ranks_changes_no_bit_without_losses(config: Config, tmp_path: Path, placement: str) -> None:
    """Law: losses and metrics are equal; rows lie elsewhere."""
    config = changed(config, strategy__name="none", trace__path=None, cluster__placement=placement)
    config = changed(config, data__max_train_samples=120)
    found = [run(changed(config, cluster__num_ps=num), tmp_path / str(num)) for num in (1, 3, 4)]
    judged = [(losses_of(events), finished.auc, finished.log_loss) for finished, events in found]
    assert judged[0] == judged[1] == judged[2]
    assert found[1][0].digests["ps0"] != found[2][0].digests["ps0"]


def test_drawn_traces_are_planned_as_those_of_files(config: Config, tmp_path: Path) -> None:
    """Law: `run.py plan --simulate` has the deaths and returns that a run of the same trace has."""
    hours, ranks, repairs = [7.0, 15.0, 15.0, 35.25, 49.0, 50.0], [1, 0, 1, 1, 0, 2], [12.0, 14.0, None, 0.0, 99.0, 1.5]
    lines = "".join(
        f"{h},ps{rank},{'' if r is None else r}\n" for h, rank, r in zip(hours, ranks, repairs, strict=True)
    )
    config = under(config, tmp_path, f"hour,rank,repair_h\n{lines}", cluster__on_loss="shrink")
    drawn = planned_kills_at(np.array(hours), np.array(ranks), job_of(config), repairs)
    of_file = RunSpec(config).planned_faults
    found, expected = ([(each.step, each.fault.name, each.ranks) for each in some] for some in (drawn, of_file))
    assert found == expected
    assert {name for _, name, _ in found} == {"kill", "return", "away"}
