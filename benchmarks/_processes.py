"""Memory and processor time of processes, as the Linux kernel counts them."""

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

START_METHOD = "spawn"
"""How a process that is empty at first is started. Tests, which judge no figure, fork one that has imported all."""


def start_empty(body: Callable[..., None], *args: Any) -> tuple[BaseProcess, Any]:
    """A process that is empty at first, and the end of the pipe that is its last argument."""
    context = multiprocessing.get_context(START_METHOD)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=body, args=(*args, theirs))
    process.start()
    theirs.close()
    return process, ours


@dataclass(frozen=True)
class Cost:
    """Of one action in this process: wall time, and the rise of resident memory to its peak."""

    seconds: float
    extra_bytes: int


def cost_of(action: Callable[[], T]) -> tuple[T, Cost]:
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before_bytes, began_s = resident_bytes(), time.perf_counter()
    result = action()
    seconds = time.perf_counter() - began_s
    return result, Cost(seconds, max(0, _bytes("self", "status", "VmHWM:") - before_bytes))


def resident_bytes() -> int:
    return _bytes("self", "status", "VmRSS:")


@dataclass(frozen=True)
class Memory:
    """Of several processes: PSS, in which each shared page is divided, and VmHWM, their own peaks, added up."""

    pss_bytes: int = 0
    high_water_bytes: int = 0

    def __or__(self, other: "Memory") -> "Memory":
        return Memory(max(self.pss_bytes, other.pss_bytes), max(self.high_water_bytes, other.high_water_bytes))


def memory_of_tree(root: int) -> Memory:
    """Memory of process ``root`` and all its descendants; one that ends before it is read counts as 0."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    tree = [root]
    for pid in tree:  # grows as it goes
        tree += children.get(pid, [])
    pss = high_water = 0
    for pid in tree:
        with suppress(FileNotFoundError, ProcessLookupError):
            pss += pss_bytes(pid)
            high_water += _bytes(str(pid), "status", "VmHWM:")
    return Memory(pss, high_water)


def pss_bytes(pid: int) -> int:
    """Memory of a process, pages that it shares in proportion."""
    return _bytes(str(pid), "smaps_rollup", "Pss:")


def _bytes(pid: str, name: str, field: str) -> int:
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))  # none of a zombie


def processor_s(pid: int) -> float:
    """Processor time that a process has had, threads that have ended included; seconds, in steps of 10 ms."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: man 5 proc
