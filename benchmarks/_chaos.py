"""What benchmarks/chaos.py draws: a run, a failure trace, and signals that no trace announces.

Signals by name and phase, and faults of traces by name and phase, are drawn so that a thousand rounds have each of them
more than twenty times.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._rounds import JOB_H, NUM_STEPS

SIGNALS: Mapping[str, tuple[str, signal.Signals]] = {
    "kill a PS rank": ("ps", signal.SIGKILL),
    "stop a PS rank": ("ps", signal.SIGSTOP),
    "kill the trainer": ("trainer", signal.SIGKILL),
    "stop the trainer": ("trainer", signal.SIGSTOP),
    "kill the fork server": ("fork server", signal.SIGKILL),
    "kill the run": ("run", signal.SIGKILL),
    "interrupt the run": ("run", signal.SIGINT),
    "terminate the run": ("run", signal.SIGTERM),
    "hang up the run": ("run", signal.SIGHUP),
}
"""Whom a signal goes to, and which one."""

PHASES = ("start", "train", "save", "recover", "eval")
"""What a run is doing, as the end of its record says, when a signal comes."""

_STRATEGIES = ("none", "full", "partial", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_scar", "cpr_mirror", "buddy")
_SAVES_ONCE = ("none", "buddy")
_SURVIVED = tuple(name for name, (whom, _) in SIGNALS.items() if whom == "ps")
_SHARES = {"start": 4, "train": 4, "save": 6, "recover": 5, "eval": 6}  # a short phase is missed more often
_SURVIVED_SHARES = {"start": 6, "train": 4, "save": 7, "recover": 14, "eval": 8}  # the run has often ended
_DELAY_S = {"save": 0.01, "recover": 0.01, "eval": 0.01}  # as long as the phase, or it is missed
_LATEST = {"save": 0.25}  # of the run: there must be saves to come
_CELLS = [
    (name, phase)
    for turn in range(max(_SHARES.values()))
    for phase in PHASES
    if turn < _SHARES[phase]
    for name in SIGNALS
    if name not in _SURVIVED
]
_CALM_EVERY = 25  # rounds
_PAUSED = 0.2  # of the rounds
_RANK_FAULTS = {"kill": 0.44, "hang": 0.28, "partition": 0.28}
_DISK_FAULTS = {"slow": 0.34, "disk_full": 0.33, "disk_error": 0.33}
_PHASE_WEIGHTS = {
    "boundary": 1, "lookup": 1, "apply": 1, "eval": 1, "save": 3, "manifest": 3, "restore": 2, "regroup": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A signal, ``delay_s`` after the record says that the run has reached ``phase``, at ``step`` or later."""

    name: str
    phase: str
    step: int
    delay_s: float


@dataclass(frozen=True)
class Round:
    """What a round tries."""

    settings: Mapping[str, Any]
    trace: str
    faults: tuple[Fault, ...]
    pauses: bool
    """Whether its processes are stopped for a moment, one after another."""


def drawn(rng: np.random.Generator, number: int) -> Round:
    """The random round of a number; some get no signal, and of these most have a bit that flips."""
    cells = list(_cells(rng, number))
    flips_a_bit = not cells and rng.random() < 0.7
    phases = {phase for _, phase in cells}
    num_ps = int(rng.integers(2, 5))
    strategies = [
        name
        for name in _STRATEGIES
        if not (name == "none" and "recover" in phases)
        and not (name in _SAVES_ONCE and ("save" in phases or flips_a_bit))
    ]
    strategy = str(rng.choice(strategies))
    is_one_process = all(SIGNALS[name][0] == "run" for name, _ in cells) and rng.random() < 0.3
    modes = ["none", "none", "lookahead"] + ([] if strategy == "cpr_mirror" else ["stale"])
    settings = {
        "engine": "local" if is_one_process else "rpc",
        "seed": int(rng.integers(1000)),
        "strategy": {"name": strategy},
        "cache": {"mode": str(rng.choice(modes))},
        "save": {"mode": str(rng.choice(["sync", "async"]))},
        "cluster": {"num_ps": num_ps, "spares": int(rng.integers(2)), "rpc_timeout_s": 3.0, "join_timeout_s": 5.0},
        "store": {"fsync": bool(rng.random() < 0.2)},
        "eval": {"points": 8},
    }
    num_failures = 0 if strategy == "none" else int(rng.integers("recover" in phases, 7))
    hours = sorted(rng.uniform(0, JOB_H, num_failures).round(3).tolist())
    faults = [
        Fault(
            name=name,
            phase=phase,
            step=int(rng.uniform(0, hours[-1] / JOB_H if phase == "recover" else _LATEST.get(phase, 0.5)) * NUM_STEPS),
            delay_s=float(rng.choice([0.0, 0.0, 0.0, rng.uniform(0, _DELAY_S.get(phase, 0.1))])),
        )
        for name, phase in cells
    ]
    lines = [*_failures(rng, hours, strategy, num_ps), *([_flip(rng, num_ps)] if flips_a_bit else [])]
    head = ("# title: made by a benchmark", "hour,rank,phase,fault,factor,repair_h")
    ordered = sorted(lines, key=lambda line: float(line.split(",")[0]))
    return Round(settings, "\n".join([*head, *ordered, ""]), tuple(faults), pauses=bool(rng.random() < _PAUSED))


def _cells(rng: np.random.Generator, number: int) -> Iterator[tuple[str, str]]:
    """Signals and the phases they come in: perhaps one that a run survives, and one that ends it, each in its turn."""
    if number % _CALM_EVERY == 0:
        return
    if rng.random() < 0.8:
        yield str(rng.choice(_SURVIVED)), _one_of(rng, _SURVIVED_SHARES)
    yield _CELLS[(number - number // _CALM_EVERY - 1) % len(_CELLS)]


def _failures(rng: np.random.Generator, hours: list[float], strategy: str, num_ps: int) -> Iterator[str]:
    """Lines of a trace. Each of their phases is sure to come: the last failure is one at a boundary."""
    for number, hour in enumerate(hours):
        is_last, is_early = number == len(hours) - 1, hour < JOB_H / 2
        saves = strategy not in _SAVES_ONCE and is_early
        phases = ["boundary", "lookup", "apply", "eval"] + (["save", "manifest"] if saves else [])
        if strategy != "buddy":  # ranks that die in a recovery may be those of a pair
            phases += ["restore", "regroup"]
        fault, phase = _one_of(rng, _RANK_FAULTS), _one_of(rng, {name: _PHASE_WEIGHTS[name] for name in phases})
        if not is_last and rng.random() < 0.25:
            fault = _one_of(rng, _DISK_FAULTS if saves else {"slow": 1.0})
        rank = f"ps{rng.integers(num_ps)}"
        if is_last:
            yield f"{hour},{rank},boundary,{fault},,"
        elif fault == "slow":
            yield f"{hour},{rank},,slow,2.5,3"
        else:
            yield f"{hour},{rank},{'save' if fault.startswith('disk') else phase},{fault},,"


def _flip(rng: np.random.Generator, num_ps: int) -> str:
    return f"{round(float(rng.uniform(JOB_H / 2, JOB_H)), 3)},ps{rng.integers(num_ps)},,bitflip,,"


def _one_of(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    shares = np.array([*weights.values()], dtype=np.float64)
    return str(rng.choice([*weights], p=shares / shares.sum()))
