"""Bodies of processes that are supervisors of runs on emulated hosts. They import this file, and not pytest."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cluster.hosts import HostsLauncher
from harness.cluster.launcher import Main, RankContext, RankProcess
from harness.config.model import Config
from harness.core.errors import HarnessError
from harness.run import assemble
from run import main
from tests.cluster.emulated import Emulation, ended_s, signal_agent


class NotingLauncher(HostsLauncher):
    """Notes in a file when replacements are started (monotonic seconds)."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        checkpoints = run_dir.with_name("shared")
        checkpoints.mkdir(parents=True)
        super().__init__(config.cluster, checkpoints)
        self._file = run_dir.with_name("spawned")

    def spawn(self, context: RankContext, main: Main, work: Any) -> RankProcess:
        """Note the time, and start it."""
        if context.place is not None and context.place.generation:
            with self._file.open("a") as file:
                file.write(f"{time.monotonic()}\n")
        return super().spawn(context, main, work)


def run_and(
    hosts: Emulation,
    config: Config,
    run_dir: Path,
    at_step: int,
    act: Callable[[HostsLauncher], None] | None = None,
) -> None:
    """A run in whose middle ``act`` is called, once."""
    hosts.enter()
    to_do = [act] if act is not None else []

    def on_status(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= at_step and to_do:
            to_do.pop()(launcher)

    try:
        launcher = NotingLauncher(config, run_dir)
        assemble.run(config, run_dir, on_status=on_status, parts=assemble.Parts(launcher=launcher))
    except HarnessError as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())


def lose_agent(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """The agent of a host is killed."""
    run_and(hosts, config, run_dir, 40, lambda launcher: signal_agent(host, signal.SIGKILL))


def stop_agent(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """The agent of a host is stopped: its ranks run, and nobody watches them. The run waits for the deadline."""

    def stop(launcher: HostsLauncher) -> None:
        signal_agent(host, signal.SIGSTOP)
        while not launcher.lost_hosts():
            time.sleep(0.01)

    run_and(hosts, config, run_dir, 40, stop)


def lose_link(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """The cable of a host is taken out; says when, and when its processes had ended (monotonic seconds)."""

    def cut(launcher: HostsLauncher) -> None:
        cut_s = time.monotonic()
        hosts.cut(host)
        if os.fork() == 0:
            os.write(1, f"{cut_s} {ended_s((host,), 20.0)}\n".encode())
            os._exit(0)

    run_and(hosts, config, run_dir, 40, cut)


def end_supervisor(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """The supervisor is killed."""
    run_and(hosts, config, run_dir, 40, lambda launcher: os.kill(os.getpid(), signal.SIGKILL))


def command(hosts: Emulation, *arguments: str) -> None:
    """A command of the harness; says its exit code after what it says."""
    hosts.enter()
    code = main(arguments)
    os.write(1, f"{code}\n".encode())
