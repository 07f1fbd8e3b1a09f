"""Real worlds: ranks that are killed or mute are named, killed and, where that is possible, replaced."""

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from harness.cluster import rank_process
from harness.cluster.deadlines import ListeningClock
from harness.cluster.group import Formation
from harness.cluster.launcher import Launcher
from harness.cluster.protocol import Exchange
from harness.cluster.rpc import RpcCluster
from harness.cluster.trainer_watch import TrainerWatch
from harness.cluster.world import World
from harness.config.model import ClusterConfig, Config
from harness.core.errors import ConfigError, MustStartAnew, RankLost
from harness.core.events import Lost, Regrouped
from harness.processes.stop import StopRequest
from tests.cluster import worlds
from tests.cluster.worlds import DEADLINE_S, JOIN_S, TELL_S
from tests.forked import alive, ends, forked, ran, said_by
from tests.injected import is_loss
from tests.runs import changed

LATE = 1.1 + 1e-9  # of a deadline, as the supervisor counts


def short(config: Config, **more: Any) -> Config:
    return changed(config, cluster__rpc_timeout_s=DEADLINE_S, **more)


def facts_of(events: list[Any], kind: type[Lost | Regrouped]) -> list[dict[str, Any]]:
    return [event.machine for event in events if isinstance(event, kind)]


def test_a_lost_host_is_one_loss() -> None:
    """Law: a rank of the host that had answered before is lost with the one that does not answer."""
    formation = Formation(generation=0, members=("ps0", "ps1", "trainer0", "trainer1"), takeovers={})
    on_host = dict.fromkeys(("ps0", "ps1", "trainer1"), "its host a was lost")
    link = Mock(**{"ask.side_effect": lambda name, *_: {"membership": (formation, on_host)}[name]})
    link.rank_context = Mock(options=ClusterConfig())
    cluster = RpcCluster(link)
    with pytest.raises(RankLost) as lost:
        cluster.finish(cluster.start({"ps0": Exchange()}))
    assert lost.value.detail.keys() == {"ps0", "ps1", "trainer1"}


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_kill_is_sigkill_and_a_rank_that_hangs_is_killed_at_its_deadline(config: Config, tmp_path: Path) -> None:
    """Law: the signal hits the very process that served; one that hangs is killed at its deadline.

    Survivors answer and keep their pids; nobody is left. A bug in a rank's code is its traceback, and no death.
    """
    events = worlds.run_job(short(config), tmp_path, worlds.lose_two, (worlds.KILL_AND_HANG,))
    bug, first, *_, last, is_equal = events
    assert re.match(r"(?s)ps1 failed at Exchange.*index", bug)
    assert is_equal
    assert {event.rank: (event.fault, event.machine) for event in events if is_loss(event)} == {
        "ps1": ("kill", {"pid": first["ps1"], "signal": 9, "exitcode": -9}),
        "ps3": ("hang", {"pid": first["ps3"], "signal": signal.SIGSTOP}),
    }
    (found,) = (event for event in events if isinstance(event, RankLost))
    assert (sorted(found.ranks), sorted(found.replies)) == (["ps1", "ps3"], ["ps0", "ps2"])
    (lost,), (regrouped,) = facts_of(events, Lost), facts_of(events, Regrouped)
    assert "timeout" in lost["detail"]["ps3"]
    assert regrouped["mute"] == {"ps3": {"pid": first["ps3"], "action": "killed"}}
    assert {rank for rank in first if first[rank] != last[rank]} == {"ps1", "ps3"}
    assert not any(map(alive, {*first.values(), *last.values()}))


