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
from benchmarks._processes import (
    adopt_orphans,
    children_of,
    descendants,
    in_session,
    is_in_session,
    listening_sockets,
    reap_orphans,
    sockets_of,
)
from harness.cli import interrupts
from harness.core.errors import HarnessError
from harness.core.events import Event, Regrouped, Started
from harness.processes.leash import end_with_parent
from harness.record.recorder import read_record

POLL_S = 0.002
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 1 << 14


class Attempt:
    """One `run.py train` in a session of its own, with a temporary folder of its own.

    Attributes:
        paused_s: seconds in which one of its processes was stopped by the process that watches it, added up.
    """

    def __init__(self, config: Path, folder: Path, *words: str) -> None:
        self.out = folder / "out"
        self.output = folder / "output.txt"
        self.temporary = folder / "tmp"
        self.paused_s = 0.0
        self._record = self.out / "events.jsonl"
        self._least_bytes = self._record.stat().st_size if self._record.exists() else 0  # of the record, since birth
        self._sockets: set[int] = set()
        self._has_looked = False
        adopt_orphans()
        self._others = {*descendants()}  # of the process that watches it
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
        """Its living processes of a kind: ``run``, ``fork server``, ``ps`` or ``trainer``.

        Ranks are those of the record, which does not have the ranks of a run that goes on.
        """
        if whom == "run":
            return [self.pid]
        if whom == "fork server":  # looked for once: a phase may last for milliseconds
            self._servers = self._servers or [pid for pid in children_of(self.pid) if children_of(pid)]
            return self._servers
        found: dict[str, int] = {}
        for event in self.events():
            if isinstance(event, Started | Regrouped):
                found |= event.machine.get("pids", {})
        pids = [pid for rank, pid in sorted(found.items()) if rank.startswith(whom)]
        return [pid for pid in pids if is_in_session(pid, self.pid)]

    def events(self) -> list[Event]:
        """Of its record so far."""
        try:
            return read_record(self._record).events
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
        if not self._has_looked:
            self._has_looked = True
            self._sockets = sockets_of(in_session(self.pid)) - sockets_of([os.getpid()])

    def left(self) -> list[str]:
        """Processes, in any session, listening sockets and temporary files that are left of it."""
        reap_orphans()
        processes = [f"process {pid}" for pid in self._descendants()]
        sockets = [
            f"socket {words}" for number, words in listening_sockets().items() if number in (self._sockets or ())
        ]
        files = [f"file {path.relative_to(self.temporary)}" for path in self.temporary.rglob("*")]
        return processes + sockets + files

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
