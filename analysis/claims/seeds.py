"""How many pairs of seed and trace a statement about AUC takes: the spread of paired differences, and its origins."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from analysis.claims.figures import common_legend
from analysis.claims.rows import Row, between
from analysis.figures import THEMES, colour, log_scale, whole_ticks
from analysis.load import Cell
from analysis.stats import (
    BASELINE,
    REPLICATE_KEYS,
    Estimate,
    estimate,
    pairs_for_power,
    pairs_for_width,
    pairs_of,
    rounding_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

F64 = NDArray[np.float64]
DIFFERENCES = (1e-3, 1e-4)
_STRATEGY = "cpr_mfu"
_LEAST_SPREAD = 1e-9  # of AUC: equal runs need pairs, too
_PARTS = {
    "between traces": 0,
    "between seeds": 1,
    "of seed and trace together": 2,
    "of one pair of a new seed and a new trace": 3,
}
"""Places in ``spreads``."""


def seeds(cells: Sequence[Cell]) -> list[Row]:
    """The spread of differences by origin, and the numbers of pairs; none without a finished cell of every pair."""
    table_ST = table_of(cells)
    if table_ST is None or min(table_ST.shape) < 3:
        return []
    rows: list[Row] = []
    what = f"standard deviation of the AUC of `{_STRATEGY}` less that of `none`, 10⁻³"
    for part, place in _PARTS.items():
        value = _jackknife(table_ST if part != "between traces" else table_ST.T, _spread_of(place, part))
        rows.append(Row(f"{what}: {part}", "–", _shown(value), table_ST.size, "ours", _groups(table_ST)))
    rows += _rounding(cells)
    total = _jackknife(table_ST, _spread_of(3, ""))
    mean, low, high = (max(spread, _LEAST_SPREAD) for spread in (total.mean, *(total.interval or 2 * [total.mean])))
    for text, number in (("a half-width of", pairs_for_width), ("80 % power for", pairs_for_power)):
        for difference in DIFFERENCES:
            first, last = number(low, difference), number(high, difference)
            found = f"{number(mean, difference)} ({first}–{last})"
            rows.append(Row(f"pairs for {text} {1e3 * difference:g}·10⁻³", "–", found, table_ST.size, "ours"))
    return rows


def _shown(value: Estimate) -> str:
    """A standard deviation with its interval, cut at 0, in thousandths of AUC."""
    low, high = value.interval or (value.mean, value.mean)
    return f"{1e3 * value.mean:.2f} ({between(max(0.0, 1e3 * low), 1e3 * high)})"


def _groups(table_ST: F64) -> str:
    return f"{table_ST.shape[0]} seeds, each under {table_ST.shape[1]} traces"


def table_of(cells: Sequence[Cell]) -> F64 | None:
    """Paired differences of AUC, S seeds x T traces; None unless every seed ran under every trace."""
    done = [cell for cell in cells if cell["status"] == "done"]
    pairs = pairs_of([cell for cell in done if cell["strategy"] == _STRATEGY], done, "auc")
    by_place = {(pair.seed, pair.trace): pair.difference for pair in pairs}
    seeds_S = sorted({seed for seed, _ in by_place})
    traces_T = sorted({trace for _, trace in by_place}, key=str)
    if not by_place or len(by_place) < len(seeds_S) * len(traces_T):
        return None
    return np.array([[by_place[seed, trace] for trace in traces_T] for seed in seeds_S])


def spreads(table_ST: F64) -> tuple[float, float, float, float]:
    """Standard deviations between traces, between seeds, of their interaction, and of a pair that shares neither.

    Analysis of variance, two ways, one value in each place; components below 0 are 0.
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
    """A spread of a table; of one whose rows are traces, for the part between traces."""
    return lambda table: spreads(table.T if part == "between traces" else table)[place]


def _jackknife(table: F64, of: Callable[[F64], float]) -> Estimate:
    """``of`` the whole table, with the 95 % interval of its pseudo-values: each row is left out once."""
    whole, num = of(table), len(table)
    values = [num * whole - (num - 1) * of(np.delete(table, place, axis=0)) for place in range(num)]
    found = estimate(values)
    assert found is not None, "a table has rows"
    return Estimate(num, whole, found.half_width, found.standard_error, found.degrees)


def _rounding(cells: Sequence[Cell]) -> list[Row]:
    """The spread of a difference between two runs of ``none`` that differ in the order of sums alone."""
    families: dict[int, dict[tuple[object, ...], float]] = {}
    done = [cell for cell in cells if (cell["strategy"], cell["status"]) == (BASELINE, "done")]
    for cell in done:
        families.setdefault(cell["seed"], {})[tuple(cell.get(key) for key in REPLICATE_KEYS)] = cell["auc"]
    several = [[*values.values()] for values in families.values() if len(values) > 1]
    floor = rounding_of(done, cells)
    if floor is None or len(several) < 3 or len({len(values) for values in several}) > 1:
        return []
    value = _jackknife(np.array(several), lambda table: math.sqrt(2 * float(table.var(axis=1, ddof=1).mean())))
    what = "standard deviation of the AUC of `none` less that of another `none`, 10⁻³: by rounding"
    why = f"runs of a seed that differ in {' and '.join(f'`{key}`' for key in REPLICATE_KEYS)}; at most "
    why += f"{1e3 * floor.largest:.2f}"
    return [Row(what, "–", _shown(value), sum(map(len, several)), "ours", why)]


def planning(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """Each pair's loss by trace; and the numbers of pairs by the difference that is asked for."""
    table_ST = table_of(cells)
    if table_ST is None:
        return
    num_seeds, num_traces = table_ST.shape
    places = np.broadcast_to(np.arange(num_traces), (num_seeds, num_traces))
    axes[0].plot(places.T, -1e3 * table_ST.T, ".", color=colour(_STRATEGY), alpha=0.6)
    axes[0].plot(-1e3 * table_ST.mean(axis=0), "_", color=THEMES["ink"][0], markersize=14)
    whole_ticks(axes[0].xaxis)
    axes[0].set_xlabel("draw of the failures")
    axes[0].set_ylabel("AUC lost to none, 10⁻³")
    spread = spreads(table_ST)[3]
    wanted = np.geomspace(5e-5, 2e-3, 40)
    lines = {"half-width of the interval": (pairs_for_width, "-"), "80 % power": (pairs_for_power, "--")}
    for name, (number, line) in lines.items():
        axes[1].plot(1e3 * wanted, [number(spread, each) for each in wanted], line, color=THEMES["ink"][0], label=name)
    for name in ("x", "y"):
        log_scale(axes[1], name)
    axes[1].set_xlabel("difference of AUC, 10⁻³ (log)")
    axes[1].set_ylabel("pairs of seed and trace (log)")
    common_legend(axes)
