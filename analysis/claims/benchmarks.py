"""Judges that compute with results of benchmarks: skew of accesses, populations of jobs, power of tests."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.claims.rows import Row, Verdict, confirms_nothing, joined, shown, study, within
from analysis.load import Frame
from analysis.stats import Estimate, estimate

_SHOWN_FRACS = (0.001, 0.01, 0.1)
_PAPER_FRAC, _PAPER_SHARE = 0.01, 0.92
_PAPER = "over 92 [read]"
_LEAST_SAMPLES = 1_000_000  # of real data, for a share below the published one to count: it grows with the samples
_ASKED_FOR = "the generator's law was fitted to a sample of Criteo Kaggle"


def accesses(results: Frame) -> list[Row]:
    """Rows: the share of accesses of the most accessed rows. Synthetic data are not judged: their skew was chosen."""
    rows: list[Row] = []
    for each in results.to_dict("records"):
        if each["tables"] != "all" or each["frac"] not in _SHOWN_FRACS:
            continue
        kind = "synthetic" if each["is_synthetic"] else "real"
        what = f"accesses of the top {100 * each['frac']:g} % of rows, % (`{each['data']}`, {kind})"
        ours, num = f"{100 * each['share']:.1f}", each["num_samples"]
        why = f"{each['num_rows']:,} rows, {num:,} samples"
        if each["frac"] != _PAPER_FRAC:
            rows.append(study(what, ours, num, why))
            continue
        verdict, reason = _share_verdict(each)
        rows.append(Row(what, _PAPER, ours, num, verdict, joined(reason, why)))
    return rows or [Row("accesses of the top 1 % of rows, %", _PAPER, "–", 0, "cannot be told", "no data")]


def _share_verdict(each: Mapping[str, Any]) -> tuple[Verdict, str]:
    if each["is_synthetic"]:
        return "cannot be told", _ASKED_FOR
    if each["share"] > _PAPER_SHARE:
        return "reproduced", ""
    if each["num_samples"] < _LEAST_SAMPLES:
        return "cannot be told", f"fewer than {_LEAST_SAMPLES:,} samples, and the share grows with them"
    return "not reproduced", "the share is 92 % or less"


def production(results: Frame) -> list[Row]:
    """Rows: whether a population of jobs has the published mean and P90 of overhead, and CPR's overhead on them."""
    rows: list[Row] = []
    for length_h, own in results.groupby("length_h", sort=False) if len(results) else ():
        where = f"median job {length_h:g} h"
        tail = f"P90 of the overhead of `full`, % ({where})"
        drawn = own[own["what"] == "population"]
        if drawn.empty:
            most = f"at most {100 * own['p90'].max():.1f}"
            rows.append(Row(tail, "over 30 [read]", most, 1, "not reproduced", "no spread that was tried has it"))
            continue
        why = f"costs {drawn['scale'].iloc[0]:.2f} times those of `cpr56`; sigma {drawn['sigma'].iloc[0]:g}"
        mean = f"mean overhead of `full`, % ({where})"
        rows.append(
            confirms_nothing(
                within(mean, "13 (12 to 14) [read]", _over(drawn, "full", np.mean), 12, 14, why=why), "calibrated"
            )
        )
        found = within(tail, "over 30 [read]", _over(drawn, "full", _p90), 30, math.inf, why=why)
        rows.append(confirms_nothing(found, "calibrated") if found.verdict == "reproduced" else found)
        for name in drawn.loc[drawn["strategy"] != "full", "strategy"].unique():
            for what, measure in (("mean", np.mean), ("P90", _p90)):
                if (value := _over(drawn, name, measure)) is not None:
                    text = f"{what} overhead of `{name}` on the same jobs, % ({where})"
                    rows.append(study(text, shown(value), value.num))
    return rows


def _over(drawn: Frame, strategy: str, measure: Callable[[Any], Any]) -> Estimate | None:
    """The estimate, over simulated populations, of a ``measure`` of their jobs' overheads, in percent."""
    return estimate(100 * drawn.loc[drawn["strategy"] == strategy, "overheads"].map(measure))


def _p90(values: Sequence[float]) -> float:
    """The 90th percentile."""
    return float(np.quantile(values, 0.9))


_TOLERANCE = 0.06


def power(studies: Frame) -> list[Row]:
    """A row for each kind of study: the share of studies that find the difference, within 80 ± 6 % or not."""
    rows: list[Row] = []
    for each in studies.to_dict("records"):
        share = each["found"] / each["studies"]
        half_width = 1.96 * math.sqrt(share * (1 - share) / each["studies"])
        unit = "standard deviation" + "s" * (each["difference"] != 1)
        what = (
            f"studies that find a difference of {each['difference']:g} {unit}, % "
            f"({each['noise']} differences; spread {each['spread']}; pairs {each['pairs']})"
        )
        over = share - each["promised"]
        is_kept = abs(over) <= _TOLERANCE
        why = "judged by the share, not by its interval"
        if not is_kept:
            why += f"; {100 * abs(over):.1f} points {'above' if over > 0 else 'below'}"
        rows.append(
            Row(
                what,
                f"{100 * each['promised']:g} ± {100 * _TOLERANCE:g} (own claim)",
                f"{100 * share:.1f} ± {100 * half_width:.1f}",
                each["studies"],
                "reproduced" if is_kept else "not reproduced",
                why,
            )
        )
    return rows
