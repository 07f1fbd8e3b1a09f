"""What benchmarks show of costs: memory and time of trackers, and what failures cost a population of jobs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.claims.rows import Row, calibrated, joined, measured, shown, within
from analysis.load import Cell
from analysis.stats import Estimate, estimate

_MEMORY = {  # percent of the tracked tables [recalled], and what counts as that
    ("mfu", "16"): ("6.25", 6.2, 6.3),
    ("mfu", "128"): ("0.78", 0.775, 0.785),
    ("ssu", "16"): ("r of MFU's: 0.78", 0.775, 0.785),
    ("ssu", "128"): ("r of MFU's: 0.098", 0.097, 0.099),
    ("scar", "16"): ("100", 99.9, 100.1),
    ("scar", "128"): ("100", 99.9, 100.1),
}
_DIMS = ("16", "128")
_AIM_PCT = 4.0


def trackers(results: Sequence[Cell]) -> list[Row]:
    """Memory as a part of the tracked tables, and time as a part of a step."""
    sizes = [_memory_row(each["tracker"], dim, 100 * each["memory_fracs"][dim]) for each in results for dim in _DIMS]
    return [*sizes, *(_time_row(each) for each in results)]


def _memory_row(name: str, dim: str, pct: float) -> Row:
    what, ours = f"memory of `{name}`, % of the tables that it tracks, dim {dim}", f"{pct:.3f}"
    if (name, dim) not in _MEMORY:
        return Row(what, "–", ours, 1, "ours")
    paper, low, high = _MEMORY[name, dim]
    why = "the lists, and a bit a row that says whether it is in one" if name == "ssu" else ""
    return replace(measured(what, f"{paper} [recalled]", [pct], low, high, why=why), ours=ours)  # it is counted


def _time_row(each: Cell) -> Row:
    """Touching rows in each step, and the last choice measured spread over its interval. The aim: trackers.py.

    A time below 0 is noise; below minus the aim, so much that nothing can be told.
    """
    steps, save_pct = [*each["saves_pct"].items()][-1]
    aim = "–" if each["tracker"] == "scar" else f"at most {_AIM_PCT:g} (own aim)"
    why = f"of it {save_pct:.2f} for choosing rows every {int(steps):,} steps"
    values = [pct + save_pct for pct in each["steps_pct"]]
    row = measured(f"time of `{each['tracker']}`, % of a step", aim, values, -math.inf, _AIM_PCT, why=why)
    is_noise = aim != "–" and min(values) < -_AIM_PCT
    noise = f"a round is below −{_AIM_PCT:g}: the machine was not quiet"
    return replace(row, verdict="cannot be told", why=joined(noise, why)) if is_noise else row


def production(results: Sequence[Cell]) -> list[Row]:
    """Whether a spread of costs over jobs has the published mean and P90, and what CPR would cost the same jobs."""
    rows: list[Row] = []
    for length_h in dict.fromkeys(each["length_h"] for each in results):
        own = [each for each in results if each["length_h"] == length_h]
        where = f"median job {length_h:g} h"
        tail = f"P90 of the overhead of `full`, % ({where})"
        drawn = [each for each in own if each["what"] == "population"]
        if not drawn:
            most = f"at most {max(100 * each['p90'] for each in own):.1f}"
            rows.append(Row(tail, "over 30 [read]", most, 1, "not reproduced", "no spread that was tried has it"))
            continue
        why = f"costs {drawn[0]['scale']:.2f} times those of `cpr56`; sigma {drawn[0]['sigma']:g}"
        mean = f"mean overhead of `full`, % ({where})"
        rows.append(calibrated(within(mean, "13 (12 to 14) [read]", over(drawn, "full", np.mean), 12, 14, why=why)))
        found = within(tail, "over 30 [read]", over(drawn, "full", p90), 30, math.inf, why=why)
        rows.append(calibrated(found) if found.verdict == "reproduced" else found)
        for name in dict.fromkeys(each["strategy"] for each in drawn if each["strategy"] != "full"):
            for what, measure in (("mean", np.mean), ("P90", p90)):
                if (value := over(drawn, name, measure)) is not None:
                    text = f"{what} overhead of `{name}` on the same jobs, % ({where})"
                    rows.append(Row(text, "–", shown(value), value.num, "ours"))
    return rows


def over(drawn: Sequence[Cell], strategy: str, measure: Callable[[Any], Any]) -> Estimate | None:
    """A measure of the overheads of a population's jobs, percent: its estimate from all populations."""
    return estimate(100 * float(measure(each["overheads"])) for each in drawn if each["strategy"] == strategy)


def p90(values: Sequence[float]) -> float:
    """The value that a tenth of the jobs exceed."""
    return float(np.quantile(values, 0.9))
