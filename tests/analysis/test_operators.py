"""The words of operators, from small runs in which a sample takes an hour, against figures computed by hand."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.tables import comparisons
from harness.config.model import Config
from harness.core.events import Evaluated, Lost, Recovered
from harness.core.operators import BADPUT, RPO, RTO, RTO_MEASURED, WORDS, failures_of
from harness.record.event_log import read_events
from harness.wandb.history import History
from tests.made_runs import TOTAL_SAMPLES, made_config, write_run
from tests.runs import changed, run, saving_every, under

JOB_H = 1024.0
FAILURES = "hour,rank\n400,ps1\n448,ps1\n900,ps2\n"
SAMPLES = {"full": (144, 192, 132), "partial": (144, 48, 132)}
"""Of each failure: since the save at 256, again, and at 768. Under partial recovery ps1 was restored at 400."""


@pytest.fixture
def timed(config: Config, tmp_path: Path) -> Config:
    """1,024 samples in 1,024 hours; a save of 10 h each 256 samples, a load of 5 h, rescheduling of 3 h."""
    prices = {"job_h": JOB_H, "o_save_h": 10.0, "o_load_h": 5.0, "o_res_h": 3.0}
    prices = {f"profile__{name}": value for name, value in prices.items()}
    return under(config, tmp_path, FAILURES, eval__points=8, **prices)


def _frame(config: Config, folder: Path, targets: dict[str, float] | None = None, /, **dotted: Any) -> Any:
    """The row of a run."""
    if not (folder / "DONE").exists():
        run(saving_every(changed(config, **dotted), 256), folder)
    return analysis.load(folder, targets=targets or {}).iloc[0]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_run_is_told_in_the_words_of_operators(timed: Config, tmp_path: Path, name: str) -> None:
    """Goodput and badput of the whole job; RPO and RTO as mean and greatest of three failures; wandb has the same."""
    row = _frame(timed, tmp_path / name, strategy__name=name)
    events = read_events(tmp_path / name / "events.jsonl")
    samples = SAMPLES[name]
    lost = sum(samples) if name == "full" else 0
    hours = {"save": 30, "load": 15, "lost": lost, "reschedule": 9}
    whole_h = JOB_H + sum(hours.values())
    assert row["goodput_frac"] == pytest.approx(JOB_H / whole_h)
    for bucket, bucket_h in hours.items():
        assert row[f"badput_{bucket}_frac"] == pytest.approx(bucket_h / whole_h), bucket
    assert math.isnan(row["badput_steps_frac"]), "the profile has no price of steps"
    assert row["goodput_frac"] + sum(row[f"badput_{bucket}_frac"] for bucket in hours) == pytest.approx(1)
    assert [row["rpo_samples"], row["rpo_h"]] == pytest.approx([sum(samples) / 3] * 2)
    assert [row["max_rpo_samples"], row["max_rpo_h"]] == pytest.approx([max(samples)] * 2)
    updates = [event.lost_updates or 0 for event in events if isinstance(event, Recovered)]
    assert all(updates) == (name == "partial")
    assert [row["rpo_updates"], row["max_rpo_updates"]] == pytest.approx([sum(updates) / 3, max(updates)])
    assert [*row[[*RTO]]] == pytest.approx([8 + lost / 3, 3, 5, lost / 3])
    assert row["max_rto_h"] == pytest.approx(8 + (max(samples) if lost else 0))
    stalls = row[[f"measured_{bucket}_s" for bucket in ("load", "lost", "reschedule")]]
    assert row["rto_s"] == pytest.approx(stalls.sum() / 3)
    assert row[[*RTO_MEASURED[1:]]].sum() == pytest.approx(row["rto_s"])
    assert (row[[*RTO_MEASURED[1:5]]] > 0).all()
    assert (row["rto_catch_up_s"] > 0) == bool(lost)
    history = History(JOB_H)
    *_, summary = [(history.rows(event), history.summary(event))[1] for event in events]
    assert {name: summary[name] for name in (*RPO, *RTO, "goodput_frac")} == dict(row[[*RPO, *RTO, "goodput_frac"]])


def test_what_a_record_does_not_tell_is_unknown(timed: Config, tmp_path: Path) -> None:
    """Law: without a failure there is no RPO and RTO; a recovery in two attempts has measured seconds, but no parts."""
    row = _frame(timed, tmp_path / "none", strategy__name="none", trace__path=None)
    assert row["goodput_frac"] == 1
    assert row[[*RPO, *RTO, *RTO_MEASURED, "max_rpo_h", "max_rto_h"]].isna().all()
    _frame(timed, tmp_path / "partial", strategy__name="partial")
    events = read_events(tmp_path / "partial" / "events.jsonl")
    again = next(place for place, event in enumerate(events) if isinstance(event, Lost))
    first, second, _ = failures_of([*events[:again], events[again], *events[again:]], JOB_H)
    assert [first[name] for name in ("rto_detect_s", "rto_replace_s", "rto_regroup_s")] == [None] * 3
    assert None not in [first["rto_s"], first["rto_restore_s"], second["rto_detect_s"], second["rto_regroup_s"]]


def test_the_words_are_columns_where_they_are_named(grid: Path, page: str) -> None:
    """Law: with intervals in every form of the table, none by default; the report has all, with Google's names."""
    frame = analysis.load(grid)
    usual, found = analysis.table_text(frame, "markdown"), analysis.table(frame)
    assert not re.search("goodput|badput|RPO|RTO", usual + str(analysis.show_table(frame, explain=True)))
    names = [name.removesuffix("_frac") for name in WORDS]
    head, _, _, full, *_ = analysis.table_text(frame, "markdown", columns=names).splitlines()
    assert head.count("|") == len(names) + 2, "the setting, as there are two engines"
    mean, half = (100 * found.loc[1, f"goodput_frac{end}"] for end in ("", "_half_width"))
    assert f"{mean:.2f} ± {half:.2f}" in full
    assert all(f"{word} ({bucket})" in page for bucket, word in BADPUT.items())
    for title in ("goodput, %", "RPO, updates", "max RPO, h", "RTO catch up, h", "RTO regroup, s"):
        assert f">{title}</th>" in page


