"""Rates of wrong claims by `analysis.advice`, coverage of intervals, and how often promises and planned studies hold.

With a folder of finished runs: how often fewer of their seeds give the verdict, by final AUC and by drops.

Simulated grids of six strategies with known losses of AUC, in units of the margin. A strategy's paired difference is
normal unless a line says otherwise; half of its variance is shared by all strategies, as they share the run without
failures. The standard deviation is 0.4 to 2 margins, as in the demo's grid. Rates are of grids: a grid in which any
strategy is wrongly claimed counts. ± is twice the Monte Carlo standard error.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from analysis import stats
from analysis.load import load
from benchmarks._common import parser, report, table
from harness.core.seeds import generator

F64 = NDArray[np.float64]
SPREADS_K = np.array([0.4, 0.6, 0.8, 1.0, 1.5, 2.0])  # standard deviations of K strategies' differences, in margins
NUM_SEEDS = (3, 10)
LOSSES = {
    "all at the margin": np.full(6, 1.0),
    "all 0": np.zeros(6),
    "0 to 4 margins": np.array([0.0, 0.5, 1.0, 1.0, 2.0, 4.0]),
}
PROMISE_RANGE = (-2.0, 4.0)  # losses are uniform in it: three margins to either side of the margin
SHARES = ((0.12, 0.22, 0.66), (0.49, 0.1, 0.41), (0.25, 0.5, 0.25))
"""Of seeds, traces and the rest: study `seeds` (8 seeds x 8 traces), `cpr_vanilla` over 6 x 6 (docs/STATISTICS.md), and
one where traces matter most."""
SIZES = ((5, 5), (5, 10), (10, 5))  # seeds, traces
NESTED = ((3, 5),)  # seeds of each trace, traces
DRAWN = (3, 5, 10, 40)  # seeds of finished runs
NEAR = 0.5  # margins; losses nearer to the margin have a line of their own

Noise = Callable[[np.random.Generator, tuple[int, ...]], F64]
Row = dict[str, str]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> F64:
    return rng.standard_normal(shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> F64:
    """Exponential values with mean 0 and variance 1: mostly a little below 0, seldom far above (a rare great loss)."""
    return rng.exponential(1.0, shape) - 1


def losses(rng: np.random.Generator, means_K: F64, num: int, noise: Noise = normal) -> F64:
    own_NK, shared_N1 = noise(rng, (num, len(means_K))), noise(rng, (num, 1))
    return means_K + SPREADS_K * (own_NK + shared_N1) / math.sqrt(2)


def estimates(losses_NK: F64) -> list[stats.Estimate]:
    return [each for column in losses_NK.T if (each := stats.estimate(column.tolist())) is not None]


# --- wrong claims -----------------------------------------------------------------------------------------------------


def wrong_claims(name: str, num_grids: int, num_seeds: int, noise: Noise = normal) -> Row:
    rng = generator(0, "claims", name, num_seeds, noise.__name__)
    means_K = LOSSES[name]
    found = [_wrong(estimates(losses(rng, means_K, num_seeds, noise)), means_K) for _ in range(num_grids)]
    return {"losses": name, "noise": noise.__name__, "seeds": str(num_seeds)} | _rates(found)


def rounded_claims(num_grids: int, num_seeds: int, degrees: int | None) -> Row:
    """As ``wrong_claims`` where every loss is 0, and differences are of rounding alone.

    ``degrees``: of the deviation by which rounding is known, and intervals are widened (``Estimate.at_least``).
    """
    rng = generator(0, "rounded", num_seeds, degrees or 0)
    found: list[list[bool]] = []
    for _ in range(num_grids):
        known = estimates(math.sqrt(2) * rng.standard_normal((num_seeds, 6)))
        if degrees is not None:
            error = math.sqrt(2 / num_seeds * rng.chisquare(degrees) / degrees)
            known = [each.at_least(error, degrees) for each in known]
        found.append(_wrong(known, np.zeros(6)))
    noise = "rounding" + (f", known by {degrees} degrees" if degrees else "")
    return {"losses": "all 0", "noise": noise, "seeds": str(num_seeds)} | _rates(found)


def warned_claims(num_grids: int, num_seeds: int, noise: Noise) -> Row:
    """As ``wrong_claims`` where every loss is at the margin, without those that a warning of skewness is given with."""
    rng = generator(0, "warned", num_seeds, noise.__name__)
    found: list[list[bool]] = []
    for _ in range(num_grids):
        losses_NK = losses(rng, np.ones(6), num_seeds, noise)
        is_warned = stats.is_skewed(losses_NK.T.tolist())
        wrong = _wrong(estimates(losses_NK), np.ones(6))
        found.append([is_warned, wrong[0], wrong[0] and not is_warned])
    names = ("warned", "wrongly non-inferior", "and not warned")
    rates = {name: _rate(column) for name, column in zip(names, zip(*found, strict=True), strict=True)}
    return {"noise": noise.__name__, "seeds": str(num_seeds)} | rates


# --- coverage ---------------------------------------------------------------------------------------------------------

Shares = tuple[float, float, float]
"""Shares of seeds, traces and the rest in the variance of a pair's difference."""


