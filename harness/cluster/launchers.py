"""The table of launchers: one class and one entry for each; config key ``cluster.launcher``."""

from collections.abc import Callable
from pathlib import Path

from harness.cluster.hosts import HostsLauncher
from harness.cluster.launcher import ForkLauncher, Launcher
from harness.config.model import ClusterConfig
from harness.core.names import LAUNCHER_NAMES, PartTable

MakeLauncher = Callable[[ClusterConfig, Path], Launcher]
"""Makes a launcher for ranks that write their files below a folder, which exists. Raises ConfigError, RunFailed."""

LAUNCHERS: PartTable[MakeLauncher] = PartTable(
    LAUNCHER_NAMES, {"fork": lambda cluster, checkpoints: ForkLauncher(), "hosts": HostsLauncher}
)
"""Launchers by the value of config key ``cluster.launcher``."""
