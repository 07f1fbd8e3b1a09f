"""Handles on a fork server, on this or another host, and on the processes that it forked.

The program of a fork server is ``harness/processes/fork_server.py``. It may die, be stopped or be cut off, so every
wait for it has a deadline.
"""

import io
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import RLock
from typing import Any

from harness.core.errors import HarnessError, RunFailed
from harness.processes import control
from harness.processes.fork_server import WorkPickler
from harness.processes.pidfd import Pidfd

ANSWER_S = 10.0
"""Longest time, in seconds, in which a fork server of this machine answers."""
_FIRST_ANSWER_S = 300.0  # a new server imports everything before it answers, and may compile (20 s when idle)
_LOOK_S = 0.05  # for which one thread may keep the others from the connection


class HostLost(HarnessError):
    """The fork server was lost before it answered."""


class ForkServer:
    """A running fork server. It is lost when its connection ends or it gives no answer in time; so is its host then.

    Args:
        host: its name; this machine's, if ``process`` is given.
        timeout_s: seconds within which it answers.
        process: the server itself, if it is a child of this process. It is killed when it is lost.
        is_new: whether its imports may be under way; the first answer then takes longer.

    Attributes:
        lost: why it counts as lost; None as long as it does not. All its processes count as killed then.
    """

    def __init__(
        self,
        connection: Connection,
        pid: int,
        host: str,
        timeout_s: float,
        *,
        process: Pidfd | None = None,
        is_new: bool = False,
    ) -> None:
        self.host, self.pid = host, pid
        self.is_here = process is not None
        self.lost: str | None = None
        self._connection, self._process = connection, process
        self._timeout_s, self._is_new = timeout_s, is_new
        self._poll = select.poll()  # a tenth of the time of Connection.poll
        self._poll.register(connection.fileno(), select.POLLIN)
        self._lock = RLock()
        self._answers: list[tuple[Any, str | None]] = []
        self._exit_codes: dict[int, int] = {}
        self._num_forked = 0
        control.limit_stalls(connection, _FIRST_ANSWER_S if is_new else timeout_s)

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`hear` has something to do; not to be asked for once it is lost."""
        return self._connection.fileno()

    @property
    def num_running(self) -> int:
        return self._num_forked - len(self._exit_codes)

    def fork(self, main: Callable[..., object], *args: Any) -> "ForkedProcess":
        """Call ``main(*args)`` in a new process, in the working folder of this process.

        The arguments are pickled; on this machine they may hold connections. Raises HostLost; RunFailed if the server
        could not fork.
        """
        stream = io.BytesIO()
        pickler = WorkPickler(stream)
        pickler.dump((_folder(), main, args))
        assert self.is_here or not pickler.files, "a file does not leave its host"
        with self._lock:
            number, self._num_forked = self._num_forked, self._num_forked + 1
            try:
                pid = self._ask("fork", number, stream.getvalue(), len(pickler.files), files=pickler.files)
            except HarnessError:
                self._exit_codes[number] = -signal.SIGKILL
                raise
        return ForkedProcess(self, number, pid)

    def _ask(self, *order: Any, files: list[Connection] | None = None) -> Any:
        """Send an order and return its answer. Raises HostLost; RunFailed with the server's error message."""
        with self._lock:
            self.send(*order, files=files)
            ends_s = time.monotonic() + (_FIRST_ANSWER_S if self._is_new else self._timeout_s)
            if self.lost is None:
                ends_s -= control.silent_s(self._connection)
            while self.lost is None and not self._answers:
                if not self._hear(ends_s - time.monotonic()):
                    self._lose(f"gave no answer for {self._timeout_s:g} s")
            if not self._answers:
                raise HostLost(f"host {self.host} was lost: {self.lost}")
            value, error = self._answers.pop()
            if self._is_new:
                self._is_new = False
                control.limit_stalls(self._connection, self._timeout_s)
        if error is not None:
            raise RunFailed(f"host {self.host}: {error}")
        return value

    def send(self, *order: Any, files: list[Connection] | None = None) -> None:
        """Send an order that has no answer; a no-op if the server is lost."""
        with self._lock:
            if self.lost is None:
                try:
                    self._connection.send(order)
                    if files:
                        with socket.socket(fileno=os.dup(self._connection.fileno())) as channel:
                            socket.send_fds(channel, [b"1"], [file.fileno() for file in files])
                except OSError as error:
                    self._fail(error)

    def is_paused(self, number: int) -> bool:
        with suppress(HostLost):
            return self._ask("is_paused", number)
        return True  # it runs no more

    def sync(self) -> None:
        """Wait until all ends of processes until now are known, or the server is lost."""
        with suppress(HostLost):
            self._ask("sync")

    def hear(self) -> None:
        """Handle the messages that have come."""
        with self._lock:
            while self.lost is None and self._hear(0.0):
                pass

    def exit_code(self, number: int, within_s: float = 0.0) -> int | None:
        """How a process ended, as :attr:`ForkedProcess.exitcode`; None if it runs longer than ``within_s``."""
        ends_s = time.monotonic() + within_s
        while True:
            with self._lock:
                self.hear()
                if number in self._exit_codes or self.lost is not None:
                    return self._exit_codes.get(number, -signal.SIGKILL)
                if (left_s := ends_s - time.monotonic()) <= 0:
                    return None
                self._hear(min(left_s, _LOOK_S))

    def end_all(self, timeout_s: float) -> None:
        """Kill all its processes, await their ends, and have the server end itself. Raises RunFailed."""
        for number in range(self._num_forked):
            self.send("signal", number, signal.SIGKILL)
        for number in range(self._num_forked):
            if self.exit_code(number, timeout_s) is None:
                raise RunFailed(f"host {self.host}: a process did not end within {timeout_s:g} s of SIGKILL")
        self.close()

    def close(self) -> None:
        """Have the server end, and all its processes with it. It is lost then."""
        self.send("end")
        self._lose("was ended")

    def _hear(self, timeout_s: float) -> bool:
        """Handle the next message; False if none comes in time. A connection that has ended is the last one."""
        try:
            if not self._poll.poll(1e3 * max(0.0, timeout_s)):
                return False
            kind, *args = self._connection.recv()
        except (EOFError, OSError) as error:
            self._fail(error)
            return True
        except BaseException:  # in the middle of a message
            self._lose("was left at an interrupt")
            raise
        if kind == "ended":
            self._exit_codes[args[0]] = args[1]
        else:
            self._answers.append((args[0], args[1]))
        return True

    def _fail(self, error: EOFError | OSError) -> None:
        """Count the server as lost, whose connection has failed."""
        has_ended = isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
        self._lose("has ended" if has_ended else f"cannot be reached: {getattr(error, 'strerror', None) or error}")

    def _lose(self, why: str) -> None:
        """Count the server as lost. Its processes end with it, and it ends with its connection, or by SIGKILL here."""
        if self.lost is None:
            self.lost = f"its fork server (pid {self.pid}) {why}"
            self._connection.close()
            if self._process is not None:
                self._process.send(signal.SIGKILL)
                if self._process.has_ended(ANSWER_S):  # the kernel has killed its processes by then
                    with suppress(ChildProcessError):  # this is a copy of the process that started it
                        os.waitpid(self.pid, os.WNOHANG)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return "."


