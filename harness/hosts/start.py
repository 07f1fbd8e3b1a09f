"""Start of a fork server on each host: runs its start command, logs its output, and waits for the connection.

The program is that of this machine (``harness/run/fork_server.py``). It imports everything, connects with the key of
the run, which it has read from its standard input, and says ("hello", {host, pid, code}).
"""

import logging
import os
import secrets
import shlex
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import IO, Any

from harness.config import plugins
from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, printable
from harness.processes import control
from harness.processes.child import ROOT, Child
from harness.processes.control import limit_silence
from harness.processes.fork_server import Settings
from harness.processes.forked import ForkServer
from harness.processes.spawn import PROGRAM
from harness.record.code import Code, current_code

_log = logging.getLogger(__name__)
_START_S = 300.0  # within which a fork server connects: it imports everything first, and may compile
_TICK_S = 0.1
_END_S = 5.0
_CONNECT_S = 20.0
_GIVE_UP_FRAC = 0.5  # of ``cluster.dead_after_s``: a host that is cut off usually ends before it is replaced
_NUM_LINES = 20  # of what a start command printed, which an error repeats


def words_of(template: str, host: str) -> list[str]:
    """The words of the command that starts the fork server of ``host``. Raises ConfigError.

    In ``template``, a word ``{command}`` becomes the words of the program's command; ``{command}`` inside a longer word
    becomes that command as one text, quoted for a shell. ``{host}`` becomes ``host``.
    """
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, *PROGRAM]
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ConfigError(f"cluster.start_agent: expected a command, got {template!r}: {error}") from error
    found: list[str] = []
    for word in words:
        if word == "{command}":
            found += command
        else:
            found.append(word.replace("{host}", host).replace("{command}", shlex.join(command)))
    return found


