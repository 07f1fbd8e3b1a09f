"""The data of figures, read once, and the look of a strategy in all of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from analysis.figures.curves import Aucs, Losses, aucs_of, losses_of
from analysis.figures.look import colour
from analysis.load import Frame
from analysis.stats import AUC, BASELINE, Block, Estimate, Line, strategy_order
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONTROLS = (BASELINE, "never_save")
"""Strategies that do not affect the limits of the axes of losses and AUC differences."""
_MARKERS = "osD^vXPd"  # by strategy, as points overlap
SMALL = 10  # points
_LEGEND_WIDTH = 66  # characters
T = TypeVar("T")


@dataclass(frozen=True)
class Data:
    """The data for figures. ``margin``: the loss that the verdicts accept; None: the margin of the block's measure."""

    blocks: Sequence[Block]
    cells: Frame
    margin: float | None
    _curves: dict[str, tuple[Losses | None, Aucs | None]] = field(default_factory=dict)

    def limit(self, block: Block) -> float:
        """The loss that the verdicts on ``block`` accept."""
        return block.measure.margin if self.margin is None else self.margin

    @property
    def auc_range(self) -> tuple[float, float]:
        """Limits for axes of AUC differences, in 10⁻³, the same for all settings.

        They include 0, minus the margin, and of all strategies except ``CONTROLS`` the mean and the interval, unless it
        is of two pairs, which is 12.7 standard errors wide to either side.
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
        known = [value for value in values if value]
        ends = [1e3 * end for value in known for end in (value.interval if value.num > 2 else None) or (value.mean,)]
        low, high = min([0.0, *ends]), max([*(1e3 * self.limit(block) for block in self.blocks), *ends])
        space = 0.08 * (high - low)
        return low - space, high + space

    def losses(self, label: Any) -> Losses | None:
        """The losses of the run with index ``label`` in ``cells``; its record is read only once. Raises StoreError."""
        return self._read(label)[0]

    def aucs(self, label: Any) -> Aucs | None:
        """The AUC curve of a run, as :meth:`losses`."""
        return self._read(label)[1]

    def _read(self, label: Any) -> tuple[Losses | None, Aucs | None]:
        path = self.cells.loc[label, "path"]
        if path not in self._curves:
            log = EventLog.of(RunDir(Path(path)))
            self._curves[path] = losses_of(log), aucs_of(log, self.cells.loc[label, "job_h"])
        return self._curves[path]


def others(block: Block) -> Iterator[Line]:
    """The lines of a block, except strategy ``none``."""
    return (line for line in block.lines if line.strategy != BASELINE)


def loss_label(block: Block) -> str:
    """The label of an axis of losses in the block's measure."""
    return "AUC lost to none, 10⁻³" if block.measure is AUC else f"{block.measure.title}: loss, 10⁻³"


def frame_of(rows: Iterable[Mapping[str, Any]]) -> Frame:
    """A frame of these rows, as the functions of ``analysis.figures.axes`` take it."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    return pd.DataFrame([*rows])


def look(name: str) -> dict[str, Any]:
    """Colour, marker and label of a strategy, the same in every figure. ``name``: may go on after a space."""
    strategy = str(name).partition(" ")[0]
    marker = _MARKERS[strategy_order(strategy)[0] % len(_MARKERS)]
    return {"color": colour(strategy), "marker": marker, "label": str(name)}


def legend(axes: "Axes") -> None:
    """Add a legend to the figure, below its axes, in up to four columns; a no-op if nothing has a label."""
    handles, labels = axes.get_legend_handles_labels()
    look: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "handlelength": 1.4, "columnspacing": 1.2}
    if handles and axes.figure:
        columns = min(4, max(1, _LEGEND_WIDTH // (max(map(len, labels)) + 5)))
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, **look)


def joined(drawn: Iterable[tuple[str, T]]) -> list[tuple[T, dict[str, Any]]]:
    """Each different thing to draw, with its look. Names that share it have one label: ``cpr_random = cpr_mfu``."""
    found: list[tuple[T, list[str]]] = []
    for name, what in drawn:
        for other, own in found:
            if other == what:
                own.append(name)
                break
        else:
            found.append((what, [name]))
    return [(what, look(own[0]) | {"label": " = ".join(own)}) for what, own in found]
