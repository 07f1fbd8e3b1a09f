"""Planned kills in the phases of a run: a request, a save, a recovery or an evaluation under way."""

from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Event, Lost, Recovered, Saved
from tests.injected import is_loss
from tests.runs import changed, run


@pytest.fixture
def phased(config: Config, tmp_path: Path) -> Config:
    """64 steps under the trace of a test, with saves every 9 steps and three evaluations. 56 h are 64 steps."""
    return changed(
        config,
        data__max_train_samples=256,
        trace__path=str(tmp_path / "trace.csv"),
        eval__every_steps=25,
        strategy__interval_samples=36,
    )


def kills_of(events: list[Event]) -> list[tuple[int, str]]:
    """Line and phase of each kill, in order of lines."""
    return sorted((event.line, event.phase) for event in events if is_loss(event))


def test_a_death_before_the_commit_finds_its_own_save(phased: Config, tmp_path: Path) -> None:
    """All files were on disk: the save counts, and the rank that died is restored from it and loses nothing."""
    (tmp_path / "trace.csv").write_text("hour,rank,phase\n20,ps2,manifest\n")
    _, events = run(changed(phased, strategy__name="partial"), tmp_path / "run")
    story = [event for event in events if is_loss(event) or isinstance(event, Saved | Lost | Recovered)]
    number = next(number for number, event in enumerate(story) if is_loss(event))
    kill, saved, lost, recovered = story[number : number + 4]
    assert is_loss(kill)
    assert isinstance(saved, Saved)
    assert isinstance(lost, Lost)
    assert isinstance(recovered, Recovered)
    assert kill.step == saved.step == recovered.step
    assert (recovered.sequence, recovered.lost_updates, recovered.pls) == (saved.sequence, 0, {"ps2": 0.0})


def test_a_death_in_a_recovery_belongs_to_its_failure(phased: Config, tmp_path: Path) -> None:
    """It is one failure, charged once, with the longest repair time of all its kills."""
    trace = "hour,rank,phase,repair_h\n20,ps0,restore,3\n20,ps3,regroup,7\n30,ps1,,5\n"
    (tmp_path / "trace.csv").write_text(trace)
    config = changed(phased, strategy__name="partial", trace__repair="reschedule")
    finished, events = run(config, tmp_path / "run")
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert recovered.ranks == ["ps0", "ps1", "ps3"]
    assert (finished.num_failures, finished.num_lost_ranks, finished.reschedule_h) == (1, 3, 7.0)


def test_a_rank_that_is_dead_already_is_killed_again(phased: Config, tmp_path: Path) -> None:
    """Two phases may name a rank before its death is found: both kills are on record, and it is lost once."""
    (tmp_path / "trace.csv").write_text("hour,rank,phase\n15.75,ps2,manifest\n15.75,ps2,\n")
    finished, events = run(changed(phased, strategy__name="partial", engine="rpc"), tmp_path / "run")
    assert kills_of(events) == [(2, "manifest"), (3, "boundary")]
    assert (finished.num_failures, finished.num_lost_ranks, finished.num_unplanned) == (1, 1, 0)


def test_armed_kills_of_one_phase_strike_together_and_at_their_own_boundary(phased: Config, tmp_path: Path) -> None:
    """A kill is armed before what is due at its boundary takes place; those that wait for one save are one failure."""
    lines = "15.75,ps3,save\n16.5,ps0,save\n18,ps1,save\n20,ps2,save\n"  # the first at step 18
    (tmp_path / "trace.csv").write_text(f"hour,rank,phase\n{lines}")
    finished, events = run(changed(phased, strategy__name="partial"), tmp_path / "run")
    assert [event.step for event in events if is_loss(event)] == [18, 27, 27, 27]
    assert (finished.num_failures, finished.num_lost_ranks) == (2, 4)


@pytest.mark.parametrize("strategy", ["never_save", "partial"])
def test_a_phase_that_never_comes_fails_the_run(phased: Config, tmp_path: Path, strategy: str) -> None:
    """The line of the trace and the phase are named, with what to do."""
    phase = "manifest" if strategy == "never_save" else "regroup"
    (tmp_path / "trace.csv").write_text(f"hour,rank,phase\n20,ps3,{phase}\n")
    said = rf"trace.csv:2: expected a phase {phase} after step 23, in which to kill ps3, got none; .* earlier hour"
    with pytest.raises(RunFailed, match=said):
        run(changed(phased, strategy__name=strategy), tmp_path / "run")
