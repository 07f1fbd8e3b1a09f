"""Runs under faults that nobody announced: a random run a round, random faults at random moments, and what must hold.

What a round draws and what is checked after it: docs/RELIABILITY.md, "All of it at once". The exit code is 1 if
anything was wrong, or if a signal or fault came too rarely in one of its phases (--at-least).

    python -m tests.soak.chaos --rounds 1000 --seed 1
    python -m tests.soak.chaos --first 417 --rounds 1 --seed 1      one round again, by its number
"""

import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import analysis
from benchmarks._common import table
from harness.core.events import Event, Finished, Injected, Lost, Recovered, Regrouped
from harness.core.plans import ParityGroups, buddy_of, is_ps, owner_of
from harness.record.rundir import read_config
from harness.run.verify import compare_records
from tests.soak.attempt import POLL_S, Attempt, in_session
from tests.soak.chaos_draws import (
    CELLS,
    FAULT_TURNS,
    HARMLESS,
    JOIN_TIMEOUT_S,
    LOSES_THE_TRAINER,
    RPC_TIMEOUT_S,
    SIGNALS,
    Fault,
    Round,
    drawn,
)
from tests.soak.rounds import DEADLINE_S, Verdict, carried_out, rounds_parser, write_config

_LONG = 1000  # rounds from which on each cell has to come
_LEAST = 20  # times


# --- signals ----------------------------------------------------------------------------------------------------------

_PHASE_OF = {"started": "start", "save": "save", "eval": "eval"} | dict.fromkeys(("loss", "lost", "regroup"), "recover")
_LONGEST_PAUSE_S = 0.3  # far below the deadlines of a round


class Striker:
    """Sends signals to the processes of an attempt.

    ``counts``: which signals found a process, and in which phase. ``pauses``: of the moments at which any process is
    stopped for a moment, and then another one; None: never.
    """

    def __init__(self, attempt: Attempt, pauses: np.random.Generator | None) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self._attempt, self._pauses = attempt, pauses
        self._next_pause_s = time.monotonic()
        self._until_s: dict[int, float] = {}  # processes that are stopped, each until its second
        self._left_alone: set[int] = set()  # by pauses: processes that a signal was sent to

    def strike(self, faults: Sequence[Fault]) -> None:
        """Send each signal once its phase has come.

        Returns when nothing is left to be sent or continued. With pauses that is when the attempt has ended, or at its
        deadline.
        """
        attempt, pending = self._attempt, list(faults)
        while (
            (pending or self._pauses or self._until_s)
            and not attempt.poll()
            and time.monotonic() < attempt.began_s + DEADLINE_S
        ):
            self._continue(time.monotonic())
            if self._pauses:
                self._pause_one(self._pauses)
            self._look_around(pending)
            due = next((fault for fault in pending if self._is_due(fault)), None)
            if due is None:
                attempt.wait(time.monotonic() + POLL_S)
                continue
            pending.remove(due)
            attempt.wait(time.monotonic() + due.delay_s)
            phase, _ = self._place()
            pids = attempt.processes(SIGNALS[due.name].whom)
            if not attempt.poll() and pids and self._sent(due, pids[due.step % len(pids)]):
                self.counts["signal", due.name, phase] += 1
        self._continue(np.inf)

    def _place(self) -> tuple[str, int]:
        """What the record says last: the phase, and the step."""
        last = self._attempt.last_event()
        return ("start", 0) if last is None else (_PHASE_OF.get(last[0], "train"), last[1])

    def _look_around(self, pending: Sequence[Fault]) -> None:
        """Look for the fork server while there is time, and for sockets when all of them are there."""
        if self._place()[0] != "start":
            self._attempt.note_sockets()
            if any(SIGNALS[fault.name].whom == "fork server" for fault in pending):
                self._attempt.processes("fork server")

    def _is_due(self, fault: Fault) -> bool:
        """Whether the run has reached the phase and the step, and there is a process to which the signal can go."""
        phase, step = self._place()
        has_come = phase == fault.phase and (step >= fault.step or phase == "start")
        return has_come and bool(self._attempt.processes(SIGNALS[fault.name].whom))

    def _sent(self, fault: Fault, pid: int) -> bool:
        """Send the signal to a process; whether it was there."""
        self._left_alone.add(pid)
        number = SIGNALS[fault.name].number
        try:
            if fault.held_s is not None:
                self._stop(pid, fault.held_s)
                return True
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        if number == signal.SIGSTOP:
            self._until_s.pop(pid, None)  # it is stopped for good
        return True

    def _pause_one(self, rng: np.random.Generator) -> None:
        """Stop a process, any of them, if it is time."""
        if time.monotonic() < self._next_pause_s:
            return
        stop_s, wait_s = rng.uniform(0, _LONGEST_PAUSE_S, 2).tolist()
        self._next_pause_s = time.monotonic() + stop_s + wait_s
        if pids := [pid for pid in in_session(self._attempt.pid) if pid not in self._left_alone]:
            with suppress(ProcessLookupError):
                self._stop(int(rng.choice(pids)), stop_s)
                self.counts["pause", "any process", self._place()[0]] += 1

    def _stop(self, pid: int, seconds: float) -> None:
        """Stop a process, which goes on after ``seconds``. Raises ProcessLookupError if it has ended."""
        os.kill(pid, signal.SIGSTOP)
        self._until_s[pid] = time.monotonic() + seconds
        self._attempt.paused_s += seconds

    def _continue(self, by_s: float) -> None:
        """Continue the processes whose second has come."""
        for pid in [pid for pid, until_s in self._until_s.items() if until_s <= by_s]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            del self._until_s[pid]


