"""Runs under faults that nobody announced: a random run a round, random faults at random moments, and what must hold.

A round draws a strategy, an engine, a cache, a save mode, a trace (ranks that are killed, hang or are cut off, in
phases of the run; slow ranks; writes that fail; bits that flip), and faults that no trace names: signals to a PS rank,
the trainer, the fork server or the run's own process, in each phase of a run in turn; in some rounds all its processes
are stopped for moments, one after another, as a busy machine does. Checked after each round:

    end        the run ends within its deadline, with a line that says why if it failed, and never with a traceback
    left over  2 s later no process of it is left, no file in its temporary folder, no shared memory
    again      the same command, without faults, then ends well (with --resume, or --afresh if PS ranks were lost), and
               its figures are those of a calm run on engine local, to the bit; so are those of a run that lost ranks
               only, where the strategy loses nothing (buddy: unless a rank and its replica were lost together)
    record     what the record claims follows from its events
    bit flip   a run that meets it ends as the calm run does, with the line that names file and line of the trace

    python benchmarks/chaos.py --rounds 1000 --seed 1
    python benchmarks/chaos.py --first 417 --rounds 1 --seed 1      one round again, by its number
"""

import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np

import analysis
from benchmarks._attempt import POLL_S, Attempt, in_session
from benchmarks._chaos import PHASES, SIGNALS, Fault, Round, drawn
from benchmarks._common import report, table
from benchmarks._rounds import DEADLINE_S, Verdict, carried_out, rounds_parser, write_config
from harness.core.events import Event, Finished, Flipped, Killed, Lost, Recovered, Slowed, WriteFailed
from harness.core.plans import buddy_of, owner_of
from harness.record.rundir import read_config

CLEAN_UP_S = 2.0
_PHASE_OF = {"started": "start", "save": "save", "eval": "eval"} | dict.fromkeys(("kill", "lost", "regroup"), "recover")
_LONGEST_PAUSE_S = 0.3  # far below the deadlines of a round
_LOSES_NOTHING = ("none", "full", "buddy")
_MODEL = ("auc", "log_loss", "accuracy", "train_loss", "digests")
_SHARED_MEMORY = re.compile(r"_(\d+)_")  # torch names a segment by the process that made it


