"""Spares: processes that take over the names of dead ranks at once, and change nothing that is not of the machine."""

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import rpc

from harness.cluster import group
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.cluster.rpc import RpcCluster
from harness.config.model import Config
from harness.core.errors import RankLost
from harness.core.events import Regrouped
from harness.core.faults import PlannedFault, Strike
from harness.run import assemble
from harness.run.verify import compare_records
from tests.cluster import worlds
from tests.cluster.test_rpc import alive
from tests.cluster.worlds import ask, begin, mend
from tests.runs import changed, run
from tests.stopped import stop


@pytest.fixture
def spared(config: Config, tmp_path: Path) -> Config:
    """100 steps of ``buddy`` under single deaths and one of two ranks, with one spare; every step is reported."""
    (tmp_path / "trace.csv").write_text("hour,rank\n8,ps1\n20,ps1\n30,ps0\n30,ps2\n45,ps3\n")
    config = changed(config, strategy__name="buddy", strategy__interval_samples=40, data__max_train_samples=400)
    config = changed(config, trace__path=str(tmp_path / "trace.csv"), metrics__log_every_steps=1)
    return changed(config, engine="rpc", cluster__spares=1)


def test_a_spare_that_dies_is_harmless(spared: Config, tmp_path: Path) -> None:
    """Nobody waits for it: the next death takes the way without spares, and a new spare is started after that."""
    killed: list[int] = []

    def kill_the_spare(status: assemble.RunStatus) -> None:
        if status.step >= 5 and not killed:
            started = (tmp_path / "spared" / "events.jsonl").read_text().splitlines()[0]
            killed.append(int(started.split('"spare0":')[1].split(",")[0].rstrip("}")))
            end = os.pidfd_open(killed[0])
            os.kill(killed[0], signal.SIGKILL)
            select.select([end], [], [])  # on a busy machine the run may need the spare before it is dead
            os.close(end)

    finished = assemble.run(spared, tmp_path / "spared", on_status=kill_the_spare)
    run(changed(spared, engine="local"), tmp_path / "local")
    assert compare_records(tmp_path / "local", tmp_path / "spared") == []
    assert killed
    assert finished.num_unplanned == 0


# --- worlds without training ------------------------------------------------------------------------------------------


def lose(cluster: Cluster, effects: Effects, step: int) -> None:
    """Carry out the kills planned for ``step`` (5, then 7), find them, and record who serves then, and where."""
    assert isinstance(cluster, RpcCluster)
    cluster.expect_losses()
    effects.inject(step, step * 4, (step // 7,))
    with pytest.raises(RankLost) as lost:
        ask(cluster)
    mend(cluster, effects, lost.value, step)
    ask(cluster)
    effects.record({"served": worlds.pids_of(cluster), "generation": cluster._generation})


def admit(cluster: Cluster, effects: Effects, step: int) -> None:
    """Report a step and go on asking until the new spares are members."""
    assert isinstance(cluster, RpcCluster)
    generation, tries = cluster._generation, 0
    effects.status(step=step)
    while cluster._generation == generation:
        time.sleep(0.01)
        ask(cluster)
        tries += 1
        assert tries < 3000


def lose_twice(cluster: Cluster, effects: Effects) -> None:
    """One death, new spares, and two deaths at once."""
    begin(cluster)
    effects.record({"served": worlds.pids_of(cluster), "generation": 0})
    lose(cluster, effects, 5)
    admit(cluster, effects, 6)
    lose(cluster, effects, 7)


def lose_at_once(cluster: Cluster, effects: Effects) -> None:
    """A second death before there is a new spare."""
    begin(cluster)
    lose(cluster, effects, 5)
    lose(cluster, effects, 7)


def mute_a_spare(cluster: Cluster, effects: Effects) -> None:
    """A spare is suspended before a generation is formed for a new one."""
    assert isinstance(cluster, RpcCluster)
    begin(cluster)
    lose(cluster, effects, 5)
    muted = rpc.rpc_sync(group.worker_name("spare1", 0), os.getpid)
    stop(muted)
    admit(cluster, effects, 6)
    served = {**worlds.pids_of(cluster), "muted": muted}
    effects.record({"served": served, "generation": cluster._generation, "is_alive": alive(muted)})


def planned(*kills: tuple[int, tuple[str, ...]]) -> tuple[PlannedFault, ...]:
    """Kills by step."""
    return tuple(PlannedFault(step=step, strikes=dict.fromkeys(ranks, Strike(1.0, 2))) for step, ranks in kills)


def run_world(config: Config, root: Path, job: Callable, kills: tuple[PlannedFault, ...]) -> tuple[list, list[dict]]:
    """The machine parts of all replacements, and what the job recorded."""
    events = worlds.run_job(config, root, job, kills)
    assert not any(alive(pid) for event in events if isinstance(event, dict) for pid in event["served"].values())
    return [event.machine for event in events if isinstance(event, Regrouped)], [
        event for event in events if isinstance(event, dict)
    ]


def test_survivors_stay_in_their_world_when_spares_take_over(config: Config, tmp_path: Path) -> None:
    """No generation is formed for a death, but one for the new spares; these take over in their turn."""
    kills = planned((5, ("ps1",)), (7, ("ps0", "ps2")))
    machines, notes = run_world(changed(config, cluster__spares=2), tmp_path, lose_twice, kills)
    assert [set(machine["spares"]) for machine in machines] == [{"ps1"}, {"ps0", "ps2"}]
    assert [note["generation"] for note in notes] == [0, 0, 1]
    first, second, third = (note["served"] for note in notes)
    assert {rank for rank in first if first[rank] != second[rank]} == {"ps1"}
    assert {rank for rank in first if second[rank] != third[rank]} == {"ps0", "ps2"}


def test_more_deaths_than_spares_are_replaced_as_without(config: Config, tmp_path: Path) -> None:
    """A second death before there is a new spare, and two at once with one spare: a new generation."""
    kills = planned((5, ("ps1",)), (7, ("ps1",)))
    machines, notes = run_world(changed(config, cluster__spares=1), tmp_path / "a", lose_at_once, kills)
    assert [set(machine["spares"]) for machine in machines] == [{"ps1"}, set()]
    assert [note["generation"] for note in notes] == [0, 1]
    kills = planned((5, ("ps1", "ps3")), (7, ("ps0",)))
    machines, notes = run_world(changed(config, cluster__spares=1), tmp_path / "b", lose_at_once, kills)
    assert [len(machine["spares"]) for machine in machines] == [1, 0]
    assert [note["generation"] for note in notes] == [1, 2]


def test_a_suspended_spare_is_ended_and_left_out(config: Config, tmp_path: Path) -> None:
    """A generation that waits for it is given up after the timeout; the next one is formed without it."""
    config = changed(config, cluster__spares=2, cluster__join_timeout_s=3.0)
    _, notes = run_world(config, tmp_path, mute_a_spare, planned((5, ("ps1",))))
    assert [note["generation"] for note in notes] == [0, 2]
    assert notes[0]["served"].items() <= notes[1]["served"].items(), "nobody else was replaced"
    assert not notes[1]["is_alive"]
