"""A thread that makes the calls of wandb, each with a deadline, so that wandb holds up neither a step nor an exit.

A call waits for wandb-core, a child process, and some calls have no deadline of their own. When a call is late,
wandb-core is killed. That ends the call, and what wandb does when this process exits.
"""

import logging
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from harness.record.wandb_session import WandbError, one_line_errors

_log = logging.getLogger(__name__)

DEADLINE_S = 15.0
"""Of a call, from when it begins."""

_SAID_AFTER_S = 3.0  # of waiting for calls
_MAX_PENDING = 10_000  # calls that wait for the one before
_GRACE_S = 2.0  # for a call to end after wandb-core was killed
_POLL_S = 0.1
_T = TypeVar("_T")


class Worker:
    """Makes calls one after another in a thread of its own. Any error of a call is a WandbError.

    Args:
        waits_for: what wandb needs an answer of, in words; it is logged when a wait takes long.
        has_one_deadline: calls after one that fails share its deadline, so that all of them have ended by then, or are
            given up. Otherwise each call has a deadline of its own.
    """

    def __init__(self, waits_for: str, *, has_one_deadline: bool = False) -> None:
        self._waits_for = waits_for
        self._has_one_deadline = has_one_deadline
        self._failed_began_s = math.inf  # when the first call that failed began, with one deadline
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._began_s: float | None = None  # when the present call began
        self._is_said = False
        self._error: WandbError | None = None  # of the first call that failed
        self._thread = Thread(target=self._work, name="wandb", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], object]) -> None:
        """Have ``call`` made after those before; never waits.

        Raises WandbError if a call before has failed or is late, or too many are pending.
        """
        self.check()
        self._put(call)

    def call(self, call: Callable[[], _T], within_s: float = math.inf) -> _T:
        """The result of ``call``, which is made after those before, whether they fail or not. Raises WandbError.

        ``within_s``: from now on; an end of its own, where that comes before the deadline.
        """
        future = self._put(call)
        began_s = time.monotonic()
        try:
            while not wait([future], timeout=_POLL_S).done:
                self._refuse_late()
                if time.monotonic() - began_s > within_s:
                    self._give_up(f"no answer within {within_s:.0f} s")
                if not self._is_said and time.monotonic() - began_s > _SAID_AFTER_S:
                    self._is_said = True
                    limit_s = round(min(DEADLINE_S, within_s), 1)
                    _log.info("wandb: waiting for %s, at most %g s", self._waits_for, limit_s)
        except BaseException:
            kill_core()
            wait([future], timeout=min(_GRACE_S, max(0.0, self._failed_began_s + DEADLINE_S - time.monotonic())))
            raise
        return future.result()

    def check(self) -> None:
        """Raise WandbError if a call has failed or is late, or too many are pending."""
        if self._error is not None:
            raise self._error
        self._refuse_late()
        if self._calls.qsize() >= _MAX_PENDING:
            self._give_up(f"{_MAX_PENDING:,} calls are pending")

    def close(self) -> None:
        """End the thread after the calls before."""
        self._calls.put(None)

    def _put(self, call: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        self._calls.put((call, future))
        return future

    def _refuse_late(self) -> None:
        began_s = self._began_s
        if began_s is None:
            return
        grace_s = _GRACE_S if self._has_one_deadline else 0.0
        if time.monotonic() - min(began_s, self._failed_began_s) > DEADLINE_S - grace_s:
            self._note_failure(began_s)
            self._give_up(f"no answer within {DEADLINE_S:g} s")

    def _note_failure(self, began_s: float) -> None:
        """A call that began then has failed."""
        if self._has_one_deadline:
            self._failed_began_s = min(began_s, self._failed_began_s)

    def _give_up(self, reason: str) -> None:
        self._error = WandbError(reason)
        kill_core()
        raise self._error

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            began_s = self._began_s = time.monotonic()
            try:
                with one_line_errors():
                    future.set_result(call())
            except WandbError as error:
                self._error = self._error or error
                self._note_failure(began_s)
                future.set_exception(error)
            finally:
                self._began_s = None


def kill_core() -> None:
    """Kill the wandb-core processes of this process, and remove their sockets; a no-op where there is none."""
    for pid in core_pids(os.getpid()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for folder in Path(tempfile.gettempdir()).glob(f"wandb-{os.getpid()}-{pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def core_pids(owner_pid: int) -> list[int]:
    """The wandb-core processes that a process has started."""
    found: list[int] = []
    for children in Path(f"/proc/{owner_pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread or a child has ended
            found += [int(pid) for pid in children.read_text().split() if _is_core(pid)]
    return found


def _is_core(pid: str) -> bool:
    return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name == "wandb-core"