# --- judges: each returns what is wrong, one line each --------------------------------------------------------------

CHARGES = ("reschedule_h", "overhead_frac", "node_h", "num_failures", "num_lost_ranks")
"""Figures that the death of a compute rank changes."""

MODEL = ("auc", "log_loss", "accuracy", "train_loss", "digests")
"""Figures that depend on the trained model alone."""

HAS_NO_POINT = "there is no resume point to go on from (resume.every_s)"
"""Why a run fails whose trainer has died."""

_CLEAN_UP_S = 2.0
_SLACK = 1.1  # of a deadline
_LOSES_NOTHING = ("none", "full")
_STARTS_ANEW = "all ranks start anew"
_SHARED_MEMORY = re.compile(r"_(\d+)_")  # torch names a segment by the process that made it


def judged_end(attempt: Attempt) -> list[str]:
    """Wait for the end; what is wrong with it."""
    wrong: list[str] = []
    if not attempt.wait(attempt.began_s + DEADLINE_S):
        wrong.append(f"hung for {DEADLINE_S:.0f} s: {attempt.last_line()}")
        attempt.end()
    text = attempt.text()
    if "Traceback" in text:
        wrong.append(f"a traceback: {attempt.last_line()}\n{text[text.index('Traceback') :]}")
    if attempt.code is not None and attempt.code > 0 and not text.strip():
        wrong.append(f"exit code {attempt.code} without a word")
    deadline_s = time.monotonic() + _CLEAN_UP_S
    while (left := attempt.left()) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    if left:
        wrong.append(f"left over {_CLEAN_UP_S:g} s after exit code {attempt.code}: {', '.join(left[:4])}")
        attempt.end()
        shutil.rmtree(attempt.temporary)
        attempt.temporary.mkdir()
    return wrong + late_detections(attempt.events(), attempt.paused_s)


def judged_result(attempt: Attempt, calm: Attempt, names: Sequence[str] | None) -> list[str]:
    """Of a run that has to have ended well. Its figures of these names are those of the calm run; None: every event."""
    events, is_done = attempt.events(), (attempt.out / "DONE").exists()
    wrong = [f"record: {line}" for line in analysis.check(events, read_config(attempt.out))] if is_done else []
    if attempt.code or not is_done:
        return [f"exit code {attempt.code} without a result: {attempt.last_line()}", *wrong]
    if left := unfinished_files(attempt.out):
        wrong.append(f"left in the run's folder: {', '.join(left[:4])}")
    if names is None:
        return wrong + compare_records(calm.out, attempt.out)
    found, expected = figures(events), figures(calm.events())
    differ = [name for name in names if found.get(name) != expected[name]]
    lost = [f"{event.unplanned_ranks} at {event.step}" for event in unplanned(events)]
    unasked = f" (lost without a line of the trace: {', '.join(lost)})"
    return wrong + [f"{name} is {found.get(name)}, not {expected[name]}"[:300] + unasked for name in differ[:2]]


