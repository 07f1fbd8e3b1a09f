"""Means over seeds and of paired differences, with confidence intervals; the measures of quality.

An unknown number is None. A mean of one seed has no interval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.load import Frame, plain
from harness.core.errors import UserError

CONFIDENCE = 0.95
BASELINE = "none"
SETTING = ("engine", "trace", "profile", "num_ps")
"""Columns that, with the swept keys, make up a setting: the conditions under which a strategy ran."""

DRAWN = ("trace.seed",)
"""Swept keys that, like the seed, only choose a draw under the same conditions."""
_IRRELEVANT_TO_NONE = ("engine", "trace", "profile", "strategy.", "metrics.", "trace.", "profile.", "store.")


@dataclass(frozen=True)
class Estimate:
    """Mean of ``num`` values, half-width of its 95 % confidence interval (Student's t), and its standard error.

    Half-width and standard error of a single value are None.
    """

    num: int
    mean: float
    half_width: float | None
    standard_error: float | None
    degrees: float = 0
    """Degrees of freedom of the standard error."""

    @property
    def negated(self) -> "Estimate":
        return replace(self, mean=-self.mean)

    def at_least(self, error: float, degrees: float) -> "Estimate":
        """The estimate with a standard error of at least ``error``, which is known with ``degrees`` degrees of freedom.

        If ``error`` replaces the error of the values, the smaller number of degrees of freedom counts. One value has no
        interval.
        """
        if self.standard_error is None or error <= self.standard_error:
            return self
        fewer = min(self.degrees, degrees)
        return replace(self, standard_error=error, degrees=fewer, half_width=_quantile(fewer) * error)

    @property
    def ratio(self) -> float | None:
        """Mean in standard errors; None if they are unknown or zero."""
        return self.mean / self.standard_error if self.standard_error else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the confidence interval; None for one value."""
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


@dataclass(frozen=True)
class Components:
    """Variance components of paired differences: of seeds, of traces, and of the rest (:func:`components`).

    The component of seeds (traces) is None if it cannot be separated from the rest: no two pairs share a seed (trace),
    or all pairs share one. ``squared_error``: squared standard error of the mean of all pairs. ``degrees``: degrees of
    freedom of the standard error.
    """

    seed: float | None
    trace: float | None
    rest: float
    squared_error: float
    degrees: float


def estimate(values: Iterable[float]) -> Estimate | None:
    """The estimate from independent values; None if there is no value."""
    known = [*map(float, values)]
    if not known:
        return None
    if len(known) == 1:
        return Estimate(1, known[0], None, None)
    return _estimate(known, math.sqrt(_variance(known) / len(known)), len(known) - 1)


def _estimate(values: Sequence[float], error: float, degrees: float) -> Estimate:
    return Estimate(len(values), _mean(values), _quantile(degrees) * error, error, degrees)


def _quantile(degrees: float) -> float:
    from scipy import special  # noqa: PLC0415 - takes a fifth of a second to import

    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))


def estimate_pairs(pairs: Frame, column: str = "auc_difference") -> Estimate | None:
    """The mean of paired differences; its interval holds for new seeds and, with several traces, for new traces.

    ``pairs``: a frame with columns ``seed``, ``draw`` (of the trace) and ``column``. Pairs that share a seed or a trace
    are not independent, so standard error and degrees of freedom are from :func:`components`. Pairs that share both,
    such as those of two engines, count in the error as one, their mean. None without a pair.
    """
    values = pairs[column].to_list()
    if len({*zip(pairs["seed"].to_list(), pairs["draw"].to_list(), strict=True)}) < len(values):
        pairs = pairs.groupby(["seed", "draw"], as_index=False, sort=False)[column].mean()
    if len(pairs) < 2:
        return estimate([_mean(values)] if values else [])
    found = components(pairs, column)
    return _estimate(values, math.sqrt(found.squared_error), found.degrees)