def test_spares_take_over_and_survivors_stay_in_their_world(config: Config, tmp_path: Path) -> None:
    """Law: no generation is formed for deaths with a spare each; without enough spares a new one is, as without any.

    New spares are admitted by a generation of their own. Nobody waits for a spare that died.
    """
    config = changed(config, cluster__spares=2, cluster__join_timeout_s=JOIN_S)
    events = worlds.run_job(config, tmp_path, worlds.lose_to_spares, worlds.SPARE_LOSSES)
    notes = [event for event in events if isinstance(event, tuple)]
    pids = [pids for _, pids in notes]
    news = [{rank for rank in new if new[rank] != old[rank]} for old, new in pairwise(pids)]
    taken = [{*machine["spares"]} for machine in facts_of(events, Regrouped)]
    assert [generation for generation, _ in notes] == [0, 0, 1, 2, 4, 5]
    assert news == [{"ps1"}, {"ps0", "ps2"}, {"ps3"}, {"ps0", "ps1"}, {"ps3"}]
    assert taken == [{"ps1"}, {"ps0", "ps2"}, set(), {"ps0"}, {"ps3"}]
    assert not any(alive(pid) for each in pids for pid in each.values())


def test_survivors_take_over_the_shards_of_dead_nodes(config: Config, tmp_path: Path) -> None:
    """Law: all shards of a process die with it, planned or not, asked or not; survivors keep their pids, others none.

    A node that returns gets the very rows that were trained meanwhile; if its source dies, both are lost.
    """
    config = short(config, cluster__on_loss="shrink", cluster__num_ps=4)
    events = worlds.run_job(config, tmp_path, worlds.lose_for_good, worlds.SHRINK_LOSSES)
    notes = [event for event in events if isinstance(event, tuple)]
    moved = next(each for each in notes if len(each) == 3)
    first = notes[0][1]
    served = [[[*pids.values()].index(pid) for pid in pids.values()] for *_, pids in notes]
    assert [each[0] for each in notes if each is not moved] == [
        *([], ["ps1"], ["ps0", "ps1"], ["ps1", "ps3"], ["ps1"], ["ps0", "ps1", "ps2", "ps3"])
    ]
    assert served == [[0, 1, 2, 3], [0, 0, 2, 3], [0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert moved[:2] == (True, False)
    assert all(pids["ps2"] == first["ps2"] for *_, pids in notes[:-1])
    assert not any(alive(pid) for *_, pids in notes for pid in pids.values())


def test_a_trainer_that_replaces_another_is_asked_to_stop_too(config: Config, tmp_path: Path) -> None:
    """Law: a request to stop outlives the trainer that was told of it."""
    stop = StopRequest()
    stop.set()
    events = worlds.run_job(
        config, tmp_path, worlds.die_when_asked_to_stop, planned_faults=(worlds.ALL_TRAINERS,), stop=stop
    )
    stop.close()
    assert events[-1] is True


def world_of(**options: Any) -> tuple[World, list[Mock]]:
    """The supervisor's side of a world whose processes are none, and the servers of its two hosts."""
    pids, servers = count(1), [Mock(lost=None, host=host, num_running=0) for host in ("here", "there")]
    for server in servers:
        server.fork.side_effect = lambda *_, own=server: Mock(pid=next(pids), host=None, exitcode=None, server=own)
    cluster = ClusterConfig(port=0, **options)
    return World(1, Launcher(servers), ps=Mock(), trainer=Mock(), options=cluster), servers


def test_a_spare_that_connects_late_is_called_to_no_world_without_it() -> None:
    """Law: as when another spare has died, and those that had connected have formed one; trainers are told of it."""
    world, _ = world_of(spares=2)
    world.start()
    trainer, late = Mock(), Mock()
    world._greet(trainer, "trainer0", world._numbers["trainer0"], 0)
    world._greet(Mock(), "spare0", world._numbers["spare0"], 0)
    world.regroup()
    assert "spare1" not in world.membership({})[0].members
    world._greet(late, "spare1", world._numbers["spare1"], 0)
    late.send.assert_not_called()
    trainer.send.assert_called_once_with(("spares",))
    assert "spare1" in world.regroup().members
    world.close()


def test_a_spare_that_is_lost_with_its_host_is_no_lost_rank() -> None:
    """Law: as a host is lost, all ranks on it are; the trainer asks who, before it is found to be lost itself."""
    world, (here, there) = world_of(spares=2)
    world.start()
    for rank in ("trainer0", "spare0"):
        world._launcher[rank].server = there
    here.lost = "it ended"
    assert world.membership({})[1] == {"ps0": "its host here was lost: it ended"}
    assert world.membership({})[1] == {"ps0": "its host here was lost: it ended"}
    world.close()


def test_a_process_that_was_replaced_is_refused() -> None:
    """Law: also if it connects late, from a host that was cut off, where it has the process id of its replacement."""
    world, _ = world_of()
    world.start()
    old = world._numbers["ps0"]
    world._spawn("ps0")
    late = Mock()
    world._greet(late, "ps0", old, 0)
    late.close.assert_called_once()
    assert "ps0" not in world._connections
    world.close()


def test_a_port_in_use_is_one_clear_line(config: Config, tmp_path: Path) -> None:
    """Law: before any rank is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = rf"^cluster\.host, cluster\.port: cannot listen on 127\.0\.0\.1:{port}: "
        with pytest.raises(ConfigError, match=words):
            worlds.run_job(changed(config, cluster__port=port, cluster__network="open"), tmp_path, lambda *_: None)


def test_a_rank_whose_supervisor_has_ended_ends_with_it() -> None:
    """Law: without an error, also before it has entered the network, whose files end with the supervisor."""
    supervisor = forked(lambda: None)
    os.waitpid(supervisor, 0)
    context = worlds.lonely(supervisor)
    for main in (rank_process.ps_main, rank_process.trainer_main):
        assert os.waitpid(forked(partial(main, None, context)), 0)[1] == 0


# --- the mute ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_mute_newborn_is_killed_at_its_deadline_and_replaced(config: Config, tmp_path: Path) -> None:
    """Law: wherever it stops on its way into the world; so is a survivor. The record says who, when, what was done."""
    main = partial(worlds.newborn, tmp_path / "note")
    config = changed(config, cluster__join_timeout_s=JOIN_S)
    events = worlds.run_job(config, tmp_path, worlds.replace_the_mute, (worlds.kill(5, "ps1"),), main)
    first, second = (int((tmp_path / f"note.{number}").read_text()) for number in (1, 2))
    found = [{"ps1": first, "ps2": events[-1]}, {"ps1": second}]
    words = f"did not join within {JOIN_S:g} s (cluster.join_timeout_s), and was killed"
    details = [machine["detail"] for machine in facts_of(events, Lost)]
    assert details[1:] == [{rank: f"pid {pid} {words}" for rank, pid in pids.items()} for pids in found]
    mute = [machine["mute"] for machine in facts_of(events, Regrouped)]
    assert mute[0] == {}
    assert [{rank: each["pid"] for rank, each in by_rank.items()} for by_rank in mute[1:]] == found
    for each in [each for by_rank in mute[1:] for each in by_rank.values()]:
        assert each["action"] == "killed"
        assert JOIN_S < each["seconds"] <= LATE * JOIN_S
        assert not alive(each["pid"])


SILENT = rf"gave no sign of life for {DEADLINE_S:g} s \(cluster.rpc_timeout_s\)"
IDLE = rf"finished nothing for {DEADLINE_S:g} s, last step 7 \(trainer.progress_timeout_s\)"


@pytest.mark.parametrize(
    ("job", "why"), [(worlds.stop_at_work, SILENT), (worlds.stop_in_a_message, SILENT), (worlds.loop, IDLE)]
)
def test_a_trainer_that_stands_still_is_killed_at_its_deadline(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[..., None], why: str
) -> None:
    """Law: the run ends in one line that names it and the key, no rank is left behind, no message is waited for."""
    problem, late_s = TrainerWatch.problem.fget, list[float]()
    assert problem is not None

    def timed(watch: TrainerWatch) -> str | None:
        if found := problem(watch):
            idle_s = watch._clock.read() - watch._advanced_s
            late_s.append(idle_s if why == IDLE else watch.silent_s)
            if job is worlds.stop_in_a_message:  # for which the supervisor waits, and its clock does not
                late_s[-1] = time.time() - (tmp_path / "note").stat().st_mtime + 0.1  # the note came after the half
        return found

    monkeypatch.setattr(TrainerWatch, "problem", property(timed))
    config = short(config, trainer__progress_timeout_s=DEADLINE_S if why == IDLE else 600.0)
    with pytest.raises(MustStartAnew, match=rf"^trainer0 \(pid \d+\) {why}, and was killed$"):
        worlds.run_job(config, tmp_path, partial(job, tmp_path / "note"))
    assert DEADLINE_S < late_s[0] <= (10 if job is worlds.stop_in_a_message else 2) * DEADLINE_S
    assert not alive(int((tmp_path / "note").read_text()))


@pytest.mark.slow
def test_a_slow_trainer_is_left_alone(config: Config, tmp_path: Path) -> None:
    """Law: who computes is not mute, and batches of an evaluation are progress.

    A supervisor that was stopped blames nobody for what it could not hear; ranks do not stop by Ctrl-Z, and wait.
    """
    config = short(config, trainer__progress_timeout_s=2 * DEADLINE_S)
    assert said_by(worlds.run_and_say, config, tmp_path) == "[True]"


def test_deadlines_count_the_time_in_which_the_supervisor_listened() -> None:
    """Law: between two readings at most two ticks; a sign of life and progress have a deadline each."""
    now_s = [0.0]
    connections = MagicMock(**{"__contains__.return_value": True})
    clock = ListeningClock(1.0, lambda: now_s[0])
    trainer = TrainerWatch(Mock(), connections, clock, mute_s=2.0, idle_s=4.0)

    def problem(at_s: float, *message: Any) -> str:
        now_s[0] = at_s
        if message:
            trainer.hear(*message)
        return (trainer.problem or "").partition(" (")[0]

    assert [problem(1, "hello"), problem(3), problem(3.5)] == ["", "", "gave no sign of life for 2 s"]
    assert problem(4, "alive", 7, 9) == ""
    assert problem(100) == "", "nobody listened for 94 of these seconds"
    assert [problem(second, "alive", 7, 9) for second in (101, 101.5, 102)] == [""] * 3
    assert problem(102.5, "alive", 7, 9) == "finished nothing for 4 s, last step 7"
    assert problem(103, "alive", 7, 10) == ""


def test_nobody_survives_the_supervisor(config: Config, tmp_path: Path) -> None:
    """Law: ranks and fork server end with it, stopped ones too."""
    assert ran(worlds.run_until_killed, config, tmp_path, tmp_path / "note").returncode == -signal.SIGKILL
    pids = [*map(int, (tmp_path / "note").read_text().split())]
    assert len(pids) == 6
    assert all(map(ends, pids))


# --- the fork server --------------------------------------------------------------------------------------------------

LOST = {signal.SIGKILL: "has ended", signal.SIGSTOP: f"gave no answer for {TELL_S:g} s"}


@pytest.mark.parametrize("number", LOST)
def test_a_fork_server_that_is_lost_is_a_lost_host(config: Config, tmp_path: Path, number: signal.Signals) -> None:
    """Law: named in one line, at once if it died, at its deadline if it is mute; no rank and no server is left."""
    said = said_by(worlds.lose_the_server, number, config, tmp_path, tmp_path / "note")
    words = rf"trainer0 ended: its host \S+ was lost: its fork server \(pid \d+\) {LOST[number]}"
    assert re.fullmatch(words, said)
    assert all(map(ends, map(int, (tmp_path / "note").read_text().split())))
