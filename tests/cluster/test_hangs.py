"""Whoever is mute past a deadline is named and killed, and replaced where that is possible. Real processes, SIGSTOP."""

import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.cluster import launcher, processes
from harness.cluster.deadlines import ListeningClock
from harness.cluster.world import World
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Lost, Regrouped
from harness.core.faults import PlannedFault, Strike
from harness.processes import forked
from harness.processes.spawn import fork_server
from harness.run.assemble import Parts
from tests.cluster import hangs, worlds
from tests.cluster.hangs import DEADLINE_S, JOIN_S
from tests.cluster.noted import Noted, NotingLauncher
from tests.cluster.test_rpc import alive
from tests.forked import PATIENCE_S, said_by
from tests.runs import changed

LATE = 1.1 + 1e-9  # of a deadline, as the supervisor counts
LONG_S = 60.0
TELL_S = 2.0
ONE_KILL = (PlannedFault(step=5, strikes={"ps1": Strike(1.0, 2)}),)


class Kill(NamedTuple):
    """A SIGKILL. For how long, as the supervisor counts, the trainer had then not been heard, and finished nothing."""

    silence_s: float
    idle_s: float


class TimedLauncher(NotingLauncher):
    """Forks; ``kills`` has the first SIGKILL of each process. ``watch`` is to be called with the world."""

    def __init__(self) -> None:
        super().__init__(lambda process, _: Noted(process, self._note))
        self.kills: dict[int, Kill] = {}

    def watch(self, world: World) -> None:
        """The world whose processes these are."""
        self._world = world

    def _note(self, pid: int) -> None:
        progress, now_s = self._world._watch._progress["trainer0"], self._world._clock._total_s
        self.kills.setdefault(pid, Kill(now_s - progress.heard_s, now_s - progress._advanced_s))


def assert_killed(note: Path, timed: TimedLauncher) -> Kill:
    """The process that wrote ``note``, and then stopped, has got a SIGKILL and has ended; what is known of that."""
    pid = int(note.read_text())
    assert not alive(pid)
    return timed.kills[pid]


def short(config: Config, **more: Any) -> Config:
    """With a short deadline for an answer."""
    return changed(config, cluster__rpc_timeout_s=DEADLINE_S, **more)


def short_join(config: Config, **more: Any) -> Config:
    """With a short deadline for a new generation."""
    return changed(config, cluster__join_timeout_s=JOIN_S, **more)


# --- newborns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["", "addrs/"])
def test_a_mute_newborn_is_killed_at_its_deadline_and_replaced(config: Config, tmp_path: Path, stage: str) -> None:
    """Law: wherever it stops on its way into the world, the record says who, when and what was done."""
    note, timed = tmp_path / "note", TimedLauncher()
    parts = Parts(launcher=timed, ps_main=partial(hangs.newborn, note, stage))
    events = worlds.run_job(short_join(config), tmp_path, hangs.replace_twice, ONE_KILL, parts, on_world=timed.watch)
    assert_killed(note, timed)
    pid = int(note.read_text())
    lost = [event.machine["detail"] for event in events if isinstance(event, Lost)]
    assert lost[1] == {"ps1": f"pid {pid} did not join within {JOIN_S:g} s (cluster.join_timeout_s), and was killed"}
    first, second = [event.machine["mute"] for event in events if isinstance(event, Regrouped)]
    assert first == {}
    assert (second["ps1"]["pid"], second["ps1"]["action"]) == (pid, "killed")
    assert JOIN_S < second["ps1"]["seconds"] <= LATE * JOIN_S


# --- the trainer ------------------------------------------------------------------------------------------------------


SILENT = rf"gave no sign of life for {DEADLINE_S:g} s \(cluster.rpc_timeout_s\)"
IDLE = rf"finished nothing for {DEADLINE_S:g} s, last step 7 \(trainer.progress_timeout_s\)"


@pytest.mark.parametrize(
    ("job", "why", "since"),
    [
        (hangs.stop_the_trainer, SILENT, "silence_s"),
        (hangs.stop_in_a_message, SILENT, None),  # part of it was heard later
        (hangs.loop, IDLE, "idle_s"),
    ],
    ids=["stopped", "in a message", "endless loop"],
)
def test_a_trainer_that_stands_still_is_killed_at_its_deadline(
    config: Config, tmp_path: Path, job: Callable[..., None], why: str, since: str | None
) -> None:
    """Law: the run ends in one line that names it and the key, no rank is left behind, no message is waited for."""
    timed, note = TimedLauncher(), tmp_path / "note"
    config = short(config, trainer__progress_timeout_s=DEADLINE_S if why == IDLE else 600.0)
    with pytest.raises(RunFailed, match=rf"^trainer0 \(pid \d+\) {why}, and was killed$"):
        worlds.run_job(config, tmp_path, partial(job, note), parts=Parts(launcher=timed), on_world=timed.watch)
    kill = assert_killed(note, timed)
    assert since is None or DEADLINE_S < getattr(kill, since) <= LATE * DEADLINE_S