def coverage(num_grids: int, num_seeds: int, num_traces: int, shares: Shares, *, nested: bool = False) -> Row:
    """How often the 95 % interval of a mean difference holds the true one, and how often a one-sided 5 % test is wrong.

    Every seed runs under every trace; ``nested``: each trace has ``num_seeds`` seeds of its own, so that the share of
    seeds is part of the rest.
    """
    rng = generator(0, "coverage", num_seeds, num_traces, f"{shares} {nested}")
    of_seeds, of_traces, rest = map(math.sqrt, shares)
    seeds, draws = (each.ravel() for each in np.indices((num_seeds, num_traces)))
    pairs = pd.DataFrame({"seed": seeds + num_seeds * draws if nested else seeds, "draw": draws})
    held: list[bool] = []
    wrong: list[bool] = []
    for _ in range(num_grids):
        seeds_S1 = rng.standard_normal((num_seeds, num_traces if nested else 1))
        noise_ST = rest * rng.standard_normal((num_seeds, num_traces))
        losses_ST = of_seeds * seeds_S1 + of_traces * rng.standard_normal(num_traces) + noise_ST
        found = stats.estimate_pairs(pairs.assign(loss=losses_ST.ravel()), "loss")
        assert found is not None
        assert found.half_width is not None
        held.append(abs(found.mean) <= found.half_width)
        wrong.append(stats.p_below(found, 0.0) <= stats.ALPHA)
    return {
        "design": "nested" if nested else "crossed",
        "seeds": f"{num_seeds} a trace" if nested else str(num_seeds),
        "traces": str(num_traces),
        "shares": " ".join(f"{share:g}" for share in shares),
        "coverage, %": _rate(held),
        "wrong, one side, %": _rate(wrong),
    }


def _wrong(found: list[stats.Estimate], means_K: F64) -> list[bool]:
    """Whether any loss is wrongly called non-inferior, inferior, superior."""
    claims = stats.claims_of(found, 1.0)
    return [
        bool(np.any(claims.non_inferior & (means_K >= 1))),
        bool(np.any(claims.inferior & (means_K <= 1))),
        bool(np.any(claims.superior & (means_K >= 0))),
    ]


def _rates(found: list[list[bool]]) -> Row:
    names = ("wrongly non-inferior", "wrongly inferior", "wrongly superior")
    return {name: _rate(column) for name, column in zip(names, zip(*found, strict=True), strict=True)}


def _rate(found: "tuple[bool, ...] | list[bool]") -> str:
    if not found:
        return "–"
    rate = sum(found) / len(found)
    return f"{100 * rate:.1f} ± {200 * math.sqrt(rate * (1 - rate) / len(found)):.1f}"


# --- promised seeds ---------------------------------------------------------------------------------------------------


def promises(num_grids: int, num_seeds: int) -> list[Row]:
    """How often an open strategy, drawn at random in each grid, is decided after the promised number of seeds."""
    rng = generator(0, "promises", num_seeds)
    found = [_promise(rng, rng.uniform(*PROMISE_RANGE, 6), num_seeds) for _ in range(num_grids)]
    kept = [each for each in found if each is not None]
    parts = {
        "all": kept,
        f"within {NEAR:g} margins of it": [each for each in kept if each[0] < NEAR],
        "farther away": [each for each in kept if each[0] >= NEAR],
    }
    return [
        {
            "true loss": name,
            "seeds": str(num_seeds),
            "promises": str(len(part)),
            "median promise": f"{np.median([more for _, more, _ in part]):.0f}" if part else "–",
            "decided, %": _rate([is_decided for _, _, is_decided in part]),
        }
        for name, part in parts.items()
    ]


