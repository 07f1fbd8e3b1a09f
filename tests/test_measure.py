"""`benchmarks/measure.py`: what it measures, what it has no price for, and the file that it writes."""

import json
import math
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

import run
from benchmarks import measure
from benchmarks._common import Spread
from benchmarks._sets import TURN_STEPS, Price, Run, Subject, measure_sets, quiet, subjects_of
from benchmarks.measure import Line, constants, measure_detection, measure_saves
from harness.config.experiment import load_config
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.core.events import Trained
from harness.record.event_log import read_events
from harness.run import assemble
from harness.run.spec import RunSpec
from harness.store import newest_checkpoint
from tests.runs import changed

MFU = Subject("mfu", "cpr_mfu", "none")
NO_LINE = Line(*[Spread(1.0, -1.0, 2.0)] * 2)


class Steady(Run):
    """A run of which every step takes as long; like a real one, it is freed by the collector alone."""

    def __init__(self, turn_s: float) -> None:
        self._turn_s, self._itself = turn_s, self

    def turn_s(self) -> float:
        return self._turn_s

    def choosing_s(self) -> float:
        return 0.0


def price_of(touching: list[float], control: list[float]) -> Price:
    """A price in which choosing takes 1 % of a step."""
    return Price(MFU, touching, [1.0] * len(touching), control)


# --- sets of runs -----------------------------------------------------------------------------------------------------


def test_the_unit_of_an_interval_is_a_set_of_new_runs() -> None:
    """Law: each set makes its runs anew, another one first, when those before are freed; intervals are over sets.

    Here a run of cpr_mfu takes as much longer or shorter as its memory happens to lie, in all of its turns.
    """
    layouts, made, alive = [3, -2, 1, -1, 2, -3], list[str](), weakref.WeakSet[Steady]()

    def make(name: str) -> Run:
        assert len(alive) < 3, "runs of the set before are still there"
        made.append(name)
        run = Steady(1.0 if name == "none" else 1 + layouts[made.count(name) - 1] / 100)
        alive.add(run)
        return run

    progress: list[tuple[int, int]] = []
    price = measure_sets(MFU, make, 6, 50, lambda *done: progress.append(done))
    assert made == 2 * ["none", "cpr_mfu", "none", "cpr_mfu", "none", "none", "none", "none", "cpr_mfu"]
    assert progress == [(number, 6) for number in range(1, 7)]
    assert price.touching == pytest.approx(layouts)
    assert (price.total.low, price.total.high) == pytest.approx((-3, 3))
    assert price.control == pytest.approx([0] * 6)
    assert price.frac is None, "300 turns, and no set, tell the part from nothing"


def test_an_interval_of_a_median_is_by_order_statistics() -> None:
    """Of 100 values the 40th to the 61st have 96.5 %; of six the range has 97 %; fewer have no bounds."""
    assert Spread.interval(range(100)) == Spread(49.5, 39, 60)
    assert Spread.interval(range(6)) == Spread(2.5, 0, 5)
    assert Spread.interval([3.0]) == Spread(3, -math.inf, math.inf)


def test_each_part_is_measured_against_a_strategy_without_it_alone() -> None:
    """A mirror beside a tracker is measured against the tracker; a part without such a strategy is not measured."""
    parts = {"none": set[str](), "cpr_mfu": {"mfu"}, "cpr_mirror": {"mfu", "mirror"}, "odd": {"a", "b"}}
    both = [MFU, Subject("mirror", "cpr_mirror", "cpr_mfu")]
    assert subjects_of(parts, parts) == both
    assert subjects_of(parts, ["cpr_mirror"]) == both[1:]


def test_a_part_that_noise_hides_has_no_price() -> None:
    """Its interval must lie above the absolute value of the control's median."""
    clear, hidden, steady = [2.0, 3, 3, 3, 3, 4], [-2.0, 3, 3, 3, 3, 6], [0.0] * 6
    assert price_of(clear, steady).frac == pytest.approx(0.04)
    assert price_of(clear, [-5.0, -2.9, -2.9, -2.9, -2.9, 5]).frac == pytest.approx(0.04)
    assert price_of(clear, [-3.1] * 6).frac is None
    assert price_of(hidden, steady).frac is None
    assert price_of(clear[:5], steady[:5]).frac is None, "fewer than six sets have no interval"


