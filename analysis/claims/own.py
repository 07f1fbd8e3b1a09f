"""Judges of the project's own claims: functions from results to rows.

Array letters: S seeds, T traces.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.claims.expect import text_of, values_of
from analysis.claims.measures import (
    HOURS,
    LOSS,
    LOST,
    LOST_TRACKED,
    MEMORY,
    NODE_HOURS,
    OVERHEAD,
    PLS,
    WRITTEN,
    Measure,
    matching,
)
from analysis.claims.rows import UNPUBLISHED, Row, between, joined, shown, signed, study
from analysis.load import Frame
from analysis.stats import (
    BASELINE,
    REPLICATE_KEYS,
    Estimate,
    conditions,
    estimate,
    pairs_for_power,
    pairs_for_width,
    replicates,
    strategy_order,
)

F64 = NDArray[np.float64]
DIFFERENCES = (1e-3, 1e-4)
PAIRED_STRATEGY = "cpr_mfu"
"""The strategy whose pairs with ``none`` :func:`seeds` counts."""
_PLACEMENT = "cluster.placement"
_LEAST_SPREAD = 1e-9  # of AUC: equal runs need pairs, too
_COPIES = {"buddy"}  # strategies whose price is memory, which neither measure of `traces` has
_ALL, _RANDOM = "cpr_vanilla", "cpr_random"
_PAPER = {"cpr_mfu": "above 0 [recalled]", "cpr_ssu": "above 0 [recalled]"}
_DOMINATED = {
    "in everything": (HOURS, WRITTEN, MEMORY, LOST, LOSS),
    "in overhead and lost updates": (HOURS, LOST),
    "in overhead and AUC": (HOURS, LOSS),
}
_PARTS = {
    "between traces": 0,
    "between seeds": 1,
    "of seed and trace together": 2,
    "of one pair of a new seed and a new trace": 3,
}
"""Places in the result of :func:`spreads`."""


def arms_of(cells: Frame) -> Mapping[str, Frame]:
    """The arms of an experiment: cells by strategy and options, such as ``differential (bits 8)``, in tables' order.

    ``none`` is left out. An option is named if it has several values within the strategy.
    """
    found: dict[str, Frame] = {}
    for strategy in sorted({*cells["strategy"]} - {BASELINE}, key=strategy_order):
        own = cells[cells["strategy"] == strategy]
        keys = [key for key in own if key.startswith("strategy.") and own[key].nunique(dropna=False) > 1]
        for values, arm in own.groupby(keys, dropna=False, sort=False) if keys else [((), own)]:
            options = (f"{key.removeprefix('strategy.')} {text_of(v)}" for key, v in zip(keys, values, strict=True))
            found[f"{strategy} ({', '.join(options)})" if keys else strategy] = arm
    return found


def _means(text: str, own: Frame, cells: Frame, measures: Sequence[Measure], why: str = "") -> Row:
    """A row with the means of ``measures`` over ``own``, a part of ``cells``; not judged."""
    return study(text, "; ".join(filter(None, (measure.text(own, cells) for measure in measures))), len(own), why)


def dominating(arms: Mapping[str, Frame], measures: Sequence[Measure]) -> dict[str, list[str]]:
    """For each arm (``arms_of``), the names of the arms that dominate it: no greater in any measure, less in one.

    This is judged by the 95 % intervals of the differences, paired by seed: all end at 0 or below, and one below 0.
    """
    values = {name: [measure.plain_by_seed(own) for measure in measures] for name, own in arms.items()}

    def dominates(left: str, right: str) -> bool:
        found = [estimate((a - b).dropna()) for a, b in zip(values[left], values[right], strict=True)]
        ends = [math.inf if each is None or each.interval is None else each.interval[1] for each in found]
        return all(end <= 0 for end in ends) and any(end < 0 for end in ends)

    return {name: [other for other in arms if other != name and dominates(other, name)] for name in arms}


def pareto(cells: Frame) -> list[Row]:
    """A row for each arm: its means, and the arms that dominate it in all measures or in some of them; not judged."""
    arms = arms_of(cells)
    found = {part: dominating(arms, measures) for part, measures in _DOMINATED.items()}
    rows: list[Row] = []
    for name, own in arms.items():
        why = [f"dominated {part} by {', '.join(map(_quoted, by[name]))}" for part, by in found.items() if by[name]]
        measures = (HOURS, NODE_HOURS, WRITTEN, MEMORY, LOST, LOSS)
        rows.append(_means(_quoted(name), own, cells, measures, "; ".join(why) or "not dominated"))
    return rows


def _quoted(name: str) -> str:
    strategy, space, options = name.partition(" ")
    return f"`{strategy}`{space}{options}"


def tracker_part(cells: Frame) -> list[Row]:
    """Rows: the losses of each arm; then the gains of random rows over all rows, and of a tracker over random rows."""
    arms = arms_of(cells)
    rows = [_means(f"`{name}`", own, cells, (LOST_TRACKED, LOST, LOSS, WRITTEN)) for name, own in arms.items()]
    if not {_ALL, _RANDOM} <= arms.keys():
        return rows
    for measure in (LOST_TRACKED, LOSS):
        rows += _gain(f"by parts of random rows, `{_RANDOM}` on `{_ALL}`", arms[_RANDOM], arms[_ALL], measure)
        for name in [name for name in arms if name not in {_ALL, _RANDOM}]:
            rows += _gain(f"by the tracker, `{name}` on `{_RANDOM}`", arms[name], arms[_RANDOM], measure)
            for row in _gain(
                f"in all, `{name}` on `{_ALL}`", arms[name], arms[_ALL], measure, _PAPER.get(name, UNPUBLISHED)
            ):
                part, whole = (measure.differences(arms[other], arms[name]) for other in (_RANDOM, _ALL))
                rows.append(replace(row, why=joined(row.why, _share(part, whole))))
    return rows


def _gain(text: str, own: Frame, others: Frame, measure: Measure, paper: str = UNPUBLISHED) -> list[Row]:
    """A row with the paired gain: the measure of ``others`` minus the measure of ``own``; [] without common seeds."""
    value = measure.difference(others, own)
    if value is None:
        return []
    what = f"gain {text}: {measure.name}"
    return [signed(what, paper, value, sign=1)]


def _share(part: Any, whole: Any) -> str:
    """Text on the tracker's ``part`` of the ``whole`` gain, if the interval of the gain is above 0.

    The share is above 100 % if saves of random rows lose more than saves of all rows.
    """
    gain = estimate(whole)
    if gain is None or gain.interval is None or gain.interval[0] <= 0:
        return "the gain is not shown"
    value = ratio(part[whole.index].to_list(), whole.to_list())
    return f"the tracker's share: {shown(value, 100, 0)} % of the whole gain"


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """The ratio of the means of ``parts`` and ``wholes``, which are paired, with its interval by the delta method."""
    mean = math.fsum(wholes) / len(wholes)
    value = math.fsum(parts) / len(parts) / mean
    found = estimate([value + (part - value * whole) / mean for part, whole in zip(parts, wholes, strict=True)])
    assert found is not None, "there is a pair"
    return found


def traces(cells: Frame) -> list[Row]:
    """Two rows for each law of traces: the strategy with the least overhead, and the one with the fewest lost updates.

    The second is among the strategies that lose any. ``buddy`` is left out, since its price is memory. A row needs two
    strategies.
    """
    rows: list[Row] = []
    law = conditions(cells, ["trace"])["trace"]
    for trace, own in cells.groupby(law, sort=False):
        arms = dict([*own[~own["strategy"].isin(_COPIES)].groupby("strategy", sort=False)])
        lossy = {name: each for name, each in arms.items() if LOST.values(each, cells).any()}
        rows += [*_best(f"`{trace}`: least", arms, OVERHEAD), *_best(f"`{trace}`: fewest", lossy, LOST)]
    return rows


def _best(text: str, arms: Mapping[str, Frame], measure: Measure) -> Iterator[Row]:
    means = {name: value for name, own in arms.items() if (value := measure.mean(own, own)) is not None}
    if len(means) < 2:
        return
    first, *others = sorted(means, key=lambda name: means[name].mean)
    margins = {other: measure.difference(arms[other], arms[first]) for other in others}
    equal = [other for other, margin in margins.items() if not _is_above(margin)]
    margin = margins[others[0]]
    why = f"`{others[0]}` more by {'–' if margin is None else shown(margin, digits=3)}"
    if equal:
        why += f"; not shown to be less than {', '.join(f'`{name}`' for name in equal)}"
    what = f"{text} {measure.name}"
    yield study(what, f"`{first}` {shown(means[first], digits=3)}", len(arms[first]), why)


def _is_above(value: Estimate | None) -> bool:
    return value is not None and value.interval is not None and value.interval[0] > 0


def seeds(cells: Frame) -> list[Row]:
    """Rows: the spread of AUC differences by source, and the numbers of pairs needed.

    Empty with fewer than 3 seeds or traces, or if a seed did not run under one of the traces.
    """
    table_ST = table_of(cells)
    if table_ST is None or min(table_ST.shape) < 3:
        return []
    rows: list[Row] = []
    what = f"standard deviation of the AUC of `{PAIRED_STRATEGY}` less that of `none`, 10⁻³"
    for part, place in _PARTS.items():
        value = _jackknife(table_ST if part != "between traces" else table_ST.T, _spread_of(place, part))
        rows.append(study(f"{what}: {part}", _spread_text(value), table_ST.size, _groups(table_ST)))
    rows += _rounding(cells)
    total = _jackknife(table_ST, _spread_of(3, ""))
    mean, low, high = (max(spread, _LEAST_SPREAD) for spread in (total.mean, *(total.interval or 2 * [total.mean])))
    for text, number in (("a half-width of", pairs_for_width), ("80 % power for", pairs_for_power)):
        for difference in DIFFERENCES:
            first, last = number(low, difference), number(high, difference)
            found = f"{number(mean, difference)} ({first}–{last})"
            rows.append(study(f"pairs for {text} {1e3 * difference:g}·10⁻³", found, table_ST.size))
    return rows


def _spread_text(value: Estimate) -> str:
    """A standard deviation of AUC as text in thousandths, with its interval, which begins at 0 or above."""
    low, high = value.interval or (value.mean, value.mean)
    return f"{1e3 * value.mean:.2f} ({between(max(0.0, 1e3 * low), 1e3 * high)})"


def _groups(table_ST: F64) -> str:
    return f"{table_ST.shape[0]} seeds, each under {table_ST.shape[1]} traces"


def table_of(cells: Frame) -> F64 | None:
    """AUC differences of ``PAIRED_STRATEGY`` to ``none``, (S seeds, T traces); None unless every pair has run."""
    own = cells[(cells["strategy"] == PAIRED_STRATEGY) & cells["auc_difference"].notna()]
    table = own.pivot_table("auc_difference", "seed", "draw")
    return None if table.empty or table.isna().any(axis=None) else table.to_numpy()


def spreads(table_ST: F64) -> tuple[float, float, float, float]:
    """Standard deviations between traces, between seeds, of their interaction, and of all three together.

    They are by two-way analysis of variance with one value for each pair; negative components count as 0. The last one
    is the standard deviation of a pair of a new seed and a new trace.
    """
    num_seeds, num_traces = table_ST.shape
    mean = table_ST.mean()
    by_trace_T, by_seed_S = table_ST.mean(axis=0) - mean, table_ST.mean(axis=1) - mean
    rest_ST = table_ST - mean - by_trace_T - by_seed_S[:, None]
    rest = float((rest_ST**2).sum()) / ((num_seeds - 1) * (num_traces - 1))
    trace = max(0.0, float(by_trace_T.var(ddof=1)) - rest / num_seeds)
    seed = max(0.0, float(by_seed_S.var(ddof=1)) - rest / num_traces)
    return math.sqrt(trace), math.sqrt(seed), math.sqrt(rest), math.sqrt(trace + seed + rest)


def _spread_of(place: int, part: str) -> Callable[[F64], float]:
    """A function from a table (S, T) to entry ``place`` of its :func:`spreads`.

    For the part "between traces" it takes a table (T, S), so that the jackknife leaves out traces.
    """
    return lambda table: spreads(table.T if part == "between traces" else table)[place]


def _jackknife(table: F64, of: Callable[[F64], float]) -> Estimate:
    """The value of ``of`` for the table, with its jackknife interval, from leaving out each row once."""
    whole, num = of(table), len(table)
    values = [num * whole - (num - 1) * of(np.delete(table, place, axis=0)) for place in range(num)]
    found = estimate(values)
    assert found is not None, "a table has rows"
    return Estimate(num, whole, found.half_width, found.standard_error, found.degrees)


def _rounding(cells: Frame) -> list[Row]:
    """A row with the spread of AUC differences between runs of ``none`` that differ only in the order of sums.

    Empty unless at least 3 seeds have replicates, and all the same number of them.
    """
    families = [family.to_list() for _, family in replicates(cells)["auc"].groupby(level=0)]
    if len(families) < 3 or len({len(family) for family in families}) > 1:
        return []
    largest = max(max(family) - min(family) for family in families)
    value = _jackknife(np.array(families), lambda table: math.sqrt(2 * float(table.var(axis=1, ddof=1).mean())))
    what = "standard deviation of the AUC of `none` less that of another `none`, 10⁻³: by rounding"
    why = f"runs of a seed that differ in {' and '.join(f'`{key}`' for key in REPLICATE_KEYS)}; at most "
    why += f"{1e3 * largest:.2f}"
    return [study(what, _spread_text(value), sum(map(len, families)), why)]


def spread(cells: Frame) -> list[Row]:
    """Rows by placement: the mean distance of a seed's PLS, and lost updates, from the median over the seeds.

    This is Brown and Forsythe's measure of spread: how much the loss depends on which rank dies.
    """
    rows: list[Row] = []
    for name in ("cpr_vanilla", "cpr_mfu"):
        for measure in (PLS, LOST):
            for value in values_of(cells, _PLACEMENT):
                own = matching(cells, {"strategy": name, _PLACEMENT: value})
                found = measure.by_seed(own, cells).to_list()
                distance = estimate([abs(each - median(found)) for each in found])
                if distance is not None:
                    what = (
                        f"`{name}`, placement {value}: mean distance of failures from the median one; {measure.label}"
                    )
                    rows.append(study(what, shown(distance), len(found), f"from {min(found):.2f} to {max(found):.2f}"))
    return rows
