"""Jobs and main functions that stop, or stop others, by SIGSTOP. Ranks import this file, and not pytest."""

import mmap
import os
import signal
import struct
import sys
import threading
import time
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.cluster import group, launcher, rank_process
from harness.cluster.effects import Effects
from harness.cluster.launcher import RankContext
from harness.cluster.protocol import Cluster
from harness.cluster.rpc import RpcCluster
from harness.cluster.server import RankSpec
from harness.config.model import Config
from harness.core.errors import RankLost, RunFailed
from harness.processes import fork_server as server
from harness.processes.spawn import fork_server, nest_fork_server
from tests.cluster import worlds
from tests.cluster.worlds import ask, begin, mend
from tests.stopped import stop

DEADLINE_S = 2.0
JOIN_S = 3.0  # for whole worlds, on a busy machine
PAUSE_S = 1.2 * DEADLINE_S


def stop_self(note: Path) -> None:
    """Note the pid, and stop."""
    note.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def newborn(note: Path, stage: str, spec: RankSpec, context: RankContext) -> None:
    """Main function of a PS rank; the first replacement stops before it publishes key ``stage``."""
    real = group.ControlStore.set

    def stopping(self: group.ControlStore, key: str, value: bytes) -> None:
        if key.startswith(stage):
            stop_self(note)
        real(self, key, value)

    if context.formation is not None and context.formation.generation == 1:
        if not stage:
            stop_self(note)
        group.ControlStore.set = stopping
    rank_process.ps_main(spec, context)


def replace_twice(cluster: Cluster, effects: Effects) -> None:
    """A kill whose replacement is mute, and has to be replaced too."""
    begin(cluster)
    cluster.expect_losses()
    effects.inject(5, 20, (0,))
    try:
        ask(cluster)
    except RankLost as lost:
        try:
            mend(cluster, effects, lost, 5)
        except RankLost as mute:
            mend(cluster, effects, mute, 5)
    ask(cluster)


def stop_the_trainer(note: Path, cluster: Cluster, effects: Effects) -> None:
    """In the middle of a job."""
    begin(cluster)
    stop_self(note)


def stop_in_a_message(note: Path, cluster: Cluster, effects: Effects) -> None:
    """In the middle of a message to the supervisor, which is too long for one write."""
    assert isinstance(cluster, RpcCluster)
    link = cluster._link
    with link._sending:
        os.write(link._connection.fileno(), struct.pack("!i", 1 << 20) + b"half")
        stop_self(note)


def compute(cluster: Cluster, effects: Effects) -> None:
    """A step that takes longer than the deadline."""
    ends_s = time.monotonic() + PAUSE_S
    while time.monotonic() < ends_s:
        pass
    effects.record("computed")


def loop(note: Path, cluster: Cluster, effects: Effects) -> None:
    """A loop without an end, after 7 steps: it asks the ranks, and finishes nothing."""
    note.write_text(str(os.getpid()))
    begin(cluster)
    effects.advanced(7)
    while True:
        ask(cluster)
        time.sleep(0.01)


def finish_slowly(cluster: Cluster, effects: Effects) -> None:
    """Batches of an evaluation that take twice the deadline, and each a part of it."""
    for _ in range(10):
        time.sleep(DEADLINE_S / 5)
        effects.advanced(7)
    effects.record("finished")


def stop_the_supervisor(cluster: Cluster, effects: Effects) -> None:
    """Stop and continue it, as Ctrl-Z and ``fg`` do, with a longer pause than any deadline."""
    assert isinstance(cluster, RpcCluster)
    begin(cluster)
    owner = cluster._link.rank_context.supervisor_pid
    ranks = [os.getpid(), *worlds.pids_of(cluster).values()]
    os.kill(owner, signal.SIGSTOP)
    for pid in ranks:
        os.kill(pid, signal.SIGTSTP)
    ends_s = time.monotonic() + PAUSE_S
    while time.monotonic() < ends_s:
        ask(cluster)
        time.sleep(0.01)
    os.kill(owner, signal.SIGCONT)
    effects.record([*worlds.pids_of(cluster).values()] == ranks[1:])


