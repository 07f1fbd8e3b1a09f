"""Judges of the papers' claims: functions from results to rows.

Array letters: S seeds, T evaluations after the failure.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.claims.expect import values_of
from analysis.claims.measures import LOSS, matching
from analysis.claims.rows import (
    NO_RUN,
    UNPUBLISHED,
    Row,
    Verdict,
    confirms_nothing,
    joined,
    shown,
    signed,
    study,
    within,
)
from analysis.load import Frame
from analysis.stats import BASELINE, DEFAULT_MARGIN, Estimate, estimate, regimes_of, strategy_order, verdicts_of
from harness.core.events import Evaluated
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

_LEAST_CELLS = 3  # of one seed, that a slope needs
_DIVIDES = "strategy.interval_counts_ranks"
_LAW = "trace.law"


def quality(cells: Frame) -> list[Row]:
    """A row for each CPR variant: its AUC loss to ``none``, which has full recovery's AUC, judged by the margin."""
    rows: list[Row] = []
    blocks = regimes_of(cells)
    for block, found in zip(blocks, verdicts_of(blocks), strict=True):
        where = f"`{block.setting['profile']}`" + ", interval not divided by k" * (block.setting.get(_DIVIDES) is False)
        for each in found:
            if not each.strategy.startswith("cpr_"):
                continue
            words: Mapping[str, Verdict] = {"inferior": "not reproduced", "open": "cannot be told"}
            what = f"AUC loss of `{each.strategy}`, 10⁻³ ({where}; margin {1e3 * DEFAULT_MARGIN:g})"
            verdict: Verdict = words.get(each.verdict, "reproduced")
            shown_loss = shown(each.loss, 1e3)
            rows.append(
                Row(what, "on par with full recovery [read]", shown_loss, each.loss.num, verdict, each.sentence)
            )
    return rows


def resolution(cells: Frame) -> list[Row]:
    """A row for each profile: the loss of ``never_save``, in half-widths of the interval of ``cpr_mfu``.

    Reproduced if it is 10 or more: then the grid can tell strategies apart.
    """
    rows: list[Row] = []
    for profile in ("cpr56", "poster50"):
        own = matching(cells, {"profile": profile, _DIVIDES: [True, None]})
        control, other = (LOSS.mean(matching(own, {"strategy": name}), cells) for name in ("never_save", "cpr_mfu"))
        if control is None or other is None or not other.half_width:
            continue
        ratio = control.mean / other.half_width
        rows.append(
            Row(
                f"AUC loss of `never_save` in half-widths of the interval of `cpr_mfu` (`{profile}`)",
                f"{UNPUBLISHED} (aim: at least 10)",
                f"{ratio:.1f}",
                control.num,
                "reproduced" if ratio >= 10 else "not reproduced",
                f"`never_save` loses {shown(control)}, `cpr_mfu` {shown(other)} (10⁻³)",
            )
        )
    return rows


_OF_RESULT = ("auc", "log_loss", "train_loss", "pls", "update_pls", "overhead_frac", "payload_bytes", "num_lost_ranks")


def agreement(cells: Frame) -> list[Row]:
    """A row: the number of cells, of those that ran on both engines, whose results are equal to the last bit."""
    what = "runs of 4 + 6 processes (`rpc`) equal to those of `local` to the last bit, of all"
    by_cell = [own for _, own in cells.groupby(["profile", "strategy", "seed"])]
    both = [own.reindex(columns=_OF_RESULT) for own in by_cell if own["engine"].nunique() > 1]
    num_equal = sum(len(own.drop_duplicates()) == 1 for own in both)
    verdict: Verdict = "cannot be told" if not both else "reproduced" if num_equal == len(both) else "not reproduced"
    why = {"cannot be told": NO_RUN, "not reproduced": "results differ"}.get(verdict, "")
    return [Row(what, "all (own claim)", f"{num_equal} of {len(both)}", len(both), verdict, why)]


