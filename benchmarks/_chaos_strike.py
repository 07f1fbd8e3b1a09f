"""How benchmarks/chaos.py sends signals to the processes of a run, and stops and continues them."""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from benchmarks._attempt import POLL_S, Attempt
from benchmarks._chaos import SIGNALS, Fault
from benchmarks._processes import in_session
from benchmarks._rounds import DEADLINE_S

_PHASE_OF = {"started": "start", "save": "save", "eval": "eval"} | dict.fromkeys(("loss", "lost", "regroup"), "recover")
_LONGEST_PAUSE_S = 0.3  # far below the deadlines of a round


class Stopped:
    """Processes of ``attempt`` that are stopped, each until its second."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._until_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def stop(self, pid: int, seconds: float) -> None:
        """Stop a process, and continue it after ``seconds``. Raises ProcessLookupError if it has ended."""
        os.kill(pid, signal.SIGSTOP)
        self._until_s[pid] = time.monotonic() + seconds
        self._attempt.paused_s += seconds

    def leave(self, pid: int) -> None:
        """Do not continue a process: it is stopped for good."""
        self._until_s.pop(pid, None)

    def go_on(self, at_s: float | None = None) -> None:
        """Continue the processes whose second has come by ``at_s``; default: by now."""
        now_s = time.monotonic() if at_s is None else at_s
        for pid in [pid for pid, until_s in self._until_s.items() if until_s <= now_s]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            del self._until_s[pid]


class Pauses:
    """Stops a process of an attempt, any of them, for a moment, and then another one."""

    def __init__(self, attempt: Attempt, rng: np.random.Generator) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.left_alone: set[int] = set()
        self._attempt, self._rng = attempt, rng
        self._next_s = time.monotonic()

    def take_turn(self, stopped: Stopped) -> None:
        """Stop a process if it is time."""
        if time.monotonic() < self._next_s:
            return
        stop_s, wait_s = self._rng.uniform(0, _LONGEST_PAUSE_S, 2).tolist()
        self._next_s = time.monotonic() + stop_s + wait_s
        if pids := [pid for pid in in_session(self._attempt.pid) if pid not in self.left_alone]:
            with suppress(ProcessLookupError):
                stopped.stop(int(self._rng.choice(pids)), stop_s)
                self.counts["pause", "any process", place(self._attempt)[0]] += 1


def strike(attempt: Attempt, faults: Sequence[Fault], pauses: Pauses | None) -> Counter[tuple[str, ...]]:
    """Send each signal once its phase has come; which ones found a process, and in which phase.

    Returns when nothing is left to be sent or continued. With ``pauses`` that is when the attempt has ended, or at its
    deadline.
    """
    struck: Counter[tuple[str, ...]] = Counter()
    pending, stopped = list(faults), Stopped(attempt)
    while (pending or pauses or stopped) and not attempt.poll() and time.monotonic() < attempt.began_s + DEADLINE_S:
        stopped.go_on()
        if pauses:
            pauses.take_turn(stopped)
        _look_around(attempt, pending)
        due = next((fault for fault in pending if _is_due(attempt, fault)), None)
        if due is None:
            attempt.wait(time.monotonic() + POLL_S)
            continue
        pending.remove(due)
        attempt.wait(time.monotonic() + due.delay_s)
        phase, _ = place(attempt)
        pids = attempt.processes(SIGNALS[due.name][0])
        if not attempt.poll() and pids and _sent(due, pids[due.step % len(pids)], stopped, pauses):
            struck["signal", due.name, phase] += 1
    stopped.go_on(np.inf)
    return struck


def place(attempt: Attempt) -> tuple[str, int]:
    """What the record says last: the phase, and the step."""
    last = attempt.last_event()
    if last is None:
        return "start", 0
    kind, step = last
    return _PHASE_OF.get(kind, "train"), step


def _look_around(attempt: Attempt, pending: Sequence[Fault]) -> None:
    """Look for the fork server while there is time, and for sockets when all of them are there."""
    if place(attempt)[0] != "start":
        attempt.note_sockets()
        if any(SIGNALS[fault.name][0] == "fork server" for fault in pending):
            attempt.processes("fork server")


def _is_due(attempt: Attempt, fault: Fault) -> bool:
    """Whether the run has reached the phase and the step, and there is a process to which the signal can go."""
    phase, step = place(attempt)
    has_come = phase == fault.phase and (step >= fault.step or phase == "start")
    return has_come and bool(attempt.processes(SIGNALS[fault.name][0]))


def _sent(fault: Fault, pid: int, stopped: Stopped, pauses: Pauses | None) -> bool:
    """Send the signal to a process; whether it was there."""
    if pauses:
        pauses.left_alone.add(pid)
    number = SIGNALS[fault.name][1]
    with suppress(ProcessLookupError):
        if fault.held_s is not None:
            stopped.stop(pid, fault.held_s)
        else:
            os.kill(pid, number)
        if number == signal.SIGSTOP and fault.held_s is None:
            stopped.leave(pid)
        return True
    return False
