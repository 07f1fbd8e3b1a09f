"""The kinds of figures in a report, and the loss curves for them. The same cells give the same figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.figures.look import INK, PAPER, THEMES, colour, log_scale
from analysis.load import Frame
from analysis.stats import AUC, BASELINE, Block, Estimate, Line, Verdict, strategy_order, verdicts
from harness.core.events import BUCKETS, Injected, Trained
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 100  # a curve of a few kB


@dataclass(frozen=True)
class Losses:
    """The training loss of each step of a run, in order, and the sample positions (ascending) at which ranks died."""

    by_step: NDArray[np.float64]
    batch_size: int
    kill_samples: list[int]


@dataclass(frozen=True)
class Curve:
    """A loss curve: the steps are cut into pieces of equal length, and each point is the mean of a piece.

    ``losses[i]``: the mean of the piece that ends at ``samples[i]``. ``kill_samples``, ``kill_losses``: points on the
    curve, one for each step at which ranks were killed.
    """

    samples: list[int]
    losses: list[float]
    kill_samples: list[int]
    kill_losses: list[float]


def losses_of(log: EventLog) -> Losses | None:
    """The losses of a run, for a rerun step the newest one; None without a Started event."""
    if (started := log.started) is None:
        return None
    losses: list[float] = []
    for event in log.events:
        if isinstance(event, Trained):
            losses[event.first_step : event.step] = event.losses
    kills = sorted({event.samples for event in log.events if isinstance(event, Injected) and event.loss})
    return Losses(np.asarray(losses, dtype=np.float64), started.total_samples // max(1, started.num_steps), kills)


def curve(run: Losses, reference: Losses | None = None, max_points: int = MAX_POINTS) -> Curve | None:
    """The loss curve of a run, of at most ``max_points`` points; None if there is no step.

    With a ``reference`` run of the same seed, the curve shows the run's loss minus the reference's, at the steps that
    both runs have. This removes the noise of the batches.
    """
    losses = run.by_step
    if reference is not None:
        others = reference.by_step
        losses = losses[: len(others)] - others[: len(losses)]
    if not len(losses):
        return None
    pieces = np.array_split(losses, min(max_points, len(losses)))
    samples = [int(end) * run.batch_size for end in np.cumsum([len(piece) for piece in pieces])]
    return _with_kills(samples, [float(piece.mean()) for piece in pieces], run.kill_samples)


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean of the curves that have the same ``samples`` as the first, with all their kills; None without curves."""
    if not curves:
        return None
    samples = curves[0].samples
    alike = [each for each in curves if each.samples == samples]
    means = [float(np.mean(losses)) for losses in zip(*(each.losses for each in alike), strict=True)]
    return _with_kills(samples, means, sorted({kill for each in alike for kill in each.kill_samples}))


def _with_kills(samples: list[int], losses: list[float], kills: list[int]) -> Curve:
    return Curve(samples, losses, kills, [float(np.interp(kill, samples, losses)) for kill in kills])


CONTROLS = (BASELINE, "never_save")
"""Strategies that do not affect the limits of the axes of losses and AUC differences."""
_MARKERS = "osD^vXPd"  # by strategy, as points overlap
_SIZE = (5.2, 3.9)  # inches
SMALL = 10  # points


@dataclass(frozen=True)
class Data:
    """The data for figures. ``margin``: the loss that the verdicts accept; None: the margin of the block's measure."""

    blocks: Sequence[Block]
    cells: Frame
    margin: float | None
    _losses: dict[str, Losses | None] = field(default_factory=dict)

    def limit(self, block: Block) -> float:
        """The loss that the verdicts on ``block`` accept."""
        return block.measure.margin if self.margin is None else self.margin

    @property
    def auc_range(self) -> tuple[float, float]:
        """Limits for axes of AUC differences, in 10⁻³, the same for all settings.

        They include 0, minus the margin, and the intervals of all strategies except ``CONTROLS``.
        """
        low, high = self._range([line.auc_difference and line.auc_difference.negated for line in self._lines])
        return -high, -low

    @property
    def loss_range(self) -> tuple[float, float]:
        """Limits for axes of losses in the measure, in 10⁻³, as ``auc_range`` with the margin itself."""
        return self._range([line.loss for line in self._lines])

    @property
    def _lines(self) -> list[Line]:
        return [line for block in self.blocks for line in block.lines if line.strategy not in CONTROLS]

    def _range(self, values: Sequence[Estimate | None]) -> tuple[float, float]:
        ends = [1e3 * end for value in values if value for end in value.interval or (value.mean, value.mean)]
        low, high = min([0.0, *ends]), max([*(1e3 * self.limit(block) for block in self.blocks), *ends])
        space = 0.08 * (high - low)
        return low - space, high + space

    def losses(self, label: Any) -> Losses | None:
        """The losses of the run with index ``label`` in ``cells``; its record is read only once. Raises StoreError."""
        path = self.cells.loc[label, "path"]
        if path not in self._losses:
            self._losses[path] = losses_of(EventLog.of(RunDir(Path(path))))
        return self._losses[path]


@dataclass(frozen=True)
class Kind:
    """A kind of figure. ``draw`` draws one block into axes.

    ``shared``: the axes, out of "xy", that have the same limits in all blocks. ``needs_pairs``: the figure shows
    differences to ``none``, so a block without pairs has no such figure.
    """

    name: str
    title: str
    caption: str
    draw: Callable[["Axes", Block, Data], None]
    shared: str = "xy"
    needs_pairs: bool = False