def judged_failure(attempt: Attempt, struck: Set[str]) -> list[str]:
    """What is wrong with the failure of a run that these signals struck: no signal ends it, or a point was there."""
    if struck - {*HARMLESS, *LOSES_THE_TRAINER}:
        return []
    if not struck & {*LOSES_THE_TRAINER} or HAS_NO_POINT not in attempt.text():
        return [f"failed without a cause: {attempt.last_line()}"]
    points = sorted(path.name for path in attempt.out.glob("resume/point-*.json"))
    return [f"did not go on from {points[-1]}: {attempt.last_line()}"] if points else []


def unplanned(events: Sequence[Event]) -> list[Lost]:
    """The losses of ranks that no trace named."""
    return [event for event in events if isinstance(event, Lost) and event.unplanned_ranks]


def unfinished_files(out: Path) -> list[str]:
    """Temporary files and resume points that a finished run must not leave, wandb's own aside."""
    found = [path for path in out.rglob("*.tmp") if "wandb" not in path.relative_to(out).parts]
    found += [path for path in [out / "resume"] if path.exists()]
    return sorted(str(path.relative_to(out.parent)) for path in found)


def late_detections(events: Sequence[Event], paused_s: float) -> list[str]:
    """Ranks that were stopped, and found later than their deadline and a tenth of it.

    A rank that is mute while a world is formed has the deadline for that. So has a PS rank that is mute together with a
    compute rank, whose share is waited for first. ``paused_s``: seconds in which a process of the run was stopped
    besides.
    """
    mute: dict[str, Injected] = {}
    joining: set[str] = set()  # mute ranks that were not found before a world was formed
    found: list[tuple[str, float, float]] = []
    for event in events:
        if isinstance(event, Injected) and event.loss == "mute":
            mute[event.rank] = event
        elif isinstance(event, Lost):
            kills = [kill for rank in event.ranks if (kill := mute.pop(rank, None))]
            has_joining = any(kill.phase == "regroup" or kill.rank in joining for kill in kills)
            joining = {*mute}
            if event.unplanned_ranks or not kills or has_joining:
                continue
            names = ", ".join(f"{kill.rank} ({kill.fault} in {kill.phase})" for kill in kills)
            found.append((f"step {event.step}: {names}", event.machine["seconds"], RPC_TIMEOUT_S))
        elif isinstance(event, Regrouped):
            for rank, machine in event.machine.get("mute", {}).items():
                found.append((f"step {event.step}: {rank}, to join", machine.get("seconds", 0.0), JOIN_TIMEOUT_S))
    return [
        f"{words}: found after {seconds:.2f} s, the deadline is {deadline_s:g} s (and {paused_s:.2f} s of pauses)"
        for words, seconds, deadline_s in found
        if seconds > _SLACK * deadline_s + paused_s
    ]


def met_a_flip(attempt: Attempt) -> bool:
    """Whether it ended since it read a file of which the trace flipped a bit."""
    flips = [event for event in attempt.events() if isinstance(event, Injected) and event.fault == "bitflip"]
    return attempt.code == 1 and any(Path(str(flip.details["path"])).name in attempt.last_line() for flip in flips)


