"""What console, figures and report say of a failure trace."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.trace_figures import draw_trace, trace_panels, trace_sections
from analysis.trace_show import number, show_trace
from harness.core.errors import StoreError
from harness.core.events import Event
from harness.record.recorder import Recorder
from harness.traces.statistics import describe
from harness.traces.trace import Trace, parse_trace
from tests.analysis.shown import shown
from tests.injected import is_loss
from tests.made_runs import altered, made_config, made_events


def rich_trace() -> Trace:
    """A hundred deaths with everything that a trace can tell."""
    hours_N = np.cumsum(np.random.default_rng(0).weibull(0.6, 90) * 4).round(4)
    lines = ["# title: a cluster", f"# length_h: {hours_N[-1] + 5}", "# ranks: 12"]
    lines += ["hour,rank,repair_h,node"]
    for index, hour in enumerate(hours_N.tolist()):
        lines.append(f"{hour},ps{index % 9},{1 + index % 4},node{index % 9}")
        if index % 9 == 0:
            lines.append(f"{hour},ps10,,node10")
    return parse_trace(lines, "rich.csv")


def test_a_trace_is_told_in_full() -> None:
    """Size, MTBFs, both fits with their verdicts, who, together and repairs have a line each."""
    text = shown(show_trace(describe(rich_trace())))
    assert text.startswith("a cluster: 100 deaths at 90 instants, ")
    for start in (
        "one rank  ",
        "any rank  ",
        "Time between failures of one rank: ",
        "Time between failures of any rank: ",
        "Who: 10 of 12 ranks failed; the 1 that fails most: 10% of all deaths.",
        "Again and again: ps",
        "Together: 10× 2 ranks at one instant, 20% of all deaths.",
        "Repairs: 90 known, 10 unknown; 2.48 h on average, median 2.00, ",
        "Goodness of fit: p is a bound that can refute a family",
    ):
        assert any(line.strip().startswith(start.strip()) for line in text.splitlines()), start
    assert "(node" in text


@pytest.mark.parametrize("lines", [["# length_h: 9", "hour,rank"], ["# length_h: 50", "hour,rank", "10,4", "40,4"]])
def test_what_is_unknown_is_shown_as_such(lines: Sequence[str]) -> None:
    """No failure at all, or ranks that are only counted: still a table."""
    text = shown(show_trace(describe(parse_trace(lines, "bare.csv"))))
    assert "number of ranks not given" in text
    assert "any rank" in text
    assert "to the last failure" not in text
    assert "–" in text


def test_hours_that_end_with_a_failure_are_named() -> None:
    """Law: of a trace without hours it is said that those up to its last failure count, and how to give others."""
    stats = describe(parse_trace(["hour,rank", "10,ps1", "40,ps2"], "bare.csv"))
    hours = ", 40.0 h up to the last failure (length_h in the header sets other hours), "
    assert hours in shown(show_trace(stats))


def test_numbers_have_three_digits() -> None:
    """As many as such data bear, without an exponent where one can do without."""
    texts = {None: "–", math.inf: "∞", math.nan: "–", 0.0: "0", 5734.2: "5,734", 15.83: "15.8", 0.00125: "0.00125"}
    for value, text in {**texts, -0.4331: "-0.433", 3e-9: "3e-09"}.items():
        assert number(value) == text


def test_the_figure_is_a_function_of_its_trace(tmp_path: Path) -> None:
    """Written as SVG and PNG; the same trace gives the same bytes; fewer than five gaps have none.

    In a page it has no colour outside the themes, as figures of a grid.
    """
    stats = describe(rich_trace())
    assert {path.name for path in draw_trace(stats, tmp_path)} == {"survival.svg", "survival.png"}
    assert (tmp_path / "survival.png").read_bytes().startswith(b"\x89PNG")
    first, again = (trace_panels(stats, "x") for _ in range(2))
    assert first == again
    few = describe(parse_trace(["# length_h: 9", "hour,rank", "3,ps0", "5,ps1", "5,ps2"], "few.csv"))
    assert [re.findall(r'(?:: ?|=")(#[0-9a-f]{3,8})\b', svg) for svg, _ in first] == [[], []]
    assert (trace_panels(few, "x"), draw_trace(few, tmp_path)) == ([], [])


@pytest.mark.parametrize("num", [19, 20])
def test_laws_are_drawn_where_they_can_be_told_apart(tmp_path: Path, num: int) -> None:
    """None where the text says "too few to tell"; no two laws have one dash; the caption says what is drawn, of what.

    The files have the caption too, so that they can be read without the page.
    """
    hours_N = np.cumsum(np.random.default_rng(1).weibull(0.6, num) * 4).round(4)
    rows = [f"{hour},ps{index % 9}" for index, hour in enumerate(hours_N.tolist())]
    stats = describe(parse_trace(["# title: mine", "# length_h: 200", "# ranks: 9", "hour,rank", *rows], "mine.csv"))
    said = shown(show_trace(stats))
    _, (svg, words) = trace_panels(stats, "x")
    names = ("exponential", "gamma", "weibull", "lognormal")
    is_told = num == 20
    assert ("too few to tell families apart" in said.partition("of any rank")[2]) != is_told
    assert [name in svg for name in names] == [is_told] * 4
    assert words.startswith(
        f"mine: {num} deaths at {num} instants, 200 h, 9 ranks. Share of the times between failures"
    )
    assert f"Of any rank: {num} times and 1 cut." in words
    assert "laws fitted to at least 20 times (in colour)" in words
    if is_told:
        dashes = re.findall(r"stroke-dasharray: ([0-9.]+,[0-9.]+)", svg)
        assert len(set(dashes)) == 3
    draw_trace(stats, tmp_path)
    assert "mine: " in (tmp_path / "survival.svg").read_text()


def log_of(nodes: Sequence[str]) -> Trace:
    """A failure every hour of ps0 to ps2, of these nodes."""
    rows = [f"{1 + n},ps{n % 3},,{node}" for n, node in enumerate(nodes)]
    return parse_trace(["# length_h: 99", "# ranks: 3", "hour,rank,repair_h,node", *rows], "log.csv")


def test_ranks_and_nodes_are_never_one_for_the_other() -> None:
    """A rank that stands for several nodes has their number; the nodes that fail again and again have a line."""
    text = " ".join(shown(show_trace(describe(log_of(["a", "c", "e", "b", "c", "a", "a", "d", "f"])))).split())
    assert "Again and again: ps0 (2 nodes) 3×, ps1 (2 nodes) 3×, ps2 (3 nodes) 3×." in text
    assert "Nodes of the source, several to a rank: 6 failed, again and again a 3×, c 2×." in text
    text = " ".join(shown(show_trace(describe(log_of(["a", "b", "c"] * 2)))).split())
    assert "Again and again: ps0 (a) 2×, ps1 (b) 2×, ps2 (c) 2×." in text
    assert "Nodes of the source" not in text


def test_a_figure_that_finds_no_room_is_one_line(tmp_path: Path) -> None:
    """It names the folder."""
    (tmp_path / "survival.png").symlink_to("/dev/full")
    with pytest.raises(StoreError, match=rf"^{tmp_path}: cannot be written: No space left on device$"):
        draw_trace(describe(rich_trace()), tmp_path)


def test_the_report_shows_the_trace_that_was_replayed(tmp_path: Path) -> None:
    """Its figure and sentences are part of the page; not if the file has changed since, or is gone."""
    trace = tmp_path / "planned.csv"
    config = made_config("full", trace={"path": str(trace)})
    events: list[Event] = []
    lines = ["hour,rank"]
    for event in made_events(config):
        if is_loss(event):
            lines.append(f"{event.hour!r},{event.rank}")
        events.append(altered(event, line=len(lines)) if is_loss(event) else event)
    trace.write_text("\n".join(lines) + "\n")
    with Recorder(tmp_path / "runs" / "full-s0", config, command=["run.py"]) as recorder:
        for event in events:
            recorder.record(event)
        recorder.done()
    page = analysis.report(tmp_path / "runs").read_text()
    assert "<h2>Failure trace planned</h2>" in page
    assert "6 deaths at 5 instants" in page
    assert all(f'id="trace0-{each}-' in page for each in ("timeline", "survival"))
    frame = analysis.load(tmp_path / "runs")
    trace.write_text("\n".join(["hour,rank", "0.5,ps0", *lines[1:]]) + "\n")
    (section,) = trace_sections(frame)
    assert "has changed since these runs" in section["notes"][0]
    trace.unlink()
    (section,) = trace_sections(frame)
    assert "expected a failure trace (CSV), got no such file" in section["notes"][0]
