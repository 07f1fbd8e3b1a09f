"""Start of the agents of all hosts: runs the start command of each, logs its output, and waits for the connection."""

import logging
import os
import secrets
import shlex
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import IO, Any

from harness.config import plugins
from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, printable
from harness.hosts.agent import AgentSettings
from harness.hosts.agent_link import AgentLink
from harness.processes import control
from harness.processes.child import ROOT, Child
from harness.processes.control import give_up_after
from harness.record.code import Code, current_code

_log = logging.getLogger(__name__)
_START_S = 300.0  # within which an agent connects: it imports everything first, and may compile
_TICK_S = 0.1
_END_S = 5.0
_NUM_LINES = 20  # of what the start of an agent printed, which an error repeats


def words_of(template: str, host: str) -> list[str]:
    """The words of the command that starts the agent of ``host``. Raises ConfigError.

    In ``template``, a word ``{command}`` becomes the words of the agent's command; ``{command}`` inside a longer word
    becomes that command as one text, quoted for a shell. ``{host}`` becomes ``host``.
    """
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", "harness.run.agent"]
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
    """The running command that starts the agent of a host. Its output, which has the ranks' output, is logged.

    The constructor raises ConfigError if the command cannot be run.
    """

    def __init__(self, template: str, settings: AgentSettings) -> None:
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
        """The error of a command that has ended before its agent connected, or ``is_late``; None for any other."""
        code = self._child.wait(0.0)
        if code is None and not is_late:
            return None
        what = f"did not connect within {_START_S:g} s"
        if code is not None:
            self._thread.join(_END_S)
            what = f"was not started: the command ended with exit code {code}"
        printed = " | ".join(filter(None, self._lines))
        said = f"; it printed: {printed}" if printed else " and printed nothing"
        return ConfigError(f"cluster.start_agent: the agent of host {self.host} {what}{said}")

    def close(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the command to end, as it does when its agent ends; then kill it."""
        if self._child.close(timeout_s) != -signal.SIGKILL:
            self._thread.join(timeout_s)


def start_agents(
    cluster: ClusterConfig, notify: Callable[[], None]
) -> tuple[dict[str, AgentLink], dict[str, StartCommand]]:
    """Start an agent on each host, all at once, and wait until all have connected.

    Returns the agents and the commands that started them, each by host in the order of ``cluster.hosts``. ``notify``:
    see :class:`AgentLink`. Raises ConfigError if a start fails, or if the code or versions of an agent differ from this
    process's. All agents are ended before it is raised.
    """
    authkey = secrets.token_bytes(32)
    commands: dict[str, StartCommand] = {}
    agents: dict[str, AgentLink] = {}
    try:
        listener = control.listen(cluster.host, 0)
    except OSError as error:
        raise ConfigError(f"cluster.host: cannot listen on {cluster.host}: {error.strerror}") from error
    with listener:
        give_up_after(listener, cluster.dead_after_s)
        try:
            for host in cluster.hosts:
                settings = _settings(cluster, host, listener.getsockname()[1], authkey)
                commands[host] = StartCommand(cluster.start_agent, settings)
            for host, pid, connection in _agents_of(listener, authkey, commands):
                agents[host] = AgentLink(host, pid, connection, cluster.dead_after_s, notify)
        except BaseException:
            listener.close()  # those that start find no supervisor, and end
            end_agents(agents.values(), commands.values(), timeout_s=0.0)
            raise
    return {host: agents[host] for host in cluster.hosts}, commands


def end_agents(agents: Iterable[AgentLink], commands: Iterable[StartCommand], timeout_s: float = _END_S) -> None:
    """End all agents, then wait at most ``timeout_s`` for each start command to end; kill those that do not."""
    agents = list(agents)
    for agent in agents:
        agent.send("end")
    for agent in agents:
        agent.close(_END_S)
    for command in commands:
        command.close(timeout_s)


def _settings(cluster: ClusterConfig, host: str, port: int, authkey: bytes) -> AgentSettings:
    return AgentSettings(
        host=host,
        address=cluster.host,
        port=port,
        authkey=authkey.hex(),
        folder=os.getcwd(),
        path=sys.path,
        plugins=[*plugins.LOADED],
        dead_after_s=cluster.dead_after_s,
    )


def _agents_of(
    listener: socket.socket, authkey: bytes, commands: Mapping[str, StartCommand]
) -> Iterator[tuple[str, int, Connection]]:
    """Yields (host, pid of the agent, connection) for each agent when it has connected. Raises ConfigError."""
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
                if (refusal := _refusal(facts)) is not None:
                    connection.close()
                    raise refusal
                del missing[facts["host"]]
                yield facts["host"], facts["pid"], connection
    finally:
        handshakes.close()


def _hello(connection: Connection) -> dict[str, Any]:
    """The facts (host, pid, code) in an agent's message ``hello``; empty if another message, or none, arrives."""
    try:
        kind, facts = connection.recv() if connection.poll(control.HANDSHAKE_S) else ("", {})
    except (EOFError, OSError):
        return {}
    return facts if kind == "hello" else {}


def _refusal(facts: Mapping[str, Any]) -> ConfigError | None:
    """The error for an agent whose code or versions differ from this process's; None if they are the same."""
    theirs = Code.of_json(facts["code"])
    difference = "unknown" if theirs is None else current_code().difference(theirs)
    if difference is None:
        return None
    return ConfigError(
        f"cluster.hosts: {facts['host']}: expected the supervisor's code and versions, got others: {difference}"
    )
