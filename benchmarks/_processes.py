"""Processor time of processes, and other work beside them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def busy_cores() -> Iterator[None]:
    """While it is entered, a process spins for each core."""
    spinning = []
    try:
        for _ in os.sched_getaffinity(0):
            if (pid := os.fork()) == 0:
                while os.getppid() != 1:
                    sum(range(100_000))
                os._exit(0)
            spinning.append(pid)
        yield
    finally:
        for pid in spinning:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def processor_s(pid: int) -> float:
    """Processor time that a process has had, threads that have ended included; seconds, in steps of 10 ms."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: man 5 proc
