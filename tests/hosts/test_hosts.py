"""Ranks on three hosts: same bits, real kills, and what becomes of a run when a host, a link or the supervisor dies."""

import re
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
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
    signal_server,
)
from tests.injected import is_loss
from tests.model.test_backends import needs_compiled
from tests.runs import changed, run, saving_every, under

DEAD_AFTER_S = 4.0
SILENT = rf"its fork server \(pid \d+\) (gave no answer for {DEAD_AFTER_S:g} s|cannot be reached: Connection timed out)"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """Three hosts."""
    try:
        with emulated(3, tmp_path_factory.mktemp("hosts")) as made:
            yield made
    except NotAllowed as error:
        pytest.skip(f"no emulated hosts here: {error}")


def on_hosts(
    hosts: Emulation,
    config: Config,
    folder: Path,
    *acts: host_runs.Act,
    stopped: str | None = None,
    body: Callable[..., None] = host_runs.run_and,
    **cluster: Any,
) -> tuple[list[Event], str]:
    """The events of a run on the hosts, with ``acts`` in its middle, and what was said. No process is left there.

    ``stopped``: a host whose fork server was stopped. All else there has ended, and it ends when it goes on.
    """
    run_dir = folder / "hosts" / "run"
    said = said_by(body, hosts, hosts.config(config, **cluster), run_dir, *acts)
    for host in hosts.hosts:
        hosts.mend(host)
    if stopped is not None:
        await_that(lambda: len(processes(stopped)) == 1, "the fork server is left")
        signal_server(stopped, signal.SIGCONT)
    await_end(hosts.hosts)
    return read_events(run_dir / "events.jsonl"), said


def short(config: Config, **more: Any) -> Config:
    """80 steps on 6 PS ranks, and saves every 20 samples."""
    config = changed(config, cluster__num_ps=6, data__max_train_samples=320, trace__path=None, strategy__name="full")
    return changed(saving_every(config, 80), trace__allow_unplanned=True, cluster__dead_after_s=DEAD_AFTER_S, **more)


def long(config: Config, folder: Path) -> Config:
    """64 steps on 6 PS ranks under four failures, of five ranks on three hosts."""
    config = under(config, folder, "hour,rank\n9,ps4\n21,2\n30,ps0\n44,ps5\n")
    config = changed(config, cluster__num_ps=6, strategy__name="cpr_mfu", data__max_train_samples=256)
    return saving_every(config, 80)


def hosts_named(event: Event) -> list[str]:
    """The lost hosts that a ``regroup`` event names."""
    return [*event.machine.get("lost_hosts", {})]


