"""Bodies of processes that are supervisors of runs on emulated hosts. They import this file, and not pytest."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cluster.launcher import Main, RankContext, RankProcess
from harness.config.hosts import host_map
from harness.config.model import Config
from harness.core.errors import HarnessError, RunStopped
from harness.hosts.launcher import HostsLauncher
from harness.processes.stop import StopRequest
from harness.run import assemble
from run import main
from tests.hosts.emulated import Emulation, ended_s, peers, processes, signal_agent
from tests.hosts.ray_nodes import ours


class NotingLauncher(HostsLauncher):
    """Notes in a file when replacements are started (monotonic seconds)."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        checkpoints = run_dir.with_name("shared")
        checkpoints.mkdir(parents=True)
        super().__init__(config.cluster, host_map(config), checkpoints)
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


def stop_and_go_on(hosts: Emulation, config: Config, run_dir: Path, at_step: int) -> None:
    """A run that is asked to stop in its middle, and goes on."""
    hosts.enter()
    stop = StopRequest()

    def on_status(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= at_step:
            stop.set()

    try:
        assemble.run(config, run_dir, on_status=on_status, stop=stop)
    except RunStopped:
        os.write(1, b"stopped\n")
    assemble.run(config, run_dir, resumes=True)


def run_plainly(hosts: Emulation, config: Config, run_dir: Path, act: Callable[[], None] | None = None) -> None:
    """A run with the launcher that the config names; ``act`` is called once, after 40 steps."""
    hosts.enter()
    to_do = [act] if act is not None else []

    def on_status(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= 40 and to_do:
            to_do.pop()()

    try:
        assemble.run(config, run_dir, on_status=on_status)
    except HarnessError as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())


def lose_process(hosts: Emulation, config: Config, run_dir: Path, host: str, part: bytes) -> None:
    """A process of a host whose command line has ``part`` is killed; says how many are left there a second later."""
    counters: list[int] = []

    def lose() -> None:
        os.kill(ours(host, part)[0], signal.SIGKILL)
        if (counter := os.fork()) == 0:
            time.sleep(1.0)
            os.write(1, f"{len(ours(host))} left\n".encode())
            os._exit(0)
        counters.append(counter)

    run_plainly(hosts, config, run_dir, lose)
    for counter in counters:  # The run may end first.
        os.waitpid(counter, 0)


def end_supervisor_of_ray(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """The supervisor is killed."""
    run_plainly(hosts, config, run_dir, lambda: os.kill(os.getpid(), signal.SIGKILL))


def name_peers(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """Says to which addresses the supervisor's network and each host are connected in the middle of a run."""

    def name(launcher: HostsLauncher) -> None:
        for holder in (str(hosts.bridge), *hosts.hosts):
            for peer in sorted(peers(holder)):
                os.write(1, f"{holder} {peer}\n".encode())

    run_and(hosts, config, run_dir, 40, name)


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


def press_ctrl_z(hosts: Emulation, config: Config, run_dir: Path, pause_s: float) -> None:
    """The supervisor gets SIGTSTP in its middle, and goes on after so many seconds; says whether it had stopped."""
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # as in a command

    def press(launcher: HostsLauncher) -> None:
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(pause_s)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            os.write(1, f"{state}\n".encode())
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
        os.kill(pid, signal.SIGTSTP)

    run_and(hosts, config, run_dir, 40, press)


def cut_during_ctrl_z(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """While the supervisor is stopped a cable is taken out; says how many processes are left on the host in the end."""
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # as in a command

    def press(launcher: HostsLauncher) -> None:
        pid = os.getpid()
        if os.fork() == 0:
            time.sleep(0.5)
            hosts.cut(host)
            time.sleep(2 * config.cluster.dead_after_s)
            os.write(1, f"{len(processes(host))} left\n".encode())
            os.kill(pid, signal.SIGCONT)
            os._exit(0)
        os.kill(pid, signal.SIGTSTP)

    run_and(hosts, config, run_dir, 40, press)


def end_supervisor(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """The supervisor is killed."""
    run_and(hosts, config, run_dir, 40, lambda launcher: os.kill(os.getpid(), signal.SIGKILL))


def command(hosts: Emulation, *arguments: str) -> None:
    """A command of the harness; says its exit code after what it says."""
    hosts.enter()
    code = main(arguments)
    os.write(1, f"{code}\n".encode())
