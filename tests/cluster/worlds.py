"""Real RPC worlds for tests, and jobs for their trainer rank (which a forkserver must be able to import)."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Exchange, Initialise
from harness.cluster.rpc import RpcCluster
from harness.cluster.supervisor import Supervisor
from harness.cluster.world import World
from harness.config.model import Config
from harness.core.errors import RankLost, RunFailed
from harness.core.faults import PlannedFault
from harness.run.assemble import DEFAULT, Parts, make_world
from harness.run.spec import RunSpec
from harness.store import CheckpointStore
from tests.stopped import stop


class Notes:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def record(self, event: Any) -> None:
        """Keep it."""
        self.events.append(event)


def run_job(
    config: Config,
    root: Path,
    job: Callable[[Cluster, Effects], None],
    planned_faults: tuple[PlannedFault, ...] = (),
    parts: Parts = DEFAULT,
    *,
    on_world: Callable[[World], None] = lambda _: None,
) -> list[Any]:
    """Run ``job`` on the trainer rank of a real world; what it recorded, events of the supervisor among them.

    ``on_world`` is called with the world before it starts.
    """
    spec = RunSpec(config).rank_spec(root)
    world = make_world(config, spec, job, parts)
    notes = Notes()
    on_world(world)
    try:
        world.start()
        store = CheckpointStore(root, fsync=False)
        supervisor = Supervisor(
            ranks=world, sink=notes.record, store=store, planned_faults=planned_faults, on_status=lambda **_: None
        )
        world.serve(supervisor)
    finally:
        world.close()
    assert not {process.pid for process in multiprocessing.active_children()} & set(world.pids.values())
    return notes.events


def pids_of(cluster: Cluster) -> dict[str, int]:
    """Who serves: the pid of the process that answers a request to each rank."""
    assert isinstance(cluster, RpcCluster)
    return {rank: rpc.rpc_sync(name, os.getpid) for rank, name in cluster._workers.items()}


def begin(cluster: Cluster) -> None:
    """Make the rows of every rank."""
    cluster.call({rank: Initialise(step=0) for rank in cluster.ranks})


def ask(cluster: Cluster) -> dict[str, Any]:
    """The replies of every rank to a message."""
    return cluster.call({rank: Exchange(pull_N=torch.arange(3)) for rank in cluster.ranks})


def mend(cluster: Cluster, effects: Effects, lost: RankLost, step: int, *others: str) -> None:
    """Replace dead ranks, and make the rows of the new ones, and of ``others``."""
    effects.replace(lost.detail, step, 4 * step, 0.0)
    cluster.replace(lost.ranks)
    cluster.call({rank: Initialise(step=step) for rank in (*lost.ranks, *others)})


def kill_and_replace(cluster: Cluster, effects: Effects) -> None:
    """Requests before a kill at boundary 5, the request that finds the death, and requests after the replacement."""
    begin(cluster)
    before = ask(cluster)
    effects.record({"served": pids_of(cluster)})
    cluster.expect_losses()
    effects.inject(5, 20, (0,))
    try:
        ask(cluster)
    except RankLost as lost:
        effects.record({"lost": sorted(lost.ranks), "answered": sorted(lost.replies), "detail": lost.detail})
        mend(cluster, effects, lost, 5)
    after = ask(cluster)
    effects.record({"served": pids_of(cluster), "equal": all(torch.equal(before[r], after[r]) for r in before)})


def raise_in_a_rank(cluster: Cluster, effects: Effects) -> None:
    """A request that the rank's code cannot serve."""
    begin(cluster)
    cluster.call({"ps1": Exchange(pull_N=torch.tensor([10**9]))})


def hang_while_joining(cluster: Cluster, effects: Effects) -> None:
    """A survivor that goes mute while a new world is formed: it is given up after the timeout, and replaced too."""
    begin(cluster)
    served = pids_of(cluster)
    os.kill(served["ps1"], 9)
    try:
        ask(cluster)
    except RankLost as lost:
        stop(served["ps2"])
        try:
            mend(cluster, effects, lost, 1)
        except RankLost as mute:
            effects.record({"mute": sorted(mute.ranks)})
            mend(cluster, effects, mute, 1, "ps1")
    ask(cluster)
    effects.record({"served": pids_of(cluster), "before": served})


def fail(cluster: Cluster, effects: Effects) -> None:
    """A trainer that fails on purpose."""
    raise RunFailed("on purpose")
