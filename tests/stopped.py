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
    deadline_s = time.monotonic() + PATIENCE_S
    while any(_state(task) not in "TtZX" for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline_s, f"process {pid} did not stop within {PATIENCE_S:g} s"
        time.sleep(0.001)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return "X"
