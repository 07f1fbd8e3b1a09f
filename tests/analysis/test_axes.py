"""Figures of frames: what is drawn is what the frame has; the report draws with the same functions."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis import figures
from analysis.figures.curves import Aucs, curve_rows
from analysis.figures.look import style
from tests import started
from tests.forked import ran
from tests.made_runs import made_config, write_run

ROOT = Path(__file__).resolve().parents[2]


def axes() -> Any:
    return Figure().subplots()


TABLE = pd.DataFrame(
    {
        "strategy": ["none", "full", "cpr_mfu", "cpr_ssu", "partial"],
        "overhead_frac": [0.0, 0.09, 0.01, 0.01, 0.05],
        "loss": [0.0, 0.0, 1e-4, 1e-4, 2e-4],
        "loss_half_width": [0.0, 0.0, 5e-5, 5e-5, float("nan")],
    }
)


def test_the_front_has_what_nothing_else_beats_in_both() -> None:
    """In the units of the axes; equal points have one mark, an interval that is unknown has no bar."""
    ax: Any = figures.front(TABLE, x="overhead_frac", y="loss", by="strategy", ax=axes())
    (front,) = [line for line in ax.lines if line.get_label() == "Pareto front of the means"]
    assert sorted({*map(tuple, front.get_xydata().round(9).tolist())}) == [(1.0, 0.1), (9.0, 0.0)]
    labels = [container.get_label() for container in ax.containers]
    assert labels == ["full", "partial", "cpr_mfu = cpr_ssu"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("emulated overhead, % of job time (log)", "AUC lost to none, 10⁻³")


def test_labels_of_nearly_equal_overheads_do_not_overlap() -> None:
    """As in the demo, whose strategies cost 2.953 to 2.970 %."""
    near = TABLE.assign(overhead_frac=[0.0, 0.0297023, 0.0295477, 0.0295477, 0.0295325])
    figure = Figure(figsize=(5.2, 3.9), layout="constrained")
    with style():
        ax: Any = figures.front(near, x="overhead_frac", y="loss", by="strategy", ax=figure.subplots())
        figure.canvas.draw()
    low, high = ax.get_xlim()
    shown = [label for label in ax.get_xticklabels() if low <= label.get_position()[0] <= high]
    boxes = [label.get_window_extent() for label in shown]
    assert len(boxes) >= 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_measure_is_drawn_against_a_swept_key() -> None:
    """Each strategy at its values; one without the key is a line across; two rows at one value are refused."""
    table = pd.DataFrame(
        {"strategy": ["full", *["cpr_mfu"] * 2], "strategy.r": [None, 0.1, 0.2], "pls": [0.0, 0.3, 0.2]}
    )
    ax: Any = figures.against(table, x="strategy.r", y="pls", ax=axes())
    (swept,) = [container.lines[0] for container in ax.containers]
    assert swept.get_ydata().tolist() == pytest.approx([30.0, 20.0])
    assert [line.get_label() for line in ax.lines if line.get_linestyle() == "--"] == ["full (dashed)"]
    assert [each.get_text() for each in ax.get_xticklabels()] == ["0.1", "0.2"]
    with pytest.raises(ValueError, match=r"expected one row for each strategy and strategy\.r, got several of cpr_mfu"):
        figures.against(pd.concat([table, table]), x="strategy.r", y="pls", ax=axes())
    with pytest.raises(KeyError, match="nope"):
        figures.against(table, x="strategy.r", y="nope", ax=axes())


def test_curves_mark_the_hours_at_which_ranks_died() -> None:
    """The mean of the runs that have an hour; runs of one strategy stay apart."""
    rows = [("none", 0, 14.0, 0.7), ("cpr_mfu", 1, 14.0, 0.6), ("cpr_mfu", 2, 14.0, 0.65), ("cpr_mfu", 2, 28.0, 0.7)]
    frame = pd.DataFrame(rows, columns=["strategy", "run", "hour", "auc"]).assign(is_failure=False, num_samples=100)
    frame.loc[4] = ["cpr_mfu", 1, 20.0, None, True, None]
    ax: Any = figures.over_hours(frame, ax=axes())
    means = {line.get_label(): line.get_xydata().tolist() for line in ax.lines if not line.get_label().startswith("_")}
    assert means["cpr_mfu"] == [[14.0, pytest.approx(0.625)]]
    assert means["failure"] == [[20.0, 0.0], [20.0, 1.0]]
    assert ax.get_ylabel() == "AUC on the first 100 test samples"


def test_a_curve_has_a_row_for_each_evaluation_and_failure() -> None:
    """The difference is to `none` at the same hour; a run without evaluations has no row, nor a reference a failure."""
    read: Any = {
        0: Aucs({14.0: 0.7, 28.0: 0.75}, [], 100, is_whole=False, error=None),
        1: Aucs({14.0: 0.6, 20.0: 0.7}, [13.5], 100, is_whole=False, error=None),
    }
    rows = [*curve_rows(pd.Series({0: 0, 1: 0, 2: 0}), read.get)]
    assert [(row["run"], row["hour"], row["is_failure"]) for row in rows] == [
        (0, 14.0, False),
        (0, 28.0, False),
        (1, 14.0, False),
        (1, 20.0, False),
        (1, 13.5, True),
    ]
    assert [row["auc_difference"] for row in rows] == [0.0, 0.0, pytest.approx(-0.1), None, None]


def test_a_trace_is_a_line_for_each_rank() -> None:
    """A number of ranks is a line of its own, and a file without a column of faults has kills."""
    ax: Any = figures.timeline(pd.DataFrame({"hour": [8.5, 23.25, 40.0], "rank": ["ps10", 2, "ps3"]}), ax=axes())
    assert [each.get_text() for each in ax.get_yticklabels()] == ["2 drawn", "ps3", "ps10"]
    (line,) = ax.lines
    assert (line.get_label(), line.get_xydata().tolist()) == ("kill", [[8.5, 2.0], [23.25, 0.0], [40.0, 1.0]])


@pytest.mark.slow
def test_the_example_of_the_guide_draws_four_figures(tmp_path: Path) -> None:
    """Law: the code of docs/GUIDE.md, on made runs; without a display."""
    page = (ROOT / "docs" / "GUIDE.md").read_text(encoding="utf-8")
    (code,) = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "figures.front" in each]
    for name in ("none", "cpr_mfu", "partial"):
        for seed in range(2):
            write_run(tmp_path / "demo" / "choice" / f"{name}{seed}", made_config(name, seed=seed), drop=1e-4)
    (tmp_path / "failure_traces").symlink_to(ROOT / "failure_traces")
    done = ran(started.program, code, folder=tmp_path, environment={"MPLBACKEND": "agg"})
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*.pdf")} == {"front.pdf", "against.pdf", "hours.pdf", "trace.pdf"}
