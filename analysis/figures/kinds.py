"""The kinds of figures in a report. The same cells give the same figures."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from analysis.figures.curves import Aucs, Curve, curve, mean_curve
from analysis.figures.data import SMALL, Data, joined, legend, others
from analysis.figures.look import INK, PAPER, THEMES, colour, log_scale
from analysis.load import Frame
from analysis.stats import AUC, BASELINE, Block, Line, Verdict, strategy_order, verdicts
from harness.core.events import BUCKETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (5.2, 3.9)  # inches
_MOST_LINES = 30  # across a figure, one for each hour of failures; more are marks at its lower edge


@dataclass(frozen=True)
class Kind:
    """A kind of figure. ``draw`` draws one block into axes; ``says``: the end of the caption, by the block's cells.

    ``shared``: the axes, out of "xy", that have the same limits in all blocks. ``needs_pairs``: the figure shows
    differences to ``none``, so a block without pairs has no such figure; ``needs_aucs``: nor one without evaluations
    during training.
    """

    name: str
    title: str
    caption: str
    draw: Callable[["Axes", Block, Data], None]
    shared: str = "xy"
    needs_pairs: bool = False
    needs_aucs: bool = False
    says: Callable[[Block, Data], str] = lambda _block, _data: ""


def figures(kind: Kind, data: Data) -> "list[tuple[Block, Figure]]":
    """The figure of each block that has a strategy besides ``none``, and what ``kind`` needs.

    Call it in the context ``style()``.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

    drawn: list[tuple[Block, Figure]] = []
    for block in data.blocks:
        has_aucs = not kind.needs_aucs or any(data.aucs(each) for line in block.lines for each in line.cells.index)
        if has_aucs and any(line.auc_difference is not None or not kind.needs_pairs for line in others(block)):
            figure = Figure(figsize=_SIZE, layout="constrained")
            kind.draw(figure.subplots(), block, data)
            drawn.append((block, figure))
    for name in kind.shared:
        _share([figure.axes[0] for _, figure in drawn], name)
    return drawn


def _share(all_axes: "Sequence[Axes]", name: str) -> None:
    limits = [getattr(axes, f"get_{name}lim")() for axes in all_axes]
    for axes in all_axes:
        getattr(axes, f"set_{name}lim")(min(low for low, _ in limits), max(high for _, high in limits))


_BUCKETS = {
    "save": ("full", ""),
    "load": ("partial", "//"),
    "lost": ("never_save", ""),
    "reschedule": ("cpr_vanilla", "\\\\"),
}
"""(role of the colour, hatch) of each bucket of the overhead."""
_NEAR = 0.04  # of the figure's sides: nearer points overlap


def _tradeoff(axes: "Axes", block: Block, data: Data) -> None:
    """Loss to ``none`` against emulated overhead: a point per strategy, and the Pareto front of the means."""
    low, high = data.loss_range
    axes.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    axes.axhline(1e3 * data.limit(block), color=THEMES["muted"][0], linewidth=1, linestyle=":", label="margin")
    found = verdicts(block, data.margin)
    front = [(100 * each.overhead_frac, 1e3 * each.loss.mean) for each in found if each.on_front]
    if front:
        look: dict[str, Any] = {"color": THEMES["muted"][0], "linestyle": "--", "linewidth": 1}
        axes.step(*zip(*front, strict=True), where="post", label="Pareto front", **look)
    overheads = [line.mean("overhead_frac") for other in data.blocks for line in others(other)]
    scale = math.log if all(overheads) else float
    width = scale(max(overheads)) - scale(min(overheads)) or 1.0
    drawn: list[tuple[float, float]] = []
    ordered = sorted(found, key=lambda each: strategy_order(each.strategy))
    for point, look in joined((each.line, _point_of(each)) for each in ordered):
        place = scale(point[0] / 100) / width, point[1] / (high - low)
        num_near = sum(math.dist(place, other) < _NEAR for other in drawn)
        drawn.append(place)
        _draw_point(axes, point, look, (low, high), num_near)
    axes.set_ylim(low, high)
    axes.set_ylabel("AUC lost to none, 10⁻³" if block.measure is AUC else f"{block.measure.title}: loss, 10⁻³")
    axes.set_xlabel("emulated overhead, % of job time")
    if all(overheads):
        axes.margins(x=0.12)
        log_scale(axes, "x")
    legend(axes)