def loses_nothing(each: Round, events: Sequence[Event]) -> bool:
    """Whether the loss of ranks cost its strategy no update: no rank was lost together with one that restores it."""
    strategy, num_ps = each.settings["strategy"], each.settings["cluster"]["num_ps"]
    if strategy["name"] == "buddy":
        return not _lost_together(events, lambda rank: {buddy_of(rank, num_ps), owner_of(rank, num_ps)})
    if strategy["name"] == "parity":
        groups = ParityGroups(strategy["group_size"], num_ps)
        held = {holder: {*members} for holder, members in groups.members.items()}
        return not _lost_together(events, lambda rank: groups.needed_for(rank) | held.get(rank, set()))
    return strategy["name"] in _LOSES_NOTHING


def _lost_together(events: Sequence[Event], partners: Callable[[str], Set[str]]) -> bool:
    """Whether a rank that no trace named was lost together with one of its ``partners``."""
    lost = {rank for event in unplanned(events) for rank in filter(is_ps, event.unplanned_ranks)}
    together = [{*event.ranks} for event in events if isinstance(event, Recovered)]
    return any(rank in ranks and ranks & partners(rank) for rank in lost for ranks in together)


def shared_memory_left() -> list[str]:
    """Segments of processes that have ended."""
    names = [(name, _SHARED_MEMORY.search(name)) for name in os.listdir("/dev/shm")]
    return sorted(name for name, found in names if found and not Path(f"/proc/{found[1]}").exists())


def figures(events: Sequence[Event]) -> dict[str, Any]:
    """What the last event says, this machine's part aside."""
    if not events or not isinstance(finished := events[-1], Finished):
        return {}
    left_out = ("machine", "num_unplanned", "generation")
    return {name: value for name, value in finished.to_json().items() if name not in left_out}


def too_rare(counts: Counter[tuple[str, ...]], least: int) -> list[str]:
    """Signals and faults of traces that came fewer than ``least`` times in a phase."""
    cells = [("signal", *cell) for cell in CELLS] + [
        ("trace", *cell) for cell in (*FAULT_TURNS, ("bitflip", "boundary"))
    ]
    return [
        f"{name} in {phase}: {counts[kind, name, phase]} times, expected {least}"
        for kind, name, phase in cells
        if counts[kind, name, phase] < least
    ]


# --- rounds -----------------------------------------------------------------------------------------------------------