def components(pairs: Frame, column: str = "auc_difference") -> Components:
    """The variance components of two or more pairs, by the two-way random-effects model without replication.

    A pair of seed s and trace t differs by mean + a_s + b_t + e_st. Half of the mean squared difference of two pairs
    estimates var(b) + var(e) where they share the seed, var(a) + var(e) where they share the trace, and the sum of all
    three where they share neither; in a balanced design these are the moments of the analysis of variance. A factor
    whose component is not positive is left out of the model, and its squares join the rest (Thompson 1962, Ann. Math.
    Statist. 33: 273). The variance of the mean of N pairs is var(a) sum(n_s^2) / N^2 + var(b) sum(n_t^2) / N^2 +
    var(e) / N, where n_s and n_t pairs have a seed and a trace: the interaction e counts once.

    The degrees of freedom are chosen so that the t quantile is the mean of the quantiles of the factors and of the
    rest, weighted by their shares of the variance (Cochran 1964, Biometrics 20: 191). Two factors together have the
    quantile halfway between such a weighted mean of their own quantiles, which is too wide, and the quantile by
    Satterthwaite's degrees, which is too narrow (docs/log/statistics.md).

    If pairs share only seeds or only traces, as when seeds have traces of their own, the mean of each seed (trace) is
    one value: the error is the standard error of the mean of these means, with their number less 1 as degrees of
    freedom. This is exact if each has the same number of pairs.
    """
    values, num = pairs[column].to_list(), len(pairs)
    groupings = [_by(pairs, key, column) for key in ("seed", "draw")]
    shared = [groups if 1 < len(groups) < num else [] for groups in groupings]
    factors, rest = _moments(values, shared)
    if sum(map(bool, shared)) == 1:
        means = [_mean(group) for group in shared[0] or shared[1]]
        error = _variance(means) / len(means)
        seed, trace = (None if each is None else max(0.0, each) for each in factors)
        return Components(seed, trace, max(0.0, rest), error, len(means) - 1)
    kept = [groups if factor and factor > 0 else [] for factor, groups in zip(factors, shared, strict=True)]
    factors, rest = _moments(values, kept)
    parts = [
        (max(0.0, factor) * sum(len(group) ** 2 for group in groups) / num**2, len(groups) - 1)
        for factor, groups in zip(factors, kept, strict=True)
        if factor is not None
    ]
    parts.append((max(0.0, rest) / num, max(1, num - 1 - sum(degrees for _, degrees in parts))))
    seed, trace = (max(0.0, each or 0.0) if groups else None for each, groups in zip(factors, shared, strict=True))
    return Components(seed, trace, max(0.0, rest), math.fsum(part for part, _ in parts), _degrees(parts))


def _moments(values: Sequence[float], shared: Sequence[list[list[float]]]) -> tuple[list[float | None], float]:
    """The component of each grouping, None of an empty one, and the rest. Any may be negative."""
    num = len(values)
    sums = [sum(len(group) * _squares(group) for group in groups) for groups in shared]
    counts = [sum(len(group) * (len(group) - 1) for group in groups) for groups in shared]
    neither = (num * _squares(values) - sum(sums)) / (num * (num - 1) - sum(counts))
    within = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    known = [each for each in within if each is not None]
    return [None if each is None else neither - each for each in within], sum(known) - neither * (len(known) - 1)


def _degrees(parts: Sequence[tuple[float, int]]) -> float:
    """The degrees of freedom of a sum of variances. ``parts``: (variance, degrees) of each; the last is the rest."""
    *factors, rest = parts
    of_factors = math.fsum(part for part, _ in factors)
    if not of_factors:
        return rest[1]
    satterthwaite = of_factors**2 / math.fsum(part**2 / degrees for part, degrees in factors)
    cochran = math.fsum(part * _quantile(degrees) for part, degrees in factors) / of_factors
    own = (cochran + _quantile(satterthwaite)) / 2
    wanted = (of_factors * own + rest[0] * _quantile(rest[1])) / (of_factors + rest[0])
    low, high = float(min(degrees for part, degrees in parts if part)), max(satterthwaite, float(rest[1]))
    while high - low > 1e-6 * high and _quantile(low) > wanted:
        middle = (low + high) / 2
        low, high = (low, middle) if _quantile(middle) <= wanted else (middle, high)
    return low


def _by(pairs: Frame, key: str, column: str) -> list[list[float]]:
    """The values of ``column``, one list for each value of ``key``."""
    groups: dict[float, list[float]] = {}
    for group, value in zip(pairs[key].to_list(), pairs[column].to_list(), strict=True):
        groups.setdefault(group, []).append(value)
    return [*groups.values()]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    return _squares(values) / (len(values) - 1)