def test_real_runs_take_turns_and_their_trackers_choose(config: Config) -> None:
    """Runs of none, cpr_mfu, cpr_mirror and the control.

    A priority save of the job is due after an eighth of 4.48 h: of 56 h, with batches of 4, 14,000 steps.
    """
    config = changed(config, trace__path=None)

    def make(name: str) -> Run:
        made = Run(changed(config, strategy__name=name, strategy__r=0.125), 5_600_000)
        assert name == "none" or made.steps_between == 14_000
        return made

    price = measure_sets(Subject("mirror", "cpr_mirror", "cpr_mfu"), make, 2, 1, lambda done, total: None)
    assert all(map(math.isfinite, [*price.touching, *price.control]))
    assert min(map(abs, price.choosing)) > 0


def test_a_run_that_takes_turns_trains_as_any_other(config: Config, tmp_path: Path) -> None:
    """Its losses equal, to the bit, those of the same run with a record; choosing rows in between changes none."""
    config = quiet(changed(config, strategy__name="cpr_mirror"))
    turns = Run(config, RunSpec(config).total_samples)
    for _ in range(2):
        turns.turn_s()
        turns.choosing_s()
    run_dir = tmp_path / "run"
    assemble.run(config, run_dir)
    trained = [event for event in read_events(run_dir / "events.jsonl") if isinstance(event, Trained)]
    losses = [loss for event in trained for loss in event.losses]
    assert turns.job.steps.losses == losses[: 2 * TURN_STEPS]


# --- saves, loads and detection ---------------------------------------------------------------------------------------


def test_a_line_through_saves_has_their_fixed_part() -> None:
    """Seconds 1 + bytes / 100 in one round, 1 + bytes / 50 in another: of 300 bytes a quarter and a seventh."""
    line = Line.of(map(np.array, 3 * [[(100, 2.0), (300, 4.0)], [(100, 3.0), (200, 5.0)]]), 300)
    assert (line.full_s.low, line.full_s.high) == pytest.approx((4, 7))
    assert (line.fixed_frac.low, line.fixed_frac.high) == pytest.approx((1 / 7, 1 / 4))


def test_saves_are_checkpoints_of_several_sizes(config: Config, tmp_path: Path) -> None:
    """Each save has a manifest, dense network and a base of each rank, as a full save has; the last one is a half."""
    progress: list[tuple[int, int]] = []
    measure_saves(config, 2, tmp_path / "saves", lambda *done: progress.append(done))
    assert progress == [(number, 8) for number in range(1, 9)]
    manifest, _ = newest_checkpoint(tmp_path / "saves")
    assert manifest is not None
    assert manifest.sequence == 7
    assert len(manifest.shards) == config.num_ps
    assert sum(record.num_rows for (record,) in manifest.shards.values()) >= sum(RunSpec(config).rank_rows) > 0


@pytest.mark.slow
def test_each_kill_is_detected(config: Config, tmp_path: Path) -> None:
    found = measure_detection(config, 6, tmp_path)
    assert 0 < found.low <= found.high < 60


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_a_profile_of_priced_parts_alone(tmp_path: Path) -> None:
    """A full save costs O_save as before; a fixed part that is not above 0 stays that of the base."""
    config = load_config(None, ["profile=cpr56_priced", "profile.job_h=60"])
    known, hidden = price_of([2.0] * 6, [0.0] * 6), price_of([-9.0, 9] * 3, [0.0] * 6)
    line = Line(Spread(4, 4, 4), Spread(0.25, 0.2, 0.3))
    beyond = line._replace(fixed_frac=Spread(0.8, 0.6, 1.2))
    for save, fixed in ((line, 0.25 * (5.6 + 0.1) / 60), (NO_LINE, 0.1 / 60), (beyond, 0.1 / 60)):
        values = constants("here", config, prices=[known], save=save, load=line, detection=Spread(0.018, 0, 1))
        (tmp_path / "here.yaml").write_text(to_yaml(values))
        profile = load_config(None, [f"profile={tmp_path}/here.yaml"]).profile
        assert (profile.name, profile.job_h, profile.step_frac) == ("here", 60, {"mfu": 0.03})
        assert profile.detect_death_h == pytest.approx(5e-6)
        assert profile.o_save_fixed_h == pytest.approx(fixed, rel=1e-3)
        assert profile.o_save_h + profile.o_save_fixed_h == pytest.approx(5.7 / 60, rel=1e-4)
    config = load_config(None, ["profile=cpr56_measured"])
    values = constants("a", config, prices=[hidden], save=line, load=line, detection=Spread.interval([1.0] * 5))
    assert values["step_frac"].keys() == (config.profile.step_frac or {}).keys() - {"mfu"}, "noise hides it"
    assert "detect_death_h" not in values, "too few deaths for an interval"


