"""The function that a job of submitit runs: it trains one cell by ``run.py train`` in a child process.

If the job must end before the cell is done, the child writes a resume point, and submitit requeues the job.

submitit calls :meth:`CellJob.checkpoint` in the handler of its preemption signal (USR2, or the one in
SUBMITIT_PREEMPT_SIGNAL), which the scheduler sends ``jobs.signal_delay_s`` before the time limit. submitit ignores
SIGTERM; here SIGTERM calls the same handler.
"""

import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from harness.core.errors import RunFailed
from harness.processes.child import Child, output_of

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
        log: file to which the command's output is appended.
    """

    command: tuple[str, ...]
    folder: str
    log: str
    grace_s: float
    _child: Child | None = field(default=None, init=False, repr=False)
    _is_terminated: bool = field(default=False, init=False, repr=False)

    def __call__(self) -> None:
        """Train the cell. Raises RunFailed if the command's exit code is not 0, so that the job counts as failed."""
        before = self._handle_sigterm()
        try:
            self._child = Child(self.command, folder=self.folder, log=Path(self.log), ignored=_TO_THE_JOB)
            code = self._child.wait()
        finally:
            self._stop_child()
            signal.signal(signal.SIGTERM, before)
        if code:
            raise RunFailed(f"{self.command[0]} ended with exit code {code}; see {self.log}")

    def checkpoint(self) -> Any:
        """Stop the child, and ignore further signals. Returns the submission that resumes the cell.

        None, so that the job is not requeued, if the child had failed, or SLURM ends or requeues the job itself. Raises
        SystemExit(0) if the cell is done.
        """
        from submitit.helpers import (  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
            DelayedSubmission,
        )

        for number in (signal.SIGTERM, signal.SIGINT, _PREEMPTION):
            signal.signal(number, signal.SIG_IGN)
        code = self._stop_child()
        if code == 0:
            raise SystemExit(0)
        has_failed = code not in (None, _STOPPED, -signal.SIGINT, -signal.SIGKILL)  # SIGINT: it was just starting
        if has_failed or (self._is_terminated and is_cancelled()):
            return None
        return DelayedSubmission(replace(self))

    def _handle_sigterm(self) -> Any:
        """Let SIGTERM call submitit's handler of the preemption signal. Returns SIGTERM's former handler."""
        requeue = signal.getsignal(_PREEMPTION)

        def handle(number: int, frame: FrameType | None, /) -> None:
            self._is_terminated = True
            if callable(requeue):
                requeue(number, frame)

        is_handled = callable(requeue)  # not by submitit's debug executor
        return signal.signal(signal.SIGTERM, handle) if is_handled else signal.getsignal(signal.SIGTERM)

    def _stop_child(self) -> int | None:
        """Ask the child to stop, and kill it if it does not end in time. Returns its exit code, or None without one."""
        if self._child is None:
            return None
        if self._child.wait(0.0) is None:
            self._child.signal(signal.SIGINT)
        return self._child.end(self.grace_s + _MARGIN_S)


def is_cancelled() -> bool:
    """Whether SLURM reports a state of this job other than RUNNING; then SLURM ends the job, or requeues it itself.

    A job in its grace period is still RUNNING. False outside of SLURM, and if squeue gives no answer.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    state = output_of(["squeue", "--noheader", f"--jobs={job}", "--format=%T"], _ANSWER_S)
    return state is not None and state.strip() != "RUNNING"