class ForkedProcess:
    """A process that a fork server forked. ``number`` is its name in messages."""

    def __init__(self, server: ForkServer, number: int, pid: int) -> None:
        self.server, self.number = server, number
        self.pid = pid
        """Process id, on its host."""

    @property
    def host(self) -> str | None:
        """Name of its host; None for a process of this machine."""
        return None if self.server.is_here else self.server.host

    @property
    def exitcode(self) -> int | None:
        """Exit code, or minus the number of the signal that ended the process; None while it runs.

        The kernel kills the processes of a fork server that ends, so it is that of SIGKILL if the server was lost.
        """
        return self.server.exit_code(self.number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def pause(self) -> None:
        self.send(signal.SIGSTOP)

    def send(self, number: signal.Signals) -> None:
        """Have a signal sent, without waiting; a no-op if the process has ended."""
        self.server.send("signal", self.number, number)

    @property
    def is_paused(self) -> bool:
        """Whether no thread of the process runs, because it is stopped or has ended."""
        return self.server.is_paused(self.number)

    def join(self, timeout_s: float = math.inf) -> None:
        """Wait at most ``timeout_s`` for the process to end; :attr:`exitcode` is None if it still runs.

        If the server gives no answer in time, it is lost, and the process has ended.
        """
        self.server.sync()
        self.server.exit_code(self.number, timeout_s)
