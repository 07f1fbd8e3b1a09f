"""Bodies of processes that are supervisors of runs on emulated hosts. They import this file, and not pytest."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.cluster import rank_process
from harness.cluster.deadlines import ListeningClock
from harness.cluster.launcher import Main, RankContext
from harness.cluster.server import RankSpec
from harness.config.derived import host_map
from harness.config.model import Config
from harness.core.errors import HarnessError, RunStopped, StoreError
from harness.files import hold_also
from harness.hosts.launcher import HostsLauncher
from harness.processes.stop import StopRequest
from harness.run import assemble
from harness.store import FileStore, RowSource
from harness.store.format import content_paths
from run import main
from tests.forked import await_stop, forked, is_stopped
from tests.hosts.emulated import Emulation, await_end, await_that, peers, signal_server
from tests.hosts.ray_nodes import ours
from tests.own_time import own_time

AT_STEP, BETWEEN = 40, 15


class NotingLauncher(HostsLauncher):
    """Notes in a file when each replacement is started."""

    def __init__(self, config: Config, run_dir: Path, clock: ListeningClock) -> None:
        checkpoints = run_dir.with_name("shared")
        checkpoints.mkdir(parents=True)
        super().__init__(config.cluster, host_map(config), checkpoints)
        self.folder = run_dir.parent
        self._file = run_dir.with_name("spawned")
        self.clock = clock

    def spawn(self, context: RankContext, main: Main) -> None:
        """Note it, and start it."""
        if context.formation is not None and context.formation.generation:
            with self._file.open("a") as file:
                file.write(f"{self.clock.read()}\n")
        super().spawn(context, main)


Act = Callable[[Any, Emulation], None]
"""What is done in the middle of a run; it gets the launcher (None: Ray's) and the hosts."""


def run_and(
    hosts: Emulation, config: Config, run_dir: Path, *acts: Act, ps_main: Callable[..., None] = rank_process.ps_main
) -> None:
    """A run in whose middle ``acts`` are called, each ``BETWEEN`` steps after the last one; says its error."""
    hosts.enter()
    os.setpgid(0, 0)  # SIGTSTP stops nobody in a group whose starter has ended, as of tests in the background
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)  # as in a command
    to_do = deque(acts)

    def on_status(status: assemble.RunStatus) -> None:
        if to_do and status.phase == "train" and status.step >= AT_STEP + BETWEEN * (len(acts) - len(to_do)):
            to_do.popleft()(launcher, hosts)

    try:
        with own_time() as clock:
            launcher = NotingLauncher(config, run_dir, clock) if config.cluster.launcher == "hosts" else None
            assemble.run(config, run_dir, on_status=on_status, parts=assemble.Parts(launcher=launcher, ps_main=ps_main))
    except HarnessError as error:
        os.write(1, f"{type(error).__name__}: {error}\n".encode())


def stop_and_go_on(hosts: Emulation, config: Config, run_dir: Path) -> None:
    """A run that is asked to stop in its middle, and goes on."""
    hosts.enter()
    stop = StopRequest()

    def on_status(status: assemble.RunStatus) -> None:
        if status.phase == "train" and status.step >= AT_STEP:
            stop.set()

    try:
        assemble.run(config, run_dir, on_status=on_status, stop=stop)
    except RunStopped:
        os.write(1, b"stopped\n")
    assemble.run(config, run_dir, resumes=True)


def command(hosts: Emulation, *arguments: str) -> None:
    """A command of the harness; says its exit code after what it says."""
    hosts.enter()
    code = main(arguments)
    os.write(1, f"{code}\n".encode())


# --- acts -------------------------------------------------------------------------------------------------------------


def end_supervisor(_launcher: object, _hosts: Emulation) -> None:
    """This process is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def lose_process(_launcher: object, _hosts: Emulation, host: str, part: bytes) -> None:
    """A process of a host whose command line has ``part`` is killed; the run goes on when none is left there."""
    os.kill(ours(host, part)[0], signal.SIGKILL)
    await_that(lambda: not ours(host), "nothing of the harness is left")


def name_peers(_launcher: object, hosts: Emulation) -> None:
    """Say to which addresses the supervisor's network and each host are connected."""
    for holder in (str(hosts.bridge), *hosts.hosts):
        for peer in sorted(peers(holder)):
            os.write(1, f"{holder} {peer}\n".encode())


def lose_server(_launcher: object, _hosts: Emulation, host: str) -> None:
    """The fork server of a host is killed; the supervisor goes on when its ranks have ended: the run is not over."""
    signal_server(host, signal.SIGKILL)
    await_end((host,))


def stop_server(launcher: NotingLauncher, _hosts: Emulation, host: str, rank: str) -> None:
    """The fork server of a host is stopped, and one of its ranks is to be killed: the run waits for the deadline."""
    signal_server(host, signal.SIGSTOP)
    launcher[rank].kill()
    launcher[rank].join()
    assert host in launcher.lost_hosts()


def go_on_writing(folder: Path, spec: RankSpec, context: RankContext) -> None:
    """Main function of a rank. The first ps1 goes on with saves when its host is cut off, until the run is done.

    It is played by a copy of it, which has the names of its files, and says in a file how many it has written.
    """
    name_files_by = rank_process.name_files_by

    def name_and_copy(writer: str) -> None:
        name_files_by(writer)
        if os.fork() == 0:
            try:
                hold_also(context.held)
                assert spec.store.root is not None
                _overwrite(folder, spec.store.root)
            finally:
                os._exit(0)

    if context.rank == "ps1" and context.formation is not None and context.formation.generation == 0:
        rank_process.name_files_by = name_and_copy
    rank_process.ps_main(spec, context)


def _overwrite(folder: Path, checkpoints: Path) -> None:
    store = FileStore(checkpoints, fsync=False)
    await_that((folder / "cut").exists, "the host is cut off")
    first, number = 1 + max(sequence for sequence, _ in content_paths(checkpoints)), 0
    while not any((folder / name).exists() for name in ("run/DONE", "run/error.txt")):
        for sequence in range(first, 80):
            store.discard("ps1", sequence)
            with suppress(StoreError):  # the folder has gone, or another process has written it since
                store.write_base("ps1", sequence, 0, RowSource(torch.zeros(4, 4)))
                number += 1
        (folder / "written").write_text(str(number))


def cut_link(_launcher: object, hosts: Emulation, host: str, folder: Path) -> None:
    """The cable of a host is taken out; a file of ``folder`` says so."""
    hosts.cut(host)
    (folder / "cut").touch()


def lose_link(launcher: NotingLauncher, hosts: Emulation, host: str) -> None:
    """The same; says when it was out, by the launcher's clock."""
    cut_link(launcher, hosts, host, launcher.folder)
    os.write(1, f"{launcher.clock.read()}\n".encode())


def press_ctrl_z(_launcher: object, hosts: Emulation, host: str, pause_s: float) -> None:
    """The supervisor is stopped twice: for so many seconds, and until a host whose cable is taken out is empty."""

    def cut() -> None:
        hosts.cut(host)
        await_end((host,))

    _stop_by_ctrl_z(lambda: time.sleep(pause_s))
    _stop_by_ctrl_z(cut)


def _stop_by_ctrl_z(meanwhile: Callable[[], object]) -> None:
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
