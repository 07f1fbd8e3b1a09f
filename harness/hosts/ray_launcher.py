"""The launcher ``ray``: as launcher ``hosts``, but Ray tasks start the fork servers, one on each node."""

import importlib.util
import shlex
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from harness.config.model import ClusterConfig
from harness.core.errors import ConfigError
from harness.core.plans import HostMap
from harness.hosts.launcher import HostsLauncher
from harness.processes.child import Child

PROGRAM = (sys.executable, "-P", str(Path(__file__).with_name("ray_tasks.py")))
"""The program that speaks with Ray: a process of its own, as Ray has threads and handlers of signals."""


class RayLauncher(HostsLauncher):
    """Starts ranks on nodes of the Ray cluster at ``cluster.ray_address``: ``cluster.hosts``, or all living nodes.

    Args: see :class:`HostsLauncher`.

    Raises:
        ConfigError: ray is not installed, there is no Ray at the address, a host is none of its nodes, or as
            :class:`HostsLauncher`.
        RunFailed: as :class:`HostsLauncher`.
    """

    def __init__(self, cluster: ClusterConfig, hosts: HostMap, checkpoints: Path) -> None:
        start = shlex.join([*PROGRAM, "run", cluster.ray_address, "{host}", "{command}"])
        keys = {"hosts": _nodes(cluster), "start_agent": start}
        super().__init__(cluster.model_copy(update=keys), hosts, checkpoints)


def require_ray(key: str) -> None:
    """Raise ConfigError if ray is not installed. ``key``: the setting that needs it, for the message."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{key}: expected the package ray, which is missing; pip install -r requirements-ray.txt")


def _nodes(cluster: ClusterConfig) -> tuple[str, ...]:
    """The addresses of the nodes that get a fork server: ``cluster.hosts``, or all that live. Raises ConfigError."""
    require_ray("cluster.launcher: ray")
    command = [*PROGRAM, "nodes", cluster.ray_address, *cluster.hosts]
    with closing(Child(command, errors=subprocess.DEVNULL)) as process:
        answer = process.answer() or {"problem": "cluster.launcher: the process that speaks with Ray has ended"}
    if "problem" in answer:
        raise ConfigError(answer["problem"])
    return tuple(answer["nodes"])
