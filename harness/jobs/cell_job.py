"""The function of a job: it trains one cell by ``run.py train`` in a child process.

If the job is to end before the cell is done, the child writes a resume point, and submitit requeues the job.

submitit calls :meth:`CellJob.checkpoint` in the handler of its preemption signal (USR2, or what SUBMITIT_PREEMPT_SIGNAL
names), which comes ``jobs.signal_delay_s`` before the limit, and ignores SIGTERM. Here SIGTERM does the same.
"""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from harness.core.errors import RunFailed
from harness.processes.leash import end_with_parent

_PREEMPTION = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}")
_TO_THE_JOB = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
"""Signals that a scheduler sends to all processes of a job, and that would end a child without a resume point."""
_MARGIN_S = 5.0  # for a child to end in, after its own time of grace
_STOPPED = 128 + signal.SIGINT  # exit code of a command that was asked to stop by it
_ANSWER_S = 20.0  # of squeue


@dataclass
class CellJob:
    """The function that submitit calls in the job. It can be pickled.

    Args:
        command: trains the cell; SIGINT asks it to stop, within ``grace_s`` seconds.
        folder: working directory of the command.
        log: file to which its output is appended.
    """

    command: tuple[str, ...]
    folder: str
    log: str
    grace_s: float
    _child: "_Child | None" = field(default=None, init=False, repr=False)
    _is_terminated: bool = field(default=False, init=False, repr=False)

    def __call__(self) -> None:
        """Train the cell. Raises RunFailed if that fails; submitit then counts the job as failed."""
        before = self._handle_sigterm()
        try:
            with Path(self.log).open("ab") as log:
                self._child = _Child(self.command, self.folder, log)
            code = self._child.wait()
        finally:
            self._stop_child()
            self._reap_child()
            signal.signal(signal.SIGTERM, before)
        if code:
            raise RunFailed(f"{self.command[0]} ended with exit code {code}; see {self.log}")

    def checkpoint(self) -> Any:
        """Stop the child. Returns the submission that resumes the cell, or None if the job is not to be requeued.

        Raises SystemExit(0) if the cell is done.
        """
        from submitit.helpers import (  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
            DelayedSubmission,
        )

        for number in (signal.SIGTERM, signal.SIGINT, _PREEMPTION):
            signal.signal(number, signal.SIG_IGN)
        code = self._stop_child()
        if code == 0:
            raise SystemExit(0)
        has_failed = code not in (None, _STOPPED, -signal.SIGKILL)
        if has_failed or (self._is_terminated and is_cancelled()):
            return None
        return DelayedSubmission(replace(self))

    def _handle_sigterm(self) -> Any:
        """From now on SIGTERM does what submitit does at its preemption signal; the handler before."""
        requeue = signal.getsignal(_PREEMPTION)

        def handle(number: int, frame: FrameType | None, /) -> None:
            self._is_terminated = True
            if callable(requeue):
                requeue(number, frame)

        is_handled = callable(requeue)  # not by submitit's debug executor
        return signal.signal(signal.SIGTERM, handle) if is_handled else signal.getsignal(signal.SIGTERM)

    def _reap_child(self) -> None:
        """From now on a signal finds no child."""
        child, self._child = self._child, None
        if child is not None:
            child.reap()

    def _stop_child(self) -> int | None:
        """Ask the child to stop, wait for it, and kill it if it does not end in time; its exit code."""
        if self._child is None:
            return None
        if self._child.wait(0.0) is None:
            self._child.send(signal.SIGINT)
            if self._child.wait(self.grace_s + _MARGIN_S) is None:
                self._child.send(signal.SIGKILL)
        return self._child.wait()


class _Child:
    """A child process. A signal handler may wait for it during another wait, where ``Popen.wait`` would deadlock."""

    def __init__(self, command: Sequence[str], folder: str, log: IO[bytes]) -> None:
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=null,
            stdout=log,
            stderr=log,
            preexec_fn=_begin_child,  # noqa: PLW1509 - the process of a job has no other thread
        )
        self._handle = os.pidfd_open(self._process.pid)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code, or minus the signal that ended it; None if it has not ended within ``timeout_s``."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        if not poll.poll(None if timeout_s is None else 1e3 * timeout_s):
            return None
        ended = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; it has not been reaped."""
        signal.pidfd_send_signal(self._handle, number)

    def reap(self) -> None:
        """Reap the ended child process and close its pidfd, with the scheduler's signals to the job blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_TO_THE_JOB, signal.SIGINT})
        self._process.wait()
        os.close(self._handle)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def is_cancelled() -> bool:
    """Whether SLURM reports the job in a state other than RUNNING: it ends the job, or requeues it itself.

    A job in its time of grace is still RUNNING. False outside of SLURM, and where squeue gives no answer.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        state = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return False
    return state != "RUNNING"


def _begin_child() -> None:
    """In the child, before its program: only SIGINT asks it to stop, and it ends with the process of the job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in _TO_THE_JOB:  # ignored, not blocked: multiprocessing unblocks SIGTERM
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
