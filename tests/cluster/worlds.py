"""Real RPC worlds, and jobs for their trainer rank. Ranks import this file, and not pytest."""

import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from harness.cluster import group, rank_process
from harness.cluster.launcher import RankContext
from harness.cluster.protocol import Cluster, Exchange, Initialise, WriteBack
from harness.cluster.rpc import RpcCluster
from harness.cluster.server import RankSpec
from harness.cluster.supervisor import Supervisor
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import ClusterConfig, Config
from harness.core.errors import RankFailed, RankLost, RunFailed
from harness.core.faults import RETURN, Hang, PlannedFault, Strike
from harness.processes import network, spawn
from harness.processes.spawn import fork_own_server
from harness.processes.stop import StopRequest
from harness.run.assemble import Parts, make_world
from harness.run.spec import RunSpec
from harness.store import FileStore
from tests.forked import alive, ends, stop

DEADLINE_S = 1.5
JOIN_S = 2.5  # for whole worlds, on a busy machine
PAUSE_S = 1.2 * DEADLINE_S
TELL_S = 2.0

Job = Callable[[Cluster, SupervisorClient], None]


def run_job(
    config: Config,
    root: Path,
    job: Job,
    planned_faults: tuple[PlannedFault, ...] = (),
    ps_main: Callable[..., None] = rank_process.ps_main,
    *,
    stop: StopRequest | None = None,
) -> list[Any]:
    """Run ``job`` on the trainer rank of a real world; what it recorded, events of the supervisor among them."""
    store = FileStore(root, fsync=False)
    store.open()
    world = make_world(config, RunSpec(config).rank_spec(store), job, Parts(ps_main=ps_main))
    events = list[Any]()
    try:
        world.start()
        supervisor = Supervisor(
            ranks=world, sink=events.append, store=store, planned_faults=planned_faults, on_status=lambda **_: None
        )
        world.serve(supervisor, stop)
    finally:
        world.close()
    assert not any(map(alive, world.pids.values()))
    return events


def kill(step: int, *ranks: str) -> PlannedFault:
    return PlannedFault(step=step, strikes=dict.fromkeys(ranks, Strike(1.0, 2)))


def give_back(step: int, *ranks: str) -> PlannedFault:
    return PlannedFault(step=step, strikes=dict.fromkeys(ranks, Strike(1.0, 2, RETURN)))


def link_of(cluster: Cluster) -> Any:
    assert isinstance(cluster, RpcCluster)
    return cluster._link


def pids_of(cluster: Cluster) -> dict[str, int]:
    """Who serves: the pid of the process that answers a request to each rank."""
    assert isinstance(cluster, RpcCluster)
    return {rank: rpc.rpc_sync(name, os.getpid) for rank, name in cluster._workers.items()}


def begin(cluster: Cluster) -> None:
    cluster.call({rank: Initialise(step=0) for rank in cluster.ranks})


def ask(cluster: Cluster) -> dict[str, Any]:
    return cluster.call({rank: Exchange(pull_N=torch.arange(3)) for rank in cluster.ranks})


def mend(cluster: Cluster, supervisor: SupervisorClient, lost: RankLost, step: int, *others: str) -> None:
    """Replace dead ranks, and make the rows of the new ones, and of ``others``."""
    supervisor.replace(lost.detail, step, 4 * step, 0.0)
    cluster.replace(lost.ranks)
    cluster.call({rank: Initialise(step=step) for rank in (*lost.ranks, *others)})


def loss_at(cluster: Cluster, supervisor: SupervisorClient, step: int, number: int = 0) -> RankLost:
    """Carry out a planned fault, and find the dead ranks by a request."""
    cluster.expect_losses()
    supervisor.inject(step, 4 * step, (number,))
    try:
        ask(cluster)
    except RankLost as lost:
        return lost
    raise AssertionError("nobody died")


# --- losses -----------------------------------------------------------------------------------------------------------

KILL_AND_HANG = PlannedFault(step=5, strikes={"ps1": Strike(1.0, 2), "ps3": Strike(1.0, 3, Hang(name="hang"))})


