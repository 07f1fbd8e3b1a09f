"""What benchmarks/chaos.py draws and looks at: random failure traces, and the processes of a session."""

import os
from pathlib import Path

import numpy as np

_SAVES_ONCE = ("none", "buddy")


def drawn_trace(rng: np.random.Generator, strategy: str, num_ps: int, *, job_h: float) -> str:
    """A random trace as CSV, every phase of which is sure to come."""
    hours = [] if strategy == "none" else sorted(rng.uniform(0, job_h, rng.integers(0, 6)).round(3).tolist())
    lines = ["# title: made by a benchmark", "hour,rank,phase,fault,factor,repair_h"]
    for number, hour in enumerate(hours):
        phases = ["boundary", "lookup", "apply", "eval"]
        if strategy not in _SAVES_ONCE and hour < job_h / 2:
            phases += ["save", "manifest"]
        if strategy != "buddy" and number < len(hours) - 1:  # ranks that die in a recovery may be those of a pair
            phases += ["restore", "regroup"]
        is_last = number == len(hours) - 1  # the failure whose recovery the others wait for
        phase = "boundary" if is_last else str(rng.choice(phases))
        fault = "kill" if is_last else str(rng.choice(["kill", "hang", "slow"], p=[0.8, 0.1, 0.1]))
        how = f",{fault},2.5,3" if fault == "slow" else f"{phase},{fault},,"
        lines.append(f"{hour},ps{rng.integers(num_ps)},{how}")
    return "\n".join([*lines, ""])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none for a process that is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields


def in_session(session: int) -> list[int]:
    """Living processes of a session."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[3]) == session]


def parent_of(pid: int) -> int | None:
    """The parent of a living process."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def children_of(pid: int) -> list[int]:
    """Living children of a process."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and parent_of(int(name)) == pid]


def last_line(path: Path) -> str:
    """Of a text."""
    return (path.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:200]