def test_a_profile_file_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("base: cpr56\nmtbf: 3\n")
    with pytest.raises(ConfigError, match=r"p\.yaml:2: unknown key profile\.mtbf; did you mean profile\.mtbf_h\?"):
        load_config(None, [f"profile={tmp_path}/p.yaml"])


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def given(config: Config, tmp_path: Path) -> Path:
    path = tmp_path / "given.yaml"
    path.write_text(to_yaml({"data": {"path": config.data.path}, "model": {"size": "tiny"}, "profile": "busy"}))
    return path


REFUSED = {
    "{given} --out {out}": "data: expected at least 35,840 training samples for 5000 steps in 20 sets",
    "{given} --out {given}": "--out: expected another file than the input",
    "{given} --out {out}.csv": "--out: expected FILE.yaml, as the key profile takes it, got ",
    "{given} --out {out} --json {given}/a.json": "error: argument --json: expected a file in an existing folder, got ",
    "{given} --out {out} --sets 0": "error: argument --sets: invalid count value: '0'",
    "{given} --out {out} --strategies cpr_ssu,mfu": "error: --strategies: unknown 'mfu'; did you mean cpr_mfu?",
    "{given} --out {out} --strategies cpr_state": "trainer.optimizer: expected rowwise_adagrad or adagrad",
    "{given} --out {out} trainer.batchsize=4": "unknown key trainer.batchsize; did you mean trainer.batch_size?",
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_input_is_one_line(
    given: Path, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = given.with_name("out.yaml")
    monkeypatch.setattr(sys, "argv", ["measure.py", *words.format(given=given, out=out).split()])
    with pytest.raises(SystemExit) as refused:
        measure.main()
    line = capsys.readouterr().err if refused.value.code == 2 else str(refused.value.code)
    said = [each for each in line.splitlines() if not each.startswith("note: ")]
    assert len(said) == 1
    assert REFUSED[words] in said[0]
    assert not out.exists()


@pytest.mark.slow
def test_the_command_writes_a_profile_that_plan_takes(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started by its path, with a strategy of a plugin and overrides after options; what it prints is in the file."""
    out, figures = tmp_path / "here.yaml", tmp_path / "figures.json"
    root = Path(__file__).parents[1]
    plugin = root / "experiments" / "plugins" / "incremental.py"
    words = [str(given), "--sets", "2", "--steps", "20", "--rounds", "1", "--kills", "2", "--json", str(figures)]
    words += ["--strategies", "cpr_mfu", "--out", str(out), "trainer.batch_size=4", f"plugins=[{plugin}]"]
    script = [sys.executable, str(root / "benchmarks" / "measure.py")]
    done = subprocess.run([*script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    written, lines = out.read_text().splitlines(), done.stdout.splitlines()
    assert [line[1:].lstrip() for line in written if line.startswith("#")][1:] == lines[:-1]
    assert any(line.startswith("| mfu | cpr_mfu less none |") for line in lines)
    assert any(line.startswith("detection of a death: ") for line in lines)
    assert all(map(math.isfinite, json.loads(figures.read_text())["prices"][0]["touching"]))
    assert load_config(None, [f"profile={out}"]).profile.name == "here"
    assert run.main(["plan", str(out), "--simulate", "2"]) == 0
    assert "profile here: a job of 56 h" in capsys.readouterr().out