_Point = tuple[float, float, float | None, bool]
"""Overhead in %, loss in 10⁻³, half of its interval; whether it is on the Pareto front."""


def _point_of(each: Verdict) -> _Point:
    half = each.loss.half_width
    return 100 * each.overhead_frac, 1e3 * each.loss.mean, half and 1e3 * half, each.on_front


def _draw_point(axes: "Axes", point: _Point, look: dict[str, Any], limits: tuple[float, float], num_near: int) -> None:
    """Draw a mean loss with its interval; outside the limits, a triangle at the edge and the number.

    A point near to ``num_near`` others is a ring around them.
    """
    (overhead, loss, half, is_on_front), (low, high) = point, limits
    if low <= loss <= high:
        if num_near:
            look |= {"fillstyle": "none", "markeredgewidth": 1.4}
        elif is_on_front:
            look |= {"markeredgecolor": THEMES[INK][0], "markeredgewidth": 1.4}
        size = {"markersize": 8 + 6 * num_near, "capsize": 4 + 2 * num_near}
        axes.errorbar(overhead, loss, yerr=half, linestyle="", **size, **look)
        return
    edge, look["marker"] = (high, "^") if loss > high else (low, "v")
    axes.plot(overhead, edge, linestyle="", markersize=9, clip_on=False, **look)
    axes.annotate(_signed(loss), (overhead, edge), (7, -4), textcoords="offset points", fontsize=SMALL)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _auc_differences(axes: "Axes", block: Block, data: Data) -> None:
    """AUC minus the AUC of ``none``, paired by seed: the mean with its 95 % interval, and a dot for each pair."""
    lines = [line for line in others(block) if line.auc_difference is not None][::-1]
    low, high = data.auc_range
    look: dict[str, Any]
    axes.axvline(0, color=THEMES[BASELINE][0], linewidth=1)
    for place, line in enumerate(lines):
        assert line.auc_difference is not None
        for seed in 1e3 * _pairs(line)["auc_difference"]:
            marker = "<" if seed < low else ">" if seed > high else "."
            look = {"color": colour(line.strategy), "alpha": 0.6, "clip_on": marker == "."}
            axes.plot(min(max(seed, low), high), place - 0.28, marker, **look)
        mean, half = 1e3 * line.auc_difference.mean, line.auc_difference.half_width
        if not low <= mean <= high:
            words, edge, side = (
                (f"◂ {_signed(mean)}", low, "left") if mean < low else (f"{_signed(mean)} ▸", high, "right")
            )
            axes.annotate(f" {words} ", (edge, place), ha=side, va="center", fontsize=SMALL)
            continue
        look = {"color": colour(line.strategy), "marker": "o", "markersize": 7, "capsize": 4}
        if half is None:
            look["markerfacecolor"] = THEMES[PAPER][0]  # one seed: no interval
        axes.errorbar(mean, place, xerr=None if half is None else 1e3 * half, **look)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_xlim(low, high)
    axes.set_xlabel("AUC − AUC of none, 10⁻³ (right is better)")


def _pairs(line: Line) -> Frame:
    """The cells of a strategy with a known PLS and a known AUC difference to ``none``."""
    return line.pairs[line.pairs["pls"].notna()]


