"""What benchmarks/chaos.py draws: a run, a failure trace, and signals that no trace announces.

Signals by name and phase, and faults of traces by name and phase, are drawn so that a thousand rounds have each of them
more than twenty times.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._chaos_traces import MAY_END_A_PAIR, NEEDS_SAVES, TURNS, one_of, plain_trace, trace_of
from benchmarks._rounds import NUM_STEPS
from harness.config.model import TrainerConfig
from harness.core.faults import FAULTS
from harness.model.backends import choose_backend

SIGNALS: Mapping[str, tuple[str, signal.Signals]] = {
    "kill a PS rank": ("ps", signal.SIGKILL),
    "stop a PS rank": ("ps", signal.SIGSTOP),
    "pause the run": ("run", signal.SIGSTOP),
    "pause the fork server": ("fork server", signal.SIGSTOP),
    "kill the trainer": ("trainer", signal.SIGKILL),
    "stop the trainer": ("trainer", signal.SIGSTOP),
    "kill the fork server": ("fork server", signal.SIGKILL),
    "stop the fork server": ("fork server", signal.SIGSTOP),
    "kill the run": ("run", signal.SIGKILL),
    "interrupt the run": ("run", signal.SIGINT),
    "terminate the run": ("run", signal.SIGTERM),
    "hang up the run": ("run", signal.SIGHUP),
}
"""Which processes a signal goes to, and which one it is. What is paused is continued after some time."""

PHASES = ("start", "train", "save", "recover", "eval")
"""What a run is doing, as the end of its record says, when a signal comes."""

RPC_TIMEOUT_S, JOIN_TIMEOUT_S = 1.6, 2.6
"""Deadlines of ranks (``cluster.rpc_timeout_s``, ``cluster.join_timeout_s``)."""

HARMLESS: Mapping[str, tuple[float, float]] = {"pause the run": (0.4, 2.2), "pause the fork server": (0.3, 1.5)}
"""Signals that no run may fail from: the least and the greatest number of seconds until the process goes on."""

LOSES_A_TRAINER = tuple(name for name, (whom, _) in SIGNALS.items() if whom == "trainer")
"""Signals that end a run with one trainer. One of several is replaced, and nothing is lost with it."""

LOSES_A_RANK = tuple(name for name, (whom, _) in SIGNALS.items() if whom == "ps")
"""Signals after which a run may go on without what a rank had not saved."""

CELLS = tuple(
    (name, phase) for name in SIGNALS for phase in PHASES if (name, phase) != ("stop the fork server", "start")
)
"""Signals and phases that are drawn. A fork server has 300 s for its first answer: it is not stopped at the start."""

_STRATEGIES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "none": {},
    "never_save": {},
    "full": {},
    "partial": {},
    "cpr_vanilla": {},
    "cpr_random": {"pool": ("touched", "all")},
    "cpr_mfu": {"untracked": ("priority", "interval"), "r": (0.125, 0.25)},
    "cpr_ssu": {"eviction": ("random", "oldest"), "period": (1, 2, 5)},
    "cpr_mass": {"untracked": ("priority", "interval")},
    "cpr_scar": {"r": (0.125, 0.25)},
    "cpr_mirror": {"share": (0.01, 0.1)},
    "differential": {"bits": (32, 8, 4, 2), "recovery": ("full", "partial")},
    "buddy": {},
}
"""Every strategy, and values of its options."""
_SAVES_ONCE = ("none", "never_save", "buddy")

_TRAINER_SHARES = {"start": 6, "train": 5, "save": 7, "recover": 6, "eval": 7}  # a short phase is missed more often
_SHARES = {"start": 3, "train": 3, "save": 4, "recover": 3, "eval": 4}  # the attempt after the first has them too
_RANK_SHARES = {"start": 7, "train": 4, "save": 8, "recover": 16, "eval": 9}  # the run has often ended
_PAUSE_SHARES = {"start": 4, "train": 4, "save": 5, "recover": 8, "eval": 6}
_DELAY_S = {"save": 0.01, "recover": 0.01, "eval": 0.01}  # as long as the phase, or it is missed
_LATEST = {"save": 0.25}  # of the run: there must be saves to come
_ENDING: Mapping[str, Mapping[str, int]] = {
    name: _TRAINER_SHARES if whom == "trainer" else _SHARES
    for name, (whom, _) in SIGNALS.items()
    if name not in LOSES_A_RANK and name not in HARMLESS
}
_CALM_EVERY = 25  # rounds
_RANK_SIGNALS, _PAUSED_LONGER = 1.0, 0.45  # of the attempts that get signals
_ONE_PROCESS = 0.15  # of the rounds whose first attempt ends by a signal to the run
_PAUSED = 0.1  # of the rounds
_NUM_TRAINERS = (1, 1, 2, 3)  # of the rounds on engine rpc
_MAY_HAVE_SEVERAL = choose_backend(TrainerConfig()) == "compiled"
_ALL_TRAINERS = 0.1  # of the rounds in which failures know boundaries
_VIEWED = 0.02  # of the rounds: wandb's import takes seconds
_CLOCKS: Mapping[str, Mapping[str, Any]] = {
    "wall": {"trace": {"clock": "wall"}, "save": {"mode": "sync"}},
    "seconds": {"trace": {"inject": "wall", "seconds_per_hour": 0.015}},  # most kills come before the run's end
}


def _in_turn(whom: Sequence[str]) -> list[tuple[str, str]]:
    """Signals to these processes that end a run, and their phases, each as often as its share says."""
    return [
        (name, phase)
        for turn in range(max(_TRAINER_SHARES.values()))
        for phase in PHASES
        for name, shares in _ENDING.items()
        if turn < shares[phase] and (name, phase) in CELLS and SIGNALS[name][0] in whom
    ]


_TURNS = (_in_turn(("trainer", "run", "fork server")), _in_turn(("run", "fork server")))
"""Of the first attempt, and of the one after it, whose ranks the record may not have."""


@dataclass(frozen=True)
class Fault:
    """A signal, ``delay_s`` after the record says that the run has reached ``phase``, at ``step`` or later.

    ``held_s``: seconds after which the process goes on; None: it does not.
    """

    name: str
    phase: str
    step: int
    delay_s: float
    held_s: float | None = None


@dataclass(frozen=True)
class Round:
    """What a round tries.

    Attributes:
        settings: the run's.
        trace: the text of its failure trace.
        faults: of the first attempt, and of the one after it.
        pauses: whether processes are stopped for a moment, one after another.
    """

    settings: Mapping[str, Any]
    trace: str
    faults: tuple[tuple[Fault, ...], ...]
    pauses: bool


def drawn(rng: np.random.Generator, number: int) -> Round:
    """The random round of a number; some get no signal, and of these most have a bit that flips."""
    cells = [list(_cells(rng, number, attempt)) for attempt in range(2)]
    if is_local := bool(cells[0]) and SIGNALS[cells[0][-1][0]][0] == "run" and rng.random() < _ONE_PROCESS:
        cells = [[cell for cell in each if SIGNALS[cell[0]][0] == "run"] for each in cells]
    flips = not any(cells) and rng.random() < 0.9
    phases = {phase for each in cells for _, phase in each}
    turn = TURNS[(number - number // _CALM_EVERY) % len(TURNS)]
    strategy = _strategy(rng, turn, phases, flips=flips)
    name, num_ps = strategy["name"], int(rng.integers(2, 5))
    num_trainers = 1 if is_local or not _MAY_HAVE_SEVERAL else int(rng.choice(_NUM_TRAINERS))
    settings = {
        "engine": "local" if is_local else "rpc",
        "seed": int(rng.integers(1000)),
        "strategy": strategy,
        "cache": {"mode": str(rng.choice(["none", "none", "lookahead"] + ["stale"] * (name != "cpr_mirror")))},
        "save": {"mode": str(rng.choice(["sync", "async"]))},
        "cluster": {
            "num_ps": num_ps,
            "num_trainers": num_trainers,
            "spares": int(rng.integers(2)),
            "rpc_timeout_s": RPC_TIMEOUT_S,
            "join_timeout_s": JOIN_TIMEOUT_S,
        },
        "store": {"fsync": bool(rng.random() < 0.2)},
        "eval": {"points": 8},
        "wandb": {"mode": "offline" if rng.random() < _VIEWED else "disabled"},
    }
    clock = "samples" if flips else _clock(rng, turn, settings["engine"])
    if clock == "samples":
        saves = name not in _SAVES_ONCE
        ends_all = settings["cache"]["mode"] != "stale" and rng.random() < _ALL_TRAINERS
        has_pairs = name == "buddy"
        trace = trace_of(
            rng, turn, num_ps, num_trainers, saves=saves, has_pairs=has_pairs, flips=flips, ends_all=ends_all
        )
    else:
        settings |= _CLOCKS[clock]
        trace = plain_trace(rng, num_ps, turn[0] if clock == "wall" else None)
    faults = tuple(tuple(_fault(rng, name, phase) for name, phase in each) for each in cells)
    pauses = bool(rng.random() < _PAUSED)
    settings["cluster"]["spare_trainers"] = int(num_trainers > 1 and rng.integers(2))
    return Round(settings, trace, faults, pauses=pauses)


def _clock(rng: np.random.Generator, turn: tuple[str, str], engine: str) -> str:
    """That of a trace; others than ``samples`` know deaths between steps only."""
    fault, phase = turn
    if not FAULTS[fault].loss or phase != "boundary" or rng.random() < 0.2:
        return "samples"
    is_by_second = fault == "kill" and engine == "rpc" and rng.random() < 0.6
    return "seconds" if is_by_second else "wall"


def _strategy(rng: np.random.Generator, turn: tuple[str, str], phases: set[str], *, flips: bool) -> dict[str, Any]:
    """One that meets the fault and the phases, and its options."""
    needs_saves = "save" in phases or turn[1] in NEEDS_SAVES or flips
    left_out = {
        *(_SAVES_ONCE if needs_saves else ()),
        *(("none",) if "recover" in phases or turn[0] != "kill" else ()),
        *(("buddy",) if turn[1] in MAY_END_A_PAIR else ()),
    }
    name = one_of(rng, {name: 3 if name in _SAVES_ONCE else 1 for name in _STRATEGIES if name not in left_out})
    options = {option: values[int(rng.integers(len(values)))] for option, values in _STRATEGIES[name].items()}
    return {"name": name, **options}


def _cells(rng: np.random.Generator, number: int, attempt: int) -> Iterator[tuple[str, str]]:
    """Signals and the phases they come in: some that a run survives, and one that ends it, each in its turn.

    In every second round the attempt after the first has signals too.
    """
    if number % _CALM_EVERY == 0 or (attempt and number % 2):
        return
    if not attempt and rng.random() < _RANK_SIGNALS:
        yield str(rng.choice(LOSES_A_RANK)), one_of(rng, _RANK_SHARES)
    if rng.random() < _PAUSED_LONGER:
        yield str(rng.choice([*HARMLESS])), one_of(rng, _PAUSE_SHARES)
    turns, turn = _TURNS[attempt], number // 2 if attempt else number - number // _CALM_EVERY - 1
    yield turns[turn % len(turns)]


def _fault(rng: np.random.Generator, name: str, phase: str) -> Fault:
    return Fault(
        name=name,
        phase=phase,
        step=int(rng.uniform(0, _LATEST.get(phase, 0.5)) * NUM_STEPS),
        delay_s=float(rng.choice([0.0, 0.0, 0.0, rng.uniform(0, _DELAY_S.get(phase, 0.1))])),
        held_s=float(rng.uniform(*HARMLESS[name])) if name in HARMLESS else None,
    )
