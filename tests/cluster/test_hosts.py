"""Ranks on three hosts: same bits, real kills, and what becomes of a run when a host, a link or the supervisor dies."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.cluster.spawn import fork_server
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.events import Event, Finished, Killed, Lost, Regrouped, Started
from harness.record.recorder import read_events
from tests.analysis.shown import shown
from tests.cluster import host_runs
from tests.cluster.emulated import (
    FRESH,
    Emulation,
    NotAllowed,
    emulated,
    ended_s,
    give_own_folder,
    processes,
    signal_agent,
)
from tests.forked import said_by
from tests.runs import changed, run, saving_every

pytestmark = pytest.mark.timeout(90)

DEAD_AFTER_S = 4.0
SILENT = re.escape(f"its agent gave no sign of life for {DEAD_AFTER_S:g} s (cluster.dead_after_s)")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """Three hosts."""
    try:
        with emulated(3, tmp_path_factory.mktemp("hosts")) as made:
            yield made
    except NotAllowed as error:
        pytest.skip(f"no emulated hosts here: {error}")


def facts(events: list[Event]) -> list[dict]:
    """Events without their machine parts."""
    return [event.to_json() | {"machine": None} for event in events]


def test_a_run_on_three_hosts_has_the_events_of_one_process(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: to the bit, under ten failures; each kill is a SIGKILL on the host that the record names."""
    config = saving_every(changed(config, cluster__num_ps=6, strategy__name="cpr_mfu", data__max_train_samples=512), 80)
    _, expected = run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, hosts.config(config), tmp_path / "hosts" / "run", 0) == ""
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    assert facts(events) == facts(expected)
    (started,) = (event.machine["hosts"] for event in events if isinstance(event, Started))
    assert [*started.values()] == [*hosts.hosts, *hosts.hosts, hosts.hosts[0]]
    kills = [event for event in events if isinstance(event, Killed)]
    assert len(kills) == 11
    assert all(kill.machine["exitcode"] == -9 and kill.machine["host"] == started[kill.rank] for kill in kills)
    ended_s(hosts.hosts, 1.0)


def short(config: Config, **more: Any) -> Config:
    """80 steps on 6 PS ranks, and saves every 20 samples."""
    config = changed(config, cluster__num_ps=6, data__max_train_samples=320, trace__path=None, strategy__name="full")
    return changed(saving_every(config, 80), trace__allow_unplanned=True, cluster__dead_after_s=DEAD_AFTER_S, **more)


def lost_once(events: list[Event], host: str, why: str) -> None:
    """The record has one failure: all PS ranks of ``host``, which is named; and their replacements are elsewhere."""
    (started,) = (event.machine["hosts"] for event in events if isinstance(event, Started))
    dead = [rank for rank, its in started.items() if its == host]
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert lost.unplanned_ranks == dead
    (detail,) = {*lost.machine["detail"].values()}
    assert re.fullmatch(f"its host {host} was lost: {why}", detail)
    (regrouped,) = (event for event in events if isinstance(event, Regrouped))
    assert detail.endswith(regrouped.machine["lost_hosts"][host])
    assert host not in regrouped.machine["hosts"].values()


def test_an_agent_that_is_killed_is_one_failure_of_its_ranks(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: the run goes on without the host, and full recovery ends with the bits of no failure."""
    config = short(config)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    host = hosts.hosts[1]
    assert said_by(host_runs.lose_agent, hosts, hosts.config(config), tmp_path / "hosts" / "run", host) == ""
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    lost_once(events, host, r"its agent \(pid \d+\) has ended")
    story = shown(analysis.show(tmp_path / "hosts" / "run"))
    assert f"generation 1, ps1, ps4 replaced; lost: host {host} (its agent (pid " in story
    assert isinstance(finished := events[-1], Finished)
    assert finished.digests == reference.digests
    ended_s(hosts.hosts, 1.0)


def test_ranks_that_are_cut_off_end_before_they_are_replaced(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: a cut cable is found within the deadline and a second; no two processes ever serve one shard.

    Ranks are placed in turn, so a buddy is on another host: the replicas of all ranks of a lost host are there.
    """
    config = changed(short(config), strategy__name="buddy")
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    host = hosts.hosts[1]
    said = said_by(host_runs.lose_link, hosts, hosts.config(config), tmp_path / "hosts" / "run", host)
    hosts.mend(host)
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    lost_once(events, host, SILENT)
    cut_s, host_ended_s = map(float, said.split())
    spawned_s = [float(line) for line in (tmp_path / "hosts" / "spawned").read_text().split()]
    assert len(spawned_s) == 2
    assert isinstance(finished := events[-1], Finished)
    assert finished.digests == reference.digests
    assert host_ended_s < spawned_s[0] < cut_s + DEAD_AFTER_S + 1.0


def test_a_stopped_agent_is_a_lost_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: its ranks, which nobody could kill or reap, end and are replaced; it ends itself when it goes on."""
    config = short(config)
    host = hosts.hosts[1]
    assert said_by(host_runs.stop_agent, hosts, hosts.config(config), tmp_path / "hosts" / "run", host) == ""
    assert len(processes(host)) == 2  # the agent and its fork server
    signal_agent(host, signal.SIGCONT)
    ended_s(hosts.hosts, 1.0)
    lost_once(read_events(tmp_path / "hosts" / "run" / "events.jsonl"), host, SILENT)


def test_nothing_is_left_of_a_supervisor_that_is_killed(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: within a second no rank and no agent runs on any host."""
    arguments = (hosts, hosts.config(short(config)), tmp_path / "hosts" / "run")
    process = fork_server().Process(target=host_runs.end_supervisor, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -9
    ended_s(hosts.hosts, 1.0)


def test_the_host_of_the_trainer_ends_the_run_in_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: the line names the host, which ``cluster.place`` chose."""
    host = hosts.hosts[2]
    config = hosts.config(short(config), place={"trainer0": host})
    said = said_by(host_runs.lose_agent, hosts, config, tmp_path / "hosts" / "run", host)
    words = rf"RunFailed: host {host}, on which trainer0 ran, was lost: its agent \(pid \d+\) has ended\n"
    assert re.fullmatch(words, said)
    ended_s(hosts.hosts, 1.0)


def test_a_folder_that_is_not_shared_is_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: exit code 2, and the line names the host. The agent is started as on a real host."""
    out = tmp_path / "out"
    out.mkdir()
    give_own_folder(hosts.hosts[1], out)
    config = hosts.config(config, hosts=hosts.hosts[1:2], start_agent=FRESH)
    (tmp_path / "one.yaml").write_text(to_yaml(config.model_dump(mode="json", exclude={"profile", "name", "out"})))
    arguments = ("train", f"{tmp_path}/one.yaml", "profile=busy", f"out={out}/run")
    line, code = said_by(host_runs.command, hosts, *arguments).splitlines()
    words = f"out: expected a folder that all hosts share, but on {hosts.hosts[1]} {out}/run/checkpoints is another one"
    assert words in line
    assert code == "2"
    ended_s(hosts.hosts, 1.0)
