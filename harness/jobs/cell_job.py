"""The program of a job of SLURM: trains one cell by ``run.py train`` in a child process.

    python -m harness.jobs.cell_job FOLDER GRACE_S MOST_REQUEUES CELL

``FOLDER``: the grid's folder ``jobs``. If the job must end before the cell is done, the run writes a resume point, for
which it has ``GRACE_S`` seconds, and the job is requeued, at most ``MOST_REQUEUES`` times. SLURM says so by USR2,
``jobs.signal_delay_s`` before the time limit, or by SIGTERM, which preempts. The exit code is that of the run.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from harness.processes.child import ROOT, Child, output_of

_log = logging.getLogger(__name__)
_PROGRAM = ROOT / "run.py"
_TO_THE_JOB = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
"""Signals that a scheduler sends to all processes of a job, and that would end a child without a resume point."""
_LOOK_S = 0.5  # between two looks at the signals
_MARGIN_S = 5.0  # for a child to end in, after its own time of grace
_STOPPED = (128 + signal.SIGINT, -signal.SIGINT, -signal.SIGKILL)
"""Exit codes of a command that was asked to stop, as it started, or in vain."""
_ANSWER_S = 20.0  # of squeue and scontrol


def command_of(config: Path, grace_s: float) -> tuple[str, ...]:
    """The command that trains a cell from the file of its configuration. ``grace_s``: its time to stop, seconds."""
    return sys.executable, str(_PROGRAM), "train", str(config), "--grace", f"{grace_s:g}"


def main(folder: str, grace: str, most_requeues: str, cell: str) -> int:
    """Train the cell, and requeue the job if it must end before; returns an exit code."""
    asked: list[int] = []
    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    config, grace_s = Path(folder, f"{cell}.yaml"), float(grace)
    child = Child(command_of(config, grace_s), log=config.with_suffix(".log"), ignored=_TO_THE_JOB)
    while child.wait(_LOOK_S) is None and not asked:
        pass
    if child.wait(0.0) is None:
        child.signal(signal.SIGINT)
    code = child.end(grace_s + _MARGIN_S)
    if asked and code in _STOPPED and not (signal.SIGTERM in asked and is_cancelled()):
        _requeue(int(most_requeues))
    return code if code >= 0 else 128 - code


def _requeue(most: int) -> None:
    """Have SLURM run this job again, unless it has done so ``most`` times."""
    job, times = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if times >= most:
        _log.warning("job %s: requeued %d times already (jobs.max_timeouts)", job, times)
    elif output_of(["scontrol", "requeue", job], _ANSWER_S) is None:
        _log.warning("job %s: scontrol requeue failed", job)


def is_cancelled() -> bool:
    """Whether SLURM reports a state of this job other than RUNNING; then SLURM ends the job, or requeues it itself.

    A job in its grace period is still RUNNING. False if squeue gives no answer.
    """
    command = ["squeue", "--noheader", f"--jobs={os.environ['SLURM_JOB_ID']}", "--format=%T"]
    state = output_of(command, _ANSWER_S)
    return state is not None and state.strip() != "RUNNING"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
