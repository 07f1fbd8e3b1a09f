"""A fork server: a process that has imported everything, and forks others by order of the one that it serves.

It serves one process, by one connection: the supervisor of a run or the runner of a grid. It is the parent of what it
forks, so it reaps them, and reports how each ended. It ends with its connection, and the kernel ends its processes with
it: their parent-death signal is tied to the thread that forked them, and a fork server has one thread.

Messages are tuples, the kind first. Processes have numbers, which the one that is served chooses:

    served -> fork server   ("fork", number, work, num_files): files follow     ("is_paused", number)      ("sync",)
                            ("signal", number, signal)                          ("end",)
    fork server -> served   ("answer", value, error) to the first three         ("ended", number, exit code)

All ends until an answer are reported before it. A fork server on another host says first ("hello", facts); see
``harness/hosts/start.py``.
"""

import gc
import io
import json
import os
import pickle
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from harness.core.errors import ConfigError
from harness.processes.parent_death import end_with_parent
from harness.processes.pidfd import Pidfd


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the program of a fork server reads, as a JSON object in one line, from its standard input.

    Attributes:
        path, plugins: ``sys.path`` and plugins of the process that it serves.
        owner: the parent whose main thread started it, and whose end ends it even while it is stopped, if there is one.
        folder: where paths of plugins begin.
        host: on another host, its name in ``cluster.hosts``. Without one, the standard input is the connection.
        address, port, authkey: on another host, where to connect, and the key of the run in hexadecimal.
        dead_after_s: on another host, as ``cluster.dead_after_s``.
    """

    path: list[str]
    plugins: list[str]
    folder: str = "."
    owner: int | None = None
    host: str = ""
    address: str = ""
    port: int = 0
    authkey: str = ""
    dead_after_s: float = 0.0

    @classmethod
    def of_line(cls, line: bytes) -> "Settings":
        """The settings that a line of JSON holds. Raises ConfigError."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                "standard input: expected the settings of a fork server in one line; cluster.start_agent starts this "
                "program"
            ) from error


class WorkPickler(pickle.Pickler):
    """Pickles what a process is to do. Connections are left out, and stand in ``files`` instead."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.files: list[Connection] = []

    def persistent_id(self, obj: object, /) -> int | None:
        if not isinstance(obj, Connection):
            return None
        self.files.append(obj)
        return len(self.files) - 1


class _WorkUnpickler(pickle.Unpickler):
    """Reads what a :class:`WorkPickler` wrote. ``files``: descriptors of the connections."""

    def __init__(self, work: bytes, files: Sequence[int]) -> None:
        super().__init__(io.BytesIO(work))
        self._files = files

    def persistent_load(self, pid: int, /) -> Connection:
        return Connection(self._files[pid])


class ForkServerLoop:
    """The work of a fork server. To be made in a process with one thread, whose imports are done."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._running: dict[int, Pidfd] = {}  # by number; ended ones until they are reaped
        self._pid = os.getpid()
        gc.freeze()  # or a collection in any process copies the pages of all that was imported

    def serve(self) -> NoReturn:
        """Obey orders until the order to end, or the end of the connection, ends this process."""
        try:
            while True:
                waited: list[Any] = [self._connection, *self._running.values()]
                ready = wait(waited)
                self._reap()
                if self._connection in ready:
                    self._obey(*self._connection.recv())
        except (EOFError, OSError):  # of the connection
            os._exit(0)

    def _obey(self, kind: str, *args: Any) -> None:
        match kind:
            case "fork":
                self._fork(*args)
            case "signal":
                number, signal_number = args
                if number in self._running:  # not reaped, so the process id is its own
                    self._running[number].send(signal_number)
            case "is_paused":
                process = self._running.get(args[0])
                self._answer(process is None or states(process.pid, "task/*/stat") <= set("TtZX"))
            case "sync":
                self._answer(None)
            case "end":
                os._exit(0)

    def _answer(self, value: Any, error: str | None = None) -> None:
        self._reap()
        self._connection.send(("answer", value, error))

    def _reap(self) -> None:
        """Reap the processes that have ended, and report how."""
        for number, process in [*self._running.items()]:
            if process.has_ended():
                _, status = os.waitpid(process.pid, 0)
                del self._running[number]
                self._connection.send(("ended", number, os.waitstatus_to_exitcode(status)))

    def _fork(self, number: int, work: bytes, num_files: int) -> None:
        files: list[int] = []
        if num_files:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as channel:
                _, files, _, _ = socket.recv_fds(channel, 1, num_files)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: libraries have threads
                pid = os.fork()
        except OSError as error:
            self._answer(None, error.strerror)
        else:
            if pid == 0:
                self._become(work, files)
            self._running[number] = Pidfd(pid)
            self._answer(pid)
        for file in files:
            os.close(file)

    def _become(self, work: bytes, files: Sequence[int]) -> NoReturn:
        """In the forked process: do the work, and end."""
        code = 1
        try:
            end_with_parent(self._pid)
            self._connection.close()
            self._running.clear()
            folder, main, args = _WorkUnpickler(work, files).load()
            os.chdir(folder)
            main(*args)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                os.write(2, f"{error.code}\n".encode())
        except BaseException:  # noqa: BLE001 - the end of a process
            traceback.print_exc()
        finally:
            for name in ("stdout", "stderr"):
                with suppress(OSError, ValueError, AttributeError):  # closed, or none
                    getattr(sys, name).flush()
            os._exit(code)


def states(pid: int, pattern: str) -> set[str]:
    """The kernel's states of a process or its threads, a letter each ("R", "S", "T", …: ``man 5 proc``).

    ``pattern``: of the stat files below ``/proc/PID`` to read. "?" alone if one of them ended meanwhile.
    """
    try:
        stats = [file.read_text() for file in Path(f"/proc/{pid}").glob(pattern)]
    except OSError:
        return {"?"}
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def serve_alone(connection: Connection) -> NoReturn:
    """Serve ``connection`` in this process, which the served process forked, and exit at the end. Never returns.

    Closes all inherited files but standard input, output, error and ``connection``; resets the handlers of signals.
    """
    try:
        kept = {0, 1, 2, connection.fileno()}
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
            with suppress(OSError):  # of the listing itself, closed by now
                os.close(fd)
        for number in signal.valid_signals():  # handlers of the command line are for the process that the user started
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        ForkServerLoop(connection).serve()
    finally:
        os._exit(1)