def slopes(cells: Frame) -> list[Row]:
    """Rows: each strategy's slope of AUC loss over PLS, and priority strategies' slopes minus cpr_vanilla's."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    rows: list[Row] = []
    by_name: dict[str, dict[Any, float]] = {}
    for name, own in cells[cells["strategy"] != BASELINE].groupby("strategy", sort=False):
        points = pd.DataFrame({"x": 100 * own["pls"], "y": LOSS.values(own, cells), "seed": own["seed"]}).dropna()
        by_seed = {seed: slope(each) for seed, each in points.groupby("seed") if len(each) >= _LEAST_CELLS}
        by_name[name], value = by_seed, estimate(by_seed.values())
        if value is None:
            continue
        what = f"AUC loss for each percent of lost samples, 10⁻³, `{name}`"
        why = f"correlation {_correlation(points):.2f}, residual {_residual(points):.2f}·10⁻³; {value.num} seeds"
        paper = UNPUBLISHED
        if name == "cpr_vanilla":
            paper, why = "linear, correlation about 0.88 [recalled]", f"judged: that the slope is above 0; {why}"
        rows.append(replace(signed(what, paper, value, sign=1, why=why), num=len(points)))
    for name in ("cpr_mfu", "cpr_ssu"):
        both = by_name.get(name, {}).keys() & by_name.get("cpr_vanilla", {}).keys()
        value = estimate([by_name[name][seed] - by_name["cpr_vanilla"][seed] for seed in sorted(both)])
        if value is not None:
            what = f"slope of `{name}` less that of `cpr_vanilla`"
            rows.append(signed(what, "lower [recalled]", value, sign=-1, why="paired by seed"))
    return rows


def slope(points: Frame) -> float:
    """The least-squares slope of column ``y`` over ``x`` through the origin, since no lost samples mean no loss."""
    squares = math.fsum(points["x"] ** 2)
    return math.fsum(points["x"] * points["y"]) / squares if squares else 0.0


def _residual(points: Frame) -> float:
    """Root mean squared distance, in ``y``, of the points from their line (:func:`slope`)."""
    return math.sqrt(math.fsum((points["y"] - slope(points) * points["x"]) ** 2) / len(points))


def _correlation(points: Frame) -> float:
    losses_AP = points[["x", "y"]].to_numpy().T
    return float(np.corrcoef(losses_AP)[0, 1]) if losses_AP.std(axis=1).all() else math.nan


@dataclass(frozen=True)
class Healing:
    """AUC lost by one strategy at the evaluations after one failure: AUC of ``none`` of the same seed minus its own.

    ``law``: the trace's law, ``at:HOUR``. ``job_h``: hours of the emulated job.
    """

    strategy: str
    law: str
    job_h: float
    hours_T: NDArray[np.float64]
    """Emulated hours of training since the failure."""
    losses_ST: NDArray[np.float64]

    @property
    def half_h(self) -> Estimate | None:
        """Hours from the first evaluation after the failure until the mean loss is half of its value there.

        The interval is by the jackknife over seeds. None if the mean loss, of all seeds or without any one of them, is
        not above 0 at first or never falls to half.
        """
        num = len(self.losses_ST)
        whole = self._half_h(self.losses_ST)
        without_S = [self._half_h(np.delete(self.losses_ST, s, axis=0)) for s in range(num)] if num > 1 else []
        if whole is None or None in without_S:
            return None
        return estimate([num * whole - (num - 1) * other for other in without_S if other is not None] or [whole])

    def _half_h(self, losses_ST: NDArray[np.float64]) -> float | None:
        means_T = losses_ST.mean(axis=0)
        below = np.flatnonzero(means_T <= means_T[0] / 2)
        if means_T[0] <= 0 or not len(below):
            return None
        last = below[0]
        part = (means_T[last - 1] - means_T[0] / 2) / (means_T[last - 1] - means_T[last])
        return float(self.hours_T[last - 1] + part * (self.hours_T[last] - self.hours_T[last - 1]) - self.hours_T[0])


def healings(cells: Frame) -> list[Healing]:
    """A :class:`Healing` for each strategy and hour of the failure, of the seeds that have a run of ``none``.

    Raises StoreError if a record cannot be read.
    """
    is_reference = cells["strategy"] == BASELINE
    reference = {seed: _points(path) for seed, path in cells.loc[is_reference, ["seed", "path"]].to_numpy().tolist()}
    lossy = cells[~is_reference & cells["seed"].isin([*reference])]
    found: list[Healing] = []
    for name in sorted(lossy["strategy"].unique(), key=strategy_order):
        for law in values_of(lossy, _LAW):
            own = matching(lossy, {"strategy": name, _LAW: law})
            if own.empty:
                continue
            job_h = float(own["job_h"].iloc[0])
            curves = [(_points(path), reference[seed]) for seed, path in own[["seed", "path"]].to_numpy().tolist()]
            hour = float(hour_of(law))
            total = max(curves[0][0])
            after = [at for at in sorted(curves[0][0]) if job_h * at / total > hour]
            losses_ST = np.array([[other[at] - points[at] for at in after] for points, other in curves])
            found.append(Healing(name, law, job_h, job_h * np.array(after) / total - hour, losses_ST))
    return found


def _points(path: str) -> dict[int, float]:
    """AUC at each evaluation of the run in folder ``path``, by the number of samples trained before."""
    events = EventLog.of(RunDir(Path(path))).events
    return {event.samples: event.auc for event in events if isinstance(event, Evaluated) and event.auc is not None}


def healing(cells: Frame) -> list[Row]:
    """A row for each strategy and hour of the failure: the hours until the AUC loss is halved (``half_h``)."""
    rows: list[Row] = []
    for each in healings(cells):
        first, half = estimate(each.losses_ST[:, 0]), each.half_h
        if first is None or len(each.hours_T) < 2:
            continue
        what = f"`{each.strategy}`, failure {each.law}: hours from the first evaluation until the loss is halved"
        why = f"{shown(first, 1e3)}·10⁻³ at {each.hours_T[0]:.1f} h"
        if half is None:
            rows.append(Row(what, "–", "–", len(each.losses_ST), "cannot be told", f"{why}; not halved for all seeds"))
        else:
            why += f"; {shown(half, 100 / each.job_h, 1)} % of the job"
            rows.append(study(what, shown(half), half.num, f"{why}; jackknife over seeds"))
    return rows


def hour_of(law: str) -> str:
    """``HOUR`` in the law ``at:HOUR``."""
    return law.partition(":")[2]


_SHOWN_FRACS = (0.001, 0.01, 0.1)
_PAPER_FRAC, _PAPER_SHARE = 0.01, 0.92
_PAPER = "over 92 [read]"
_LEAST_SAMPLES = 1_000_000  # of real data, for a share below the published one to count: it grows with the samples
_ASKED_FOR = "the generator's law was fitted to a sample of Criteo Kaggle"


def accesses(results: Frame) -> list[Row]:
    """Rows: the share of accesses of the most accessed rows. Synthetic data, whose skew was chosen, are not judged."""
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
    """Rows: the mean and P90 of the overhead of each strategy in simulated jobs; judged for full recovery.

    The costs of the jobs were chosen so that full recovery's mean is the published one.
    """
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
    """The estimate, over simulated populations, of a ``measure`` of the jobs' overheads, such as their mean, in %."""
    return estimate(100 * drawn.loc[drawn["strategy"] == strategy, "overheads"].map(measure))


def _p90(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.9))


_TOLERANCE = 0.06


def power(studies: Frame) -> list[Row]:
    """A row for each kind of simulated study: the share of studies that find the difference.

    Reproduced if the share is within 6 percentage points of the promised power.
    """
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
