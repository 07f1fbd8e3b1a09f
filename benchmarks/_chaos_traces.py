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
    "boundary": 1, "lookup": 1, "forward": 1, "apply": 1, "eval": 1,
    "save": 2, "manifest": 2, "restore": 1, "regroup": 1,
}  # fmt: skip
_MAX_OTHERS = 3
_OF_ANY = tuple(fault for fault, kind in FAULTS.items() if kind.takes_trainers)
_OF_TRAINERS = 0.5  # of such faults, where there are several trainers


def trace_of(
    rng: np.random.Generator,
    turn: tuple[str, str],
    num_ps: int,
    num_trainers: int,
    *,
    saves: bool,
    has_pairs: bool,
    flips: bool,
    ends_all: bool,
) -> str:
    """A trace with the fault ``turn``. Each of its phases is sure to come: the last death is one at a boundary.

    Args:
        saves: whether the strategy saves after the start.
        has_pairs: whether a rank may die with its replica.
        flips: whether a bit of a file flips late in the job.
        ends_all: whether all trainers are killed at one boundary.
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
    rows = _rows(rng, lines, num_ps, num_trainers)
    if ends_all:
        hour = _hour(rng, 0.02, 0.58)
        rows += [(hour, f"trainer{index}", "boundary,kill,,") for index in range(num_trainers)]
    return _text(rows, "hour,rank,phase,fault,factor,repair_h")


def plain_trace(rng: np.random.Generator, num_ps: int, fault: str | None) -> str:
    """A trace of deaths without phases. ``fault``: of the last one; None: all are kills, without a column for it."""
    hours = [*sorted(_hour(rng, 0.02, 0.6) for _ in range(int(rng.integers(_MAX_OTHERS)))), _hour(rng, 0.6, 1)]
    if fault is None:
        return _text(_rows(rng, [(hour, "") for hour in hours], num_ps), "hour,rank,note")
    lines = [(hour, f"{one_of(rng, _DEATHS)},") for hour in hours[:-1]] + [(hours[-1], f"{fault},")]
    return _text(_rows(rng, lines, num_ps), "hour,rank,fault,note")


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


def _rows(
    rng: np.random.Generator, lines: list[tuple[float, str]], num_ps: int, num_trainers: int = 1
) -> list[tuple[float, str, str]]:
    """The lines with ranks: PS ranks, in all lines but the last also trainers, all but one of which strike once."""
    trainers = [f"trainer{index}" for index in rng.permutation(num_trainers)[1:]]
    rows: list[tuple[float, str, str]] = []
    for hour, words in sorted(lines):
        rank = f"ps{rng.integers(num_ps)}"
        is_of_any = (hour, words) != max(lines) and any(f",{fault}," in f",{words}" for fault in _OF_ANY)
        if is_of_any and trainers and rng.random() < _OF_TRAINERS:
            rank = trainers.pop()
        rows.append((hour, rank, words))
    return rows


def _text(rows: list[tuple[float, str, str]], columns: str) -> str:
    lines = [f"{hour},{rank},{words}" for hour, rank, words in sorted(rows)]
    return "\n".join(["# title: made by a benchmark", columns, *lines, ""])


def _hour(rng: np.random.Generator, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)) * JOB_H, 3)


def one_of(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    """A name, drawn by the weights."""
    shares = np.array([*weights.values()], dtype=np.float64)
    return str(rng.choice([*weights], p=shares / shares.sum()))
