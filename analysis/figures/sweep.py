"""Figure of a sweep: loss and overhead of each strategy against the settings."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from analysis.figures.data import SMALL, Data, legend, look_of, others
from analysis.figures.look import THEMES
from analysis.stats import AUC, BASELINE, Block, Estimate, Line, strategy_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEEP = "Loss and overhead by setting"
CAPTION = (
    "Above: mean loss to none; the bar is the 95 % confidence interval over seeds (Student's t), without a bar there "
    "is one seed; the dotted line is the loss that the verdicts accept; a triangle at the edge is a mean outside the "
    "scale. Below: emulated overhead. Points of one setting are moved apart sideways. A dashed line is a strategy "
    "whose runs are the same under all settings, as it lacks the option."
)
_MOST_GAPS = 20  # on an axis of numbers, of the smallest gap
_WIDEST = 40  # characters of the settings in one row below the axis
_APART = 0.2  # of the gap between settings, in which the points of one setting are moved apart


def sweep_figure(data: Data) -> "Figure":
    """The loss, above, and the overhead, below, of each strategy against the settings of ``data.blocks``, in order.

    The axis is that of the option's values if they are numbers, else the settings have equal distances. Call it in the
    context ``style()``.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes half a second to import

    blocks = data.blocks
    figure = Figure(figsize=(min(16.0, max(5.6, 0.4 * len(blocks))), 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    places = _places(blocks)
    gap = min(right - left for left, right in pairwise(places))
    found: dict[str, list[tuple[float, Line]]] = {}
    for place, block in zip(places, blocks, strict=True):
        for line in others(block):
            found.setdefault(line.label, []).append((place, line))
    for number, own in enumerate(sorted(found.values(), key=lambda own: strategy_order(own[0][1].strategy))):
        moved = _APART * gap * ((number + 0.5) / len(found) - 0.5)
        cells = {(*line.cells.index,) for _, line in own}
        dashes = "" if len(blocks[0].axes) > 1 else "--" if len(cells) == 1 < len(own) else "-"
        look = look_of(own[0][1]) | {"linestyle": dashes, "linewidth": 1.2}
        _draw(above, [(place + moved, line.loss) for place, line in own], 1e3, look, data.loss_range)
        _draw(below, [(place + moved, line.estimate("overhead_frac")) for place, line in own], 100, look, None)
    above.axhline(0, color=THEMES[BASELINE][0], linewidth=1)
    above.axhline(1e3 * data.limit(blocks[0]), color=THEMES["muted"][0], linewidth=1, linestyle=":", label="margin")
    measure = blocks[0].measure
    above.set_ylabel("AUC lost to none, 10⁻³" if measure is AUC else f"{measure.title}: loss, 10⁻³")
    above.set_ylim(*data.loss_range)
    below.set_ylabel("emulated overhead,\n% of job time")
    below.set_ylim(bottom=0)
    names = [", ".join(block.values) for block in blocks]
    tilt: dict[str, Any] = {"rotation": 30, "ha": "right"} if sum(map(len, names)) > _WIDEST else {}
    below.set_xticks(places, names, fontsize=SMALL, **tilt)
    below.set_xlabel(", ".join(blocks[0].axes))
    legend(above)
    return figure


def _places(blocks: Sequence[Block]) -> list[float]:
    """The place of each setting on the axis: its value if they are numbers that can be told apart, else 0, 1, 2 …"""
    values = [[block.setting[key] for key in block.axes] for block in blocks]
    if all(len(own) == 1 and isinstance(own[0], int | float) for own in values):
        numbers = [float(own[0]) for own in values]
        if numbers[-1] - numbers[0] <= _MOST_GAPS * min(right - left for left, right in pairwise(numbers)):
            return numbers
    return [float(place) for place in range(len(blocks))]


def _draw(
    axes: "Axes",
    points: Sequence[tuple[float, Estimate | None]],
    scale: float,
    look: dict[str, Any],
    limits: tuple[float, float] | None,
) -> None:
    """Draw means times ``scale`` with their intervals as a line; outside of ``limits`` a triangle at the edge."""
    known = [(place, scale * value.mean, scale * (value.half_width or 0.0)) for place, value in points if value]
    if not known:
        return
    places, means, halves = zip(*known, strict=True)
    axes.errorbar(places, means, yerr=halves, capsize=3, markersize=6, **look)
    low, high = limits or (min(means), max(means))
    for place, mean in zip(places, means, strict=True):
        if not low <= mean <= high:
            edge, marker = (high, "^") if mean > high else (low, "v")
            axes.plot(place, edge, marker=marker, color=look["color"], markersize=8, clip_on=False)
