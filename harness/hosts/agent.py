"""The agent of a host: a process that starts, watches and kills the ranks there, by order of the supervisor.

It runs a fork server and forks the ranks from it. It ends its ranks and itself when its connection to the
supervisor ends, and when its lease runs out (``harness/hosts/agent_link.py``): the ranks hold a leash on the agent,
as they hold one on a supervisor of the same machine.
"""

import json
import math
import os
import signal
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NoReturn

from harness.cluster.launcher import ForkLauncher, Main, RankContext
from harness.core.errors import HELD, ConfigError, HarnessError
from harness.files import hold_also
from harness.hosts.agent_link import BEAT_FRAC, Notice
from harness.processes import control, forked
from harness.processes.control import LEASE_FRAC, give_up_after, interface_of
from harness.processes.forked import ForkedProcess
from harness.processes.leash import ORPHANED


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings of the agent of a host: a JSON object on its standard input, since other users see command lines.

    Attributes:
        host: its name in ``cluster.hosts``.
        address, port, authkey: where the supervisor listens for agents, and the key of the run, in hexadecimal.
        folder, path, plugins: working folder, ``sys.path`` and plugins of the supervisor.
        dead_after_s: as ``cluster.dead_after_s``.
    """

    host: str
    address: str
    port: int
    authkey: str
    folder: str
    path: list[str]
    plugins: list[str]
    dead_after_s: float

    @classmethod
    def of_line(cls, line: str) -> "AgentSettings":
        """The settings that a line of JSON holds. Raises ConfigError."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                "standard input: expected the settings of an agent in one line; cluster.start_agent starts this program"
            ) from error


_CONNECT_S = 20.0
_REAP_S = 10.0  # between SIGKILL and the end of a process