def second_look(num_grids: int, num_seeds: int) -> Row:
    """Wrong claims where every loss is at the margin and the grid is extended as promised for one open strategy."""
    rng = generator(0, "second", num_seeds)
    found: list[list[bool]] = []
    for _ in range(num_grids):
        losses_NK = losses(rng, np.ones(6), num_seeds)
        first = _wrong(estimates(losses_NK), np.ones(6))
        more = _drawn_promise(rng, losses_NK)
        then = first
        if more is not None:
            extended_NK = np.concatenate([losses_NK, losses(rng, np.ones(6), more[1])])
            then = _wrong(estimates(extended_NK), np.ones(6))
        found.append([one or other for one, other in zip(first, then, strict=True)])
    return {"losses": "all at the margin", "noise": "normal, extended", "seeds": str(num_seeds)} | _rates(found)


Promise = tuple[float, int, bool]
"""Distance of the true loss from the margin, the seeds promised, and whether they decided it."""


def _promise(rng: np.random.Generator, means_K: F64, num_seeds: int) -> Promise | None:
    losses_NK = losses(rng, means_K, num_seeds)
    promised = _drawn_promise(rng, losses_NK)
    if promised is None:
        return None
    place, more = promised
    extended_NK = np.concatenate([losses_NK, losses(rng, means_K, more)])
    claims = stats.claims_of(estimates(extended_NK), 1.0)
    is_decided = claims.non_inferior[place] or claims.inferior[place]
    return abs(float(means_K[place]) - 1), more, is_decided


def _drawn_promise(rng: np.random.Generator, losses_NK: F64) -> tuple[int, int] | None:
    """An open strategy with a promise, drawn at random, and the number of seeds; None if there is none."""
    num = range(len(losses_NK))
    cells = ({"seed": num, "draw": num, "loss": each, "overhead_frac": 0.0} for each in losses_NK.T)
    lines = [stats.Line(str(k), str(k), pd.DataFrame(each)) for k, each in enumerate(cells)]
    found = [each for each in stats.verdicts(stats.Block({}, "", lines), 1.0) if each.more_seeds is not None]
    if not found:
        return None
    drawn = found[int(rng.integers(len(found)))]
    assert drawn.more_seeds is not None
    return int(drawn.strategy), drawn.more_seeds


# --- planned studies --------------------------------------------------------------------------------------------------


def planned(num_studies: int, difference: float, noise: Noise = normal, pilot: int | None = None) -> dict[str, Any]:
    """How many of the studies find ``difference``, in standard deviations, with the pairs that 80 % power asks for.

    A study finds it where a two-sided 5 % paired t-test says so, on the right side. ``pilot``: the spread that the
    number of pairs is computed from is that of so many earlier pairs; None: it is known.
    """
    rng = generator(0, "planned", f"{difference:g}", noise.__name__, pilot or 0)
    nums: list[int] = []
    num_found = 0
    for _ in range(num_studies):
        spread = 1.0 if pilot is None else float(np.std(noise(rng, (pilot,)), ddof=1))
        nums.append(stats.pairs_for_power(spread, difference))
        value = stats.estimate((difference + noise(rng, (nums[-1],))).tolist())
        assert value is not None
        num_found += stats.p_above(value, 0.0) <= stats.ALPHA / 2
    return {
        "difference": difference,
        "noise": noise.__name__,
        "spread": "known" if pilot is None else f"of {pilot} pairs",
        "pairs": f"{np.median(nums):.0f}",
        "studies": num_studies,
        "found": num_found,
        "promised": stats.POWER,
    }


# --- finished runs ----------------------------------------------------------------------------------------------------