class StartCommand:
    """The running command that starts the fork server of a host. Its output, and that of the ranks there, is logged.

    The constructor raises ConfigError if the command cannot be run.
    """

    def __init__(self, template: str, settings: Settings) -> None:
        self.host = settings.host
        self._lines: deque[str] = deque(maxlen=_NUM_LINES)
        words = words_of(template, self.host)
        try:
            self._child = Child(words)
        except OSError as error:
            raise ConfigError(f"cluster.start_agent: cannot run {words[0]}: {error.strerror}") from error
        self._thread = Thread(target=self._read, args=(self._child.lines(),), name=f"lines-{self.host}", daemon=True)
        self._thread.start()
        self._child.send(asdict(settings))

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(text := printable(line.rstrip()))
                _log.info("note: host %s: %s", self.host, text)

    def failure(self, *, is_late: bool) -> ConfigError | None:
        """The error of a command that has ended before its host connected, or ``is_late``; None for any other."""
        code = self._child.wait(0.0)
        if code is None and not is_late:
            return None
        what = f"did not connect within {_START_S:g} s"
        if code is not None:
            self._thread.join(_END_S)
            what = f"was not started: the command ended with exit code {code}"
        printed = " | ".join(filter(None, self._lines))
        said = f"; it printed: {printed}" if printed else " and printed nothing"
        return ConfigError(f"cluster.start_agent: the fork server of host {self.host} {what}{said}")

    def close(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the command to end, as it does with its fork server; then kill it."""
        if self._child.close(timeout_s) != -signal.SIGKILL:
            self._thread.join(timeout_s)


def start_servers(cluster: ClusterConfig) -> tuple[list[ForkServer], list[StartCommand]]:
    """Start a fork server on each host, all at once, and wait until all have connected.

    Returns them, and the commands that started them, in the order of ``cluster.hosts``. Raises ConfigError if a start
    fails, or if the code or versions of one differ from this process's. All are ended before it is raised.
    """
    authkey = secrets.token_bytes(32)
    commands: dict[str, StartCommand] = {}
    servers: dict[str, ForkServer] = {}
    try:
        listener = control.listen(cluster.host, 0)
    except OSError as error:
        raise ConfigError(f"cluster.host: cannot listen on {cluster.host}: {error.strerror}") from error
    with listener:
        limit_silence(listener, cluster.dead_after_s)
        try:
            for host in cluster.hosts:
                settings = Settings(
                    path=sys.path,
                    plugins=[*plugins.LOADED],
                    folder=os.getcwd(),
                    host=host,
                    address=cluster.host,
                    port=listener.getsockname()[1],
                    authkey=authkey.hex(),
                    dead_after_s=cluster.dead_after_s,
                )
                commands[host] = StartCommand(cluster.start_agent, settings)
            for host, pid, connection in _connected(listener, authkey, commands):
                servers[host] = ForkServer(connection, pid, host, cluster.dead_after_s)
        except BaseException:
            listener.close()  # those that start find no supervisor, and end
            end_servers(servers.values(), commands.values(), timeout_s=0.0)
            raise
    return [servers[host] for host in cluster.hosts], [*commands.values()]


def end_servers(servers: Iterable[ForkServer], commands: Iterable[StartCommand], timeout_s: float = _END_S) -> None:
    """End all fork servers, then wait at most ``timeout_s`` for each start command to end; kill those that do not."""
    for server in servers:
        server.close()
    for command in commands:
        command.close(timeout_s)


def _connected(
    listener: socket.socket, authkey: bytes, commands: Mapping[str, StartCommand]
) -> Iterator[tuple[str, int, Connection]]:
    """Yields (host, pid of the fork server, connection) for each one when it has connected. Raises ConfigError."""
    handshakes = control.Handshakes(authkey)
    ends_s = time.monotonic() + _START_S
    missing = dict(commands)
    try:
        while missing:
            for command in missing.values():
                if (failure := command.failure(is_late=time.monotonic() > ends_s)) is not None:
                    raise failure
            if listener in wait([listener, handshakes.ended], _TICK_S):
                with suppress(OSError):  # it has hung up
                    handshakes.begin(listener)
            for connection in handshakes.take():
                facts = _hello(connection)
                if facts.get("host") not in missing:
                    connection.close()
                    continue
                if (refusal := _code_mismatch(facts)) is not None:
                    connection.close()
                    raise refusal
                del missing[facts["host"]]
                yield facts["host"], facts["pid"], connection
    finally:
        handshakes.close()


def _hello(connection: Connection) -> dict[str, Any]:
    """The facts (host, pid, code) in the message ``hello``; empty if another message, or none, arrives."""
    try:
        kind, facts = connection.recv() if connection.poll(control.HANDSHAKE_S) else ("", {})
    except (EOFError, OSError):
        return {}
    return facts if kind == "hello" else {}


def _code_mismatch(facts: Mapping[str, Any]) -> ConfigError | None:
    """The error for a host whose code or versions differ from this process's; None if they are the same."""
    theirs = Code.of_json(facts["code"])
    difference = "unknown" if theirs is None else current_code().difference(theirs)
    if difference is None:
        return None
    return ConfigError(
        f"cluster.hosts: {facts['host']}: expected the supervisor's code and versions, got others: {difference}"
    )


def connect(settings: Settings) -> Connection:
    """Connect a fork server on another host to its supervisor, and say hello. Raises ConfigError."""
    try:
        connection = control.connect(settings.address, settings.port, bytes.fromhex(settings.authkey), _CONNECT_S)
        with socket.socket(fileno=os.dup(connection.fileno())) as sock:
            limit_silence(sock, settings.dead_after_s * _GIVE_UP_FRAC)
        facts = {"host": settings.host, "pid": os.getpid(), "code": current_code().to_json()}
        connection.send(("hello", facts))
    except (OSError, EOFError, AuthenticationError) as error:
        where = f"{settings.address}:{settings.port}"
        raise ConfigError(f"cluster.host: the supervisor cannot be reached at {where}: {error}") from error
    return connection
