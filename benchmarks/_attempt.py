"""One `run.py train` in a session of its own, which can be watched, sent signals, and searched for what it left."""

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

import harness.run.assemble  # noqa: F401 - torch and the compiled loops: a forked command has them already
import run as command_line
from harness.cli import interrupts
from harness.core.errors import HarnessError
from harness.core.events import Event, Regrouped, Started
from harness.processes.leash import end_with_parent
from harness.record.recorder import read_record

POLL_S = 0.002
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 1 << 14


class Attempt:
    """One `run.py train` in a session of its own, with a temporary folder of its own."""

    def __init__(self, config: Path, folder: Path, *words: str) -> None:
        self.out = folder / "out"
        self.output = folder / "output.txt"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.output.write_bytes(b"")  # a signal may come before the process opens it
        self.began_s = time.monotonic()
        arguments = ["train", str(config), f"out={self.out}", *words]
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the command handles them
        self.pid = os.fork()
        if self.pid == 0:
            _command(arguments, self.output, self.temporary)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        self.code: int | None = None
        self._servers: list[int] = []

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
        """Its processes of a kind: ``run``, ``fork server``, ``ps`` or ``trainer``. Ranks are those of the record."""
        if whom == "run":
            return [self.pid]
        if whom == "fork server":  # looked for once: a phase may last for milliseconds
            self._servers = self._servers or [
                pid for pid in in_session(self.pid) if parent_of(pid) == self.pid and children_of(pid)
            ]
            return self._servers
        found: dict[str, int] = {}
        for event in self.events():
            if isinstance(event, Started | Regrouped):
                found |= event.machine.get("pids", {})
        return [pid for rank, pid in sorted(found.items()) if rank.startswith(whom)]

    def events(self) -> list[Event]:
        """Of its record so far."""
        try:
            return read_record(self.out / "events.jsonl").events
        except HarnessError:
            return []

    def last_event(self) -> tuple[str, int] | None:
        """Kind and step of the last event of its record; None: there is none."""
        try:
            with (self.out / "events.jsonl").open("rb") as file:
                file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_CUR)
                *_, line, _ = b"\n", *file.read().split(b"\n")
            event = json.loads(line)
        except (OSError, ValueError):  # no record yet, no whole line
            return None
        return str(event["event"]), int(event["step"])

    def left(self) -> list[str]:
        """Processes and temporary files that are left of it."""
        processes = [f"process {pid}" for pid in in_session(self.pid) if pid != self.pid]
        files = [f"file {path.relative_to(self.temporary)}" for path in self.temporary.rglob("*")]
        return processes + files

    def end(self) -> None:
        """Kill what is left of its session."""
        for pid in in_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def last_line(self) -> str:
        """Of what it printed."""
        return (self.output.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:200]


def _command(arguments: list[str], output: Path, temporary: Path) -> None:
    """In the forked process: the command, as a user's shell starts it. Never returns."""
    code = 1
    try:
        os.setsid()
        end_with_parent()  # a leash's thread would keep it from nesting
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