@pytest.mark.parametrize(("job", "said"), [(hangs.finish_slowly, "finished"), (hangs.compute, "computed")])
def test_a_slow_trainer_is_left_alone(config: Config, tmp_path: Path, job: Callable[..., None], said: str) -> None:
    """Law: who computes is not mute, however long a step takes, and batches of an evaluation are progress."""
    config = short(config, trainer__progress_timeout_s=DEADLINE_S if said == "finished" else 600.0)
    assert worlds.run_job(config, tmp_path, job) == [said]


# --- the supervisor ---------------------------------------------------------------------------------------------------


def test_a_supervisor_that_was_stopped_goes_on(config: Config, tmp_path: Path) -> None:
    """Law: it blames nobody for what it could not hear; ranks do not stop by Ctrl-Z, and wait for it."""
    assert said_by(hangs.run_and_say, short(config), tmp_path) == "[True]"


def test_time_in_which_nobody_listened_is_not_silence() -> None:
    """Law: between two readings at most two ticks count."""
    times = iter([0.0, 1.0, 1.5, 100.0, 101.0])
    clock = ListeningClock(1.0, lambda: next(times))
    assert [clock.read() for _ in range(4)] == [1.0, 1.5, 3.5, 4.5]


def test_nobody_survives_the_supervisor(config: Config, tmp_path: Path) -> None:
    """Law: ranks and fork server end with it, stopped ones too."""
    process = fork_server().Process(target=hangs.run_until_killed, args=(config, tmp_path, tmp_path / "note"))
    process.start()
    process.join(PATIENCE_S)
    pids = [int(pid) for pid in (tmp_path / "note").read_text().split()]
    assert len(pids) == 6
    await_end(pids)


def await_end(pids: list[int]) -> None:
    """Wait for processes that end by themselves, since what they belong to has ended."""
    ends_s = time.monotonic() + LONG_S
    while any(map(alive, pids)):
        assert time.monotonic() < ends_s, [pid for pid in pids if alive(pid)]
        time.sleep(0.01)


# --- the fork server --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_is_lost_ends_the_run(
    config: Config, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: in one line, at once if it died, at its deadline if it is mute; no rank and no server is left behind.

    No other deadline is waited for.
    """
    for name in ("_STOP_S", "REAP_S"):
        monkeypatch.setattr(processes, name, 2 * LONG_S)
    monkeypatch.setattr(launcher, "END_S", 2 * LONG_S)
    monkeypatch.setattr(forked, "END_S", 2 * LONG_S)
    monkeypatch.setattr(forked, "_TELL_S", TELL_S)
    waits_s, join = list[float](), forked.ForkedProcess.join

    def timed_join(self: forked.ForkedProcess, timeout_s: float) -> None:
        began_s = time.monotonic()
        try:
            join(self, timeout_s)
        finally:
            waits_s.append(time.monotonic() - began_s)

    monkeypatch.setattr(forked.ForkedProcess, "join", timed_join)
    note = tmp_path / "note"
    words = {
        signal.SIGKILL: "was ended by SIGKILL",
        signal.SIGSTOP: "was killed, since it took more than 2 s to tell how ps1 ended",
    }
    with pytest.raises(RunFailed, match=rf"^the fork server \(pid \d+\) {words[signal.Signals(number)]}$"):
        worlds.run_job(config, tmp_path, partial(hangs.signal_the_server, note, number), ONE_KILL)
    sent_s, *pids = note.read_text().split()
    assert time.monotonic() - float(sent_s) < LONG_S
    assert max(waits_s) <= LATE * TELL_S
    await_end([int(pid) for pid in pids])


def test_a_fork_server_that_is_killed_while_ranks_start_is_named(config: Config, tmp_path: Path) -> None:
    """Law: the line says what has ended, and does not guess at memory."""
    words = said_by(hangs.start_by_a_killed_server, config, tmp_path)
    assert re.fullmatch(r"the fork server \(pid \d+\) was ended by SIGKILL\n", words)


def test_a_stopped_fork_server_is_found_by_the_next_start() -> None:
    """Law: at its deadline, by name; it is killed, since it would outlive everybody."""
    words, seconds, has_ended = said_by(hangs.start_by_a_stopped_server).splitlines()
    assert re.fullmatch(r"the fork server \(pid \d+\) was killed, since it took more than 0.5 s to start ps1", words)
    assert 0.5 <= float(seconds) < 20.0, "the deadlines of other starts are 20 s and more"
    assert has_ended == "True"
