"""Means over seeds with confidence intervals, and of paired differences. Unknown is None; one seed has no interval."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analysis.load import Frame, plain

CONFIDENCE = 0.95
BASELINE = "none"
SETTING = ("engine", "trace", "profile", "num_ps")
"""Columns that, together with the swept keys, are the conditions under which a strategy ran."""

DRAWN = ("trace.seed",)
"""Swept keys that, like the seed, only draw one sample of the same conditions."""
_IRRELEVANT_TO_NONE = ("engine", "trace", "profile", "strategy.", "metrics.", "trace.", "profile.", "store.")


@dataclass(frozen=True)
class Estimate:
    """Mean of ``num`` values, half-width of its 95 % confidence interval (Student's t), and its standard error."""

    num: int
    mean: float
    half_width: float | None
    standard_error: float | None
    degrees: int = 0
    """Degrees of freedom of the standard error."""

    @property
    def negated(self) -> "Estimate":
        """The estimate of the values with the other sign."""
        return replace(self, mean=-self.mean)

    @property
    def ratio(self) -> float | None:
        """Mean in standard errors; None if they are unknown or zero."""
        return self.mean / self.standard_error if self.standard_error else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the confidence interval; None for one value."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


@dataclass(frozen=True)
class Split:
    """Standard deviations of paired differences: between traces, and between the seeds of one trace."""

    num_traces: int
    between_traces: float
    between_seeds: float


def estimate(values: Iterable[float]) -> Estimate | None:
    """The estimate from independent values; None if there is no value."""
    known = [*map(float, values)]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(1, known[0], None, None)
    return _estimate(known, math.sqrt(_variance(known) / len(known)), len(known) - 1)


def _estimate(values: Sequence[float], error: float, degrees: int) -> Estimate:
    from scipy import special  # noqa: PLC0415 - takes a fifth of a second to import

    quantile = float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))
    return Estimate(len(values), _mean(values), quantile * error, error, degrees)


def estimate_pairs(pairs: Frame, column: str = "auc_difference") -> Estimate | None:
    """The mean of paired differences; its interval holds for new seeds and, with several traces, for new traces.

    ``pairs``: columns ``seed``, ``draw`` (of the trace) and ``column``.

    Pairs of one seed, or of one trace, are not independent. If several pairs share a seed or a trace, the squared
    standard error is the sum of two: of the means by seed and of the means by trace. The degrees of freedom follow from
    the smaller number of means. The interval is then rather too wide than too narrow (with Satterthwaite's degrees of
    freedom 8 % of the claims were wrong: docs/log/statistics.md).
    """
    groupings = [_by(pairs, key, column) for key in ("seed", "draw")]
    shared = [[_mean(group) for group in groups] for groups in groupings if 1 < len(groups) < len(pairs)]
    values = pairs[column].to_list()
    if not shared:
        return estimate(values)
    error = math.sqrt(sum(_variance(means) / len(means) for means in shared))
    return _estimate(values, error, min(len(means) for means in shared) - 1)


def split(pairs: Frame) -> Split | None:
    """The spread between and within traces (analysis of variance, one way); None unless some trace has two seeds."""
    groups = _by(pairs, "draw", "auc_difference")
    num, degrees = len(pairs), len(pairs) - len(groups)
    if len(groups) < 2 or degrees < 1:
        return None
    within = sum(_variance(group) * (len(group) - 1) for group in groups if len(group) > 1) / degrees
    total = _mean(pairs["auc_difference"].to_list())
    between = sum(len(group) * (_mean(group) - total) ** 2 for group in groups) / (len(groups) - 1)
    size = (num - sum(len(group) ** 2 for group in groups) / num) / (len(groups) - 1)
    return Split(len(groups), math.sqrt(max(0.0, (between - within) / size)), math.sqrt(within))


def _by(pairs: Frame, key: str, column: str) -> list[list[float]]:
    """The values of ``column``, one list for each value of ``key``."""
    groups: dict[float, list[float]] = {}
    for group, value in zip(pairs[key].to_list(), pairs[column].to_list(), strict=True):
        groups.setdefault(group, []).append(value)
    return [*groups.values()]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def setting_keys(cells: Frame) -> list[str]:
    """``SETTING`` and the swept keys: what must be equal for two cells to be compared.

    Exception: options with a single value within each strategy (:func:`own_options`) need not be equal.
    """
    own = {*own_options(cells)}
    return [*SETTING, *(key for key in cells if "." in key and key not in own)]


def own_options(cells: Frame) -> list[str]:
    """Keys ``strategy.*`` that have a single value within each strategy, though strategies may differ."""
    keys = [key for key in cells if key.startswith("strategy.")]
    return [key for key in keys if cells[["strategy", key]].drop_duplicates()["strategy"].is_unique]


def conditions(cells: Frame, keys: Sequence[str]) -> Frame:
    """The values of ``keys`` in each cell, made equal for all draws of the same conditions; missing is None.

    The value of ``trace`` is the name of the trace's law; keys in ``DRAWN`` are None.
    """
    found = plain(cells.reindex(columns=["trace_law" if key == "trace" else key for key in keys]))
    found.columns = [*keys]
    return found.assign(**{key: None for key in DRAWN if key in keys})


def relevant_to_none(keys: Iterable[str]) -> list[str]:
    """The members of ``keys`` that affect the result of strategy ``none``."""
    return [key for key in keys if not key.startswith(_IRRELEVANT_TO_NONE)]