def _squares(values: Sequence[float]) -> float:
    """The sum of the squared distances from the mean."""
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def numbers(estimates: Mapping[str, Estimate | None], *, has_error: bool = False) -> dict[str, float]:
    """Columns of a frame: means, ``*_half_width`` and, if ``has_error``, ``*_standard_error``; unknown is NaN."""
    fields = {"": "mean", "_half_width": "half_width"} | ({"_standard_error": "standard_error"} if has_error else {})
    found = {
        f"{name}{end}": getattr(value, of, None) for name, value in estimates.items() for end, of in fields.items()
    }
    return {name: math.nan if value is None else value for name, value in found.items()}


def setting_keys(cells: Frame) -> list[str]:
    """The keys whose values must be equal for two cells to be compared: ``SETTING`` and the swept keys.

    Options with a single value within each strategy (:func:`own_options`) are left out.
    """
    own = {*own_options(cells)}
    return [*SETTING, *(key for key in cells if "." in key and key not in own)]


def draws(cells: Frame) -> Frame:
    """A number for each cell, equal for cells with equal trace and equal values of ``DRAWN``."""
    return cells.groupby(["trace", *(key for key in DRAWN if key in cells)], dropna=False, sort=False).ngroup()


def own_options(cells: Frame) -> list[str]:
    """Keys ``strategy.*`` that have a single value within each strategy; strategies may differ in it."""
    keys = [key for key in cells if key.startswith("strategy.")]
    return [key for key in keys if cells[["strategy", key]].drop_duplicates()["strategy"].is_unique]


def conditions(cells: Frame, keys: Sequence[str]) -> Frame:
    """The values of ``keys`` in each cell, with equal values for cells that differ only in the draw of their trace.

    The value of ``trace`` is the name of the trace's law. Keys in ``DRAWN``, and missing values, are None.
    """
    found = plain(cells.reindex(columns=["trace_law" if key == "trace" else key for key in keys]))
    found.columns = [*keys]
    return found.assign(**{key: None for key in DRAWN if key in keys})


def relevant_to_none(keys: Iterable[str]) -> list[str]:
    """The members of ``keys`` that affect the result of strategy ``none``."""
    return [key for key in keys if not key.startswith(_IRRELEVANT_TO_NONE)]


@dataclass(frozen=True)
class Measure:
    """The column ``name`` of a frame, by which strategies are compared.

    ``sign``: 1 if greater values are worse, -1 if smaller ones are; a loss is ``sign`` times the difference to
    ``none``. ``margin``: the largest loss that is accepted, unless another margin is given; 0 if none is known.
    ``in_hours``: its unit is emulated hours; no margin is known. ``target``: what these hours lead to
    (``analysis.load``).

    The margin of AUC and of log loss is half of 0.001, the difference that papers on click-through rates call
    significant in both (AutoInt, arXiv 1810.11921, section 5.1.2): a strategy that is non-inferior keeps more than half
    of what a better model would gain. The margin of normalised entropy is the same, divided by the entropy of Kaggle's
    mean label (0.256: 0.57 nats).
    """

    name: str
    title: str
    sign: int
    margin: float
    in_hours: bool = False
    target: float | None = None

    @property
    def targets(self) -> dict[str, float]:
        """The argument ``targets`` of ``analysis.load``."""
        return {} if self.target is None else {self.name: self.target}


DEFAULT_MARGIN = 5e-4
"""Margin of AUC."""

AUC = Measure("auc", "AUC", -1, DEFAULT_MARGIN)
DROP = Measure("drop", "AUC at failures", 1, DEFAULT_MARGIN)
MOVEMENT = Measure("movement", "movement at failures", 1, 0.0)
MEASURES = {
    each.name: each
    for each in (
        AUC,
        DROP,
        MOVEMENT,
        Measure("log_loss", "log loss", 1, 5e-4),
        Measure("ne", "NE", 1, 9e-4),
        Measure("hours_to_samples", "hours to samples", 1, 0.0, in_hours=True),
        Measure("hours_to_auc", "hours to AUC", 1, 0.0, in_hours=True),
    )
}


def measure_of(name: str, target: float | None = None) -> Measure:
    """The measure of a name in ``MEASURES``; of hours with a target. Raises UserError for a wrong or missing target."""
    measure = MEASURES[name]
    if target is not None and not measure.in_hours:
        raise UserError(f"--target: expected --measure hours_to_samples or hours_to_auc, got --measure {name}")
    if name == "hours_to_auc" and not 0 < (target or 0) <= 1:
        given = "none" if target is None else f"{target:g}"
        raise UserError(f"--target: expected an AUC for --measure hours_to_auc, above 0 and at most 1; got {given}")
    return replace(measure, target=target)
