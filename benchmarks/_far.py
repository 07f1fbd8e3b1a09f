"""A run on engine ``rpc`` whose PS ranks live in another network namespace than its supervisor and trainer."""

from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks._wire import enter
from benchmarks._workers import Parts, gated_train
from harness.client.lookahead import LookaheadPath
from harness.cluster import rpc
from harness.cluster.protocol import Cluster, SupervisorClient
from harness.cluster.server import RankSpec
from harness.config.model import Config
from harness.run import assemble, job

_real_ps_main = rpc.ps_main


def far_trainer(far_pid: int, config: Config, folder: Path, pipe: Connection) -> None:
    """Body of a worker: a run as run.py makes one, with a gate; PS ranks are in the namespace of ``far_pid``.

    The gate reports what the lookahead cache has counted since the beginning.
    """
    parts = assemble.Parts(train=partial(_counted_train, pipe), ps_main=partial(_far_ps_main, far_pid))
    assemble.run(config, folder, parts=parts)


def _far_ps_main(far_pid: int, rank_context: rpc.RankContext, spec: RankSpec) -> None:
    """Main function of a PS rank; nothing of it runs before it has moved."""
    enter(far_pid)
    _real_ps_main(rank_context, spec)


def _counted_train(  # noqa: PLR0917 - the first is bound above, the rest is assemble's call
    pipe: Connection,
    config: Config,
    checkpoints: Path,
    kill_steps: frozenset[int],
    cluster: Cluster,
    supervisor: SupervisorClient,
) -> None:
    paths: list[LookaheadPath] = []

    class KeptPath(LookaheadPath):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            paths.append(self)

    def profile() -> Parts:
        return dict(paths[0].summary()) if paths else {}

    with mock.patch.object(job, "LookaheadPath", KeptPath):
        gated_train(pipe, config, checkpoints, kill_steps, cluster, supervisor, profile=profile)
