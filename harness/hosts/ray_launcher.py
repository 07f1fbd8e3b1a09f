"""The launcher that starts the agents by Ray: one on each node. All else is as with launcher ``hosts``.

A process of its own speaks with Ray (``harness/hosts/ray_relay.py``), so that neither its threads nor its handlers of
signals are the supervisor's.
"""

import importlib.util
import json
import logging
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError, printable
from harness.core.host_map import HostMap
from harness.hosts.agent_settings import AgentSettings
from harness.hosts.agent_start import NUM_LINES, failed_start, words_of
from harness.hosts.launcher import HostsLauncher

_log = logging.getLogger(__name__)
_RELAY = Path(__file__).with_name("ray_relay.py")
_RUNS = object()  # the exit code of an agent that runs


class RayLauncher(HostsLauncher):
    """Starts ranks on the nodes of the Ray at ``cluster.ray_address``: those of ``cluster.hosts``, or all that live.

    Args: see :class:`HostsLauncher`.

    Raises:
        ConfigError: ray is not installed, there is no Ray at the address, or as :class:`HostsLauncher`.
    """

    def __init__(self, cluster: ClusterConfig, hosts: HostMap, checkpoints: Path) -> None:
        self._relay = RayRelay(cluster)
        try:
            cluster = cluster.model_copy(update={"hosts": self._relay.nodes})
            super().__init__(cluster, hosts, checkpoints, start=self._relay.start)
        except BaseException:
            self._relay.close()
            raise

    def close(self) -> None:
        """See :class:`HostsLauncher`; the connection to Ray ends too."""
        super().close()
        self._relay.close()


class RayRelay:
    """The process that speaks with Ray. It ends with this one.

    Attributes:
        nodes: addresses of the nodes for agents, in order.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "cluster.launcher: ray needs the package ray, which is not installed: pip install -r "
                "requirements-ray.txt"
            )
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_RELAY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends it
        )
        self._starts: dict[str, RayStart] = {}
        try:
            self.nodes = self._connect(cluster)
        except BaseException:
            self.close()
            raise
        Thread(target=self._listen, args=(self._process.stdout,), name="ray", daemon=True).start()

    def _connect(self, cluster: ClusterConfig) -> tuple[str, ...]:
        self._send({"address": cluster.ray_address, "hosts": list(cluster.hosts)})
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline() or '{"error": "cluster.launcher: the process for ray ended"}')
        if "error" in said:
            raise ConfigError(" ".join(said["error"].split()))
        return tuple(said["nodes"])

    def start(self, settings: AgentSettings) -> "RayStart":
        """Start the agent of a node; returns at once."""
        self._starts[settings.host] = RayStart(settings.host)
        words = words_of("{command}", settings.host)
        self._send({"host": settings.host, "command": words, "settings": asdict(settings)})
        return self._starts[settings.host]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, which the listening thread says
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            if not line.endswith("\n"):
                break  # it was ended in the middle of it
            message = json.loads(line)
            self._starts[message["host"]].hear(message)
        for start in [*self._starts.values()]:
            start.hear({"error": "the process for ray has ended"})

    def close(self) -> None:
        """End the process, and with it the actors."""
        self._process.kill()
        self._process.wait()


class RayStart:
    """The start of an agent by an actor, while it runs; what it and the ranks print becomes notes."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._changed = Condition()
        self._code: Any = _RUNS
        self._lines: deque[str] = deque(maxlen=NUM_LINES)

    def hear(self, message: dict[str, Any]) -> None:
        """A message of the process for Ray."""
        with self._changed:
            if (text := message.get("line", message.get("error"))) is not None:
                self._lines.append(text := printable(text))
            if "line" in message:
                _log.info("note: host %s: %s", self.host, text)
            elif self._code is _RUNS:
                self._code = message.get("ended")
            self._changed.notify_all()

    def failure(self, *, is_late: bool) -> ConfigError | None:
        """See :class:`harness.hosts.agent_start.AgentStart`."""
        with self._changed:
            if self._code is _RUNS and not is_late:
                return None
            return failed_start("cluster.launcher", self.host, self._words(), self._lines)

    def _words(self) -> str | None:
        if self._code is _RUNS:
            return None
        return "Ray lost its actor" if self._code is None else f"it ended with exit code {self._code}"

    def close(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for the agent to end; the actor of one that has not ends with the launcher."""
        with self._changed:
            self._changed.wait_for(lambda: self._code is not _RUNS, timeout_s)
