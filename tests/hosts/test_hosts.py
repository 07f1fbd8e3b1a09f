"""Ranks on three hosts: same bits, real kills, and what becomes of a run when a host, a link or the supervisor dies."""

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.events import Event, Finished, Lost, Regrouped, Started
from harness.processes.spawn import fork_server
from harness.record.event_log import read_events
from harness.run.verify import compare_records
from tests.analysis.shown import shown
from tests.forked import PATIENCE_S as RUN_PATIENCE_S
from tests.forked import said_by
from tests.hosts import host_runs
from tests.hosts.emulated import (
    FRESH,
    PATIENCE_S,
    SUPERVISOR,
    Emulation,
    NotAllowed,
    address_of,
    await_end,
    await_that,
    emulated,
    give_own_folder,
    processes,
    signal_agent,
)
from tests.injected import is_loss
from tests.model.test_backends import needs_compiled
from tests.runs import changed, run, saving_every

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
    kills = [event for event in events if is_loss(event)]
    assert len(kills) == 11
    assert all(kill.machine["exitcode"] == -9 and kill.machine["host"] == started[kill.rank] for kill in kills)
    await_end(hosts.hosts)


def test_a_rank_that_is_cut_off_is_no_lost_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: it ends before it is replaced; no host is lost, and the events are those of local."""
    (tmp_path / "trace.csv").write_text("hour,rank,phase,fault\n20,ps1,,partition\n30,ps2,lookup,partition\n")
    config = changed(short(config), trace__path=str(tmp_path / "trace.csv"), cluster__rpc_timeout_s=3)
    _, expected = run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, hosts.config(config), tmp_path / "hosts" / "run", 0) == ""
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    assert facts(events) == facts(expected)
    assert [event.fault for event in events if is_loss(event)] == ["partition", "partition"]
    regrouped = [event.machine for event in events if isinstance(event, Regrouped)]
    assert [[*machine["replaced"]] for machine in regrouped] == [["ps1"], ["ps2"]]
    assert not any("lost_hosts" in machine for machine in regrouped)
    await_end(hosts.hosts)


HOST_KILLS = "hour,rank\n5,host1\n12,ps1\n20,ps3\n20,host2\n30,ps5\n40,2\n"


def under_lost_hosts(config: Config, hosts: Emulation, folder: Path, strategy: str) -> Config:
    """128 steps on 6 PS ranks, on the hosts, of which the trace ends two in turn; ranks die alone between and after."""
    (folder / "trace.csv").write_text(HOST_KILLS)
    config = changed(config, cluster__num_ps=6, data__max_train_samples=512, strategy__name=strategy)
    config = changed(config, trace__path=str(folder / "trace.csv"), cluster__hosts=hosts.hosts)
    return saving_every(config, 80)


@pytest.mark.parametrize("strategy", ["full", "buddy"])
def test_hosts_that_a_trace_ends_are_lost_as_on_one_process(
    hosts: Emulation, config: Config, tmp_path: Path, strategy: str
) -> None:
    """Law: every event is that of ``local``; each host is gone with its agent, and no rank is on it again."""
    config = under_lost_hosts(config, hosts, tmp_path, strategy)
    _, expected = run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, hosts.config(config), tmp_path / "hosts" / "run", 0) == ""
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    assert facts(events) == facts(expected)
    kills = [event for event in events if is_loss(event)]
    assert [(kill.rank, kill.lost_host) for kill in kills if kill.line == 2] == [("ps1", "host1"), ("ps4", "host1")]
    assert all(kill.machine["exitcode"] == -9 for kill in kills)
    _, first, second = hosts.hosts
    regrouped = [event.machine for event in events if isinstance(event, Regrouped)]
    assert [[*each.get("lost_hosts", {})] for each in regrouped] == [[first], [], [second], [], []]
    assert {*regrouped[-1]["hosts"].values()} == {hosts.hosts[0]}
    assert not any(isinstance(event, Lost) and event.unplanned_ranks for event in events)
    await_end(hosts.hosts)


@needs_compiled
def test_a_host_that_a_trace_ends_may_have_a_trainer(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: with a trainer on each host, that of trainer 0 ends, and later that of another; the events are of local."""
    (tmp_path / "trace.csv").write_text("hour,rank\n5,host0\n20,ps3\n25,host1\n")
    config = changed(short(config), trainer__backend="compiled", cluster__num_trainers=3, cluster__hosts=hosts.hosts)
    places = {f"trainer{index}": host for index, host in enumerate(hosts.hosts)}
    config = changed(config, trace__path=str(tmp_path / "trace.csv"), cluster__place=places)
    run(config, tmp_path / "local")
    assert said_by(host_runs.run_and, hosts, hosts.config(config), tmp_path / "hosts" / "run", 0) == ""
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    assert compare_records(tmp_path / "local", tmp_path / "hosts" / "run") == []
    with_host = [event.rank for event in events if is_loss(event) and event.lost_host == "host0"]
    assert with_host == ["ps0", "ps3", "trainer0"]
    regrouped = [event.machine for event in events if isinstance(event, Regrouped)]
    assert [[*each.get("lost_hosts", {})] for each in regrouped] == [[hosts.hosts[0]], [], [hosts.hosts[1]]]
    await_end(hosts.hosts)


