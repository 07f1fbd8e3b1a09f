"""Figures of a kind, one for each setting, whose axes have the same limits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.figures.curves import Losses, losses_of
from analysis.figures.look import colour
from analysis.load import Frame
from analysis.stats import BASELINE, Block, Estimate, Line, strategy_order
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTROLS = (BASELINE, "never_save")
"""Strategies that do not set the scale of AUC differences."""
_MARKERS = "osD^vXPd"  # by strategy, as points overlap
_SIZE = (5.2, 3.9)  # inches
SMALL = 10  # points


@dataclass(frozen=True)
class Data:
    """The data that figures are drawn from. ``margin``: the loss that verdicts accept; None: the measure's."""

    blocks: Sequence[Block]
    cells: Frame
    margin: float | None
    _losses: dict[str, Losses | None] = field(default_factory=dict)

    def limit(self, block: Block) -> float:
        """The loss that the verdicts on ``block`` accept."""
        return block.measure.margin if self.margin is None else self.margin

    @property
    def auc_range(self) -> tuple[float, float]:
        """Limits of AUC differences in 10⁻³ that all settings share.

        The limits include 0, the margin, and the intervals of all strategies except controls.
        """
        low, high = self._range([line.auc_difference and line.auc_difference.negated for line in self._lines])
        return -high, -low

    @property
    def loss_range(self) -> tuple[float, float]:
        """As ``auc_range``, of losses in the measure."""
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
        """The losses of the run with this label in ``cells``; its record is read once."""
        path = self.cells.loc[label, "path"]
        if path not in self._losses:
            self._losses[path] = losses_of(EventLog.of(RunDir(Path(path))))
        return self._losses[path]


@dataclass(frozen=True)
class Kind:
    """A kind of figure. ``draw`` fills the axes of one block; ``shared``: the axes, out of "xy", with common limits.

    ``needs_pairs``: it draws differences to ``none``, so that a block without pairs has no such figure.
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
    """Colour, marker and label of a strategy."""
    marker = _MARKERS[strategy_order(line.strategy)[0] % len(_MARKERS)]
    return {"color": colour(line.strategy), "marker": marker, "label": line.label}


def legend(axes: "Axes") -> None:
    """Add a legend below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 1.4, "columnspacing": 1.2}
    if handles and axes.figure:
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=4, **look)