def lose_two(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """A request that a rank cannot serve; then one is killed, and one hangs; both are replaced."""
    begin(cluster)
    before = ask(cluster)
    try:
        cluster.call({"ps1": Exchange(pull_N=torch.tensor([10**9]))})
    except RankFailed as error:
        supervisor.record(str(error))
    supervisor.record(pids_of(cluster))
    lost = loss_at(cluster, supervisor, 5)
    supervisor.record(RankLost(lost.ranks, dict.fromkeys(lost.replies), lost.detail))
    mend(cluster, supervisor, lost, 5)
    after = ask(cluster)
    supervisor.record(pids_of(cluster))
    supervisor.record(all(torch.equal(before[rank], after[rank]) for rank in before))


SPARE_LOSSES = (kill(5, "ps1"), kill(7, "ps0", "ps2"), kill(9, "ps3"), kill(11, "ps0", "ps1"), kill(13, "ps3"))


def lose_to_spares(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """Deaths with enough spares, none and too few; one spare has died before."""
    assert isinstance(cluster, RpcCluster)

    def note() -> None:
        supervisor.record((cluster._generation, pids_of(cluster)))

    def lose(number: int) -> None:
        step = SPARE_LOSSES[number].step
        mend(cluster, supervisor, loss_at(cluster, supervisor, step, number), step)
        ask(cluster)
        note()

    def admit(step: int) -> None:
        generation, ends_s = cluster._generation, time.monotonic() + 60.0
        supervisor.status(step=step)
        while cluster._generation == generation:
            time.sleep(0.01)
            ask(cluster)
            assert time.monotonic() < ends_s

    def pid_of(spare: str) -> int:
        return rpc.rpc_sync(group.worker_name(spare, cluster._generation), os.getpid)

    begin(cluster)
    note()
    lose(0)
    admit(6)
    lose(1)
    lose(2)
    admit(10)
    dead = pid_of("spare3")
    os.kill(dead, signal.SIGKILL)
    assert ends(dead)
    time.sleep(0.3)  # until the supervisor has seen it
    lose(3)
    admit(12)
    lose(4)


SHRINK_LOSSES = (kill(5, "ps1"), *(give_back(step, "ps1") for step in (9, 11)))


def lose_for_good(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """Deaths whose shards survivors take over: a planned one, an unplanned one, a process that hangs; two returns.

    While a node returns for the second time, the process that serves its shard dies.
    """

    def find(step: int, *asked: str) -> None:
        try:
            cluster.call({rank: Exchange(pull_N=torch.arange(3)) for rank in asked})
        except RankLost as lost:
            mend(cluster, supervisor, lost, step)
            supervisor.record((sorted(lost.ranks), pids_of(cluster)))

    begin(cluster)
    before = ask(cluster)["ps1"]
    supervisor.record(([], pids_of(cluster)))
    supervisor.inject(5, 20, (0,))
    find(5, *cluster.ranks)
    os.kill(pids_of(cluster)["ps1"], signal.SIGKILL)
    find(6, *cluster.ranks)
    stop(pids_of(cluster)["ps1"])
    find(7, "ps1")
    ones = torch.ones(1, before.shape[1])
    row_N, count_N = torch.tensor([0]), torch.tensor([1], dtype=torch.int32)
    push = WriteBack(step=8, rows_N=row_N, values_ND=ones, counts_N=count_N)
    cluster.call({"ps1": Exchange(push=push)})
    trained = ask(cluster)["ps1"]
    supervisor.inject(9, 36, (1,))
    cluster.move()
    after = ask(cluster)["ps1"]
    supervisor.record((torch.equal(trained, after), torch.equal(before, after), pids_of(cluster)))
    os.kill(pids_of(cluster)["ps1"], signal.SIGKILL)
    find(10, *cluster.ranks)
    source = pids_of(cluster)["ps1"]
    supervisor.inject(11, 44, (2,))
    os.kill(source, signal.SIGKILL)
    cluster.move()
    find(11, *cluster.ranks)
    ask(cluster)


ALL_TRAINERS = PlannedFault(step=5, strikes={"trainer0": Strike(1.0, 2)})


def die_when_asked_to_stop(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """The only trainer knows that the run is to stop when it is killed; its replacement says whether it knows too."""
    ends_s = time.monotonic() + 10.0
    while not supervisor.is_stopping() and time.monotonic() < ends_s:
        time.sleep(0.01)
    if link_of(cluster).rank_context.formation.generation == 0:
        supervisor.inject(5, 20, (0,), state=b"")
    supervisor.record(supervisor.is_stopping())


# --- the mute ---------------------------------------------------------------------------------------------------------


def stop_self(note: Path) -> None:
    note.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


def newborn(note: Path, spec: RankSpec, context: RankContext) -> None:
    """Main function of a PS rank. The first new ps1 stops at once, the second before it publishes its address."""
    real = group.ControlStore.set
    generation = -1 if context.formation is None else context.formation.generation

    def stopping(self: group.ControlStore, key: str, value: bytes) -> None:
        if key.startswith("addrs/"):
            stop_self(note.with_suffix(".2"))
        real(self, key, value)

    if (context.rank, generation) == ("ps1", 1):
        stop_self(note.with_suffix(".1"))
    if (context.rank, generation) == ("ps1", 2):
        group.ControlStore.set = stopping
    rank_process.ps_main(spec, context)


def replace_the_mute(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """A kill whose replacement is mute, as is a survivor; then another replacement is mute."""
    begin(cluster)
    survivor = pids_of(cluster)["ps2"]
    lost = loss_at(cluster, supervisor, 5)
    stop(survivor)
    for others in ((), ("ps0",), ("ps2",)):
        try:
            mend(cluster, supervisor, lost, 5, *others)
        except RankLost as mute:
            lost = mute
    ask(cluster)
    supervisor.record(survivor)


def stop_at_work(note: Path, cluster: Cluster, supervisor: SupervisorClient) -> None:
    begin(cluster)
    stop_self(note)


def stop_in_a_message(note: Path, cluster: Cluster, supervisor: SupervisorClient) -> None:
    """In the middle of a message to the supervisor, which is too long for one write."""
    link = link_of(cluster)
    with link._sending:
        os.write(link._connection.fileno(), struct.pack("!i", 1 << 20) + b"half")
        stop_self(note)


def loop(note: Path, cluster: Cluster, supervisor: SupervisorClient) -> None:
    """A loop without an end, after 7 steps: it asks the ranks, and finishes nothing."""
    note.write_text(str(os.getpid()))
    begin(cluster)
    supervisor.advanced(7)
    while True:
        ask(cluster)
        time.sleep(0.05)


def take_time(cluster: Cluster, supervisor: SupervisorClient) -> None:
    """The supervisor is stopped and continued, as Ctrl-Z and ``fg`` do; then a long step; then a long evaluation.

    The first two take longer than the deadline of a sign of life, the third than that of progress.
    """
    begin(cluster)
    owner = link_of(cluster).rank_context.supervisor_pid
    ranks = [os.getpid(), *pids_of(cluster).values()]
    os.kill(owner, signal.SIGSTOP)
    for pid in ranks:
        os.kill(pid, signal.SIGTSTP)
    ends_s = time.monotonic() + PAUSE_S
    while time.monotonic() < ends_s:
        ask(cluster)
        time.sleep(0.05)
    os.kill(owner, signal.SIGCONT)
    supervisor.advanced(1)
    ends_s = time.monotonic() + PAUSE_S
    while time.monotonic() < ends_s:
        pass
    for _ in range(10):
        supervisor.advanced(2)
        time.sleep(0.3 * DEADLINE_S)
    supervisor.record([os.getpid(), *pids_of(cluster).values()] == ranks)


def run_and_say(config: Config, root: Path) -> None:
    assert fork_own_server()
    sys.stdout.write(str(run_job(config, root, take_time)))


def kill_the_supervisor(note: Path, cluster: Cluster, supervisor: SupervisorClient) -> None:
    """While the fork server and a rank are stopped."""
    begin(cluster)
    pids = pids_of(cluster)
    note.write_text(" ".join(map(str, [os.getppid(), os.getpid(), *pids.values()])))
    stop(os.getppid())
    stop(pids["ps1"])
    os.kill(link_of(cluster).rank_context.supervisor_pid, signal.SIGKILL)


def run_until_killed(config: Config, root: Path, note: Path) -> None:
    assert fork_own_server()
    run_job(config, root, partial(kill_the_supervisor, note))


# --- the fork server --------------------------------------------------------------------------------------------------


def signal_the_server(note: Path, number: int, cluster: Cluster, supervisor: SupervisorClient) -> None:
    """Send a signal to the fork server, then go on with a planned kill."""
    begin(cluster)
    note.write_text(" ".join(map(str, [os.getppid(), os.getpid(), *pids_of(cluster).values()])))
    if number == signal.SIGSTOP:
        stop(os.getppid())
    else:
        os.kill(os.getppid(), number)
    loss_at(cluster, supervisor, 5)


def lose_the_server(number: int, config: Config, root: Path, note: Path) -> None:
    """Body: the fork server of a world gets a signal."""
    spawn.ANSWER_S = TELL_S
    assert fork_own_server()
    try:
        run_job(config, root, partial(signal_the_server, note, number), (kill(5, "ps1"),))
    except RunFailed as error:
        sys.stdout.write(str(error))


def lonely(pid: int) -> RankContext:
    """The context of a rank whose supervisor ``pid`` has no world."""
    return RankContext(
        rank="ps0",
        formation=None,
        number=0,
        supervisor_pid=pid,
        port=1,
        authkey=b"",
        options=ClusterConfig(rpc_timeout_s=0.5, join_timeout_s=0.5),
        entrance=network.Entrance((f"/proc/{pid}/fd/3",)),
    )
