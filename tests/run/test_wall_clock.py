"""Failures on the wall clock of the emulated job: which of them strike, and where."""

import os
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import analysis
from harness.config.model import Config
from harness.core.events import STALLS, Event, Injected, Interrupted, Recovered, Saved
from harness.core.operators import words_of
from harness.core.plans import Progress, SavePlan
from harness.core.strategies import STRATEGIES, Full
from harness.planning.simulate import simulate
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run import assemble
from harness.run.spec import RunSpec
from tests.injected import is_loss
from tests.known_jobs import job_of
from tests.made_runs import altered
from tests.runs import OF_STRATEGY, changed, facts, run, saving_every, under

EIGHTHS = (*range(11, 1600, 61), *range(14, 1600, 122), *range(90, 1600, 97))
LONG = ("hour,rank\n0,ps3\n", *(f"{eighth / 8},ps{eighth % 4}\n" for eighth in EIGHTHS))
"""Failures of 200 h, after the end of a job of 56 h too, some of them within the overhead of the one before."""


@pytest.fixture
def wall(config: Config, tmp_path: Path) -> Config:
    """A run under ``LONG`` on the wall clock, with loads of 1.5 h and rescheduling of 1 h."""
    head, *lines = LONG
    (tmp_path / "long.csv").write_text(head + "".join(sorted(lines, key=lambda line: float(line.partition(",")[0]))))
    config = changed(config, trace__path=str(tmp_path / "long.csv"), trace__clock="wall")
    return changed(config, profile__o_load_h=1.5, profile__o_res_h=1.0, data__max_train_samples=512)


def kills_of(events: list[Event]) -> list[Injected]:
    """The kills on record, in order."""
    return [event for event in events if is_loss(event)]


def interrupted(config: Config, **dotted: Any) -> Config:
    """``config``, in which failures strike during saves and recoveries, with a save every 24 samples."""
    config = changed(config, trace__interrupts=True, profile__load="by_bytes", **dotted)
    return saving_every(config, 24) if "interval_samples" in type(config.strategy).model_fields else config


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "none"])
def test_what_a_failure_interrupts_is_charged_as_the_simulator_says(wall: Config, tmp_path: Path, name: str) -> None:
    """Law: every bucket, PLS and numbers, as the audit says too. A run alone knows the bytes of a tracker's save."""
    config = interrupted(wall, strategy__name=name, profile__detect_death_h=0.1, **OF_STRATEGY.get(name, {}))
    is_known = RunSpec(config).strategy.tracker is None
    config = changed(config, profile__o_save_h=2.0 if is_known else 0.0)
    finished, events = run(config, tmp_path / name)
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    if name != "cpr_mirror":  # which uploads rows
        assert (finished.num_failures, finished.num_saves) == (simulated.num_failures, simulated.num_saves)
        hours = [(getattr(finished, f"{each}_h"), getattr(simulated, f"{each}_h")) for each in STALLS]
        assert [one for one, _ in hours] == [other for _, other in hours]
        assert finished.pls == pytest.approx(simulated.pls, rel=1e-12)
    recoveries_h = finished.load_h + finished.lost_h + finished.reschedule_h
    assert words_of(events, finished, 56.0)["rto_h"] == pytest.approx(recoveries_h / finished.num_failures)
    struck = {event.what for event in events if isinstance(event, Interrupted)}
    assert struck == {"recovery"} | ({"save"} if finished.num_saves else set[str]())
    if name == "full":
        reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
        assert finished.digests == reference.digests


@pytest.mark.parametrize("name", ["never_save", "full", "cpr_vanilla"])
def test_a_run_is_charged_as_the_simulator_says(wall: Config, tmp_path: Path, name: str) -> None:
    """Every bucket, the number of failures and PLS; the audit finds each kill at the first boundary of its hour."""
    config = saving_every(changed(wall, strategy__name=name), 60)
    finished, events = run(config, tmp_path / name)
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    for field in ("save_h", "load_h", "lost_h", "reschedule_h", "num_failures", "num_saves"):
        assert getattr(finished, field) == getattr(simulated, field), field
    assert finished.pls == pytest.approx(simulated.pls, rel=1e-12)
    kills = kills_of(events)
    assert max(kill.hour for kill in kills) > 56, "the job is longer than its samples"
    assert any(len({kill.line for kill in group}) > 1 for _, group in groupby(kills, lambda kill: kill.step))
    if name == "full":
        # A failure in the overhead of the one before strikes where that one resumes; others in steps that run again.
        resumed = {event.resume_step for event in events if isinstance(event, Recovered)}
        assert resumed & {kill.step for kill in kills}
        reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
        assert finished.digests == reference.digests


