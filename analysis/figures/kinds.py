"""The kinds of figures in a report. The same cells give the same figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figures.axes import front, over_hours, signed_text, widths
from analysis.figures.curves import Curve, curve, curve_rows, mean_curve
from analysis.figures.data import SMALL, Data, frame_of, joined, legend, loss_label, others
from analysis.figures.look import PAPER, THEMES, colour
from analysis.load import Frame
from analysis.stats import BASELINE, Block, Line, numbers, verdicts
from harness.core.events import BUCKETS, STALLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (5.2, 3.9)  # inches


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
    "steps": ("cpr_mfu", "xx"),
}
"""(role of the colour, hatch) of each bucket of the overhead."""


def _tradeoff(axes: "Axes", block: Block, data: Data) -> None:
    """Loss to ``none`` against emulated overhead: a point per strategy, and the Pareto front of the means."""
    front(
        frame_of(
            {"strategy": each.line.label, "on_front": each.on_front, **numbers({"loss": each.loss})}
            | {"overhead_frac": each.overhead_frac}
            for each in verdicts(block, data.margin)
        ),
        margin=data.limit(block),
        limits=data.loss_range,
        ax=axes,
    )
    axes.set_ylabel(loss_label(block))
    legend(axes)


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
                (f"◂ {signed_text(mean)}", low, "left") if mean < low else (f"{signed_text(mean)} ▸", high, "right")
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
    for bucket in BUCKETS if any(line.mean("steps_frac") for line in lines) else STALLS:
        widths = [100 * line.mean(f"{bucket}_frac") for line in lines]
        role, hatch = _BUCKETS[bucket]
        look: dict[str, Any] = {"color": THEMES[role][0], "hatch": hatch, "edgecolor": THEMES[PAPER][0], "height": 0.65}
        axes.barh(range(len(lines)), widths, left=left, label=bucket, **look)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, (line, total) in enumerate(zip(lines, left, strict=True)):
        more = " + ?" if line.estimate("overhead_frac") is None else ""
        look = {"textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axes.annotate(f"{total:.2f}{more}", (total, place), (4, 0), **look)
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_xlim(0, max([*left, 0.01]) * 1.18)
    axes.set_xlabel("emulated overhead, % of job time")
    legend(axes)


def _pls_against_auc(axes: "Axes", block: Block, _data: Data) -> None:
    axes.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    pairs = ((line, _pairs(line)[["pls", "auc_difference"]]) for line in others(block))
    for points, look in joined((line.label, known.to_numpy().tolist()) for line, known in pairs if len(known)):
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
    drawn = joined((line.label, curves) for line, curves in lines)
    for width, (seeds, look) in zip(widths(len(drawn)), drawn, strict=True):
        own: dict[str, Any] = {"color": look["color"]}
        for each in seeds if len(seeds) > 1 else ():
            axes.plot(each.samples, each.losses, linewidth=0.6, alpha=0.3, **own)
        if mean := mean_curve(seeds):
            axes.plot(mean.samples, mean.losses, linewidth=width, label=look["label"], **own)
            at_kills = np.interp(mean.kill_samples, mean.samples, mean.losses)
            axes.plot(mean.kill_samples, at_kills, linestyle="", marker="x", markersize=5, **own)


def _auc_over_hours(axes: "Axes", block: Block, data: Data, *, is_difference: bool) -> None:
    """The AUC of evaluations during training over the hours of the job, or its difference to ``none``, in 10⁻³."""
    lines = others(block) if is_difference else block.lines
    frame = frame_of(
        row | {"strategy": line.label} for line in lines for row in curve_rows(line.cells["partner"], data.aucs)
    )
    over_hours(frame, y="auc_difference" if is_difference else "auc", ax=axes)
    legend(axes)


def _says_samples(block: Block, data: Data) -> str:
    """Sentences: whether the last AUC of the curve is the AUC of the table; the standard error of one AUC, if known."""
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
    "on outside. A strategy whose overhead is unknown has no point.",
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
        "Hours that the emulated cluster of the profile would spend on saving, loading, running lost steps again, "
        "rescheduling and, if the profile prices it, on what every step pays for fault tolerance, as a part of its "
        "failure-free job time. A ? is a cost without a price. Computed from the profile's costs and the bytes "
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