def test_a_run_goes_on_without_the_hosts_that_its_trace_had_ended(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: from a resume point between two lost hosts, to the events of the uninterrupted run."""
    config = under_lost_hosts(config, hosts, tmp_path, "partial")
    _, expected = run(config, tmp_path / "local")
    assert said_by(host_runs.stop_and_go_on, hosts, hosts.config(config), tmp_path / "run", 40) == "stopped\n"
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert facts(events) == facts(expected)
    await_end(hosts.hosts)


def short(config: Config, **more: Any) -> Config:
    """80 steps on 6 PS ranks, and saves every 20 samples."""
    config = changed(config, cluster__num_ps=6, data__max_train_samples=320, trace__path=None, strategy__name="full")
    return changed(saving_every(config, 80), trace__allow_unplanned=True, cluster__dead_after_s=DEAD_AFTER_S, **more)


def lost_once(events: list[Event], host: str, why: str) -> None:
    """The record has one failure: all ranks of ``host``, which is named; and their replacements are elsewhere."""
    (started,) = (event.machine["hosts"] for event in events if isinstance(event, Started))
    dead = [rank for rank, its in started.items() if its == host]
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert lost.unplanned_ranks == dead
    (detail,) = {words.removeprefix("ended: ") for words in lost.machine["detail"].values()}
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
    await_end(hosts.hosts)


@pytest.mark.parametrize("num_trainers", [1, pytest.param(3, marks=needs_compiled)])
def test_ranks_that_are_cut_off_end_before_they_are_replaced(
    hosts: Emulation, config: Config, tmp_path: Path, num_trainers: int
) -> None:
    """Law: a cut cable is found within the deadline and a second; no two processes ever serve one shard.

    The seconds are those in which the machine lets the supervisor run.
    Ranks are placed in turn, so a buddy is on another host: the replicas of all ranks of a lost host are there.
    Of three trainers the one that dies has asked a PS rank of its host: its heir was never connected with that.
    """
    config = changed(short(config), strategy__name="buddy", cluster__num_trainers=num_trainers)
    if num_trainers > 1:
        config = changed(config, trainer__backend="compiled")
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    host = hosts.hosts[1 if num_trainers == 1 else 0]
    said = said_by(host_runs.lose_link, hosts, hosts.config(config), tmp_path / "hosts" / "run", host)
    hosts.mend(host)
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    lost_once(events, host, SILENT)
    spawned = [line.split() for line in (tmp_path / "hosts" / "spawned").read_text().splitlines()]
    assert {num_left for _, num_left in spawned} == {"0"}
    assert isinstance(finished := events[-1], Finished)
    assert reference.digests.items() <= finished.digests.items()
    assert 0 < float(spawned[0][0]) - float(said) < DEAD_AFTER_S + 1.0


def test_ctrl_z_of_the_command_costs_no_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: though it lasts longer than any deadline between supervisor and agents."""
    config = short(config)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    said = said_by(host_runs.press_ctrl_z, hosts, hosts.config(config), tmp_path / "hosts" / "run", 1.2 * DEAD_AFTER_S)
    assert said == "stopped\n"
    events = read_events(tmp_path / "hosts" / "run" / "events.jsonl")
    assert not any(isinstance(event, Lost) for event in events)
    assert isinstance(finished := events[-1], Finished)
    assert finished.digests == reference.digests
    await_end(hosts.hosts)


def test_a_link_that_is_cut_during_ctrl_z_is_a_lost_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: the ranks behind it end although nobody beats; the supervisor finds that when it goes on."""
    host = hosts.hosts[1]
    config = changed(short(config), cluster__dead_after_s=2.0)
    said = said_by(host_runs.cut_during_ctrl_z, hosts, hosts.config(config), tmp_path / "hosts" / "run", host)
    hosts.mend(host)
    assert said == "stopped\n"
    (lost,) = (event for event in read_events(tmp_path / "hosts" / "run" / "events.jsonl") if isinstance(event, Lost))
    assert lost.unplanned_ranks == ["ps1", "ps4"]
    await_end(hosts.hosts)


def test_a_stopped_agent_is_a_lost_host(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: its ranks, which nobody could kill or reap, end and are replaced; it ends itself when it goes on.

    They end when the supervisor hangs up on them, a moment after it goes on: many steps are then still to come.
    """
    config = changed(short(config), data__max_train_samples=1024)
    host = hosts.hosts[1]
    assert said_by(host_runs.stop_agent, hosts, hosts.config(config), tmp_path / "hosts" / "run", host) == ""
    await_that(lambda: len(processes(host)) == 2, "the agent and its fork server are left")
    signal_agent(host, signal.SIGCONT)
    await_end(hosts.hosts)
    lost_once(read_events(tmp_path / "hosts" / "run" / "events.jsonl"), host, SILENT)


def test_nothing_is_left_of_a_supervisor_that_is_killed(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: no rank and no agent runs on any host until its lease runs out: all end with the connection."""
    config = changed(short(config), cluster__dead_after_s=4 * PATIENCE_S)
    arguments = (hosts, hosts.config(config), tmp_path / "hosts" / "run")
    process = fork_server().Process(target=host_runs.end_supervisor, args=arguments)
    process.start()
    process.join(RUN_PATIENCE_S)
    assert process.exitcode == -9
    await_end(hosts.hosts)


def test_the_host_of_the_trainer_ends_the_run_in_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: the line names the host, which ``cluster.place`` chose."""
    host = hosts.hosts[2]
    config = hosts.config(short(config), place={"trainer0": host})
    said = said_by(host_runs.lose_agent, hosts, config, tmp_path / "hosts" / "run", host)
    words = rf"RunFailed: trainer0 ended: its host {host} was lost: its agent \(pid \d+\) has ended\n"
    assert re.fullmatch(words, said)
    await_end(hosts.hosts)


def test_a_trainer_with_other_data_is_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: though the supervisor has the data; nothing is trained."""
    data = tmp_path / "data"
    shutil.copytree(config.data.path, data)
    give_own_folder(hosts.hosts[2], data)
    config = changed(short(config), data__path=str(data))
    config = hosts.config(config, place={"trainer0": hosts.hosts[2]})
    said = said_by(host_runs.run_and, hosts, config, tmp_path / "hosts" / "run", 0)
    assert re.fullmatch(rf"DataError: data.path: expected the supervisor's data .* in {data} on .*\n", said)
    await_end(hosts.hosts)


def test_a_run_connects_its_hosts_and_nobody_else(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: in the middle of a run, every connection of every host and of the supervisor is to one of them."""
    said = said_by(host_runs.name_peers, hosts, hosts.config(short(config)), tmp_path / "hosts" / "run")
    peers = [line.split() for line in said.splitlines()]
    assert {where for where, _ in peers} == {str(hosts.bridge), *hosts.hosts}
    known = {SUPERVISOR, *(address_of(hosts, host) for host in hosts.hosts)}
    assert known - {SUPERVISOR} < {peer for _, peer in peers} <= known | {"127.0.0.1"}


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
    await_end(hosts.hosts)