def test_without_overhead_both_clocks_are_one(config: Config, tmp_path: Path) -> None:
    """If nothing costs an hour, the wall clock reads the hours of the samples, to the event."""
    prices = {f"profile__{name}": 0.0 for name in ("o_save_h", "o_load_h", "o_res_h")}
    config = saving_every(changed(config, strategy__name="partial", **prices), 60)
    found = [run(changed(config, trace__clock=clock), tmp_path / clock)[1] for clock in ("samples", "wall")]
    assert facts(found[0])[1:] == facts(found[1])[1:]


def test_the_charge_of_a_save_strikes_at_its_boundary(config: Config, tmp_path: Path) -> None:
    """An hour within those of the first save is reached by them: the kill follows that save."""
    (tmp_path / "trace.csv").write_text("hour,rank\n10.04,ps1\n")
    config = changed(config, trace__path=str(tmp_path / "trace.csv"), trace__clock="wall", strategy__name="partial")
    config = changed(config, data__max_train_samples=560 * 4 // 10, strategy__interval_samples=40)  # 1 h a step
    _, events = run(config, tmp_path / "run")
    (kill,) = kills_of(events)
    first = next(event for event in events if isinstance(event, Saved) and event.charged)
    assert (kill.step, first.step) == (10, 10)
    assert first.save_h > 0.04


@pytest.mark.parametrize("order", [("", "1e6"), ("1e6", "")], ids=["second told", "first told"])
def test_a_rank_that_two_entries_strike_at_one_boundary_has_the_notice_of_either(
    wall: Config, tmp_path: Path, order: tuple[str, str]
) -> None:
    """Law: run and simulator alike, where the overhead of the failure before brings both entries to one boundary."""
    lines = ["10,ps0,", *(f"{hour},ps1,{notice_s}" for hour, notice_s in zip((10.5, 11), order, strict=True))]
    (tmp_path / "long.csv").write_text("\n".join(["hour,rank,notice_s", *lines]))
    config = saving_every(changed(wall, strategy__name="partial", cluster__on_notice="handover"), 60)
    finished, events = run(config, tmp_path / "run")
    assert [[*event.kinds.values()] for event in events if isinstance(event, Recovered)] == [
        ["checkpoint"],
        ["handover"],
    ]
    simulated = simulate(RunSpec(config).strategy, job_of(config), RunSpec(config).planned_faults)
    for field in ("save_h", "load_h", "reschedule_h", "num_failures", "pls"):
        assert getattr(finished, field) == pytest.approx(getattr(simulated, field), rel=1e-12), field


def test_a_record_with_a_kill_at_another_time_is_found_out(wall: Config, tmp_path: Path) -> None:
    """The audit names kills before their hour, and those that a boundary before them should have had."""
    config = saving_every(changed(wall, strategy__name="full", trace__window="quietest"), 60)
    _, events = run(config, tmp_path / "run")
    assert max(kill.hour for kill in kills_of(events)) > 56, "the window goes on after the job"
    plain = read_config(tmp_path / "run")
    numbers = [number for number, event in enumerate(events) if is_loss(event)]
    for number, shift_h, said in ((numbers[3], 5.0, "before its hour"), (numbers[4], -5.0, "was killed late")):
        kill = events[number]
        assert is_loss(kill)
        lie = Injected(**{**vars(kill), "hour": kill.hour + shift_h})
        (problem,) = analysis.check([*events[:number], lie, *events[number + 1 :]], plain)
        assert problem.startswith(f"event {number + 1}: {kill.rank}")
        assert said in problem
    assert any("before its hour" in line for line in analysis.check(events, with_clock(plain, "samples")))


def test_a_rank_that_dies_during_a_recovery_makes_no_later_kill_late(wall: Config, tmp_path: Path) -> None:
    """Law: a boundary at which ranks were killed is over, whatever dies besides; its recovery's hours come after it."""
    (tmp_path / "trace.csv").write_text("hour,rank\n20,ps1\n21.5,ps0\n")
    config = changed(wall, engine="rpc", trace__path=str(tmp_path / "trace.csv"), trace__allow_unplanned=True)
    config = saving_every(changed(config, strategy__name="partial", data__max_train_samples=160, cluster__num_ps=2), 40)
    killed: list[int] = []

    def kill_the_other(status: assemble.RunStatus) -> None:
        if status.phase == "recover" and not killed:
            (started, *_) = read_events(tmp_path / "run" / "events.jsonl")
            killed.append(started.machine["pids"]["ps0"])
            os.kill(killed[0], signal.SIGKILL)

    assemble.run(config, tmp_path / "run", on_status=kill_the_other)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event.ranks for event in events if isinstance(event, Recovered)] == [["ps0", "ps1"], ["ps0"]]


