"""Bodies of processes that are supervisors of runs on emulated hosts. They import this file, and not pytest."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from harness.cluster.deadlines import ListeningClock
from harness.cluster.launcher import Main, RankContext, RankProcess
from harness.config.derived import host_map
from harness.config.model import Config
from harness.core.errors import HarnessError, RunStopped
from harness.hosts.launcher import HostsLauncher
from harness.processes.stop import StopRequest
from harness.run import assemble
from run import main
from tests.forked import forked
from tests.hosts.emulated import Emulation, await_end, await_that, peers, processes, signal_agent
from tests.hosts.ray_nodes import ours
from tests.own_time import own_time
from tests.stopped import await_stop, is_stopped


class NotingLauncher(HostsLauncher):
    """Notes in a file when each replacement is started, and how many processes are left then on lost hosts."""

    def __init__(self, config: Config, run_dir: Path, clock: ListeningClock) -> None:
        checkpoints = run_dir.with_name("shared")
        checkpoints.mkdir(parents=True)
        super().__init__(config.cluster, host_map(config), checkpoints)
        self._file = run_dir.with_name("spawned")
        self.clock = clock

    def spawn(self, context: RankContext, main: Main) -> RankProcess:
        """Note both, and start it."""
        if context.formation is not None and context.formation.generation:
            left = [pid for host in self.lost_hosts() for pid in processes(host)]
            with self._file.open("a") as file:
                file.write(f"{self.clock.read()} {len(left)}\n")
        return super().spawn(context, main)


def run_and(
    hosts: Emulation,
    config: Config,
    run_dir: Path,
    at_step: int,
    act: Callable[[NotingLauncher], None] | None = None,
) -> None:
    """A run in whose middle ``act`` is called, once."""
    hosts.enter()
    to_do = [act] if act is not None else []

    def on_status(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= at_step and to_do:
            to_do.pop()(launcher)

    try:
        with own_time() as clock:
            launcher = NotingLauncher(config, run_dir, clock)
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
    """A process of a host whose command line has ``part`` is killed; the run goes on when none is left there."""

    def lose() -> None:
        os.kill(ours(host, part)[0], signal.SIGKILL)
        await_that(lambda: not ours(host), "nothing of the harness is left")

    run_plainly(hosts, config, run_dir, lose)


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
    """The agent of a host is killed; the supervisor goes on when its ranks have ended, lest the run end before."""

    def kill(launcher: HostsLauncher) -> None:
        signal_agent(host, signal.SIGKILL)
        await_end((host,))

    run_and(hosts, config, run_dir, 40, kill)


def stop_agent(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """The agent of a host is stopped: its ranks run, and nobody watches them. The run waits for the deadline."""

    def stop(launcher: HostsLauncher) -> None:
        signal_agent(host, signal.SIGSTOP)
        await_that(launcher.lost_hosts, "a host is lost")

    run_and(hosts, config, run_dir, 40, stop)


def lose_link(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """The cable of a host is taken out; says when it was out, by the launcher's clock."""

    def cut(launcher: NotingLauncher) -> None:
        hosts.cut(host)
        os.write(1, f"{launcher.clock.read()}\n".encode())

    run_and(hosts, config, run_dir, 40, cut)


def press_ctrl_z(hosts: Emulation, config: Config, run_dir: Path, pause_s: float) -> None:
    """The supervisor gets SIGTSTP in its middle, stops, and goes on after so many seconds; says that it had stopped."""
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # as in a command
    run_and(hosts, config, run_dir, 40, lambda launcher: stop_by_ctrl_z(lambda: time.sleep(pause_s)))


def cut_during_ctrl_z(hosts: Emulation, config: Config, run_dir: Path, host: str) -> None:
    """While the supervisor is stopped a cable is taken out, and it stays so until no process is left on the host."""
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # as in a command

    def cut() -> None:
        hosts.cut(host)
        await_end((host,))

    run_and(hosts, config, run_dir, 40, lambda launcher: stop_by_ctrl_z(cut))


def stop_by_ctrl_z(meanwhile: Callable[[], object]) -> None:
    """Stop this process by SIGTSTP, until another one has called ``meanwhile``; that says whether it stood until then.

    Returns afterwards, so that the run is not over before it stops.
    """
    pid = os.getpid()

    def go_on() -> None:
        try:
            await_stop(pid)
            meanwhile()
            os.write(1, b"stopped\n" if is_stopped(pid) else b"not stopped\n")
        finally:
            os.kill(pid, signal.SIGCONT)

    other = forked(go_on)
    os.kill(pid, signal.SIGTSTP)
    os.waitpid(other, 0)


def end_supervisor(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """The supervisor is killed."""
    run_and(hosts, config, run_dir, 40, lambda launcher: os.kill(os.getpid(), signal.SIGKILL))


def command(hosts: Emulation, *arguments: str) -> None:
    """A command of the harness; says its exit code after what it says."""
    hosts.enter()
    code = main(arguments)
    os.write(1, f"{code}\n".encode())