def test_hours_are_a_measure(grid: Path, tmp_path: Path) -> None:
    """Law: hours of runs that get there, with their number; the loss is paired with `none`, in a job of equal hours."""
    measure = analysis.measure_of("hours_to_samples", TOTAL_SAMPLES / 2)
    found = analysis.table(analysis.load(grid, targets=measure.targets), measure).set_index("strategy")
    assert found.loc["none", "hours_to_samples"].item() == pytest.approx(28)
    full, none = (found.loc[name, "hours_to_samples"] for name in ("full", "none"))
    assert found["loss"].to_list() == pytest.approx((found["hours_to_samples"] - none).to_list())
    assert (full > 28).all()
    of_full: Any = comparisons([grid], "none", measure=measure)[0].differences["hours_to_samples"]
    assert of_full.mean == pytest.approx(full.iloc[0] - 28)
    cells = analysis.load(grid)
    middle = sorted(cells.loc[cells["strategy"] == "cpr_vanilla", "auc"])[1]
    measure = analysis.measure_of("hours_to_auc", middle)
    text = str(analysis.show_table(analysis.load(grid, targets=measure.targets), measure=measure))
    assert re.search(r"cpr_vanilla +3 .* 57.58 ± 0.00 \(2\) +\+1.58 ± 0.00", text)
    num = int((cells["auc"] < middle).sum())
    assert f"hours to AUC is not on record for {num} of " in text
    write_run(tmp_path / "none", made_config("none"))
    write_run(tmp_path / "full", made_config("full", profile={"base": "busy", "job_h": 28.0}))
    frame = analysis.load(tmp_path)
    (loss,) = analysis.table(frame, analysis.measure_of("hours_to_samples")).set_index("strategy").loc[["full"], "loss"]
    assert loss == pytest.approx(28 * frame["overhead_frac"].max())
    for name in ("none", "full"):
        write_run(tmp_path / f"{name}-1", made_config(name, seed=1))
    found = comparisons([tmp_path], "none", measure=analysis.measure_of("hours_to_samples"))
    text = analysis.comparison_text(found, "markdown", columns=["hours_to_samples", "total"])
    assert re.search(r"\| full \| 2 \| \+\d+\.\d+ ± \? \(1\) \| [^(]* \|$", text, re.MULTILINE), "jobs of 56 h and 28 h"


@pytest.mark.parametrize(
    ("name", "num", "hours"),
    [
        ("full", 256, 256),  # before the save at 256
        ("full", 390, 390 + 10),
        ("full", 420, 420 + 10 + 8 + 144),  # which is reached before the second failure, and again after it
        ("full", 500, 500 + 10 + 2 * 8 + 144 + 192),
        ("partial", 500, 500 + 10 + 2 * 8),
        ("partial", 1024, 1024 + 30 + 3 * 8),
        ("partial", 1025, None),
    ],
)
def test_hours_to_samples(timed: Config, tmp_path: Path, name: str, num: int, hours: float | None) -> None:
    """Law: hours of training, and of all overhead until the samples were first trained; missing if they never were."""
    found = _frame(timed, tmp_path / name, {"hours_to_samples": num}, strategy__name=name)["hours_to_samples"]
    assert pd.isna(found) if hours is None else found == pytest.approx(hours)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_hours_to_an_auc_and_to_the_end(timed: Config, tmp_path: Path, mode: str) -> None:
    """Law: those of the first evaluation that has it; all samples take the hours of the job and all its overhead.

    A save in the background stalls training before the evaluations that are recorded before it.
    """
    timed = changed(timed, save__mode=mode, profile__network_gbps=25.0, profile__snapshot_gbps=50.0)
    row = _frame(timed, tmp_path / "run", strategy__name="full")
    assert row["hours_to_samples"] == pytest.approx(JOB_H * (1 + row["overhead_frac"]))
    assert pd.isna(row["hours_to_auc"])
    events = read_events(tmp_path / "run" / "events.jsonl")
    curve = [event for event in events if isinstance(event, Evaluated) and not event.final]
    assert [event.samples for event in curve] == [128, 256, 384, 512, 640, 768, 896, 1024][: len(curve)]
    best = max(curve, key=lambda event: (event.auc or 0, -event.samples))
    save_h = 10 if mode == "sync" else 5
    num_saves = best.samples // 256 if best.samples < 1024 else 3
    failures_h = sum(8 + num for at, num in zip((400, 448, 900), SAMPLES["full"], strict=True) if at < best.samples)
    expected = best.samples + save_h * num_saves + failures_h
    found = _frame(timed, tmp_path / "run", {"hours_to_auc": best.auc or 0})["hours_to_auc"]
    assert found == pytest.approx(expected)
    assert pd.isna(_frame(timed, tmp_path / "run", {"hours_to_auc": 1.0})["hours_to_auc"])
