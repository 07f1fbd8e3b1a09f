"""One `run.py train` in a session of its own, which can be watched, sent signals, and searched for what it left.

Processes and listening sockets of this machine are those that /proc shows.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

import harness.run.assemble  # noqa: F401 - torch and the compiled loops: a forked command has them already
import run as command_line
from harness.cli import interrupts
from harness.core.errors import HarnessError
from harness.core.events import Event, Regrouped, Started
from harness.core.plans import CHIEF, is_compute, is_ps
from harness.processes.parent_death import end_with_parent
from harness.record.event_log import read_events

POLL_S = 0.002
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 1 << 14
_SET_CHILD_SUBREAPER = 36  # of prctl, linux/prctl.h
_RANKS = {"ps": is_ps, "compute rank": is_compute, "trainer": CHIEF.__eq__}
_LISTENING = "0A"  # state in /proc/net/tcp
_ACCEPTS = 1 << 16  # flag in /proc/net/unix


class Attempt:
    """One `run.py train` in a session of its own, with a temporary folder of its own.

    Attributes:
        code: its exit code; None: it has not ended.
        paused_s: seconds in which one of its processes was stopped by the process that watches it, added up.
    """

    def __init__(self, config: Path, folder: Path, *words: str) -> None:
        self.out, self.output, self.temporary = folder / "out", folder / "output.txt", folder / "tmp"
        self.code: int | None = None
        self.paused_s = 0.0
        self._record = self.out / "events.jsonl"
        self._least_bytes = self._record.stat().st_size if self._record.exists() else 0  # of the record, since birth
        self._sockets: set[int] | None = None
        self._servers: list[int] = []
        adopt_orphans()
        self._others = {*descendants()}  # of the process that watches it
        self.temporary.mkdir(exist_ok=True)
        self.output.write_bytes(b"")  # a signal may come before the process opens it
        self.began_s = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the command handles them
        self.pid = os.fork()
        if self.pid == 0:
            _command(["train", str(config), f"out={self.out}", *words], self.output, self.temporary)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, deadline_s: float) -> bool:
        """Wait until it has ended, or the deadline; whether it has."""
        while not self.poll() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return self.code is not None

    def processes(self, whom: str) -> list[int]:
        """Its living processes of a kind: ``run``, ``fork server``, ``ps``, ``compute rank`` or ``trainer``.

        Ranks are those of the record, which has the ranks of a run that goes on from its next event on.
        """
        if whom == "run":
            return [self.pid]
        if whom == "fork server":  # looked for once: a phase may last for milliseconds
            self._servers = self._servers or [pid for pid in _children_of(self.pid) if _children_of(pid)]
            return self._servers
        pids: dict[str, int] = {}
        for event in self.events():
            for machine in event.machine.get("resumed", ()):
                pids |= machine.get("pids", {})
            if isinstance(event, Started | Regrouped):
                pids |= event.machine.get("pids", {})
        return [
            pid
            for rank, pid in sorted(pids.items())
            if _RANKS[whom](rank) and (seen := _parent_and_session(pid)) and seen[1] == self.pid
        ]

    def events(self) -> list[Event]:
        """Of its record so far."""
        try:
            return read_events(self._record)
        except HarnessError:
            return []

    def last_event(self) -> tuple[str, int] | None:
        """Kind and step of the last event that it recorded; of a fault that loses a rank the kind is ``loss``.

        None: it has recorded none, but perhaps an earlier one.
        """
        try:
            with self._record.open("rb") as file:
                num_bytes = file.seek(0, os.SEEK_END)
                self._least_bytes = min(self._least_bytes, num_bytes)  # a run that goes on cuts its record
                if num_bytes == self._least_bytes:
                    return None
                file.seek(-min(_TAIL_BYTES, num_bytes), os.SEEK_CUR)
                *_, line, _ = b"\n", *file.read().split(b"\n")
            event = json.loads(line)
        except FileNotFoundError:
            self._least_bytes = 0
            return None
        except ValueError:  # no whole line
            return None
        return "loss" if event.get("loss") else str(event["event"]), int(event["step"])

    def note_sockets(self) -> None:
        """Remember the sockets that its processes have open, unless that was done."""
        if self._sockets is None:
            self._sockets = sockets_of(in_session(self.pid)) - sockets_of([os.getpid()])

    def left(self) -> list[str]:
        """Processes, in any session, listening sockets and temporary files that are left of it."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans that have ended
                pass
        listening = listening_sockets()
        return [
            *(f"process {pid}" for pid in self._descendants()),
            *(f"socket {listening[number]}" for number in listening.keys() & (self._sockets or ())),
            *(f"file {path.relative_to(self.temporary)}" for path in self.temporary.rglob("*")),
        ]

    def _descendants(self) -> list[int]:
        return [pid for pid in descendants() if pid not in self._others]

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self._descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def last_line(self) -> str:
        """Of what it printed."""
        return (self.text().strip().splitlines() or ["nothing"])[-1][:200]

    def text(self) -> str:
        """All that it printed."""
        return self.output.read_text(errors="replace")


def _command(arguments: list[str], output: Path, temporary: Path) -> None:
    """In the forked process: the command, as a user's shell starts it. Never returns."""
    code = 1
    try:
        os.setsid()
        end_with_parent()
        with output.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        tempfile.tempdir = None
        os.environ["TMPDIR"] = str(temporary)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.install()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)  # a fork server may have them blocked, too
        code = command_line.main(arguments)
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter ends
        traceback.print_exc()
    finally:
        util._exit_function()  # pyright: ignore[reportAttributeAccessIssue] - what an interpreter's end does; other handlers are those of the parent
        sys.stderr.flush()
        os._exit(code)


# --- processes --------------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, whatever its session."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Living descendants of this process, by two looks: one may miss a process whose parent ends during it."""
    found: set[int] = set()
    for _ in range(2):
        living = _living()
        new = {os.getpid()}
        while new := {pid for pid, (parent, _) in living.items() if parent in new}:
            found |= new
    return sorted(found)


def in_session(session: int) -> list[int]:
    """Living processes of a session."""
    return [pid for pid, (_, its_session) in _living().items() if its_session == session]


def _children_of(pid: int) -> list[int]:
    return [child for child, (parent, _) in _living().items() if parent == pid]


def _living() -> dict[int, tuple[int, int]]:
    """Parent and session of each living process."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return {pid: seen for pid in pids if (seen := _parent_and_session(pid))}


def _parent_and_session(pid: int) -> tuple[int, int] | None:
    """None: the process is gone, or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state, parent, _, session, *_ = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else (int(parent), int(session))


# --- sockets ----------------------------------------------------------------------------------------------------------


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Numbers (inodes) of the sockets that processes have open."""
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            names = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
            found |= {int(name[8:-1]) for name in names if name.startswith("socket:[")}
    return found


def listening_sockets() -> dict[int, str]:
    """TCP and Unix sockets that listen, in the network of this process: kind and address by number."""
    found: dict[int, str] = {}
    for path in filter(Path.exists, map(Path("/proc/net").joinpath, ("tcp", "tcp6", "unix"))):
        for fields in map(str.split, path.read_text(errors="replace").splitlines()[1:]):
            if path.name == "unix" and int(fields[3], 16) & _ACCEPTS:
                found[int(fields[6])] = f"unix {' '.join(fields[7:])}"
            elif path.name != "unix" and fields[3] == _LISTENING:
                found[int(fields[9])] = f"{path.name} {fields[1]}"
    return found
