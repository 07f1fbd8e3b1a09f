"""What a claim measures of cells: a number of each cell, its mean with a 95 % interval, and paired differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from analysis.claims.rows import shown
from analysis.load import Cell
from analysis.stats import Estimate, Pair, estimate, estimate_pairs, pairs_of


@dataclass(frozen=True)
class Measure:
    """A number of each cell, and how it is shown: ``TITLE VALUE UNIT``. ``read``: None where it is unknown.

    ``of_none``: the mean is of differences to the run without failures, by ``pairs_of`` of this column.
    """

    title: str
    unit: str
    read: Callable[[Cell], float | None]
    digits: int = 2
    of_none: str | None = None
    axis: str = ""
    """What the axis of a figure is called, if not by title and unit."""

    def mean(self, own: Sequence[Cell], cells: Sequence[Cell]) -> Estimate | None:
        """Of ``own``, which are among ``cells``; a loss is left out where ``none`` was not run."""
        if self.of_none is None:
            return estimate(map(self.read, own))
        pairs = pairs_of(own, cells, self.of_none)
        return estimate_pairs([Pair(pair.seed, pair.trace, self._scale * pair.difference) for pair in pairs])

    def by_seed(self, own: Sequence[Cell], cells: Sequence[Cell]) -> dict[int, float]:
        """As :meth:`mean`, the mean of the cells of each seed; only where it is known."""
        if self.of_none is None:
            return self._means_by_seed(own)
        pairs = pairs_of(own, cells, self.of_none)
        return _by_seed((pair.seed, self._scale * pair.difference) for pair in pairs)

    def differences(self, own: Sequence[Cell], others: Sequence[Cell]) -> dict[int, float]:
        """``own`` less ``others`` by seed, means of the cells of each; only where both are known."""
        left, right = self._means_by_seed(own), self._means_by_seed(others)
        return {seed: left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())}

    def _means_by_seed(self, own: Sequence[Cell]) -> dict[int, float]:
        return _by_seed((cell["seed"], self.read(cell)) for cell in own)

    def difference(self, own: Sequence[Cell], others: Sequence[Cell]) -> Estimate | None:
        """The mean of ``differences``; None without a common seed."""
        return estimate(self.differences(own, others).values())

    def text(self, value: Estimate) -> str:
        """Title, mean, half of the interval, unit."""
        return f"{self.title} {shown(value, digits=self.digits)}{self.unit}"

    def change(self, value: Estimate) -> str:
        """A difference in the same words, with its sign."""
        plus = "+" if round(value.mean, self.digits) > 0 else ""
        return f"{self.title} {plus}{shown(value, digits=self.digits)}{self.unit}".replace("-", "−")

    @property
    def label(self) -> str:
        """The name of an axis."""
        return self.axis or f"{self.title}, {self.unit.strip(' ·')}"

    @property
    def _scale(self) -> float:
        value = self.read({str(self.of_none): 1.0})
        assert value is not None
        return value


def _by_seed(values: Iterable[tuple[int, float | None]]) -> dict[int, float]:
    """The means of the known values of each seed."""
    found: dict[int, list[float]] = {}
    for seed, value in values:
        if value is not None:
            found.setdefault(seed, []).append(value)
    return {seed: fmean(own) for seed, own in found.items()}


def column(name: str, scale: float = 1.0) -> Callable[[Cell], float | None]:
    """The reader of a column in another unit."""

    def read(cell: Cell) -> float | None:
        value = cell.get(name)
        return None if value is None else scale * value

    return read


def _hours(cell: Cell) -> float | None:
    fraction = cell.get("overhead_frac")
    return None if fraction is None else fraction * cell["job_h"]


OVERHEAD = Measure("overhead", " %", column("overhead_frac", 100), axis="overhead, % of the job")
SAVES = Measure("overhead of saves", " % of the job", lambda cell: 100 * cell["save_h"] / cell["job_h"])
PLS = Measure("PLS", " %", column("pls", 100))
LOST = Measure("lost updates", " %", column("update_pls", 100))
LOST_TRACKED = Measure("lost updates of tracked tables", " %", column("update_pls_tracked", 100))
LOSS = Measure("AUC loss", "·10⁻³", column("auc", -1e3), of_none="auc", axis="AUC lost to none, 10⁻³")
WRITTEN = Measure("written", " MB", column("payload_bytes", 1e-6), digits=1)
MEMORY = Measure("memory", " MB", column("memory_bytes", 1e-6))
HOURS = Measure("overhead", " h", _hours, axis="overhead, emulated hours")
NODE_HOURS = Measure("overhead of all nodes", " node-hours", column("node_h"), digits=1)
