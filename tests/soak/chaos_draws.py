"""What chaos draws: a run, a failure trace, and signals that no trace announces.

Signals by name and phase, and faults of traces by name and phase, are drawn so that a thousand rounds have each of them
more than twenty times.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.config.model import TrainerConfig
from harness.core.faults import FAULTS
from harness.core.faults import PHASES as TRACE_PHASES
from harness.model.backends import choose_backend
from tests.soak.rounds import JOB_H, NUM_STEPS

PHASES: tuple[str, ...] = ("start", "train", "save", "recover", "eval")
"""What a run is doing, as the end of its record says, when a signal comes."""

RPC_TIMEOUT_S, JOIN_TIMEOUT_S = 1.6, 2.6
"""Deadlines of ranks (``cluster.rpc_timeout_s``, ``cluster.join_timeout_s``)."""


@dataclass(frozen=True)
class Signal:
    """A signal to a kind of process.

    Attributes:
        whom: see Attempt.processes.
        shares: how often it comes in each of ``PHASES``, among those that end an attempt, or have all ranks start anew;
            () if it does neither.
        held_s: the least and the greatest number of seconds until a stopped process goes on; None: it does not.
    """

    whom: str
    number: signal.Signals
    shares: tuple[int, ...] = ()
    held_s: tuple[float, float] | None = None


_OF_THE_TRAINER = (6, 5, 7, 6, 7)  # a short phase is missed more often
_OF_THE_RUN = (3, 3, 4, 3, 4)  # the attempt after the first has them too

SIGNALS: Mapping[str, Signal] = {
    "kill a PS rank": Signal("ps", signal.SIGKILL),
    "stop a PS rank": Signal("ps", signal.SIGSTOP),
    "kill a compute rank": Signal("compute rank", signal.SIGKILL),
    "stop a compute rank": Signal("compute rank", signal.SIGSTOP),
    "pause the run": Signal("run", signal.SIGSTOP, held_s=(0.4, 2.2)),
    "pause the fork server": Signal("fork server", signal.SIGSTOP, held_s=(0.3, 1.5)),
    "kill the trainer": Signal("trainer", signal.SIGKILL, _OF_THE_TRAINER),
    "stop the trainer": Signal("trainer", signal.SIGSTOP, _OF_THE_TRAINER),
    "kill the fork server": Signal("fork server", signal.SIGKILL, _OF_THE_RUN),
    "stop the fork server": Signal("fork server", signal.SIGSTOP, _OF_THE_RUN),
    "kill the run": Signal("run", signal.SIGKILL, _OF_THE_RUN),
    "interrupt the run": Signal("run", signal.SIGINT, _OF_THE_RUN),
    "terminate the run": Signal("run", signal.SIGTERM, _OF_THE_RUN),
    "hang up the run": Signal("run", signal.SIGHUP, _OF_THE_RUN),
}

HARMLESS = tuple(name for name, each in SIGNALS.items() if each.held_s)
"""Signals that no run may fail from."""

LOSES_THE_TRAINER = tuple(name for name, each in SIGNALS.items() if each.whom == "trainer")
"""Signals after which all ranks start anew from the newest resume point; without one the run fails."""

_MAY_HAVE_SEVERAL = choose_backend(TrainerConfig()) == "compiled"

CELLS = tuple(
    (name, phase)
    for name, each in SIGNALS.items()
    for phase in PHASES
    if (name, phase) != ("stop the fork server", "start") and (_MAY_HAVE_SEVERAL or each.whom != "compute rank")
)
"""Signals and phases that are drawn. A fork server has 300 s for its first answer: it is not stopped at the start."""

FAULT_TURNS = (
    *((fault, phase) for phase in TRACE_PHASES for fault, kind in FAULTS.items() if kind.loss),
    *(("disk_full", "save"), ("disk_error", "save")),
)
"""Faults of a trace and the phases they strike in; a round has one of them for certain, each in its turn."""

_STRATEGIES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "none": {},
    "never_save": {"start": ("initial", "mean")},
    "full": {},
    "partial": {},
    "cpr_vanilla": {},
    "cpr_random": {"pool": ("touched", "all")},
    "cpr_mfu": {"untracked": ("priority", "interval"), "r": (0.125, 0.25)},
    "cpr_ssu": {"eviction": ("random", "oldest"), "period": (1, 2, 5)},
    "cpr_mass": {"untracked": ("priority", "interval")},
    "cpr_scar": {"r": (0.125, 0.25)},
    "cpr_oldest": {"guard": (None, 0.0, 2.0)},
    "cpr_state": {"guard": (None, 2.0)},
    "cpr_mirror": {"share": (0.01, 0.1)},
    "differential": {"bits": (32, 8, 4, 2), "recovery": ("full", "partial")},
    "buddy": {},
    "parity": {"group_size": (None, 1)},
    "tiers": {},
}
"""Every strategy, and values of its options."""
_SAVES_ONCE = ("none", "never_save", "buddy", "parity")
_NEEDS_SAVES = ("save", "manifest")  # phases of faults that come only if the strategy saves after the start
_MAY_END_A_PAIR = ("restore", "regroup")  # phases of faults in which a rank may die together with its replica

_RANK_SHARES: Mapping[str, float] = dict(zip(PHASES, (8, 10, 8, 17, 9), strict=True))  # the run has often ended
_PAUSE_SHARES: Mapping[str, float] = dict(zip(PHASES, (4, 4, 5, 8, 6), strict=True))
_DELAY_S = {"save": 0.01, "recover": 0.01, "eval": 0.01}  # as long as the phase, or it is missed
_LATEST = {"save": 0.25}  # of the run: there must be saves to come
_CALM_EVERY = 25  # rounds
_PAUSED_LONGER = 0.45  # of the attempts that get signals
_PS_SIGNALS, _COMPUTE_SIGNALS = (1.0, 0.5), (0.8, 0.5)  # of the first attempts, and of those after them
_PS_SIGNALS_TOO = 0.5  # of the attempts that lose the trainer
_ONE_PROCESS = 0.15  # of the rounds whose first attempt ends by a signal to the run
_PAUSED = 0.1  # of the rounds
_NUM_TRAINERS, _SEVERAL = (1, 1, 2, 3), (2, 2, 3)
_EVERY_S = (0.0, 0.0, 0.05, 0.05, 0.2, 300.0)  # seconds between resume points; the last: there are none
_TRAINER_DIES, _TRAINERS_DIE = 0.2, 0.05  # of the rounds whose trace has no kills at real seconds; with any kill
_VIEWED = 0.02  # of the rounds: wandb's import takes seconds
_SHRINKS = 0.6  # of the rounds whose fault of a trace is a death between two steps
_INTERRUPTS = 0.6  # of the rounds on the wall clock
_NOTICES_S = ("", "30", "600", "86400")  # in some of them nothing can be saved
_CLOCKS: Mapping[str, Mapping[str, Any]] = {
    "wall": {"trace": {"clock": "wall"}, "save": {"mode": "sync"}},
    "seconds": {"trace": {"inject": "wall", "seconds_per_hour": 0.015}},  # most kills come before the run's end
}
_DEATHS = {"kill": 0.94, "hang": 0.06}  # those that are not killed take a deadline to be found
_DISK_FAULTS = ("disk_full", "disk_error")
_PHASE_WEIGHTS = {
    "boundary": 1, "lookup": 1, "forward": 1, "apply": 1, "eval": 1,
    "save": 2, "manifest": 2, "restore": 1, "regroup": 1,
}  # fmt: skip
_MAX_OTHERS = 3
_OF_ANY = tuple(fault for fault, kind in FAULTS.items() if kind.takes_trainers)
_OF_COMPUTE_RANKS = 0.5  # of such faults, where there are compute ranks


def _in_turn(*whom: str) -> list[tuple[str, str]]:
    """Signals to these processes that have shares, and their phases, each as often as its share says."""
    return [
        (name, phase)
        for turn in range(max(_OF_THE_TRAINER))
        for at, phase in enumerate(PHASES)
        for name, each in SIGNALS.items()
        if each.whom in whom and each.shares and turn < each.shares[at] and (name, phase) in CELLS
    ]


_SIGNAL_TURNS = (_in_turn("trainer", "run", "fork server"), _in_turn("run", "fork server"))
"""Of the first attempt, and of the one after it."""


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
    if is_local := bool(cells[0]) and SIGNALS[cells[0][-1][0]].whom == "run" and rng.random() < _ONE_PROCESS:
        cells = [[cell for cell in each if SIGNALS[cell[0]].whom == "run"] for each in cells]
    flips = not any(cells) and rng.random() < 0.9
    turn = FAULT_TURNS[(number - number // _CALM_EVERY) % len(FAULT_TURNS)]
    shrinks = turn[1] == "boundary" and not flips and rng.random() < _SHRINKS
    phases = {phase for each in cells for _, phase in each}
    strategy = _strategy(rng, turn, phases, flips=flips, shrinks=shrinks)
    name, num_ps = strategy["name"], int(rng.integers(2, 5))
    has_compute = any(SIGNALS[signal_name].whom == "compute rank" for each in cells for signal_name, _ in each)
    num_trainers = int(rng.choice(_SEVERAL if has_compute else _NUM_TRAINERS)) if _MAY_HAVE_SEVERAL else 1
    settings = {
        "engine": "local" if is_local else "rpc",
        "seed": int(rng.integers(1000)),
        "strategy": strategy,
        "trainer": {"optimizer": "adagrad" if name == "cpr_state" else "sgd"},
        "cache": {"mode": str(rng.choice(["none", "none", "lookahead"] + ["stale"] * (name != "cpr_mirror")))},
        "save": {"mode": str(rng.choice(["sync", "async"]))},
        "cluster": {
            "num_ps": num_ps,
            "num_trainers": num_trainers,
            "spares": 0 if shrinks else int(rng.integers(2)),
            "on_loss": "shrink" if shrinks else "replace",
            "rpc_timeout_s": RPC_TIMEOUT_S,
            "join_timeout_s": JOIN_TIMEOUT_S,
        },
        "store": {"fsync": bool(rng.random() < 0.2)},
        "resume": {"every_s": float(rng.choice(_EVERY_S))},
        "eval": {"points": 8},
        "wandb": {"mode": "offline" if rng.random() < _VIEWED else "disabled"},
    }
    clock = "samples" if flips or shrinks else _clock(rng, turn, settings["engine"])
    settings |= _CLOCKS.get(clock, {})
    interrupts = clock == "wall" and bool(rng.random() < _INTERRUPTS)
    if interrupts:
        settings["trace"] = {"clock": "wall", "interrupts": True}
        settings["cluster"]["spares"] = 0
    may_end_all = settings["cache"]["mode"] != "stale"  # whose workers hold updates that no rank has
    may_die = clock != "seconds" and not shrinks
    trainers = _dying_trainers(rng, num_trainers, may_end_all=may_end_all) if may_die else ()
    if clock != "seconds":
        ways = ("none", "save", "save", "handover") if name != "cpr_mirror" else ("none", "handover")
        settings["cluster"]["on_notice"] = "none" if interrupts else str(rng.choice(ways))
    # Compute ranks that die beside trainer0 might be all that there are.
    num_named = num_trainers if may_end_all or not trainers else 1
    if shrinks:
        trace = _trace_of_nodes(rng, num_ps, turn[0])
    elif clock == "samples":
        trace = _trace(rng, turn, num_ps, num_named, name, flips=flips, trainers=trainers)
        if may_end_all and rng.random() < _TRAINERS_DIE:
            settings["trace"] = {"trainers_die": True}
    else:
        deaths = _DEATHS if clock == "wall" else {"kill": 1.0}
        trace = _plain_trace(rng, num_ps, num_named, deaths, last=turn[0], trainers=trainers)
    faults = tuple(tuple(_fault(rng, name, phase) for name, phase in each) for each in cells)
    pauses = bool(rng.random() < _PAUSED)
    return Round(settings, trace, faults, pauses=pauses)


def _dying_trainers(rng: np.random.Generator, num_trainers: int, *, may_end_all: bool) -> Sequence[str]:
    """The trainers that a trace kills at one boundary: none, ``trainer0`` alone or, if ``may_end_all``, all."""
    if rng.random() >= _TRAINER_DIES:
        return ()
    num_dead = int(rng.choice((1, num_trainers)))
    return [f"trainer{index}" for index in range(num_dead)] if may_end_all or num_dead < num_trainers else ()


def _clock(rng: np.random.Generator, turn: tuple[str, str], engine: str) -> str:
    """That of a trace; others than ``samples`` know deaths between steps only."""
    fault, phase = turn
    if not FAULTS[fault].loss or phase != "boundary" or rng.random() < 0.2:
        return "samples"
    is_by_second = fault == "kill" and engine == "rpc" and rng.random() < 0.6
    return "seconds" if is_by_second else "wall"


def _strategy(
    rng: np.random.Generator, turn: tuple[str, str], phases: set[str], *, flips: bool, shrinks: bool
) -> dict[str, Any]:
    """One that meets the fault and the phases, and its options."""
    needs_saves = "save" in phases or turn[1] in _NEEDS_SAVES or flips
    left_out = {
        *(_SAVES_ONCE if needs_saves else ()),
        *(("none",) if "recover" in phases or turn[0] != "kill" else ()),
        *(("buddy", "parity") if turn[1] in _MAY_END_A_PAIR else ()),
        *(("parity",) if shrinks else ()),
    }
    name = _one_of(rng, {name: 3 if name in _SAVES_ONCE else 1 for name in _STRATEGIES if name not in left_out})
    options = {option: values[int(rng.integers(len(values)))] for option, values in _STRATEGIES[name].items()}
    return {"name": name, **options}


def _cells(rng: np.random.Generator, number: int, attempt: int) -> Iterator[tuple[str, str]]:
    """Signals and the phases they come in: some that a run survives, and one that has shares, each in its turn.

    In every second round the attempt after the first has signals too.
    """
    if number % _CALM_EVERY == 0 or (attempt and number % 2):
        return
    turns, turn = _SIGNAL_TURNS[attempt], number // 2 if attempt else number - number // _CALM_EVERY - 1
    last = turns[turn % len(turns)]
    ps_signals = _PS_SIGNALS_TOO if last[0] in LOSES_THE_TRAINER else _PS_SIGNALS[attempt]
    compute_signals = _COMPUTE_SIGNALS[attempt] if _MAY_HAVE_SEVERAL else 0.0
    for whom, share in (("ps", ps_signals), ("compute rank", compute_signals)):
        if rng.random() < share:
            names = [name for name, each in SIGNALS.items() if each.whom == whom]
            yield str(rng.choice(names)), _one_of(rng, _RANK_SHARES)
    if rng.random() < _PAUSED_LONGER:
        yield str(rng.choice(HARMLESS)), _one_of(rng, _PAUSE_SHARES)
    yield last


def _fault(rng: np.random.Generator, name: str, phase: str) -> Fault:
    held_s = SIGNALS[name].held_s
    return Fault(
        name=name,
        phase=phase,
        step=int(rng.uniform(0, _LATEST.get(phase, 0.5)) * NUM_STEPS),
        delay_s=float(rng.choice([0.0, 0.0, 0.0, rng.uniform(0, _DELAY_S.get(phase, 0.1))])),
        held_s=float(rng.uniform(*held_s)) if held_s else None,
    )


# --- failure traces ---------------------------------------------------------------------------------------------------


def _trace(
    rng: np.random.Generator,
    turn: tuple[str, str],
    num_ps: int,
    num_trainers: int,
    strategy: str,
    *,
    flips: bool,
    trainers: Sequence[str],
) -> str:
    """A trace with the fault ``turn``. Each of its phases is sure to come: the last death is one at a boundary.

    ``flips``: a bit of a file flips late in the job. ``trainers``: are killed at one boundary.
    """
    fault, phase = turn
    is_last = phase == "boundary" and FAULTS[fault].loss is not None
    last_hour = _hour(rng, 0.6, 1)
    lines = [(last_hour, f"boundary,{fault if is_last else _one_of(rng, _DEATHS)},")]
    if not is_last:
        lines.append((_hour(rng, 0.02, 0.5 if phase in _NEEDS_SAVES else 0.58), f"{phase},{fault},"))
    lines += _others(rng, strategy)
    if flips:
        lines.append((_hour(rng, 0.5, 1), ",bitflip,"))
    hour = _hour(rng, 0.02, 0.58)
    rows = [(hour, trainer, "boundary,kill,") for trainer in trainers]
    return _text(rng, [*_rows(rng, lines, num_ps, num_trainers), *rows], "hour,rank,phase,fault,repair_h")


def _trace_of_nodes(rng: np.random.Generator, num_ps: int, fault: str) -> str:
    """A trace of PS ranks that are lost between two steps by ``fault`` and others; some of their nodes return."""
    faults = [fault, *(_one_of(rng, _DEATHS) for _ in range(int(rng.integers(1, _MAX_OTHERS))))]
    repairs_h = ("", *(_hour(rng, 0.01, 0.5) for _ in range(2)))
    lines = [(_hour(rng, 0.02, 1), f"boundary,{each},{rng.choice(repairs_h)}") for each in faults]
    return _text(rng, _rows(rng, lines, num_ps, 1), "hour,rank,phase,fault,repair_h")


def _plain_trace(
    rng: np.random.Generator,
    num_ps: int,
    num_trainers: int,
    deaths: Mapping[str, float],
    *,
    last: str,
    trainers: Sequence[str],
) -> str:
    """A trace of ``deaths`` without phases; the last one is ``last``. ``trainers``: are killed with the first one."""
    hours = [*sorted(_hour(rng, 0.02, 0.6) for _ in range(int(rng.integers(_MAX_OTHERS)))), _hour(rng, 0.6, 1)]
    lines = [(hour, f"{_one_of(rng, deaths)},") for hour in hours[:-1]] + [(hours[-1], f"{last},")]
    rows = [(hours[0], trainer, "kill,") for trainer in trainers]
    return _text(rng, [*_rows(rng, lines, num_ps, num_trainers), *rows], "hour,rank,fault,note")


def _others(rng: np.random.Generator, strategy: str) -> Iterator[tuple[float, str]]:
    """Up to three other faults; those of a save come early, while there are saves to come."""
    for _ in range(int(rng.integers(_MAX_OTHERS + 1))):
        is_early = strategy not in _SAVES_ONCE and rng.random() < 0.6
        hour = _hour(rng, 0.02, 0.5) if is_early else _hour(rng, 0.02, 0.58)
        left_out = (*(() if is_early else _NEEDS_SAVES), *(_MAY_END_A_PAIR if strategy == "buddy" else ()))
        phase = _one_of(rng, {name: weight for name, weight in _PHASE_WEIGHTS.items() if name not in left_out})
        is_of_disk = is_early and rng.random() < 0.2
        yield hour, f"save,{rng.choice(_DISK_FAULTS)}," if is_of_disk else f"{phase},{_one_of(rng, _DEATHS)},"


def _rows(
    rng: np.random.Generator, lines: Sequence[tuple[float, str]], num_ps: int, num_trainers: int
) -> list[tuple[float, str, str]]:
    """The lines with ranks: PS ranks, in all lines but the last also compute ranks."""
    rows: list[tuple[float, str, str]] = []
    for hour, words in sorted(lines):
        rank = f"ps{rng.integers(num_ps)}"
        is_of_any = (hour, words) != max(lines) and any(f",{fault}," in f",{words}" for fault in _OF_ANY)
        if is_of_any and num_trainers > 1 and rng.random() < _OF_COMPUTE_RANKS:
            rank = f"trainer{rng.integers(1, num_trainers)}"
        rows.append((hour, rank, words))
    return rows


def _text(rng: np.random.Generator, rows: Sequence[tuple[float, str, str]], columns: str) -> str:
    """The rows, and the notice that PS ranks have of their death between two steps."""

    def notice_s(rank: str, words: str) -> str:
        is_told = rank.startswith("ps") and words.removeprefix("boundary,").startswith((*_DEATHS,))
        return str(rng.choice(_NOTICES_S)) if is_told else ""

    lines = [f"{hour},{rank},{words},{notice_s(rank, words)}" for hour, rank, words in sorted(rows)]
    return "\n".join(["# title: made by a benchmark", f"{columns},notice_s", *lines, ""])


def _hour(rng: np.random.Generator, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)) * JOB_H, 3)


def _one_of(rng: np.random.Generator, weights: Mapping[str, float]) -> str:
    """A name, drawn by the weights."""
    shares = np.array([*weights.values()], dtype=np.float64)
    return str(rng.choice([*weights], p=shares / shares.sum()))