def tried(number: int, rng: np.random.Generator, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    """Carry out a round in ``folder``."""
    each, verdict = drawn(rng, number), Verdict()
    (folder / "trace.csv").write_text(each.trace)
    trace = {"path": str(folder / "trace.csv"), "allow_unplanned": True, **each.settings.get("trace", {})}
    config = write_config(folder, settings, each.settings, {"trace": trace})
    (folder / "calm").mkdir()
    words = ("engine=local", "trace.inject=boundary", "wandb.mode=disabled", "resume.every_s=null")
    calm = Attempt(config, folder / "calm", *words)
    if (wrong := judged_end(calm)) or (calm.code and not met_a_flip(calm)):
        return Verdict(wrong=[f"calm run: exit code {calm.code}: {calm.last_line()}", *wrong])
    attempt = _attempt(Attempt(config, folder), each.faults[0], rng if each.pauses else None, verdict)
    if not verdict.wrong and not calm.code:
        attempt = _to_its_end(each, config, attempt, calm, verdict)
    elif not verdict.wrong and not met_a_flip(attempt):
        ends = f"exit code {attempt.code}: {attempt.last_line()}; the calm run ended with {calm.last_line()}"
        verdict.wrong.append(ends)
    verdict.counts += Counter(
        ("trace", event.fault, event.phase) for event in attempt.events() if isinstance(event, Injected)
    )
    if left := shared_memory_left():
        verdict.wrong.append(f"left shared memory: {', '.join(left)}")
    return verdict


def _attempt(attempt: Attempt, faults: Sequence[Fault], rng: np.random.Generator | None, verdict: Verdict) -> Attempt:
    """The attempt after its faults and its end. ``rng``: of the moments at which its processes pause; None: never."""
    striker = Striker(attempt, rng)
    striker.strike(faults)
    verdict.counts += striker.counts
    verdict.wrong += judged_end(attempt)
    verdict.counts["anew", "all ranks", ""] += attempt.text().count(_STARTS_ANEW)
    if attempt.code and not met_a_flip(attempt):
        verdict.wrong += judged_failure(attempt, {name for kind, name, _ in striker.counts if kind == "signal"})
    return attempt


def _to_its_end(each: Round, config: Path, attempt: Attempt, calm: Attempt, verdict: Verdict) -> Attempt:
    """The attempt that ended well, the first or one after it; what is wrong with its result is added to the verdict."""
    if attempt.code == 0:
        verdict.wrong += judged_result(attempt, calm, _names(each, attempt.events(), calm))
        return attempt
    found = Verdict()
    for faults in (each.faults[1], ()):
        if attempt.code:
            attempt = _attempt(Attempt(config, attempt.out.parent, *_options(attempt)), faults, None, found)
    names = _names(each, attempt.events(), calm)
    verdict.counts += found.counts
    verdict.wrong += [f"again: {line}" for line in [*found.wrong, *judged_result(attempt, calm, names)]]
    return attempt


def _options(attempt: Attempt) -> list[str]:
    """Those of the command after an attempt."""
    # What a run lost with a PS rank that no trace named it has lost in its resume points too.
    lost = {rank for event in unplanned(attempt.events()) for rank in event.unplanned_ranks}
    is_done = (attempt.out / "DONE").exists()  # the signal came after it
    return ["--afresh"] if any(map(is_ps, lost)) and not is_done else []


def _names(each: Round, events: Sequence[Event], calm: Attempt) -> Sequence[str] | None:
    """Names of the figures that must be those of the calm run; None: every event must."""
    is_by_second = each.settings.get("trace", {}).get("inject") == "wall"
    lost = {rank for event in unplanned(events) for rank in event.unplanned_ranks}
    if not is_by_second and not lost:
        return None
    if is_by_second or _strikes(events) != _strikes(calm.events()):
        return MODEL if each.settings["strategy"]["name"] in ("none", "full") else ()
    if any(map(is_ps, lost)):
        return MODEL if loses_nothing(each, events) else ()
    return [name for name in figures(calm.events()) if name not in CHARGES]


def _strikes(events: Sequence[Event]) -> list[tuple[int, str, int]]:
    """Where faults of the trace struck.

    If a rank is lost besides, they may strike elsewhere than in the calm run: its hours come before failures on the
    wall clock, and a fault that waits for a regroup strikes in that of the rank.
    """
    return [(event.step, event.rank, event.line) for event in events if isinstance(event, Injected)]


def _counted(found: Counter[tuple[str, ...]], kind: str) -> list[str]:
    """A table of faults of a kind by phase."""
    names, phases = (sorted({key[at] for key in found if key[0] == kind}) for at in (1, 2))
    return [*table((kind, *phases), [[name, *(found[kind, name, phase] for phase in phases)] for name in names]), ""]


def main() -> None:
    """Carry out the rounds, print tables of faults by phase, what was wrong and what came too rarely."""
    made = rounds_parser(__doc__, rounds=100)
    least = f"(default: {_LEAST} with {_LONG:,} rounds or more, else 0)"
    made.add_argument("--at-least", type=int, help=f"times that each signal and fault must come in its phases {least}")
    options = made.parse_args()
    if options.at_least is None:
        options.at_least = _LEAST if options.rounds >= _LONG else 0
    total = carried_out(options, "chaos", tried)
    rare = too_rare(total.counts, options.at_least)
    signals, faults, pauses, anew = (
        sum(count for key, count in total.counts.items() if key[0] == kind)
        for kind in ("signal", "trace", "pause", "anew")
    )
    summary = (
        f"{options.rounds:,} rounds of seed {options.seed}: {signals:,} signals, {faults:,} faults of traces, "
        f"{pauses:,} pauses, {anew:,} restarts of all ranks, {len(total.wrong)} wrong, {len(rare)} too rare"
    )
    lines = [*_counted(total.counts, "signal"), *_counted(total.counts, "trace"), summary, *total.wrong, *rare]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.exit(1 if total.wrong or rare else 0)


if __name__ == "__main__":
    main()
