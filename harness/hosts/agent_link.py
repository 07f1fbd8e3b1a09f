"""The supervisor's end of the connection to a host's agent: sends orders, receives answers, and detects a lost host.

Messages are tuples, the kind first. They are sent in the clear after the handshake of ``harness/processes/control.py``.

    agent -> supervisor   ("hello", {host, pid, code})     ("beat", number)            ("answer", value, error)
                          ("ended", number, exitcode)      ("dying", why)
    supervisor -> agent   ("beat", number)                 ("spawn", number, context, main)
                          ("kill", number)                 ("pause", number)         ("resume", number)
                          ("is_paused", number)
                          ("probe", file, text)            ("die",)                  ("end",)
                          ("suspend",)                     ("go_on",)

The agent's beats are a lease. The supervisor returns each beat at once. The agent ends its ranks ``LEASE_FRAC *
dead_after_s`` after it sent the newest beat that was returned. The supervisor counts the host as lost ``dead_after_s``
after it received the last message, which is later than that beat was sent. So the ranks of a lost host have ended
before their replacements start, whichever direction of the network is slow or cut.

A supervisor that is about to be stopped by Ctrl-Z suspends the lease. Until it continues, the agent sends no beats and
relies on TCP keepalive (``SO_KEEPALIVE``), which the kernels answer: a host that is cut off meanwhile ends its ranks
after the same time. The supervisor's deadline starts anew when it continues.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Condition, Lock, Thread
from typing import Any

from harness.core.errors import HarnessError, RunFailed
from harness.processes.leash import ORPHANED

BEAT_FRAC = 0.1
"""Time between two beats of an agent, as a fraction of ``cluster.dead_after_s``."""
_SILENT_FRAC = 0.3  # of the same: a host that was not heard for so long may be lost
_DIE_S = 10.0  # within which an agent that answers ends its ranks and itself
_LEASH_S = 0.3  # within which the ranks of an agent end after it; it takes milliseconds


class HostLost(HarnessError):
    """The host was lost before its agent answered an order."""


class AgentLink:
    """The state of a host and its processes, from its agent's messages. One thread listens, another gives orders.

    Args:
        notify: called by the listening thread when a process has ended or the host is lost.

    Attributes:
        host: its name in ``cluster.hosts``.
    """

    def __init__(
        self, host: str, pid: int, connection: Connection, dead_after_s: float, notify: Callable[[], None]
    ) -> None:
        self.host, self.pid = host, pid
        self._connection = connection
        self._dead_after_s = dead_after_s
        self._notify = notify
        self._sending = Lock()
        self._changed = Condition()  # guards what follows
        self._heard_s = time.monotonic()
        self._lost: str | None = None
        self._has_hung_up = False
        self._is_suspended = False
        self._answers: list[tuple[Any, str | None]] = []
        self._ended: dict[int, int] = {}  # exit code of processes that have ended, by number
        self._num_spawned = 0
        self._last_words = ""
        self._thread = Thread(target=self._listen, name=f"agent-{host}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> str | None:
        """Why the host counts as lost; None as long as it does not."""
        with self._changed:
            return self._lost

    @property
    def num_running(self) -> int:
        """The number of processes that were started on the host and whose end the agent has not reported."""
        with self._changed:
            return self._num_spawned - len(self._ended)

    @property
    def is_silent(self) -> bool:
        """Whether the host may be lost: it sent nothing for 0.3 of ``dead_after_s``, or the connection has ended."""
        with self._changed:
            return self._is_silent()

    def _is_silent(self) -> bool:
        is_late = time.monotonic() - self._heard_s > _SILENT_FRAC * self._dead_after_s
        return self._lost is None and (is_late or self._has_hung_up)

    def exitcode(self, number: int) -> int | None:
        """Exit code of a process, minus the number of the signal that ended it; None while it runs.

        ``ORPHANED`` if the host was lost before it reported the end of the process.
        """
        with self._changed:
            return self._ended.get(number, None if self._lost is None else ORPHANED)

    def await_end(self, number: int, timeout_s: float) -> None:
        """Wait until the process has ended, at most ``timeout_s``; longer if the host :attr:`is_silent`.

        The longer wait ends when the host sends a message or counts as lost.
        """
        ends_s = time.monotonic() + timeout_s
        with self._changed:
            while number not in self._ended and self._lost is None:
                now_s = time.monotonic()
                if now_s >= ends_s and not self._is_silent():
                    return
                self._changed.wait(max(ends_s - now_s, BEAT_FRAC * self._dead_after_s))

    def spawn(self, context: Any, main: Any) -> tuple[int, int]:
        """Start ``main(context)`` in a process on the host. Returns the process's number in messages, and its pid.

        Raises HostLost; RunFailed if the agent could not start it.
        """
        with self._changed:
            number, self._num_spawned = self._num_spawned, self._num_spawned + 1
        try:
            return number, self.ask("spawn", number, context, main)
        except RunFailed:
            with self._changed:
                self._ended[number] = ORPHANED
            raise

    def ask(self, *order: Any) -> Any:
        """Send an order and return its answer. Raises HostLost; RunFailed with the agent's error message."""
        self.send(*order)
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._lost is not None)
            if not self._answers:
                raise HostLost(f"host {self.host} was lost: {self._lost}")
            value, error = self._answers.pop()
        if error is not None:
            raise RunFailed(f"host {self.host}: {error}")
        return value

    def send(self, *message: Any) -> None:
        """Send a message; a no-op if the connection has ended, which the listening thread reports."""
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def suspend(self) -> None:
        """Suspend the lease, since this process is about to be stopped (Ctrl-Z)."""
        with self._changed:
            self._is_suspended = True
        self.send("suspend")

    def go_on(self) -> None:
        """Resume the lease, since this process was continued; ``dead_after_s`` of silence is counted from now."""
        with self._changed:
            self._heard_s = time.monotonic()
            self._is_suspended = False
        self.send("go_on")

    def end_host(self) -> None:
        """Order the agent to kill all its ranks and itself, and wait until the host is lost. Raises RunFailed."""
        self.send("die")
        self._thread.join(timeout_s := self._dead_after_s + _DIE_S)
        if self._thread.is_alive():
            raise RunFailed(f"host {self.host} did not end within {timeout_s:g} s of the order")

    def close(self, timeout_s: float) -> None:
        """Order the agent to end, and wait at most ``timeout_s`` until the host is lost."""
        self.send("end")
        self._thread.join(timeout_s)

    def _listen(self) -> None:
        why = self._hear_all()
        with self._changed:
            self._lost = self._last_words or why
            self._changed.notify_all()
        with self._sending:
            self._connection.close()
        self._notify()

    def _hear_all(self) -> str:
        """Handle messages until the host counts as lost. Returns the reason."""
        try:
            while (has_said := self._connection.poll(self._left_s())) or self._is_waited_for():
                if has_said:
                    self._handle(*self._connection.recv())
        except EOFError:
            self._fall_silent()
            self._await_ranks(_LEASH_S)
            return f"its agent (pid {self.pid}) has ended"
        except OSError as error:  # the agent need not have seen it, and its lease may last
            self._fall_silent()
            self._await_ranks(self._left_s())
            return f"its connection failed: {error.strerror or error}"
        return f"its agent gave no sign of life for {self._dead_after_s:g} s (cluster.dead_after_s)"

    def _await_ranks(self, timeout_s: float) -> None:
        """Wait ``timeout_s`` for the host's ranks to end; a no-op if the agent has reported their ends and its own."""
        if self.num_running or not self._last_words:
            time.sleep(timeout_s)

    def _is_waited_for(self) -> bool:
        """Whether the host is not lost yet: the lease is suspended, or was resumed while this thread waited."""
        with self._changed:
            return self._is_suspended or self._left_s() > 0

    def _left_s(self) -> float:
        """Seconds to wait for a message: until the host counts as lost, or one beat if the lease is suspended."""
        if self._is_suspended:
            return BEAT_FRAC * self._dead_after_s
        return max(0.0, self._heard_s + self._dead_after_s - time.monotonic())

    def _fall_silent(self) -> None:
        with self._changed:
            self._has_hung_up = True

    def _handle(self, kind: str, *args: Any) -> None:
        if kind == "beat":
            self.send("beat", *args)
        with self._changed:
            self._heard_s = time.monotonic()
            if kind == "answer":
                self._answers.append((args[0], args[1]))
            elif kind == "ended":
                self._ended[args[0]] = args[1]
            elif kind == "dying":
                self._last_words = args[0]
            self._changed.notify_all()
        if kind == "ended":
            self._notify()


class Notice:
    """An eventfd that any thread makes readable, and that one thread waits for, clears and closes.

    :meth:`give` after :meth:`close` is a no-op, and never writes to a file that has got the same descriptor since.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._giving = Lock()

    def give(self) -> None:
        """Wake the waiting thread: make the descriptor readable."""
        with self._giving:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> None:
        """Clear the wake-up: make the descriptor unreadable. A no-op if it is not readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def fileno(self) -> int:
        """The file descriptor, readable from :meth:`give` to :meth:`take`; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        with self._giving:
            fd, self._fd = self._fd, -1
        os.close(fd)