def figures(kind: Kind, data: Data) -> "list[tuple[Block, Figure]]":
    """The figure of each block that has a strategy besides ``none``, and pairs if ``kind`` needs them.

    Call it in the context ``style()``.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

    drawn: list[tuple[Block, Figure]] = []
    for block in data.blocks:
        if any(line.auc_difference is not None or not kind.needs_pairs for line in others(block)):
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


def others(block: Block) -> Iterator[Line]:
    """The lines of a block, except strategy ``none``."""
    return (line for line in block.lines if line.strategy != BASELINE)


def look_of(line: Line) -> dict[str, Any]:
    marker = _MARKERS[strategy_order(line.strategy)[0] % len(_MARKERS)]
    return {"color": colour(line.strategy), "marker": marker, "label": line.label}


def legend(axes: "Axes") -> None:
    """Add a legend to the figure, below its axes; a no-op if nothing has a label."""
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 1.4, "columnspacing": 1.2}
    if handles and axes.figure:
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=4, **look)


_BUCKETS = {
    "save": ("full", ""),
    "load": ("partial", "//"),
    "lost": ("never_save", ""),
    "reschedule": ("cpr_vanilla", "\\\\"),
}
"""(role of the colour, hatch) of each bucket of the overhead."""
_FEW_POINTS = 40  # of a curve of absolute losses, which are noisy


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
    for each in sorted(found, key=lambda each: strategy_order(each.strategy)):
        _point(axes, each, low, high)
    axes.set_ylim(low, high)
    axes.set_ylabel("AUC lost to none, 10⁻³" if block.measure is AUC else f"{block.measure.title}: loss, 10⁻³")
    axes.set_xlabel("emulated overhead, % of job time")
    if all(line.mean("overhead_frac") for other in data.blocks for line in others(other)):
        axes.margins(x=0.12)
        log_scale(axes, "x")
    legend(axes)


def _point(axes: "Axes", each: Verdict, low: float, high: float) -> None:
    """Draw a strategy's mean loss with its interval; outside the limits, draw a triangle at the edge and the number."""
    overhead, loss, half = 100 * each.overhead_frac, 1e3 * each.loss.mean, each.loss.half_width
    look: dict[str, Any] = look_of(each.line)
    look |= {"markeredgecolor": THEMES[INK][0], "markeredgewidth": 1.4} if each.on_front else {}
    if low <= loss <= high:
        axes.errorbar(overhead, loss, yerr=half and 1e3 * half, capsize=4, markersize=8, linestyle="", **look)
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
    for line in others(block):
        known = _pairs(line)
        if len(known):
            look: dict[str, Any] = {"linestyle": "", "markersize": 6, "alpha": 0.85, **look_of(line)}
            axes.plot(100 * known["pls"], 1e3 * known["auc_difference"], **look)
    axes.set_xlabel("PLS, %")
    axes.set_ylabel("AUC − AUC of none, 10⁻³")
    legend(axes)


def _loss_curves(axes: "Axes", block: Block, data: Data) -> None:
    """Training loss of each strategy, as means over pieces of the run, with its kills."""
    for line in block.lines:
        runs = [run for label in line.cells.index if (run := data.losses(label))]
        _draw_curves(axes, line, [each for run in runs if (each := curve(run, max_points=_FEW_POINTS))])
    axes.set_ylabel("training loss")
    _finish_curves(axes)


def _loss_differences(axes: "Axes", block: Block, data: Data) -> None:
    """Training loss minus the loss of ``none`` at the same step and seed, drawn as by :func:`_loss_curves`."""
    axes.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    for line in others(block):
        both = [(data.losses(label), data.losses(other)) for label, other in line.cells["partner"].dropna().items()]
        _draw_curves(axes, line, [each for run, other in both if run and other and (each := curve(run, other))])
    axes.set_ylabel("loss − loss of none")
    _finish_curves(axes)


def _draw_curves(axes: "Axes", line: Line, seeds: Sequence[Curve]) -> None:
    """Draw each seed's curve faint behind their mean, and a cross for each kill."""
    look: dict[str, Any] = {"color": colour(line.strategy)}
    if len(seeds) > 1:
        for each in seeds:
            axes.plot(each.samples, each.losses, linewidth=0.6, alpha=0.3, **look)
    if mean := mean_curve(seeds):
        axes.plot(mean.samples, mean.losses, linewidth=1.4, label=line.label, **look)
        axes.plot(mean.kill_samples, mean.kill_losses, linestyle="", marker="x", markersize=5, **look)


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
    "are the Pareto front of the means: no other strategy is both cheaper and better. The dotted line is the loss that "
    "the verdicts accept. A triangle at the edge is a strategy outside the "
    "scale, with its mean.",
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
        "loss",
        "Training loss",
        "Mean loss over equal pieces of the run: the mean over seeds, and each seed faint behind it. A cross marks a "
        "step at which ranks were killed. Each sample position is shown once: steps that were run again are not drawn "
        "twice.",
        _loss_curves,
    ),
    Kind(
        "above",
        "Effect of failures on the training loss",
        "The same runs, each loss less that of none at the same step of the same seed, which had the same batches: "
        "their noise cancels, and the difference is the damage of each failure and its decay.",
        _loss_differences,
        needs_pairs=True,
    ),
)
"""The kinds of figures besides ``TRADEOFF``, in their order in the report."""
