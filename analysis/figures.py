"""The figures of a report as inline SVG, one panel per setting. The same cells give the same bytes.

Every public function takes the blocks and all cells, and returns an ``<svg>`` element, or "" if there is no data.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.blocks import Block, Line, strategy_order
from analysis.cells import Cell
from analysis.curves import Curve, curve
from analysis.stats import BASELINE, baseline_of
from analysis.style import COLOURS, colour, style, to_svg
from harness.core.events import BUCKETS, Event
from harness.record.recorder import read_events
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^vXPd"  # by strategy, as points overlap
_BUCKET_STYLES = {
    "save": ("#0072b2", ""),
    "load": ("#56b4e9", "//"),
    "lost": ("#d55e00", ""),
    "reschedule": ("#e69f00", "\\\\"),
}
_PANEL_WIDTH, _PANEL_HEIGHT = 5.2, 3.4  # inches; a browser shows 72 points per inch
_FEW_POINTS = 40  # of a curve of absolute losses, which are noisy
_MAX_PANELS = 4  # further settings are in the table only


def auc_differences(blocks: Sequence[Block], _cells: Sequence[Cell]) -> str:
    """AUC minus that of ``none``, paired by seed, with 95 % confidence intervals."""

    def draw(axes: "Axes", block: Block) -> None:
        lines = [line for line in block.lines if line.auc_difference and line.strategy != BASELINE]
        axes.axvline(0, color=COLOURS["none"], linewidth=1)
        for place, line in enumerate(reversed(lines)):
            assert line.auc_difference is not None
            half = line.auc_difference.half_width
            style: dict[str, Any] = {"color": colour(line.strategy), "marker": "o", "markersize": 7, "capsize": 4}
            if half is None:
                style["markerfacecolor"] = "white"  # one seed: no interval
            axes.errorbar(line.auc_difference.mean * 1e3, place, xerr=None if half is None else half * 1e3, **style)
        axes.set_yticks(range(len(lines)), [line.strategy for line in reversed(lines)])
        axes.set_ylim(-0.6, len(lines) - 0.4)
        axes.set_xlabel("AUC − AUC of none, 10⁻³ (right is better)")

    return _panels(blocks, draw, "auc")


def overheads(blocks: Sequence[Block], _cells: Sequence[Cell]) -> str:
    """Emulated overhead as stacked bars of the four buckets, % of the job."""

    def draw(axes: "Axes", block: Block) -> None:
        lines = [line for line in block.lines if line.strategy != BASELINE][::-1]
        left = [0.0] * len(lines)
        for bucket in BUCKETS:
            widths = [100 * line.mean(f"{bucket}_frac") for line in lines]
            fill, hatch = _BUCKET_STYLES[bucket]
            look: dict[str, Any] = {"color": fill, "hatch": hatch, "edgecolor": "white", "height": 0.65}
            axes.barh(range(len(lines)), widths, left=left, label=bucket, **look)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, total in enumerate(left):
            axes.annotate(f"{total:.2f}", (total, place), (4, 0), textcoords="offset points", va="center", fontsize=10)
        axes.set_yticks(range(len(lines)), [line.strategy for line in lines])
        axes.set_xlim(0, max([*left, 0.01]) * 1.15)
        axes.set_xlabel("emulated overhead, % of job time")
        axes.legend(
            loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, frameon=False, fontsize=10, handlelength=1.2
        )

    return _panels(blocks, draw, "overhead")


def pls_against_auc(blocks: Sequence[Block], cells: Sequence[Cell]) -> str:
    """PLS of each cell against its AUC minus that of its ``none``: one point per seed and strategy."""

    def draw(axes: "Axes", block: Block) -> None:
        axes.axhline(0, color=COLOURS["none"], linewidth=1)
        for line in block.lines:
            pairs = [(cell, baseline_of(cell, cells)) for cell in line.cells if line.strategy != BASELINE]
            known = [
                (100 * cell["pls"], 1e3 * (cell["auc"] - partner["auc"]))
                for cell, partner in pairs
                if partner is not None and None not in (cell["pls"], cell["auc"], partner["auc"])
            ]
            if known:
                marker = _MARKERS[strategy_order(line.strategy)[0] % len(_MARKERS)]
                style: dict[str, Any] = {"color": colour(line.strategy), "marker": marker, "alpha": 0.85}
                axes.scatter(*zip(*known, strict=True), s=40, label=line.strategy, **style)
        axes.set_xlabel("PLS, %")
        axes.set_ylabel("AUC − AUC of none, 10⁻³")
        _legend(axes)

    return _panels(blocks, draw, "pls", extra_width=1.5)


def loss_curves(blocks: Sequence[Block], _cells: Sequence[Cell]) -> str:
    """Smoothed training loss of the first seed of each strategy, with its kills."""

    def draw(axes: "Axes", block: Block) -> None:
        for line in block.lines:
            _draw_curve(axes, line, curve(_events(_first(line)), max_points=_FEW_POINTS))
        axes.set_ylabel("training loss, smoothed")
        _finish_curves(axes)

    return _panels(blocks, draw, "loss", extra_width=1.5)


def loss_differences(blocks: Sequence[Block], cells: Sequence[Cell]) -> str:
    """As ``loss_curves``, minus the loss of ``none`` at the same step and seed."""

    def draw(axes: "Axes", block: Block) -> None:
        axes.axhline(0, color=COLOURS["none"], linewidth=1)
        for line in block.lines:
            partner = baseline_of(_first(line), cells)
            if partner is not None and line.strategy != BASELINE:
                _draw_curve(axes, line, curve(_events(_first(line)), _events(partner)))
        axes.set_ylabel("loss − loss of none")
        _finish_curves(axes)

    return _panels(blocks, draw, "above", extra_width=1.5)


def _draw_curve(axes: "Axes", line: Line, drawn: Curve | None) -> None:
    if drawn is not None:
        style: dict[str, Any] = {"color": colour(line.strategy)}
        axes.plot(drawn.samples, drawn.losses, linewidth=1.3, label=line.label, **style)
        axes.plot(drawn.kill_samples, drawn.kill_losses, linestyle="", marker="x", markersize=6, **style)


def _finish_curves(axes: "Axes") -> None:
    axes.set_xlabel("samples (× kill)")
    axes.xaxis.set_major_formatter(lambda samples, _: f"{samples:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    _legend(axes)


def _legend(axes: "Axes") -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=10, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _first(line: Line) -> Cell:
    """The cell of the lowest seed."""
    return min(line.cells, key=lambda cell: cell["seed"])


def _events(cell: Cell) -> list[Event]:
    return read_events(RunDir(Path(cell["path"])).events)


def _panels(
    blocks: Sequence[Block], draw: Callable[["Axes", Block], None], name: str, *, extra_width: float = 0.0
) -> str:
    """One panel per setting, two in a row, as an ``<svg>`` element; "" if no block has a strategy but ``none``."""
    blocks = [block for block in blocks if any(line.strategy != BASELINE for line in block.lines)][:_MAX_PANELS]
    if not blocks:
        return ""
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

    with style():
        num_columns = min(2, len(blocks))
        num_rows = -(-len(blocks) // num_columns)
        size = ((_PANEL_WIDTH + extra_width) * num_columns, _PANEL_HEIGHT * num_rows)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(num_rows, num_columns, squeeze=False).reshape(-1)
        for axes, block in zip(grid, blocks, strict=False):
            draw(axes, block)
            if block.title:
                axes.set_title(block.title, fontsize=11, loc="left", pad=24 if name == "overhead" else 8)
        for axes in grid[len(blocks) :]:
            axes.set_visible(False)
        return to_svg(figure, name)