def _overhead_bars(axes: "Axes", block: Block, _data: Data) -> None:
    lines = [*others(block)][::-1]
    left = [0.0] * len(lines)
    for bucket in BUCKETS:
        widths = [100 * line.mean(f"{bucket}_frac") for line in lines]
        role, hatch = _BUCKETS[bucket]
        look: dict[str, Any] = {"color": THEMES[role][0], "hatch": hatch, "edgecolor": THEMES[PAPER][0], "height": 0.65}
        axes.barh(range(len(lines)), widths, left=left, label=bucket, **look)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f"{total:.2f}", (total, place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_xlim(0, max([*left, 0.01]) * 1.18)
    axes.set_xlabel("emulated overhead, % of job time")
    legend(axes)


def _pls_against_auc(axes: "Axes", block: Block, _data: Data) -> None:
    axes.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    pairs = ((line, _pairs(line)[["pls", "auc_difference"]]) for line in others(block))
    for points, look in joined((line, known.to_numpy().tolist()) for line, known in pairs if len(known)):
        percent, differences = zip(*((100 * pls, 1e3 * difference) for pls, difference in points), strict=True)
        axes.plot(percent, differences, linestyle="", markersize=6, alpha=0.85, **look)
    axes.set_xlabel("PLS, %")
    axes.set_ylabel("AUC − AUC of none, 10⁻³")
    legend(axes)


def _loss_differences(axes: "Axes", block: Block, data: Data) -> None:
    """Training loss minus the loss of ``none`` at the same step and seed, as means over pieces of the run."""
    axes.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    both = {
        line: [(data.losses(label), data.losses(other)) for label, other in line.cells["partner"].dropna().items()]
        for line in others(block)
    }
    _draw_curves(
        axes,
        (
            (line, [each for run, other in own if run and other and (each := curve(run, other))])
            for line, own in both.items()
        ),
    )
    axes.set_ylabel("loss − loss of none")
    _finish_curves(axes)


def _draw_curves(axes: "Axes", lines: Iterable[tuple[Line, list[Curve]]]) -> None:
    """Draw each seed's curve faint behind the mean of a line, and a cross for each kill."""
    drawn = joined(lines)
    for width, (seeds, look) in zip(_widths(len(drawn)), drawn, strict=True):
        own: dict[str, Any] = {"color": look["color"]}
        for each in seeds if len(seeds) > 1 else ():
            axes.plot(each.samples, each.losses, linewidth=0.6, alpha=0.3, **own)
        if mean := mean_curve(seeds):
            axes.plot(mean.samples, mean.losses, linewidth=width, label=look["label"], **own)
            axes.plot(mean.kill_samples, mean.kill_losses, linestyle="", marker="x", markersize=5, **own)


def _widths(num: int) -> list[float]:
    """The widths of ``num`` curves: a later one is thinner, so that it does not hide an earlier one."""
    return [1.2 + 0.5 * (num - 1 - place) for place in range(num)]


def _auc_over_hours(axes: "Axes", block: Block, data: Data, *, is_difference: bool) -> None:
    """The AUC of evaluations during training over the hours of the job, or its difference to ``none``, in 10⁻³."""
    lines: dict[Line, list[tuple[Aucs, Aucs | None]]] = {}
    for line in others(block) if is_difference else block.lines:
        partners = (
            line.cells["partner"].dropna().items() if is_difference else ((each, each) for each in line.cells.index)
        )
        both = [(data.aucs(label), data.aucs(partner)) for label, partner in partners]
        lines[line] = [(own, other if is_difference else None) for own, other in both if own and other]
    drawn = joined((line, [_points(*run) for run in runs]) for line, runs in lines.items() if runs)
    for width, (seeds, look) in zip(_widths(len(drawn)), drawn, strict=True):
        for points in seeds if len(seeds) > 1 else ():
            axes.plot(*zip(*points.items(), strict=True), linewidth=0.6, alpha=0.3, color=look["color"])
        shared = [hour for hour in seeds[0] if all(hour in points for points in seeds)]
        means = [sum(points[hour] for points in seeds) / len(seeds) for hour in shared]
        axes.plot(shared, means, linewidth=width, color=look["color"], label=look["label"])
    hours = sorted({hour for runs in lines.values() for own, _ in runs for hour in own.kill_hours})
    for number, hour in enumerate(hours):
        top, label = (1.0, "failure") if len(hours) <= _MOST_LINES else (0.05, "failures")
        axes.axvline(hour, ymax=top, color=THEMES["muted"][0], linewidth=0.8, ls="--", label=None if number else label)
    nums = sorted({own.num_samples for runs in lines.values() for own, _ in runs})
    samples = f"the first {' or '.join(f'{num:,}' for num in nums)} test samples"
    axes.set_ylabel(f"AUC less that of none on\n{samples}, 10⁻³" if is_difference else f"AUC on {samples}")
    axes.set_xlabel("hour of the job, without overhead")
    legend(axes)


def _points(own: Aucs, other: Aucs | None) -> dict[float, float]:
    if other is None:
        return own.by_hour
    return {hour: 1e3 * (auc - other.by_hour[hour]) for hour, auc in own.by_hour.items() if hour in other.by_hour}


def _says_samples(block: Block, data: Data) -> str:
    """Sentences: whether the last AUC of the curve is that of the table, and the standard error of one, if known."""
    runs = [own for line in block.lines for label in line.cells.index if (own := data.aucs(label))]
    is_whole = all(own.is_whole for own in runs)
    parts = ["The last one is the AUC of the table." if is_whole else _OF_A_PART]
    if errors := [own.error for own in runs if own.error]:
        error = 1e3 * sum(errors) / len(errors)
        parts.append(f"Standard error of the AUC of one run by the choice of the test samples: {error:.1f}·10⁻³.")
    return " ".join(parts)


_OF_A_PART = (
    "The evaluations are on the first test samples alone, so the last one is not the AUC of the table, which is on all."
)


def _finish_curves(axes: "Axes") -> None:
    axes.set_xlabel("samples (× kill)")
    axes.xaxis.set_major_formatter(lambda samples, _: f"{samples:,.0f}")
    axes.locator_params(axis="x", nbins=4)
    axes.margins(x=0)  # the axis ends where the samples do
    legend(axes)


TRADEOFF = Kind(
    "tradeoff",
    "AUC lost against emulated overhead",
    "One point per strategy: what it costs, and what it loses. Down and left is better. The bar is the 95 % confidence "
    "interval over seeds (Student's t); without a bar there is one seed. The dashed line, and the points with an edge, "
    "are the Pareto front of the means: no other strategy is both cheaper and better. A ring is around a point that "
    "would hide it; a label with = is of strategies with the same point. The dotted line is the loss that the verdicts "
    "accept. A triangle at the edge is a strategy outside the scale, with its mean; a bar that ends at the frame goes "
    "on outside.",
    _tradeoff,
    needs_pairs=True,
)
KINDS = (
    Kind(
        "auc",
        "Difference in quality from a run without failures",
        "AUC less that of none, the run without failures of the same seed. The bar is the 95 % confidence interval "
        "over seeds (Student's t), the dots below it are the seeds, a triangle at the edge one outside the "
        "scale; a hollow point is a single seed, which has no interval. An arrow at the edge is a mean outside the "
        "scale.",
        _auc_differences,
        shared="x",
        needs_pairs=True,
    ),
    Kind(
        "overhead",
        "Emulated cost in time",
        "Hours that the emulated cluster of the profile would spend on saving, loading, running lost steps again and "
        "rescheduling, as a part of its failure-free job time. Computed from the profile's costs and the bytes "
        "written, independent of the speed of this machine; the stall in the table is measured, in seconds.",
        _overhead_bars,
        shared="x",
    ),
    Kind(
        "pls",
        "Lost samples and quality",
        "One point per seed. PLS counts the samples whose effect on a dead shard was lost. If quality depended on it "
        "alone, all points would lie on one falling line; priority saving helps where points lie above it.",
        _pls_against_auc,
        needs_pairs=True,
    ),
    Kind(
        "hours",
        "AUC over the hours of the job",
        "Means over seeds of the evaluations during training, and each seed faint behind. A vertical line is an hour "
        "at which ranks died.",
        partial(_auc_over_hours, is_difference=False),
        needs_aucs=True,
        says=_says_samples,
    ),
    Kind(
        "hours_above",
        "Effect of failures on AUC over the hours of the job",
        "The same evaluations, each less that of none on the same test samples after the same training samples of the "
        "same seed. A vertical line is an hour at which ranks died.",
        partial(_auc_over_hours, is_difference=True),
        needs_pairs=True,
        needs_aucs=True,
    ),
    Kind(
        "above",
        "Effect of failures on the training loss",
        "Mean loss over equal pieces of the run, less that of none at the same steps of the same seed, which had the "
        "same batches: their noise cancels, and the difference is the damage of each failure and its decay. The mean "
        "over seeds, and each seed faint behind it. A cross marks a step at which ranks were killed.",
        _loss_differences,
        needs_pairs=True,
    ),
)
"""The kinds of figures besides ``TRADEOFF``, in their order in the report."""
