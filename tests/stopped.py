"""Processes that a test stops."""

import os
import signal
import time
from pathlib import Path

PATIENCE_S = 30.0


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until no thread of the process runs.

    The signal alone is a request: a thread that is on a core, or next to be, goes on, and may answer a message first.
    """
    os.kill(pid, signal.SIGSTOP)
    await_stop(pid)


def await_stop(pid: int) -> None:
    """Wait until no thread of the process runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_stopped(pid):
        assert time.monotonic() < deadline_s, f"process {pid} did not stop within {PATIENCE_S:g} s"
        time.sleep(0.001)


def is_stopped(pid: int) -> bool:
    """Whether no thread of the process runs."""
    return all(_state(task) in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir())


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return "X"
