"""Living processes and listening sockets of this machine, as /proc shows them."""

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of prctl, linux/prctl.h
_LISTENING = "0A"  # state in /proc/net/tcp
_ACCEPTS = 1 << 16  # flag in /proc/net/unix


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, whatever its session."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Forget children of this process that have ended. A child whose exit code matters has to be waited for before."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants() -> list[int]:
    """Living descendants of this process, by two looks: one may miss a process whose parent ends during it."""
    return sorted({*_seen_descendants(), *_seen_descendants()})


def _seen_descendants() -> list[int]:
    parents = {pid: int(fields[1]) for pid in _pids() if (fields := _stat(pid))}
    found: list[int] = []
    new = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        found += sorted(new)
    return found


def in_session(session: int) -> list[int]:
    """Living processes of a session."""
    return [pid for pid in _pids() if is_in_session(pid, session)]


def is_in_session(pid: int, session: int) -> bool:
    """Whether a process lives and belongs to a session."""
    fields = _stat(pid)
    return bool(fields) and int(fields[3]) == session


def children_of(pid: int) -> list[int]:
    """Living children of a process; one may be missing while another one ends."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended
            found += map(int, path.read_text().split())
    return [child for child in found if _stat(child)]


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


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Numbers (inodes) of the sockets that processes have open."""
    found: set[int] = set()
    for pid in pids:
        try:
            names = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:  # it has ended
            continue
        found |= {int(name[8:-1]) for name in names if name.startswith("socket:[")}
    return found


def listening_sockets() -> dict[int, str]:
    """TCP and Unix sockets that listen, in the network of this process: kind and address by number."""
    found: dict[int, str] = {}
    for kind in ("tcp", "tcp6"):
        for fields in _table(kind):
            if fields[3] == _LISTENING:
                found[int(fields[9])] = f"{kind} {fields[1]}"
    for fields in _table("unix"):
        if int(fields[3], 16) & _ACCEPTS:
            found[int(fields[6])] = f"unix {' '.join(fields[7:])}"
    return found


def _table(kind: str) -> list[list[str]]:
    """Rows of a table of sockets; none if the system has no such table."""
    try:
        return [line.split() for line in Path(f"/proc/net/{kind}").read_text(errors="replace").splitlines()[1:]]
    except OSError:
        return []


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none for a process that is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields
