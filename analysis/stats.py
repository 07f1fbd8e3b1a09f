"""Means over seeds with confidence intervals, and paired differences. An unknown is None; one seed has no interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.cells import Cell

CONFIDENCE = 0.95
BASELINE = "none"
SETTING = ("engine", "trace", "profile", "num_ps")
"""Columns that, together with the swept keys, are the conditions under which a strategy ran."""

_IRRELEVANT_TO_NONE = ("engine", "trace", "profile", "strategy.", "metrics.", "trace.", "profile.", "store.")


@dataclass(frozen=True)
class Estimate:
    """Mean of ``num`` values, half-width of its 95 % confidence interval (Student's t), and its standard error."""

    num: int
    mean: float
    half_width: float | None
    standard_error: float | None

    @property
    def ratio(self) -> float | None:
        """Mean in standard errors; None if they are unknown or zero."""
        return self.mean / self.standard_error if self.standard_error else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the confidence interval; None for one value."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """The estimate from the values that are not None; None if there is no such value."""
    from scipy import stats  # noqa: PLC0415 - takes a third of a second to import

    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(1, mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)
    error = math.sqrt(variance / len(known))
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return Estimate(len(known), mean, quantile * error, error)


def setting_keys(cells: Sequence[Cell]) -> list[str]:
    """``SETTING`` and the swept keys: what must be equal for two cells to be compared."""
    return [*SETTING, *(key for key in cells[0] if "." in key)] if cells else []


def baseline_of(cell: Cell, cells: Sequence[Cell], baseline: str = BASELINE) -> Cell | None:
    """The finished cell of strategy ``baseline`` with the seed and setting of ``cell``; None if there is none.

    The result of strategy ``none``, which has no failures and no saves, does not depend on the engine, the trace, the
    profile, or a key of strategy, trace, profile or store. If ``none`` did not run under the same setting, a cell of
    ``none`` that differs only in these is returned.
    """
    wanted = (baseline, "done", cell["seed"])
    candidates = [other for other in cells if (other["strategy"], other["status"], other["seed"]) == wanted]
    keys = setting_keys(cells)
    key_sets = [keys]
    if baseline == BASELINE:
        key_sets.append([key for key in keys if not key.startswith(_IRRELEVANT_TO_NONE)])
    matches = (other for keys in key_sets for other in candidates if all(other[key] == cell[key] for key in keys))
    return next(matches, None)


def paired_differences(
    group: Sequence[Cell], cells: Sequence[Cell], column: str, baseline: str = BASELINE
) -> list[float]:
    """``column`` of each cell of ``group`` minus that of its ``baseline_of``; left out where either is unknown."""
    pairs = [(cell, baseline_of(cell, cells, baseline)) for cell in group]
    return [
        cell[column] - partner[column]
        for cell, partner in pairs
        if partner is not None and cell[column] is not None and partner[column] is not None
    ]