def resampled(frame: pd.DataFrame, num_draws: int) -> list[Row]:
    """For each judged strategy and measure: how often so many of its seeds, drawn at random, give the verdict of all.

    Seeds are drawn without replacement where the strategy has as many, else with replacement (marked ``*``), each with
    all its traces, and from each strategy apart. Claims are by Holm's method over the strategies of a setting.
    """
    rows: list[Row] = []
    for measure in stats.measures_of(frame):
        for block in stats.regimes_of(frame, measure):
            whole = [each for each in stats.verdicts(block) if not each.line.is_equal and each.loss.standard_error]
            lines = [each.line for each in whole]
            powers = [_powers(lines, measure.margin, num, num_draws) for num in DRAWN]
            for place, each in enumerate(whole):
                values, is_above = each.line.losses["loss"], each.loss.mean > measure.margin
                rows.append(
                    {
                        "strategy": ", ".join(filter(None, (each.label, block.title))),
                        "measure": measure.title,
                        "loss, sd, 10⁻³": f"{1e3 * values.mean():.2f}, {1e3 * values.std():.2f}",
                        "claim": "inferior" if is_above else "non-inferior",
                        **{f"{num} seeds, %": own[place][is_above] for num, own in zip(DRAWN, powers, strict=True)},
                    }
                )
    return rows


def _powers(lines: list[stats.Line], margin: float, num: int, num_draws: int) -> list[tuple[str, str]]:
    """For each line, the rates at which ``num`` of its seeds show it to be non-inferior, and inferior."""
    rng = generator(0, "resampled", num)
    found: list[list[tuple[bool, bool]]] = []
    for _ in range(num_draws):
        drawn = [loss for line in lines if (loss := replace(line, cells=_drawn(rng, line.losses, num)).loss)]
        claims = stats.claims_of(drawn, margin)
        found.append([*zip(claims.non_inferior, claims.inferior, strict=True)])
    marks = ["*" * (line.losses["seed"].nunique() < num) for line in lines]
    kinds = [[*zip(*own, strict=True)] for own in zip(*found, strict=True)]
    return [(_rate(safe) + mark, _rate(worse) + mark) for (safe, worse), mark in zip(kinds, marks, strict=True)]


def _drawn(rng: np.random.Generator, cells: pd.DataFrame, num: int) -> pd.DataFrame:
    """The cells of ``num`` drawn seeds, numbered anew."""
    seeds = [*cells.groupby("seed").groups.values()]
    places = rng.choice(len(seeds), num, replace=len(seeds) < num)
    return pd.concat([cells.loc[seeds[place]].assign(seed=new) for new, place in enumerate(places)])


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--grids", type=int, default=2000, help="simulated grids of each line")
    made.add_argument("--studies", type=int, default=200, help="simulated studies of each planned line")
    made.add_argument(
        "folder", nargs="?", type=Path, help="finished runs, whose seeds are drawn (nothing is simulated)"
    )
    made.add_argument("--draws", type=int, default=200, help="draws of the seeds of finished runs")
    options = made.parse_args()
    if options.folder is not None:
        rows = resampled(load(options.folder), options.draws)
        report(options, _lines("Verdicts by fewer seeds of the runs; * with replacement", rows), {"resampled": rows})
        return
    num = options.grids
    claims = [wrong_claims(name, num, seeds) for seeds in NUM_SEEDS for name in LOSSES]
    claims += [wrong_claims(name, num, 5, skewed) for name in ("all at the margin", "all 0")]
    claims += [second_look(num, 5), *(rounded_claims(num, 3, degrees) for degrees in (None, 3))]
    warned = [warned_claims(num, seeds, noise) for noise in (normal, skewed) for seeds in (3, 5, 20)]
    covered = [coverage(5 * num, *size, shares) for shares in SHARES for size in SIZES]
    covered += [coverage(5 * num, *size, shares, nested=True) for shares in SHARES for size in NESTED]
    promised = [row for seeds in NUM_SEEDS for row in promises(num, seeds)]
    studies = [planned(options.studies, difference) for difference in (0.25, 0.5, 1.0)]
    studies += [planned(options.studies, 0.5, skewed), planned(options.studies, 0.5, pilot=20)]
    lines = [
        *_lines("Grids with a wrong claim, %", claims),
        "",
        *_lines("Warnings of skewed losses, % of grids", warned),
    ]
    lines += ["", *_lines("Coverage of 95 % intervals", covered), "", *_lines("Promised seeds", promised)]
    shown = [{name: str(value) for name, value in row.items()} for row in studies]
    lines += ["", *_lines("Studies that find the difference they were planned for", shown)]
    report(
        options,
        lines,
        {"claims": claims, "warned": warned, "covered": covered, "promised": promised, "studies": studies},
    )


def _lines(title: str, rows: list[Row]) -> list[str]:
    return [title, "", *table([*rows[0]], ([*row.values()] for row in rows))]


if __name__ == "__main__":
    main()
