"""The HTML report and its figures."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from analysis.figures import KINDS, SWEEP, TRADEOFF, Data, colour, figures, style, sweep_figure, to_svg
from analysis.figures.curves import MAX_POINTS, Curve, aucs_of, curve, losses_of, mean_curve
from analysis.figures.look import PAPER, THEMES
from analysis.report import heading, slug
from analysis.stats import DEFAULT_MARGIN, Block, blocks_of, regimes_of
from harness.config.model import Config
from harness.core.events import Evaluated, Event, Trained
from harness.record.event_log import EventLog
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir
from tests.injected import is_loss
from tests.made_runs import TOTAL_SAMPLES, altered, made_config, made_events, reseal, write_run

_VOID = {"meta", "link", "br", "hr", "img", "input"}


class _Page(HTMLParser):
    """Collects ids, links and figures, and holds tags to their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [value or "" for name, value in attrs if name in {"href", "src", "xlink:href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_nothing_beside_it(page: str) -> None:
    """Tags nest, ids are unique over all figures, references inside the page arrive, every kind is drawn.

    No script, style sheet or image is fetched; links lead to the run folders alone. Failed and unfinished cells stand
    at the top, escaped; the command and versions at the end.
    """
    parsed = _Page(page)
    assert parsed.tags["svg"] == 1 + 4, "a setting that differs in its engine alone has a table and no figures"
    drawn = [kind.title for kind in (TRADEOFF, *KINDS) if not kind.needs_aucs]
    assert [page.count(title) > 1 for title in drawn] == [True] * 5
    assert [name for name, count in Counter(parsed.ids).items() if count > 1] == []
    inside = {reference[1:] for reference in parsed.references if reference.startswith("#")}
    assert {"block-0", "block-1"} < inside, "a link to each setting"
    assert inside <= set(parsed.ids)
    assert parsed.tags["link"] == parsed.tags["img"] == 0
    assert not any(each in page for each in ("<script src", "@import"))
    outside = {reference for reference in parsed.references if not reference.startswith("#")}
    assert {"full-s1/", "deeper/rpc-full-s0/"} < outside
    assert not any("//" in reference for reference in outside)
    assert {*re.findall(r"url\(([^)]*)\)", page)} <= {f"#{name}" for name in parsed.ids}
    assert "failed: failed-s0: RunFailed: ps2 &lt;kept&gt; dying" in page
    assert page.index("unfinished: unfinished-s0") < page.index("<h2")
    assert all(each in page for each in ("run.py grid made.yaml", "torch 2."))


def test_the_data_line_names_how_a_log_was_made(grid: Path, tmp_path: Path) -> None:
    """A synthetic log by its law and controls, a real one by its size; the split; unknown where no record says it."""
    size = {"num_samples": 250_000, "table_rows": [1_000, 234], "digest": "0"}
    made = {"rows": 250_000, "seed": 3, "like": "kaggle", "law": "0", "taper": 0.5, "flat": True}
    real = "250,000 samples, 1,234 embedding rows"
    lines: tuple[tuple[Any, str], ...] = (
        ({**size, "synthetic": None}, real),
        ({**size, "synthetic": made}, f"{real}, synthetic: like kaggle, taper 0.5, flat, seed 3"),
        ({**size, "split": "1 for the test"}, f"{real}, split into 1 for the test"),
        *((unknown, "unknown") for unknown in (None, {}, {"num_samples": "many"})),
        ({**size, "synthetic": {}}, real),
    )
    for number, (data, _) in enumerate(lines):
        shutil.copytree(grid / "failed-s0", tmp_path / f"{number}")
        env = tmp_path / f"{number}" / "env.json"
        env.write_text(json.dumps({**json.loads(env.read_text()), "data": data}))
    page = analysis.report(tmp_path).read_text()
    found: Any = re.search(r"<dt>data</dt><dd>(.*?)</dd>", page)
    assert {*found.group(1).split("; ")} == {line for _, line in lines}
    assert "No cell is done." in page
    assert "<svg" not in page


def test_what_was_trained_and_the_answer_come_first(page: str) -> None:
    """Data, samples, model, batch, ranks and the answer are above the first section, and no caption needs another.

    Each figure has a caption that names its failures, ranks and number of seeds.
    """
    head = page[: page.index("<h2")]
    for words in (
        "dlrm, size ",
        f"{TOTAL_SAMPLES:,} samples in batches of 128",
        "4 PS ranks",
        "56 h, profile busy",
        "busy",
    ):
        assert words in head
    assert "<b>by final AUC</b>: Shown over" in head
    captions = re.findall(r"</svg>\s*<figcaption>(.*?)</figcaption>", page, flags=re.DOTALL)
    assert len(captions) == page.count("<svg ")
    for caption in captions:
        assert re.search(r"Failure trace busy.*, profile busy, 4 PS ranks.*; \d.* seeds?\.$", caption)


def _data(line: Any) -> tuple[list[float], list[float]]:
    """The places and heights of the points of a line."""
    return [float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]


def test_a_sweep_has_one_table_and_one_figure(tmp_path: Path) -> None:
    """Both are above all else; tables and figures of a single setting are folded. A file has the figure too."""
    for seed in range(2):
        write_run(tmp_path / f"none-{seed}", made_config("none", seed=seed))
        write_run(tmp_path / f"full-{seed}", made_config("full", seed=seed))
        for r in (0.125, 0.5):
            write_run(tmp_path / f"mfu-{r}-{seed}", made_config("cpr_mfu", seed=seed, strategy={"r": r}), auc=r / 1e3)
    frame = analysis.load(tmp_path)
    page = analysis.report(tmp_path, frame=frame).read_text()
    _Page(page)
    assert page.count(f">{SWEEP}<") == 1
    assert page.index("By strategy.r") < page.index(f">{SWEEP}<") < page.index(TRADEOFF.title) < page.index("<details>")
    assert page.count("<details>") == 4, "with operators' words in each"
    assert (analysis.write_files(tmp_path, tmp_path / "files", frame=frame) / "sweep.svg").exists()
    blocks = regimes_of(frame)
    with style():
        above, below = sweep_figure(Data(blocks, frame, None)).axes
    for axes, column, scale in ((above, "loss", 1e3), (below, "overhead_frac", 100)):
        means = [line.loss if column == "loss" else line.estimate(column) for b in blocks for line in b.lines[1:]]
        wanted = sorted(scale * mean.mean for mean in means if mean)
        drawn = [line for line in axes.get_lines() if line.get_marker() not in ("None", "_", "|")]
        assert sorted(y for line in drawn for y in _data(line)[1]) == pytest.approx(wanted)
        places = [x for line in drawn for x in _data(line)[0]]
        assert len(set(places)) == len(places), "no point hides another of its setting"
    assert [label.get_text() for label in below.get_xticklabels()] == ["0.125", "0.5"]


def test_the_same_cells_give_the_same_bytes(grid: Path, tmp_path: Path) -> None:
    """A report, and the files beside it, are functions of the cells: every figure as asked for, the table in three."""
    shutil.copytree(grid / "full-s0", tmp_path / "grid" / "full-s0")
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    reports = [analysis.report(tmp_path / "grid", now=lambda: moment).read_bytes() for _ in range(2)]
    assert reports[0] == reports[1]
    formats = ("pdf", "png", "svg")
    first, again = (
        analysis.write_files(tmp_path / "grid", tmp_path / name, formats=formats) for name in ("first", "again")
    )
    names = sorted(path.name for path in first.iterdir())
    figures = [f"overhead.{suffix}" for suffix in formats]  # which needs no pairs
    assert names == sorted([*figures, "table.csv", "table.md", "table.tex"])
    assert [name for name in names if (first / name).read_bytes() != (again / name).read_bytes()] == []


def test_a_damaged_environment_does_not_stop_the_report(grid: Path, tmp_path: Path) -> None:
    """With garbage in any file of one cell, the report and comparisons are made of the others."""
    for cell, file in (("cpr_mfu-s0", ""), ("cpr_mfu-s1", ""), ("full-s0", "env.json"), ("full-s1", "config.yaml")):
        shutil.copytree(grid / cell, tmp_path / cell)
        if file:
            (tmp_path / cell / file).write_bytes(b"\x80{")
            reseal(tmp_path / cell)
    page = analysis.report(tmp_path).read_text()
    assert "3 done, 1 damaged" in page
    assert "full-s1/config.yaml" in page
    assert "full-s0/env.json" not in page
    assert analysis.compare([tmp_path], "cpr_mfu")["num"].to_list() == [1]
    analysis.show_comparison([tmp_path, tmp_path])


def _curve(events: Sequence[Event], reference: Sequence[Event] = ()) -> Curve:
    run: Any = losses_of(EventLog([*events]))
    drawn: Any = curve(run, losses_of(EventLog([*reference])))
    return drawn


def test_a_folder_whose_name_is_no_text_does_not_stop_the_report(tmp_path: Path) -> None:
    """A byte of it that is no UTF-8 is told by its code, and no temporary file is left."""
    write_run(tmp_path / os.fsdecode(b"cell\xff"), made_config("none"))
    assert r">cell\udcff</a>" in analysis.report(tmp_path).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [os.fsdecode(b"cell\xff"), "report.html"]


def test_a_loss_curve_sees_each_sample_once() -> None:
    """With reruns the curve equals that of the run without failures, in few points, with its kills on the curve."""
    events = made_events(made_config("full"))
    assert any(isinstance(event, Trained) and event.rerun for event in events), "nothing was run again"
    drawn, undisturbed = _curve(events), _curve(made_events(made_config("none")))
    assert (drawn.samples, drawn.losses) == (undisturbed.samples, undisturbed.losses)
    assert len(drawn.samples) <= MAX_POINTS
    assert drawn.samples[-1] == TOTAL_SAMPLES
    assert drawn.kill_samples == sorted({event.samples for event in events if is_loss(event)})
    assert undisturbed.kill_samples == []


def test_the_noise_two_runs_share_cancels() -> None:
    """Less its reference, a run with the losses of the reference is flat zero, one an eighth higher an eighth."""
    events = made_events(made_config("full"))
    same = _curve(events, made_events(made_config("none")))
    assert set(same.losses) == {0.0}
    higher = [
        altered(event, losses=[loss + 0.125 for loss in event.losses]) if isinstance(event, Trained) else event
        for event in events
    ]
    raised = _curve(higher, events)
    assert raised.losses == pytest.approx([0.125] * MAX_POINTS, rel=1e-9)


def test_the_mean_curve_is_over_seeds() -> None:
    """Each point is the mean of the seeds' points; the kills are those of every seed; no seed, no curve."""
    first, second = Curve([10, 20], [1.0, 3.0], [10]), Curve([10, 20], [2.0, 5.0], [15])
    assert mean_curve([first, second]) == Curve([10, 20], [1.5, 4.0], [10, 15])
    assert mean_curve([]) is None


def _write_with_curve(path: Path, config: Config, *, auc: float = 0.7, is_whole: bool = False) -> None:
    """A made run with evaluations during training after each quarter of the steps, on 256 samples or all."""
    started, *events, evaluated, finished = made_events(config)
    assert isinstance(evaluated, Evaluated)
    with Recorder(path, config) as recorder:
        recorder.record(started)
        for event in events:
            recorder.record(event)
            if isinstance(event, Trained) and event.step % 100 == 0:
                look = {"auc": auc + event.step / 1e4, "final": False}
                look["num_samples"] = evaluated.num_samples if is_whole else 256
                recorder.record(altered(evaluated, step=event.step, samples=event.samples, **look))
        recorder.record(altered(evaluated, group_aucs=[0.70, 0.72, 0.74, 0.76]))
        recorder.record(finished)
        recorder.done()


def test_a_curve_on_the_whole_test_set_ends_with_the_auc_of_the_table(tmp_path: Path) -> None:
    """Law: the final evaluation is the curve's last point if both are on the same samples, and no point otherwise."""
    ends: list[float] = []
    for name, is_whole in (("whole", True), ("part", False)):
        _write_with_curve(tmp_path / name, made_config("full"), is_whole=is_whole)
        found: Any = aucs_of(EventLog.of(RunDir(tmp_path / name)), 56.0)
        ends.append(found.by_hour[56.0])
    (auc,) = analysis.load(tmp_path / "whole")["auc"]
    assert ends == [auc, pytest.approx(0.74)]
    assert "The last one is the AUC of the table." in analysis.report(tmp_path / "whole").read_text()


def test_auc_over_the_hours_of_the_job(tmp_path: Path) -> None:
    """The axis names the number of test samples, the caption their standard error; failures are vertical lines."""
    for number, strategy in enumerate(("none", "full", "cpr_vanilla")):
        _write_with_curve(tmp_path / strategy, made_config(strategy), auc=0.7 - 1e-3 * number)
    frame = analysis.load(tmp_path)
    data = Data(blocks_of(frame), frame, None)
    kinds = {kind.name: kind for kind in KINDS}
    with style():
        ((_, hours),), ((_, above),) = (figures(kinds[name], data) for name in ("hours", "hours_above"))
    log = EventLog.of(RunDir(tmp_path / "full"))
    failures = {56 * event.samples / TOTAL_SAMPLES for event in log.events if is_loss(event)}
    for figure, wanted in ((hours, [0.71, 0.72, 0.73, 0.74]), (above, [-1.0] * 4)):
        axes = figure.axes[0]
        lines = {str(line.get_label()): line for line in axes.get_lines()}
        assert _data(lines["full"])[0] == pytest.approx([14, 28, 42, 56])
        assert _data(lines["full"])[1] == pytest.approx([w - (figure is hours) * 1e-3 for w in wanted])
        vertical = [own for own in (_data(line)[0] for line in axes.get_lines()) if len({*own}) == 1]
        assert {own[0] for own in vertical} == failures
        assert "the first 256 test samples" in axes.get_ylabel()
        assert "hour of the job" in axes.get_xlabel()
    page = analysis.report(tmp_path).read_text()
    assert "Standard error of the AUC of one run by the choice of the test samples: 25.5" in page
    assert "the last one is not the AUC of the table" in page


def test_coinciding_points_are_told_apart(grid: Path, tmp_path: Path) -> None:
    """Strategies with the same points have one label in every figure; a point that hides another is a ring."""
    shutil.copytree(grid, tmp_path / "grid")
    frame: Any = analysis.load(grid)
    frame = frame[frame["engine"] == "local"]
    twins = frame[frame["strategy"] == "cpr_mfu"].assign(strategy="cpr_random")
    near = frame[frame["strategy"] == "cpr_mfu"].assign(strategy="cpr_ssu")
    near["auc"] += 1e-6
    frame = pd.concat([frame, twins, near], ignore_index=True)
    data = Data(regimes_of(frame), frame, None)
    for kind in (TRADEOFF, *(kind for kind in KINDS if kind.name in ("pls", "above"))):
        with style():
            ((_, figure),) = figures(kind, data)
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert [label for label in labels if "cpr_mfu" in label and "cpr_random" in label]
        if kind is TRADEOFF:
            rings = [line for line in figure.axes[0].get_lines() if line.get_fillstyle() == "none"]
            assert colour("cpr_ssu") in {ring.get_color() for ring in rings}


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_series_can_be_seen(theme: int) -> None:
    """In both themes text has 4.5 times the contrast of the page, and every series 3 times (WCAG 2.2)."""

    def luminance(role: str) -> float:
        parts = [int(THEMES[role][theme][start : start + 2], 16) / 255 for start in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for role in THEMES.keys() - {PAPER, "grid"}:
        low, high = sorted((luminance(role), luminance(PAPER)))
        assert (high + 0.05) / (low + 0.05) >= (4.5 if role in ("ink", "muted") else 3), role


def test_settings_share_their_scales_and_the_colours_of_the_themes(grid: Path) -> None:
    """Axes that are to be compared have the same limits; every colour in a page's figure has a dark counterpart.

    Without ``none`` only what needs no pairs is drawn: differences would be empty axes.
    """
    cells = analysis.load(grid)
    data, alone = (Data(blocks_of(own), own, None) for own in (cells, cells[cells["strategy"] != "none"]))
    for kind in (TRADEOFF, *KINDS):
        with style():
            drawn = [figure for _, figure in figures(kind, data)]
            svgs = [to_svg(figure, "name") for figure in drawn]
            assert bool(figures(kind, alone)) == (kind.name == "overhead")
        assert len(drawn) == (0 if kind.needs_aucs else 2)
        for name in kind.shared:
            assert len({getattr(figure.axes[0], f"get_{name}lim")() for figure in drawn}) <= 1
        for svg in svgs:
            assert re.findall(r'(?:: ?|=")(#[0-9a-f]{3,8})\b', svg) == []
            assert set(re.findall(r"var\(--(\w+)\)", svg)) <= THEMES.keys()


def test_a_control_does_not_set_the_scale(grid: Path) -> None:
    """A loss of never_save far from the others stands at the edge of the figures, with its value and its seeds."""
    frame: Any = analysis.load(grid)
    frame = frame[frame["engine"] == "local"].replace({"strategy": {"cpr_vanilla": "never_save"}})
    frame.loc[frame["strategy"] == "never_save", "auc"] -= 1.0
    loss = -1e3 * float(analysis.table(frame).set_index("strategy").loc["never_save", "auc_difference"])
    data = Data(regimes_of(frame), frame, DEFAULT_MARGIN)
    with style():
        ((_, figure),), ((_, auc),) = (figures(kind, data) for kind in (TRADEOFF, KINDS[0]))
    assert figure.axes[0].get_ylim()[1] < 1000
    assert [text.get_text() for text in figure.axes[0].texts] == [f"{loss:+.1f}"]
    low = auc.axes[0].get_xlim()[0]
    edge = [line.get_xdata() for line in auc.axes[0].get_lines() if line.get_marker() == "<"]
    assert edge == [[low]] * 3, "its seeds are triangles at the edge"


def test_an_interval_of_two_seeds_does_not_set_the_scale(grid: Path) -> None:
    """Law: the mean of two pairs lies inside; their interval, of 12.7 standard errors, may end outside."""
    frame: Any = analysis.load(grid)
    frame = frame[frame["engine"] == "local"]
    own = frame["strategy"] == "cpr_vanilla"
    frame = frame[~own | frame["seed"].isin(frame.loc[own, "seed"].unique()[:2])].copy()
    frame.loc[frame["strategy"] == "cpr_vanilla", "auc"] -= [0.0, 0.01]
    data = Data(regimes_of(frame), frame, DEFAULT_MARGIN)
    loss: Any = next(line.loss for block in data.blocks for line in block.lines if line.strategy == "cpr_vanilla")
    low, high = data.loss_range
    assert low < 1e3 * loss.mean < high < 1e3 * (loss.mean + loss.half_width)


def test_a_section_is_named_by_what_differs() -> None:
    """A single one by its whole setting; a file's name has no inner dot."""
    setting = {"trace": None, "cache.staleness": 10, "engine": "rpc"}
    bare = Block(setting, "cache.staleness 10, strategy.r 0.125", [])
    other = Block({"trace": "x", "cache.staleness": 10, "engine": "local"}, "", [])
    assert heading(bare, [bare, other]) == "No failures, ranks as processes (rpc)"
    assert heading(other, [other]) == "Failure trace x, all ranks in one process (local)"
    assert slug(bare) == "cache-staleness-10-strategy-r-0p125"


def test_drawing_says_nothing() -> None:
    """No warning or log line of matplotlib reaches the user, even without a folder for its font cache."""
    program = """
import io, analysis.figures as own
with own.style():
    from matplotlib.figure import Figure
    Figure().subplots().figure.savefig(io.BytesIO())
"""
    environment = os.environ | {"MPLCONFIGDIR": os.devnull + "/none", "PYTHONWARNINGS": "always"}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert result.stderr == ""
