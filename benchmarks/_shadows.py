"""Trackers measured inside a real run: beside every PS rank without one stand shadows of it that track.

Each gets the same requests, in an order that turns from message to message, so that all find the machine as it is at
that moment. A shadow shares its rank's rows and updates them by zero times the gradient: the same work, and the run
stays the run that it would be without it. Counters and lists are its own.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import skewed_ids
from benchmarks._workers import Parts, gated_train
from harness.cluster.protocol import Cluster, Exchange, Push, Reply, Request, SupervisorClient, WriteBack
from harness.cluster.server import RankServer, RankSpec
from harness.config.model import Config
from harness.core.lookup import plan_batch
from harness.core.placement import Placement
from harness.core.plans import Rank
from harness.core.seeds import generator
from harness.run import assemble
from harness.run.spec import RunSpec

NONE = "none"
KINDS = ("mfu", "ssu")
_CHUNK_STEPS = 64
_SAMPLE_PERIOD = 2  # of cpr_ssu, by default


def tracking(spec: RankSpec, kind: str | None, rank: Rank) -> RankServer:
    """The code of a PS rank with tracker ``kind``, which counts updates only where the tracker needs it."""
    return RankServer(replace(spec, tracker=replace(spec.tracker, kind=kind), count_updates=False), rank)


class Shadowed:
    """A PS rank without a tracker, and its shadows; what each took is added to ``seconds``."""

    def __init__(self, spec: RankSpec, rank: Rank, *, seconds: Parts) -> None:
        self._real = tracking(spec, None, rank)
        self.shadows = {kind: tracking(spec, kind, rank) for kind in KINDS}
        for shadow in self.shadows.values():
            shadow.shard.rows_MD = self._real.shard.rows_MD
        self._seconds = seconds
        self._order = [NONE, *KINDS]

    def handle(self, request: Request) -> Reply:
        """As the real one does it; messages of training are timed on all."""
        if not isinstance(request, Exchange) or request.push is None:
            return self._real.handle(request)
        began_s = time.perf_counter()
        assert isinstance(request.push, Push)
        shadowed = replace(request, push=replace(request.push, learning_rate=0.0))
        self._order = [*self._order[1:], self._order[0]]
        replies: dict[str, Reply] = {}
        before_s = time.perf_counter()
        for name in self._order:
            server, message = (self._real, request) if name == NONE else (self.shadows[name], shadowed)
            replies[name] = server.handle(message)
            now_s = time.perf_counter()
            self._seconds[name] = self._seconds.get(name, 0.0) + now_s - before_s
            before_s = now_s
        self._seconds["all"] = self._seconds.get("all", 0.0) + before_s - began_s
        return replies[NONE]

    def close(self) -> None:
        """Leave no thread behind."""
        for server in (self._real, *self.shadows.values()):
            server.close()


def shadowed_trainer(fill_steps: int, config: Config, folder: Path, pipe: Connection) -> None:
    """Body of a worker: a run on engine ``local``, whose shadows have tracked ``fill_steps`` steps when it begins."""
    seconds: Parts = {}
    ranks: list[Shadowed] = []

    def shadowed(spec: RankSpec, rank: Rank) -> Any:
        ranks.append(Shadowed(spec, rank, seconds=seconds))
        return ranks[-1]

    def profile() -> Parts:
        taken = dict(seconds)
        seconds.clear()
        return taken

    def train(
        config: Config, checkpoints: Path, kill_steps: frozenset[int], cluster: Cluster, supervisor: SupervisorClient
    ) -> None:
        shadows = [list(rank.shadows.values()) for rank in ranks]
        fill(shadows, RunSpec(config).placement, fill_steps, config)
        for shadow in chain.from_iterable(shadows):
            shadow.shard.applied_step = 0  # the run begins at its first step
        gated_train(pipe, config, checkpoints, kill_steps, cluster, supervisor, profile=profile)

    assemble.run(config, folder, parts=assemble.Parts(make_server=shadowed, train=train))


def fill(ranks: Sequence[Sequence[RankServer]], placement: Placement, num_steps: int, config: Config) -> None:
    """Tell the servers of every rank what ``num_steps`` steps of skewed accesses touch; rows stay as they are.

    By the message of a lookahead cache whose windows are 64 steps.
    """
    rng = generator(config.seed, "touches")
    for first in range(0, num_steps, _CHUNK_STEPS):
        step = min(first + _CHUNK_STEPS, num_steps)
        num_samples = (step - first) * config.trainer.batch_size
        ids_BF = np.stack([skewed_ids(rng, rows, num_samples) for rows in placement.cardinalities], axis=1)
        plan = plan_batch(ids_BF, placement, np.arange(num_samples) % _SAMPLE_PERIOD == 0)
        for k, servers in enumerate(ranks):
            for server in servers:
                told = WriteBack(
                    step=step,
                    rows_N=plan.rows[k],
                    values_ND=server.shard.gather(plan.rows[k]),
                    counts_N=plan.counts[k],
                    sampled=((step, plan.rows[k][plan.sampled[k]]),),
                )
                reply = server.handle(Exchange(push=told))
                assert reply is None, reply
