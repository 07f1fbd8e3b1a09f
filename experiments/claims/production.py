"""Judge and figure of claim `production`: the overhead of full recovery over simulated jobs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.claims import Row, confirms_nothing, within
from analysis.figures import colour
from analysis.stats import Estimate, estimate


def judge(results: Any) -> list[Row]:
    """Rows: the mean and P90 of the overhead of full recovery, for each length of the jobs.

    Costs were chosen so that the mean is the published one: agreement of either confirms nothing.
    """
    rows: list[Row] = []
    for length_h, own in results.groupby("length_h", sort=False):
        where = f"median job {length_h:g} h"
        tail = f"P90 of the overhead of `full`, % ({where})"
        drawn = own[own["what"] == "population"]
        if drawn.empty:
            most = f"at most {100 * own['p90'].max():.1f}"
            rows.append(Row(tail, "over 30 [read]", most, 1, "not reproduced", "no spread that was tried has it"))
            continue
        why = f"costs {drawn['scale'].iloc[0]:.2f} times those of `cpr56`; sigma {drawn['sigma'].iloc[0]:g}"
        drawn = drawn[drawn["strategy"] == "full"]
        mean, p90 = _over(drawn, np.mean), _over(drawn, lambda job: np.quantile(job, 0.9))
        row = within(f"mean overhead of `full`, % ({where})", "13 (12 to 14) [read]", mean, 12, 14, why=why)
        rows.append(confirms_nothing(row, "calibrated"))
        found = within(tail, "over 30 [read]", p90, 30, math.inf, why=why)
        rows.append(confirms_nothing(found, "calibrated") if found.verdict != "cannot be told" else found)
    return rows


def _over(drawn: Any, measure: Callable[[Any], Any]) -> Estimate | None:
    """The estimate, over simulated populations, of a ``measure`` of the jobs' overheads, in %."""
    return estimate(100 * drawn["overheads"].map(measure))


def draw(results: Any, ax: Any) -> None:
    """The distribution of overhead over jobs, by strategy and length of the jobs."""
    drawn = results[results["what"] == "population"]
    lines = dict(zip(drawn["length_h"].unique(), ("-", "--", "-."), strict=False))
    for (length_h, name), own in drawn.groupby(["length_h", "strategy"], sort=False):
        over_J = np.sort(100 * np.concatenate([*own["overheads"]]))
        shares_J = 100 * np.arange(1, len(over_J) + 1) / len(over_J)
        label = f"{name}, jobs of {length_h:g} h"
        ax.plot(over_J, shares_J, lines.get(length_h, ":"), color=colour(name), label=label)
    ax.plot([30], [90], "x", color="#222222", markeredgewidth=2, label="published P90")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlabel("overhead, % of the job (log above 1)")
    ax.set_ylabel("jobs with at most this overhead, %")