def tried(number: int, rng: np.random.Generator, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    """Carry out a round in ``folder``."""
    each = drawn(rng, number)
    (folder / "trace.csv").write_text(each.trace)
    trace = {"path": str(folder / "trace.csv"), "allow_unplanned": True}
    config = write_config(folder, settings, each.settings, {"trace": trace})
    calm_folder = folder / "calm"
    calm_folder.mkdir()
    calm = Attempt(config, calm_folder, "engine=local")
    if not calm.wait(calm.began_s + DEADLINE_S) or (calm.code and not met_a_flip(calm)):
        calm.end()
        return Verdict(wrong=[f"calm run: exit code {calm.code}: {calm.last_line()}"])
    attempt = Attempt(config, folder)
    pauses = Pauses(attempt, rng) if each.pauses else None
    struck = strike(attempt, each.faults, pauses)
    wrong = judged_end(attempt)
    if not wrong and calm.code:
        wrong = judged_flip(attempt, calm)
    elif not wrong:
        attempt, wrong = judged(each, config, attempt, figures(calm.events()), struck)
    if left := shared_memory_left():
        wrong.append(f"left shared memory: {', '.join(left)}")
    return Verdict(struck + planned_faults(attempt.events()) + (pauses.counts if pauses else Counter()), wrong)


class Pauses:
    """Stops a process of ``attempt``, any of them, for a moment, and then another one."""

    def __init__(self, attempt: Attempt, rng: np.random.Generator) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.left_alone: set[int] = set()
        self._attempt, self._rng = attempt, rng
        self._stopped: int | None = None
        self._next_s = time.monotonic()

    def take_turn(self) -> None:
        """If it is time: continue the process that is stopped, or stop one."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + float(self._rng.uniform(0, _LONGEST_PAUSE_S))
        if self._stopped is not None:
            self.end()
        elif pids := [pid for pid in in_session(self._attempt.pid) if pid not in self.left_alone]:
            self._stopped = int(self._rng.choice(pids))
            with suppress(ProcessLookupError):
                os.kill(self._stopped, signal.SIGSTOP)
            self.counts["pause", "any process", place(self._attempt)[0]] += 1

    def end(self) -> None:
        """Continue the process that is stopped."""
        if self._stopped is not None:
            with suppress(ProcessLookupError):
                os.kill(self._stopped, signal.SIGCONT)
        self._stopped = None


def strike(attempt: Attempt, faults: Sequence[Fault], pauses: Pauses | None) -> Counter[tuple[str, ...]]:
    """Send each signal once its phase has come; which ones found a process, and in which phase.

    With ``pauses`` it returns when the attempt has ended, or at its deadline.
    """
    struck: Counter[tuple[str, ...]] = Counter()
    pending = list(faults)
    while (pending or pauses) and not attempt.poll() and time.monotonic() < attempt.began_s + DEADLINE_S:
        if pauses:
            pauses.take_turn()
        for fault in pending:
            whom, number = SIGNALS[fault.name]
            if whom == "fork server" and place(attempt)[0] != "start":
                attempt.processes(whom)  # while there is time
            if not has_reached(attempt, fault) or not (pids := attempt.processes(whom)):
                continue
            pending.remove(fault)
            attempt.wait(time.monotonic() + fault.delay_s)
            phase, _ = place(attempt)
            if not attempt.poll():
                pid = pids[len(pids) // 2]
                if pauses:
                    pauses.left_alone.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    struck["signal", fault.name, phase] += 1
            break
        else:
            attempt.wait(time.monotonic() + POLL_S)
    if pauses:
        pauses.end()
    return struck


def has_reached(attempt: Attempt, fault: Fault) -> bool:
    """Whether the record's end says so."""
    phase, step = place(attempt)
    return phase == fault.phase and (step >= fault.step or phase == "start")


def place(attempt: Attempt) -> tuple[str, int]:
    """What the record says last: the phase, and the step."""
    last = attempt.last_event()
    if last is None:
        return "start", 0
    kind, step = last
    return _PHASE_OF.get(kind, "train"), step


def judged(
    each: Round, config: Path, attempt: Attempt, expected: Mapping[str, Any], struck: Counter[tuple[str, ...]]
) -> tuple[Attempt, list[str]]:
    """The attempt that ended well, the first or the next one, and what is wrong with its result."""
    is_finished = (attempt.out / "DONE").exists()  # the signal may have come after it
    if attempt.code and not struck:
        return attempt, [f"failed without a fault: {attempt.last_line()}"]
    lost_ranks = any(SIGNALS[name][0] == "ps" for _, name, _ in struck)
    same = None if not (is_finished and lost_ranks) else _MODEL if loses_nothing(each, attempt.events()) else ()
    if attempt.code == 0:
        return attempt, judged_result(attempt, expected, same)
    # What a run lost with a rank that no trace named it has lost in its resume points too.
    option = "--afresh" if lost_ranks else "--resume"
    again = Attempt(config, attempt.out.parent, option)
    return again, [f"again {option}: {words}" for words in judged_end(again) or judged_result(again, expected, same)]


def loses_nothing(each: Round, events: Sequence[Event]) -> bool:
    """Whether the loss of ranks costs its strategy no update."""
    name = each.settings["strategy"]["name"]
    return name in _LOSES_NOTHING and not (name == "buddy" and lost_a_pair(events, each.settings["cluster"]["num_ps"]))


def lost_a_pair(events: Sequence[Event], num_ps: int) -> bool:
    """Whether a rank that no trace named was lost together with its buddy, or with the rank whose buddy it is."""
    unplanned = {rank for event in events if isinstance(event, Lost) for rank in event.unplanned_ranks}
    together = [{*event.ranks} for event in events if isinstance(event, Recovered) and unplanned & {*event.ranks}]
    pairs = [{rank, buddy_of(rank, num_ps)} for rank in unplanned]
    pairs += [{rank, owner_of(rank, num_ps)} for rank in unplanned]
    return any(pair <= ranks for pair in pairs for ranks in together)


def met_a_flip(attempt: Attempt) -> bool:
    """Whether it ended since it read a file of which the trace flipped a bit."""
    flips = [event for event in attempt.events() if isinstance(event, Flipped)]
    return attempt.code == 1 and any(Path(flip.path).name in attempt.last_line() for flip in flips)


def judged_flip(attempt: Attempt, calm: Attempt) -> list[str]:
    """What is wrong with a run whose calm twin ended since a bit had flipped."""
    if met_a_flip(attempt):
        return []
    return [f"exit code {attempt.code}: {attempt.last_line()}; the calm run ended with {calm.last_line()}"]


def shared_memory_left() -> list[str]:
    """Segments of processes that have ended."""
    names = [(name, _SHARED_MEMORY.search(name)) for name in os.listdir("/dev/shm")]
    return sorted(name for name, found in names if found and not Path(f"/proc/{found[1]}").exists())


def planned_faults(events: list[Event]) -> Counter[tuple[str, ...]]:
    """Faults of the trace that a record holds, by phase."""
    found: Counter[tuple[str, ...]] = Counter()
    for event in events:
        if isinstance(event, Killed):
            found["trace", event.fault, event.phase] += 1
        elif isinstance(event, WriteFailed):
            found["trace", event.fault, "save"] += 1
        elif isinstance(event, Slowed | Flipped):
            found["trace", event.kind, "boundary"] += 1
    return found


def judged_end(attempt: Attempt) -> list[str]:
    """Wait for the end; what is wrong with it."""
    wrong: list[str] = []
    if not attempt.wait(attempt.began_s + DEADLINE_S):
        wrong.append(f"hung for {DEADLINE_S:.0f} s: {attempt.last_line()}")
        attempt.end()
    text = attempt.output.read_text(errors="replace")
    if "Traceback" in text:
        wrong.append(f"a traceback: {attempt.last_line()}\n{text[text.index('Traceback') :]}")
    if attempt.code is not None and attempt.code > 0 and not text.strip():
        wrong.append(f"exit code {attempt.code} without a word")
    deadline_s = time.monotonic() + CLEAN_UP_S
    while (left := attempt.left()) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    if left:
        wrong.append(f"left over {CLEAN_UP_S:g} s after exit code {attempt.code}: {', '.join(left[:4])}")
        attempt.end()
        shutil.rmtree(attempt.temporary)
        attempt.temporary.mkdir()
    return wrong


def judged_result(attempt: Attempt, expected: Mapping[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """What is wrong with a run that has to have ended well; of its figures, those of ``names`` must be as expected."""
    if attempt.code or not (attempt.out / "DONE").exists():
        return [f"exit code {attempt.code} without a result: {attempt.last_line()}"]
    events = attempt.events()
    wrong = [f"record: {line}" for line in analysis.check(events, read_config(attempt.out))]
    found = figures(events)
    differ = [name for name in (expected if names is None else names) if found.get(name) != expected[name]]
    lost = [
        f"{event.unplanned_ranks} at {event.step}"
        for event in events
        if isinstance(event, Lost) and event.unplanned_ranks
    ]
    unasked = f" (lost without a line of the trace: {', '.join(lost) or 'nobody'})"
    return wrong + [f"{name} is {found.get(name)}, not {expected[name]}"[:300] + unasked for name in differ[:2]]


def figures(events: list[Event]) -> dict[str, Any]:
    """What the last event says, this machine's part aside."""
    finished = events[-1]
    if not isinstance(finished, Finished):
        return {}
    values = finished.to_json()
    return {name: value for name, value in values.items() if name not in ("machine", "num_unplanned", "generation")}


def counted(found: Counter[tuple[str, ...]], kind: str, phases: Sequence[str]) -> list[str]:
    """A table of faults of a kind by phase."""
    names = sorted({name for each, name, _ in found if each == kind})
    return table((kind, *phases), [[name, *(str(found[kind, name, phase]) for phase in phases)] for name in names])


def main() -> None:
    """Carry out the rounds, print tables of faults by phase and what was wrong; exit code 1 if anything was."""
    options = rounds_parser(__doc__, rounds=100).parse_args()
    total = carried_out(options, "chaos", tried)
    trace_phases = sorted({phase for kind, _, phase in total.counts if kind == "trace"})
    lines = [*counted(total.counts, "signal", PHASES), "", *counted(total.counts, "trace", trace_phases)]
    by_kind = {
        kind: sum(count for key, count in total.counts.items() if key[0] == kind)
        for kind in ("signal", "trace", "pause")
    }
    summary = (
        f"{options.rounds:,} rounds of seed {options.seed}: {by_kind['signal']:,} signals, "
        f"{by_kind['trace']:,} faults of traces, {by_kind['pause']:,} pauses, {len(total.wrong)} wrong"
    )
    counts = [
        {"kind": kind, "fault": name, "phase": phase, "count": count}
        for (kind, name, phase), count in sorted(total.counts.items())
    ]
    report(options, [*lines, "", summary, *total.wrong], {"results": counts, "wrong": total.wrong})
    sys.exit(1 if total.wrong else 0)


if __name__ == "__main__":
    main()
