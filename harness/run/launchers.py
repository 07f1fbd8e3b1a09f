"""The table of launchers by config key ``cluster.launcher``. A new launcher is one class and one entry."""

from collections.abc import Callable
from pathlib import Path

from harness.cluster.launcher import ForkLauncher, Launcher
from harness.config.model import ClusterConfig
from harness.core.choices import LAUNCHER_NAMES, PartTable
from harness.core.plans import HostMap
from harness.hosts.launcher import HostsLauncher
from harness.hosts.ray_launcher import RayLauncher

MakeLauncher = Callable[[ClusterConfig, HostMap, Path], Launcher]
"""Makes a launcher for ranks that are on these hosts, and write their files below a folder, which exists.

Raises ConfigError, RunFailed.
"""

LAUNCHERS: PartTable[MakeLauncher] = PartTable(
    LAUNCHER_NAMES,
    {"fork": lambda cluster, hosts, checkpoints: ForkLauncher(), "hosts": HostsLauncher, "ray": RayLauncher},
)
"""Launchers by the value of config key ``cluster.launcher``."""