@pytest.mark.parametrize("name", ["full", "partial"])
def test_a_failure_during_a_save_loses_as_much_as_without_the_save(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Law: of a trace whose only failure falls into the second save. The save is made after the recovery."""

    def skip(strategy: Full, progress: Progress) -> SavePlan | None:
        plan = plan_save(strategy, progress)
        return None if progress.step == 20 and not kills_of(read_events(tmp_path / "skips" / "events.jsonl")) else plan

    config = changed(config, strategy__name=name, data__max_train_samples=560 * 4 // 10)  # 1 h a step
    config = changed(config, strategy__interval_samples=40, profile__o_save_h=0.25)
    clock = {"trace__clock": "wall", "trace__interrupts": True}
    found, events = run(under(config, tmp_path, "hour,rank\n20.375,ps1\n", **clock), tmp_path / "strikes")
    (cut,) = [event for event in events if isinstance(event, Interrupted)]
    saved = [event.step for event in events if isinstance(event, Saved)]
    assert (cut.what, cut.step, cut.save_h, saved) == ("save", 20, 0.125, [0, 10, 20, 30, 40, 50])
    plan_save = STRATEGIES[name].plan_save
    monkeypatch.setattr(STRATEGIES[name], "plan_save", skip)
    other, events = run(under(config, tmp_path, "hour,rank\n20,ps1\n"), tmp_path / "skips")
    assert [event.step for event in events if isinstance(event, Saved)] == [0, 10, *[20] * (name == "full"), 30, 40, 50]
    of_loss = "pls", "lost_updates", "lost_h", "load_h", "reschedule_h", "digests", "auc"
    assert [getattr(found, each) for each in of_loss] == [getattr(other, each) for each in of_loss]
    assert (found.lost_updates or found.lost_h) > 0


@pytest.mark.parametrize("name", ["full", "partial", "parity"])
def test_failures_whose_hour_has_come_interrupt_together(wall: Config, tmp_path: Path, name: str) -> None:
    """Six in one step, before a save or not, and six at one hour are one failure, and no recovery after the other."""
    hours = [*(20.0625 + i / 64 for i in range(6)), *[40.0625] * 6]
    lines = [f"{hour},ps{number % 2}" for number, hour in enumerate(hours)]
    config = changed(wall, strategy__name=name, data__max_train_samples=560 * 4 // 10)
    if name != "parity":
        config = changed(config, strategy__interval_samples=4, profile__o_save_h=0.25)
    config = under(config, tmp_path, "\n".join(["hour,rank", *lines, ""]), trace__clock="wall", trace__interrupts=True)
    finished, events = run(config, tmp_path / "run")
    run_spec = RunSpec(config)
    simulated = simulate(run_spec.strategy, job_of(config), run_spec.planned_faults)
    hours = [(getattr(finished, f"{each}_h"), getattr(simulated, f"{each}_h")) for each in STALLS]
    assert [one for one, _ in hours] == [other for _, other in hours]
    assert finished.num_failures == simulated.num_failures == 2
    assert sum(isinstance(event, Interrupted) for event in events) <= 2


def test_a_false_figure_of_an_interruption_is_noticed(wall: Config, tmp_path: Path) -> None:
    """The audit knows when a save or a recovery began, how long it takes, and what should have interrupted it."""
    config = interrupted(wall, strategy__name="partial", profile__o_save_h=2.0)
    _, events = run(config, tmp_path / "run")
    plain = read_config(tmp_path / "run")
    for what in ("save", "recovery"):
        cut = next(place for place, each in enumerate(events) if isinstance(each, Interrupted) and each.what == what)
        for place, lie, said in (
            (cut, {"reschedule_h": 7.0}, "reschedule_h is 7.0"),
            (cut, {"save_h": 7.0}, "save_h is 7.0"),
            (cut, {"hour": 999.0}, "did not interrupt"),
            (cut + 1, {"hour": 0.125}, "but no failure of that hour"),
        ):
            lying = [*events[:place], altered(events[place], **lie), *events[place + 1 :]]
            assert any(said in line for line in analysis.check(lying, plain)), said
    _, events = run(changed(config, trace__interrupts=False), tmp_path / "over")
    assert any("was killed late" in line for line in analysis.check(events, plain)), "it should have interrupted a save"


def with_clock(plain: dict[str, Any], clock: str) -> dict[str, Any]:
    """The plain config with another clock."""
    return {**plain, "trace": {**plain["trace"], "clock": clock}}
