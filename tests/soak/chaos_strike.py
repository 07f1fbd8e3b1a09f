"""How chaos sends signals to the processes of a run, and stops and continues them."""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from tests.soak.attempt import POLL_S, Attempt, in_session
from tests.soak.chaos_draws import SIGNALS, Fault
from tests.soak.rounds import DEADLINE_S

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
