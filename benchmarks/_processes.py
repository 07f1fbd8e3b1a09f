"""Memory and processor time of processes, as the Linux kernel counts them."""

import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

from harness.processes.forked import ForkedProcess
from harness.processes.spawn import fork_server

T = TypeVar("T")


def start(body: Callable[..., None], *args: Any) -> tuple[ForkedProcess, Any]:
    """A process that is forked from the fork server, and the end of the pipe that is its last argument."""
    ours, theirs = Pipe()
    with theirs:
        return fork_server().fork(body, *args, theirs), ours


def extra_bytes_of(action: Callable[[], T]) -> tuple[T, int]:
    """The result of an action in this process, and the rise of resident memory to its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before_bytes = resident_bytes()
    result = action()
    return result, max(0, _bytes("self", "status", "VmHWM:") - before_bytes)


def resident_bytes() -> int:
    return _bytes("self", "status", "VmRSS:")


def memory_of_tree(root: int) -> tuple[int, int]:
    """PSS, in which each shared page is divided, and the sum of VmHWM, each process's own peak; bytes.

    Of process ``root`` and all its descendants. One that ends before it is read counts as 0.
    """
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
    return pss, high_water


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
