"""`run.py measure`: what it measures, what it has no price for, and the file that it writes."""

import math
from pathlib import Path

import pytest

import run
from harness.cli.measure import constants
from harness.config.experiment import load_config
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.core.events import Trained
from harness.record.event_log import read_events
from harness.run import assemble
from harness.run.measure import Line, measure_detection, measure_saves
from harness.run.spec import RunSpec
from harness.run.turns import CHUNK_STEPS, Estimate, Run, StepPrice, Subject, measure_step, quiet, subjects_of
from harness.store import newest_checkpoint
from tests.runs import changed

NO_LINE = Line(*[Estimate(1.0, -1.0, 2.0)] * 3)


def price_of(touching: Estimate, control: Estimate) -> StepPrice:
    subject, choosing = Subject("mfu", "cpr_mfu", "none"), Estimate(0.01, 0.01, 0.01)
    return StepPrice(subject, touching=touching, choosing=choosing, steps_between=1000, control=control, step_s=1e-3)


def test_an_interval_of_a_median_is_by_order_statistics() -> None:
    """Of 100 values the 41st to the 60th; of six the range, which has 97 %; of fewer none."""
    assert Estimate.of(range(100)) == Estimate(49.5, 40, 59)
    assert Estimate.of(range(6)) == Estimate(2.5, 0, 5)
    assert Estimate.of([3.0]) == Estimate(3, -math.inf, math.inf)


def test_each_part_is_measured_against_a_strategy_without_it_alone() -> None:
    """A mirror beside a tracker is measured against the tracker; a part without such a strategy is not measured."""
    parts = {"none": set[str](), "cpr_mfu": {"mfu"}, "cpr_mirror": {"mfu", "mirror"}, "odd": {"a", "b"}}
    both = [Subject("mfu", "cpr_mfu", "none"), Subject("mirror", "cpr_mirror", "cpr_mfu")]
    assert subjects_of(parts, parts) == both
    assert subjects_of(parts, ["cpr_mirror"]) == both[1:]


def test_a_part_that_noise_hides_has_no_price() -> None:
    """Its interval must lie above twice what the control is off, to either side."""
    clear, hidden = Estimate(0.03, 0.02, 0.04), Estimate(0.03, -0.02, 0.06)
    assert price_of(clear, Estimate(0, -0.01, 0.01)).frac == pytest.approx(0.04)
    assert price_of(clear, Estimate(0, -0.01, 0.016)).frac is None
    assert price_of(clear, Estimate(-0.02, -0.03, -0.01)).frac is None
    assert price_of(hidden, Estimate(-0.05, -0.06, -0.04)).frac is None


def test_a_line_through_saves_has_their_fixed_part() -> None:
    """Seconds 1 + bytes / 100 in one round, 1 + bytes / 50 in another: of 300 bytes a quarter and a seventh."""
    line = Line.of(3 * [[(100, 2.0), (300, 4.0)], [(100, 3.0), (200, 5.0)]], 300)
    assert line.fixed_s.high == pytest.approx(1)
    assert (line.fixed_frac.low, line.fixed_frac.high) == pytest.approx((1 / 7, 1 / 4))


def test_the_file_is_a_profile_of_priced_parts_alone(tmp_path: Path) -> None:
    """A full save costs O_save as before; a fixed part that is not above 0 stays that of the base."""
    config = load_config(None, ["profile=cpr56_priced", "profile.job_h=60"])
    steps = [price_of(Estimate(0.02, 0.02, 0.02), Estimate(0, 0, 0)), price_of(Estimate(0, -1, 1), Estimate(0, 0, 0))]
    line = Line(Estimate(1, 1, 1), Estimate(4, 4, 4), Estimate(0.25, 0.2, 0.3))
    beyond = line._replace(fixed_frac=Estimate(0.8, 0.6, 1.2))
    for save, fixed in ((line, 0.25 * (5.6 + 0.1) / 60), (NO_LINE, 0.1 / 60), (beyond, 0.1 / 60)):
        values = constants("here", config, steps=steps[:1], save=save, load=line, detection=Estimate(0.018, 0, 1))
        (tmp_path / "here.yaml").write_text(to_yaml(values))
        profile = load_config(None, [f"profile={tmp_path}/here.yaml"]).profile
        assert (profile.name, profile.job_h, profile.step_frac) == ("here", 60, {"mfu": 0.03})
        assert profile.detect_death_h == pytest.approx(5e-6)
        assert profile.o_save_fixed_h == pytest.approx(fixed, rel=1e-3)
        assert profile.o_save_h + profile.o_save_fixed_h == pytest.approx(5.7 / 60, rel=1e-4)
    config = load_config(None, ["profile=cpr56_measured"])
    values = constants("a", config, steps=steps[1:], save=line, load=line, detection=NO_LINE.full_s)
    assert values["step_frac"].keys() == (config.profile.step_frac or {}).keys() - {"mfu"}, "noise hides it"