def run_and_say(config: Config, root: Path) -> None:
    """Body of a supervisor's process."""
    nest_fork_server()
    sys.stdout.write(str(worlds.run_job(config, root, stop_the_supervisor)))


def kill_the_supervisor(note: Path, cluster: Cluster, effects: Effects) -> None:
    """While the fork server and a rank are stopped."""
    assert isinstance(cluster, RpcCluster)
    begin(cluster)
    pids = worlds.pids_of(cluster)
    note.write_text(" ".join(map(str, [os.getppid(), os.getpid(), *pids.values()])))
    stop(os.getppid())
    stop(pids["ps1"])
    os.kill(cluster._link.rank_context.supervisor_pid, signal.SIGKILL)


def run_until_killed(config: Config, root: Path, note: Path) -> None:
    """Body of a supervisor's process."""
    nest_fork_server()
    worlds.run_job(config, root, partial(kill_the_supervisor, note))


def ticking(note: Path, spec: RankSpec, context: RankContext) -> None:
    """Main function of a PS rank; a thread of ps1 notes how often it has run."""
    if context.rank == "ps1" and context.formation is not None and context.formation.generation == 0:
        threading.Thread(target=_tick, args=(note,), daemon=True).start()
    rank_process.ps_main(spec, context)


def _tick(note: Path) -> None:
    with note.open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
        while True:
            counter[:8] = (int.from_bytes(counter[:8], "little") + 1).to_bytes(8, "little")
            time.sleep(0.002)


def signal_the_server(note: Path, number: int, cluster: Cluster, effects: Effects) -> None:
    """Send a signal to the fork server, then go on with a planned kill."""
    begin(cluster)
    pids = worlds.pids_of(cluster)
    note.write_text(" ".join(map(str, [time.monotonic(), os.getppid(), os.getpid(), *pids.values()])))
    if number == signal.SIGSTOP:
        stop(os.getppid())  # and wait: a thread of it could still tell how ps1 ended
    else:
        os.kill(os.getppid(), number)
    cluster.expect_losses()
    effects.inject(5, 20, (0,))


def start_by_a_killed_server(config: Config, root: Path) -> None:
    """Body: the server is killed while a world starts, between a request for a rank and its answer."""
    assert nest_fork_server()
    start, connect = launcher.start, forkserver.connect_to_new_process

    def start_stopped(process: BaseProcess, timeout_s: float) -> None:
        killed = server.current()
        assert killed is not None
        stop(killed.pid)
        forkserver.connect_to_new_process = partial(connect_and_kill, killed.pid)
        start(process, timeout_s)

    def connect_and_kill(pid: int, fds: list[int]) -> tuple[int, int]:
        connected = connect(fds)
        os.kill(pid, signal.SIGKILL)
        return connected

    launcher.start = start_stopped
    try:
        worlds.run_job(config, root, say_nothing)
    except RunFailed as error:
        sys.stdout.write(f"{error}\n")


def say_nothing(cluster: Cluster, effects: Effects) -> None:
    """Job: none."""


def start_by_a_stopped_server() -> None:
    """Body: a process is started well, then the server is stopped."""
    assert nest_fork_server()
    first = fork_server().Process(target=os.getpid)
    server.start(first, 20.0)
    first.join()
    stopped = server.current()
    assert stopped is not None
    stop(stopped.pid)
    began_s = time.monotonic()
    try:
        server.start(fork_server().Process(target=os.getpid, name="ps1"), 0.5)
    except RunFailed as error:
        sys.stdout.write(f"{error}\n")
    sys.stdout.write(f"{time.monotonic() - began_s}\n{stopped.has_ended(20.0)}\n")