def test_a_run_on_three_hosts_has_the_events_of_one_process(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: to the bit, under failures; each kill is a SIGKILL on the host that the record names.

    In its middle every connection of every host and of the supervisor is to one of them.
    """
    config = long(config, tmp_path)
    run(config, tmp_path / "local")
    events, said = on_hosts(hosts, config, tmp_path, host_runs.name_peers)
    assert compare_records(tmp_path / "local", tmp_path / "hosts" / "run") == []
    (started,) = (event.machine["hosts"] for event in events if isinstance(event, Started))
    assert [*started.values()] == [*hosts.hosts, *hosts.hosts, hosts.hosts[0]]
    kills = [event for event in events if is_loss(event)]
    assert len(kills) == 5
    assert all(kill.machine["exitcode"] == -9 and kill.machine["host"] == started[kill.rank] for kill in kills)
    peers = [line.split() for line in said.splitlines()]
    assert {where for where, _ in peers} == {str(hosts.bridge), *hosts.hosts}
    known = {SUPERVISOR, *(address_of(hosts, host) for host in hosts.hosts)}
    assert known - {SUPERVISOR} < {peer for _, peer in peers} <= known | {"127.0.0.1"}


HOST_KILLS = "hour,rank,phase,fault\n5,host1,,\n12,ps1,,\n18,ps5,lookup,hang\n20,ps3,,\n20,host2,,\n40,2,,\n"
"""Two hosts end in turn; ranks die alone between and after; one of them hangs."""


@pytest.mark.slow
def test_hosts_that_a_trace_ends_are_lost_as_on_one_process(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: every event is that of ``local``; each host is gone with its fork server, and no rank is on it again.

    So it is if the run is stopped between the two hosts, and goes on. A rank that hangs is no lost host.
    """
    config = under(short(config, strategy__name="buddy", data__max_train_samples=512), tmp_path, HOST_KILLS)
    config = changed(config, cluster__hosts=hosts.hosts, cluster__rpc_timeout_s=3)
    run(config, tmp_path / "local")
    assert said_by(host_runs.stop_and_go_on, hosts, hosts.config(config), tmp_path / "run") == "stopped\n"
    await_end(hosts.hosts)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert compare_records(tmp_path / "local", tmp_path / "run") == []
    kills = [event for event in events if is_loss(event)]
    assert [(kill.rank, kill.lost_host) for kill in kills if kill.line == 2] == [("ps1", "host1"), ("ps4", "host1")]
    assert all(kill.machine["exitcode"] == -9 for kill in kills if kill.fault != "hang")
    _, first, second = hosts.hosts
    regrouped = [event for event in events if isinstance(event, Regrouped)]
    assert [*map(hosts_named, regrouped)] == [[first], [], [first], [second], []], "a run that goes on ends it anew"
    assert {*regrouped[-1].machine["hosts"].values()} == {hosts.hosts[0]}
    assert not any(isinstance(event, Lost) and event.unplanned_ranks for event in events)


def lost_in_turn(events: list[Event], whys: dict[str, str]) -> None:
    """The record has one failure a host: all ranks of it, which is named; and their replacements are elsewhere."""
    (placed,) = (event.machine["hosts"] for event in events if isinstance(event, Started))
    losses = [event for event in events if isinstance(event, Lost)]
    regrouped = [event for event in events if isinstance(event, Regrouped)]
    for (host, why), lost, then in zip(whys.items(), losses, regrouped, strict=True):
        assert lost.unplanned_ranks == [rank for rank, its in placed.items() if its == host]
        (detail,) = {words.removeprefix("ended: ") for words in lost.machine["detail"].values()}
        assert re.fullmatch(f"its host {host} was lost: {why}", detail)
        assert detail.endswith(then.machine["lost_hosts"][host])
        placed = then.machine["hosts"]
        assert host not in placed.values()


def ends_as(config: Config, folder: Path, events: list[Event]) -> None:
    """The run ended with the bits of no failure."""
    reference, _ = run(changed(config, strategy__name="none"), folder / "none")
    assert isinstance(finished := events[-1], Finished)
    assert reference.digests.items() <= finished.digests.items()


@pytest.mark.slow
def test_a_fork_server_that_is_killed_or_stopped_is_one_failure_of_its_ranks(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: the run goes on without the host, and full recovery ends with the bits of no failure.

    The ranks of one that is stopped end when the supervisor hangs up on them, and it ends itself when it goes on.
    """
    config = short(config, data__max_train_samples=1024)  # many steps are still to come when those ranks end
    _, killed, stopped = hosts.hosts
    acts = partial(host_runs.lose_server, host=killed), partial(host_runs.stop_server, host=stopped, rank="ps2")
    events, said = on_hosts(hosts, config, tmp_path, *acts, stopped=stopped)
    assert said == ""
    lost_in_turn(events, {killed: r"its fork server \(pid \d+\) has ended", stopped: SILENT})
    story = shown(analysis.show(tmp_path / "hosts" / "run"))
    assert f"generation 1, ps1, ps4 replaced; lost: host {killed} (its fork server (pid " in story
    ends_as(config, tmp_path, events)


@pytest.mark.slow
def test_a_rank_that_is_cut_off_and_goes_on_touches_no_file_of_its_replacement(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: it removes and writes the files of all saves to come, until the run is done, and no bit changes.

    Another host is killed afterwards, so that what the replacement has saved meanwhile is read.
    """
    config = short(config, data__max_train_samples=640)
    _, cut, killed = hosts.hosts
    body = partial(host_runs.run_and, ps_main=partial(host_runs.go_on_writing, tmp_path / "hosts"))
    acts = partial(host_runs.lose_link, host=cut), partial(host_runs.lose_server, host=killed)
    events, _ = on_hosts(hosts, config, tmp_path, *acts, body=body)
    assert [*map(hosts_named, (event for event in events if isinstance(event, Regrouped)))] == [[cut], [killed]]
    assert int((tmp_path / "hosts" / "written").read_text()) > 1000
    ends_as(config, tmp_path, events)


@pytest.mark.slow
@needs_compiled
def test_ranks_that_are_cut_off_are_one_failure(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: a cut cable is found within the deadline and a second.

    The seconds are those in which the machine lets the supervisor run.
    Ranks are placed in turn, so a buddy is on another host: the replicas of all ranks of a lost host are there. A
    compute rank is lost with the host.
    """
    config = short(config, strategy__name="buddy", cluster__num_trainers=3, trainer__backend="compiled")
    host = hosts.hosts[1]
    events, cut_s = on_hosts(hosts, config, tmp_path, partial(host_runs.lose_link, host=host))
    lost_in_turn(events, {host: SILENT})
    spawned = (tmp_path / "hosts" / "spawned").read_text().splitlines()
    ends_as(config, tmp_path, events)
    assert 0 < float(spawned[0]) - float(cut_s) < DEAD_AFTER_S + 1.0


@pytest.mark.slow
def test_ctrl_z_costs_no_host_but_one_that_is_cut_off_meanwhile(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: the command may be stopped for longer than any deadline between supervisor and hosts.

    The ranks behind a link that is cut while it is stopped end; it finds that when it goes on.
    """
    config = short(config)
    press = partial(host_runs.press_ctrl_z, host=hosts.hosts[1], pause_s=1.2 * DEAD_AFTER_S)
    events, said = on_hosts(hosts, config, tmp_path, press)
    assert said == "stopped\nstopped\n"
    (lost,) = (event for event in events if isinstance(event, Lost))
    assert lost.unplanned_ranks == ["ps1", "ps4"]
    ends_as(config, tmp_path, events)


def test_a_supervisor_or_host_of_the_trainer_that_ends_leaves_nothing(
    hosts: Emulation, config: Config, tmp_path: Path
) -> None:
    """Law: no rank and no fork server runs on any host until a deadline: all end with the connection.

    The line names the host of the trainer, which ``cluster.place`` chose.
    """
    config, host = short(config, cluster__num_ps=3), hosts.hosts[2]
    killed_at_last(hosts, hosts.config(config), tmp_path)
    await_end(hosts.hosts)
    _, said = on_hosts(hosts, config, tmp_path, partial(host_runs.lose_server, host=host), place={"trainer0": host})
    words = (
        rf"RunFailed: trainer0 ended: its host {host} was lost: its fork server \(pid \d+\) has ended; there is no .*\n"
    )
    assert re.fullmatch(words, said)


def killed_at_last(hosts: Emulation, config: Config, run_dir: Path, *acts: host_runs.Act) -> None:
    """A run with ``acts`` in its middle, until the supervisor is killed; deadlines are far."""
    config = changed(config, cluster__dead_after_s=4 * PATIENCE_S)
    arguments = (hosts, config, run_dir / "run", *acts, host_runs.end_supervisor)
    process = fork_server().fork(host_runs.run_and, *arguments)
    process.join(RUN_PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


def test_a_trainer_with_other_data_is_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: though the supervisor has the data; nothing is trained."""
    data = tmp_path / "data"
    shutil.copytree(config.data.path, data)
    give_own_folder(hosts.hosts[2], data)
    config = hosts.config(short(config, data__path=str(data), cluster__num_ps=2), place={"trainer0": hosts.hosts[2]})
    said = said_by(host_runs.run_and, hosts, config, tmp_path / "hosts" / "run")
    assert re.fullmatch(rf"DataError: data.path: expected the supervisor's data .* in {data} on .*\n", said)
    await_end(hosts.hosts)


def test_a_folder_that_is_not_shared_is_one_line(hosts: Emulation, config: Config, tmp_path: Path) -> None:
    """Law: exit code 2, and the line names the host. The fork server is started as on a real host."""
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