class Agent:
    """The agent of one host. The constructor connects to the supervisor, and raises ConfigError if it cannot.

    The main thread carries out orders. A second thread receives messages, so that returned beats count while the main
    thread starts a process; a third one sends beats. To be made after the fork server, which must not be forked from a
    process with threads.
    """

    def __init__(self, settings: AgentSettings, code: dict[str, Any]) -> None:
        self._settings = settings
        self._launcher = ForkLauncher()
        self._processes: dict[int, ForkedProcess] = {}  # that run, by number
        self._connection, self._interface = _connect(settings)
        self._sending = Lock()
        self._orders: deque[control.Message] = deque()
        self._notice = Notice()
        self._sent_s: deque[tuple[int, float]] = deque()  # beats on their way, and when they were sent
        self._lease_s = math.inf  # until a beat has come back: there are no ranks yet
        self._is_suspended = False  # the supervisor was stopped by Ctrl-Z
        self._send("hello", {"host": settings.host, "pid": os.getpid(), "code": code})

    def serve(self) -> NoReturn:
        """Carry out orders until this process ends, and all ranks with it.

        It ends by the orders ``end`` and ``die``, at the supervisor's loss, and at an error of the fork server or an
        order that cannot be read.
        """
        for target in (self._listen, self._beat):
            Thread(target=target, name=target.__name__, daemon=True).start()
        while True:
            wait([self._notice.fileno(), *self._launcher.watched(self._processes.values())])
            self._notice.take()
            try:
                self._launcher.check()
                while self._orders:
                    self._carry_out(*self._orders.popleft())
                self._report_ends()
            except HarnessError as error:  # of the fork server
                self._die(str(error))

    def _carry_out(self, kind: str, *args: Any) -> None:
        if kind == "spawn":
            self._spawn(*args)
        elif kind in ("kill", "pause", "resume"):
            if args[0] in self._processes:
                getattr(self._processes[args[0]], kind)()
        elif kind == "is_paused":
            self._send("answer", args[0] not in self._processes or self._processes[args[0]].is_paused, None)
        elif kind == "probe":
            self._send("answer", self._probe(*args), None)
        elif kind == "die":
            self._kill_all()
        elif kind == "end":
            self._end(0)

    def _spawn(self, number: int, context: RankContext, main: Main) -> None:
        options = context.options.model_copy(update={"interface": self._interface})
        context = replace(context, options=options, supervisor_pid=os.getpid())
        if not HELD:
            hold_also(context.held)
        try:
            process = self._launcher.spawn(context, main)
        except HarnessError as error:
            self._launcher.check()
            self._send("answer", None, str(error))
        else:
            self._processes[number] = process
            self._send("answer", process.pid, None)

    def _kill_all(self) -> NoReturn:
        """Kill the ranks, report their exit codes, and kill the fork server and this process, all with SIGKILL."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(_REAP_S)
        self._report_ends()
        self._send("dying", "its agent killed its ranks and itself, as the trace says")
        self._kill_server()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process has been killed")

    def _probe(self, file: str, text: str) -> None:
        """Append this host's name to ``file`` if its content is ``text``; a no-op if it is missing or not writable."""
        with suppress(OSError):
            if Path(file).read_text() == text:
                Path(file).write_text(text + self._settings.host)

    def _report_ends(self) -> None:
        for number, process in [*self._processes.items()]:
            if (exitcode := process.exitcode) is not None:
                del self._processes[number]
                self._send("ended", number, exitcode)

    def _send(self, *message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            self._end(ORPHANED)

    def _listen(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                if message[0] == "beat":
                    self._renew(message[1])
                elif message[0] in {"suspend", "go_on"}:
                    self._sent_s.clear()  # a beat of before that comes back late renews nothing
                    self._is_suspended = message[0] == "suspend"
                    self._lease_s = math.inf  # until a beat of afterwards comes back
                else:
                    self._orders.append(message)
                    self._notice.give()
        except (EOFError, OSError):
            self._end(ORPHANED)
        except Exception as error:  # noqa: BLE001 - an order names code that cannot be imported here
            self._die(f"an order cannot be read: {type(error).__name__}: {error}")

    def _renew(self, number: int) -> None:
        """Renew the lease, from the time at which the returned beat ``number`` was sent."""
        if self._is_suspended:
            return
        while self._sent_s and self._sent_s[0][0] <= number:
            _, sent_s = self._sent_s.popleft()
            self._lease_s = sent_s + LEASE_FRAC * self._settings.dead_after_s

    def _beat(self) -> None:
        number = 0
        while True:
            if time.monotonic() > self._lease_s:
                self._end(ORPHANED)
            if not self._is_suspended:
                self._sent_s.append((number, time.monotonic()))
                self._send("beat", number)
                number += 1
            time.sleep(BEAT_FRAC * self._settings.dead_after_s)

    def _die(self, why: str) -> NoReturn:
        """Tell the supervisor ``why`` this agent dies, and :meth:`_end`."""
        with suppress(OSError), self._sending:
            self._connection.send(("dying", why))
        self._end(1)

    def _end(self, code: int) -> NoReturn:
        """Kill the fork server, whose death makes the kernel kill all ranks, even stopped ones; end this process."""
        self._kill_server()
        os._exit(code)

    def _kill_server(self) -> None:
        if (server := forked.current()) is not None:
            server.send(signal.SIGKILL)


def _connect(settings: AgentSettings) -> tuple[Connection, str]:
    """Connect to the supervisor. Returns the connection and the interface of this host that it uses.

    Raises ConfigError.
    """
    where = f"{settings.address}:{settings.port}"
    try:
        connection = control.connect(settings.address, settings.port, bytes.fromhex(settings.authkey), _CONNECT_S)
    except (OSError, EOFError, AuthenticationError) as error:
        raise ConfigError(f"cluster.host: the supervisor cannot be reached at {where}: {error}") from error
    with socket.socket(fileno=os.dup(connection.fileno())) as sock:
        give_up_after(sock, settings.dead_after_s * LEASE_FRAC)
        address = sock.getsockname()[0]
    interface = interface_of(address)
    if interface is None:
        raise ConfigError(
            f"cluster.host: no interface here has {address}, the address by which this host reaches {where}"
        )
    return connection, interface
