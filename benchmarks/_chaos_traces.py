"""The failure traces of benchmarks/chaos.py: a fault in its turn, others at random, and a last death at a boundary."""

from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks._rounds import JOB_H
from harness.core.faults import FAULTS, PHASES

TURNS = (
    *((fault, phase) for phase in PHASES for fault, kind in FAULTS.items() if kind.loss),
    *(("disk_full", "save"), ("disk_error", "save"), ("slow", "boundary")),
)
"""Faults of a trace and the phases they strike in; a round has one of them for certain, each in its turn."""

NEEDS_SAVES = ("save", "manifest")
"""Phases that come only if the strategy saves after the start."""
MAY_END_A_PAIR = ("restore", "regroup")
"""Phases in which a rank may die together with its replica."""

_DEATHS = {"kill": 0.94, "hang": 0.03, "partition": 0.03}  # those that are not killed take a deadline to be found
_DISK_FAULTS = ("slow", "disk_full", "disk_error")
_PHASE_WEIGHTS = {
    "boundary": 1, "lookup": 1, "apply": 1, "eval": 1, "save": 2, "manifest": 2, "restore": 1, "regroup": 1,
}  # fmt: skip
_MAX_OTHERS = 3


def trace_of(
    rng: np.random.Generator, turn: tuple[str, str], num_ps: int, *, saves: bool, has_pairs: bool, flips: bool
) -> str:
    """A trace with the fault ``turn``. Each of its phases is sure to come: the last death is one at a boundary.

    Args:
        saves: whether the strategy saves after the start.
        has_pairs: whether a rank may die with its replica.
        flips: whether a bit of a file flips late in the job.
    """
    fault, phase = turn
    is_last = phase == "boundary" and FAULTS[fault].loss is not None
    last_hour = _hour(rng, 0.6, 1)
    lines = [(last_hour, f"boundary,{fault if is_last else one_of(rng, _DEATHS)},,")]
    if not is_last:
        lines.append((_hour(rng, 0.02, 0.5 if phase in NEEDS_SAVES else 0.58), _words(fault, phase)))
    lines += _others(rng, saves=saves, has_pairs=has_pairs)
    if flips:
        lines.append((_hour(rng, 0.5, 1), ",bitflip,,"))
    return _text(rng, lines, num_ps, "hour,rank,phase,fault,factor,repair_h")


def plain_trace(rng: np.random.Generator, num_ps: int, fault: str | None) -> str:
    """A trace of deaths without phases. ``fault``: of the last one; None: all are kills, without a column for it."""
    hours = [*sorted(_hour(rng, 0.02, 0.6) for _ in range(int(rng.integers(_MAX_OTHERS)))), _hour(rng, 0.6, 1)]
    if fault is None:
        return _text(rng, [(hour, "") for hour in hours], num_ps, "hour,rank,note")
    lines = [(hour, f"{one_of(rng, _DEATHS)},") for hour in hours[:-1]] + [(hours[-1], f"{fault},")]
    return _text(rng, lines, num_ps, "hour,rank,fault,note")


def _others(rng: np.random.Generator, *, saves: bool, has_pairs: bool) -> Iterator[tuple[float, str]]:
    for _ in range(int(rng.integers(_MAX_OTHERS + 1))):
        is_early = saves and rng.random() < 0.6
        hour = _hour(rng, 0.02, 0.5) if is_early else _hour(rng, 0.02, 0.58)
        left_out = (*(() if is_early else NEEDS_SAVES), *(MAY_END_A_PAIR if has_pairs else ()))
        phase = one_of(rng, {name: weight for name, weight in _PHASE_WEIGHTS.items() if name not in left_out})
        if rng.random() < 0.2:
            fault = str(rng.choice(_DISK_FAULTS)) if is_early else "slow"
            yield hour, _words(fault, "save")
        else:
            yield hour, _words(one_of(rng, _DEATHS), phase)


def _words(fault: str, phase: str) -> str:
    """The columns of a line from ``phase`` on."""
    return ",slow,2.5,3" if fault == "slow" else f"{phase},{fault},,"


def _text(rng: np.random.Generator, lines: list[tuple[float, str]], num_ps: int, columns: str) -> str:
    rows = [f"{hour},ps{rng.integers(num_ps)},{words}" for hour, words in sorted(lines)]
    return "\n".join(["# title: made by a benchmark", columns, *rows, ""])


def _hour(rng: np.random.Generator, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)) * JOB_H, 3)


def one_of(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    """A name, drawn by the weights."""
    shares = np.array([*weights.values()], dtype=np.float64)
    return str(rng.choice([*weights], p=shares / shares.sum()))