def test_a_profile_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("base: cpr56\nmtbf: 3\n")
    with pytest.raises(ConfigError, match=r"p\.yaml:2: unknown key profile\.mtbf; did you mean profile\.mtbf_h\?"):
        load_config(None, [f"profile={tmp_path}/p.yaml"])


def test_runs_take_turns_and_their_trackers_choose(config: Config) -> None:
    """Real runs of none, cpr_mfu, cpr_mirror and the control, in one process.

    A priority save of the job is due after an eighth of 4.48 h: of 56 h, with batches of 4, 14,000 steps.
    """
    config = changed(config, trace__path=None)
    configs = {
        name: changed(config, strategy__name=name, strategy__r=0.125) for name in ("none", "cpr_mfu", "cpr_mirror")
    }
    turns: list[int] = []
    found = measure_step(
        configs,
        Subject("mirror", "cpr_mirror", "cpr_mfu"),
        job_samples=5_600_000,
        rounds=3,
        done=turns.append,
    )
    assert turns == [1, 2, 3]
    assert found.step_s > 0
    assert found.steps_between == 14_000
    assert found.choosing is not None
    assert found.choosing.high > 0


def test_a_run_that_takes_turns_trains_as_any_other(config: Config, tmp_path: Path) -> None:
    """Its losses equal, to the bit, those of the same run with a record; choosing rows in between changes none."""
    config = quiet(changed(config, strategy__name="cpr_mirror"))
    turns = Run(config, "with_mirror")
    for _ in range(2):
        turns.chunk_s()
        turns.choosing_s()
    run_dir = tmp_path / "run"
    assemble.run(config, run_dir)
    trained = [event for event in read_events(run_dir / "events.jsonl") if isinstance(event, Trained)]
    losses = [loss for event in trained for loss in event.losses]
    assert turns.losses == losses[: 2 * CHUNK_STEPS]


def test_saves_are_checkpoints_of_several_sizes(config: Config, tmp_path: Path) -> None:
    """Each save has a manifest, dense network and a base of each rank, as a full save has; the last of a round wins."""
    progress: list[tuple[int, int]] = []
    measure_saves(config, 2, tmp_path / "saves", lambda *done: progress.append(done))
    assert progress == [(4, 8), (8, 8)]
    manifest, _ = newest_checkpoint(tmp_path / "saves")
    assert manifest is not None
    assert manifest.sequence == 7
    assert len(manifest.shards) == config.num_ps
    assert sum(record.num_rows for (record,) in manifest.shards.values()) >= sum(RunSpec(config).rank_rows) > 0


@pytest.mark.slow
def test_each_kill_is_detected(config: Config, tmp_path: Path) -> None:
    found = measure_detection(config, 6, tmp_path / "detection", lambda done, total: None)
    assert 0 < found.low <= found.high < 60


@pytest.mark.slow
def test_the_command_writes_a_profile_that_plan_takes(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an interrupted or refused command nothing is left; a second one needs --force."""
    given, out = tmp_path / "given.yaml", tmp_path / "here.yaml"
    given.write_text(to_yaml({"data": {"path": config.data.path}, "model": {"size": "tiny"}, "profile": "busy"}))
    words = ["measure", str(given), "trainer.batch_size=4", "--out", str(out)]
    assert run.main([*words, "--strategies", "cpr_mfu", "--steps", "100", "--rounds", "2", "--kills", "2"]) == 0
    assert "mfu (cpr_mfu less none): " in out.read_text()
    assert "detection of a death: " in capsys.readouterr().out
    assert load_config(None, [f"profile={out}"]).profile.name == "here"
    assert run.main(["plan", str(out), "--simulate", "2"]) == 0
    assert "profile here: a job of 56 h" in capsys.readouterr().out
    assert run.main(words) == 2
