"""Coverage of the confidence intervals of fits: how often they contain the true parameter.

First, the 95 % intervals of each parameter of each family, from random durations; none censored, or about a third.
Second, the 99 % intervals from generated traces (harness/traces/generate.py): a system process with so many full gaps,
ranks that start at hour 0, and ranks that have long been running, each rank's last gap censored. The last column is
the range within chance: with exact coverage a line lies outside once in a thousand.
"""

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special, stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import parser, report, table
from harness.core.seeds import generator
from harness.traces.fits import distribution, fit
from harness.traces.gaps import Observed, Sample, gaps_of
from harness.traces.generate import generate_many
from harness.traces.spec import GeneratorSpec

MEAN_H = 20.0
SHAPES = {"exponential": None, "gamma": 0.6, "weibull": 0.7, "lognormal": 1.4}
NUM_RANKS = 40
_CUT_CLOCK_H = 45.0  # cuts a quarter to a third of the durations
_OUTSIDE = 0.001


Line = dict[str, Any]
"""One parameter under one way to observe: how many intervals of how many held it."""


def true_parameters(family: str) -> dict[str, float]:
    """Those with mean ``MEAN_H`` and the shape above."""
    shape = SHAPES[family]
    if shape is None:
        return {"mean_h": MEAN_H}
    if family == "gamma":
        return {"shape": shape, "scale_h": MEAN_H / shape}
    if family == "weibull":
        return {"shape": shape, "scale_h": MEAN_H / float(special.gamma(1 + 1 / shape))}
    return {"sigma": shape, "median_h": MEAN_H * math.exp(-(shape**2) / 2)}


def drawn(family: str, num: int, num_events: int, *, is_cut: bool) -> Iterator[Sample]:
    """Samples of ``num_events`` durations, cut short by an exponential clock if asked for."""
    law = distribution(family, [*true_parameters(family).values()])
    for trial in range(num):
        rng = generator(0, "trace_fits", family, trial, int(is_cut))
        lasted_N = law.rvs(num_events, random_state=rng)
        clock_N = rng.exponential(_CUT_CLOCK_H, num_events) if is_cut else np.full(num_events, np.inf)
        yield Sample(lasted_N[lasted_N <= clock_N], clock_N[lasted_N > clock_N])


def generated(family: str, num: int, num_events: int, *, how: str) -> Iterator[Sample]:
    """Gaps of generated traces: ``uncut`` (of the system, the same number of each), ``fresh`` or ``running`` ranks."""
    is_uncut = how == "uncut"
    spec = GeneratorSpec(
        model=family,
        shape=SHAPES[family],
        ranks=NUM_RANKS,
        per="system" if is_uncut else "rank",
        start="equilibrium" if how == "running" else "fresh",
        length_h=MEAN_H * num_events * 1.6 if is_uncut else MEAN_H * num_events / NUM_RANKS,
        mtbf_h=MEAN_H if is_uncut else MEAN_H / NUM_RANKS,
    )
    deaths = generate_many(spec, 0, num)
    for trial in range(num):
        hour_E, rank_E = deaths.of(trial)
        observed = Observed(hour_E, np.ones(len(hour_E), np.int64), rank_E, spec.length_h, NUM_RANKS)
        if is_uncut:
            ended_E = gaps_of(observed, "system").sample.ended_E
            yield Sample(ended_E[:num_events], np.zeros(0))
        else:
            yield gaps_of(observed, first="left_out" if how == "running" else "counted").sample


Make = Callable[[str, int, int], Iterator[Sample]]
WAYS: dict[str, tuple[Make, float]] = {
    "durations, none cut": (partial(drawn, is_cut=False), 0.95),
    "durations, some cut": (partial(drawn, is_cut=True), 0.95),
    "system, none cut": (partial(generated, how="uncut"), 0.99),
    "ranks from 0, last gap cut": (partial(generated, how="fresh"), 0.99),
    "ranks long running, last gap cut": (partial(generated, how="running"), 0.99),
}
"""How samples come about (of family, number, events in each), and the confidence of the intervals."""


def measure(how: str, family: str, num: int, num_events: int) -> list[Line]:
    """Fits of ``num`` samples: a line for each parameter."""
    make, confidence = WAYS[how]
    fits = [fit(family, sample, confidence=confidence) for sample in make(family, num, num_events)]
    return [
        {
            "how": how,
            "family": family,
            "parameter": name,
            "true": value,
            "confidence": confidence,
            "num": num,
            "num_held": sum(value in fitted.intervals[name] for fitted in fits),
            "mean_estimate": statistics.fmean(fitted.parameters[name] for fitted in fits),
        }
        for name, value in true_parameters(family).items()
    ]


HEAD = ("observed", "family", "parameter", "true", "mean estimate", "hold it", "within chance")


def row_of(line: Line) -> tuple[str, ...]:
    """Cells of the table; within chance is the range of the share if intervals hold with the confidence they claim."""
    share = line["num_held"] / line["num"]
    low, high = stats.binom.ppf([_OUTSIDE / 2, 1 - _OUTSIDE / 2], line["num"], line["confidence"]) / line["num"]
    return (
        *(f"{line['how']}, {line['confidence']:.0%}", line["family"], line["parameter"], f"{line['true']:.4g}"),
        *(f"{line['mean_estimate']:.4g}", f"{share:.1%} of {line['num']}"),
        f"{'yes' if low <= share <= high else 'NO'} ({low:.1%} to {high:.1%})",
    )


def main() -> None:
    """Measure, print the table, write it as JSON if asked."""
    made = parser(__doc__)
    made.add_argument("--trials", type=int, default=300, help="samples of durations for each family")
    made.add_argument("--traces", type=int, default=1000, help="generated traces for each family")
    made.add_argument("--events", type=int, default=400, help="in each, on average where time cuts")
    made.add_argument("--workers", type=int, default=2)
    options = made.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = [
            pool.submit(measure, how, family, options.trials if confidence < 0.99 else options.traces, options.events)
            for how, (_, confidence) in WAYS.items()
            for family in SHAPES
        ]
        lines = [line for each in waiting for line in each.result()]
    totals = []
    for how in WAYS:
        those = [line for line in lines if line["how"] == how]
        share = sum(line["num_held"] for line in those) / sum(line["num"] for line in those)
        totals.append(f"{how}: {share:.2%} of all parameters inside")
    report(options, [*table(HEAD, map(row_of, lines)), "", *totals], {"lines": lines})


if __name__ == "__main__":
    main()
