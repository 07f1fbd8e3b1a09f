"""The job of the trainer rank, on either engine."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from harness.client.direct import Batches, DataPath, DirectPath, SplitPath
from harness.client.lookahead import LookaheadPath
from harness.client.stale import StalePath
from harness.cluster.protocol import Cluster, SupervisorClient
from harness.config.model import Config
from harness.core.overhead import OverheadLedger
from harness.core.plans import Rank
from harness.core.pls import PlsLedger, UpdateCounter, UpdateLedger, rank_weights
from harness.core.trackers import NEEDS_SAMPLES
from harness.model.dlrm import DenseNetwork
from harness.record.environment import products
from harness.recovery.failover import Recovery, StoreSpec
from harness.run.spec import RunSpec
from harness.run.trainer import Due, Schedule, Trainer


def train(
    config: Config, checkpoints: Path, kill_steps: frozenset[int], cluster: Cluster, supervisor: SupervisorClient
) -> None:
    """The job of the trainer rank, on either engine: train, and record the last event."""
    run_spec = RunSpec(config)
    torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may round differently in each run
        torch.use_deterministic_algorithms(mode=True)
    # Helpers begin an update at once, unless a message is under way and needs the core that they would take.
    has_spare_core = len(os.sched_getaffinity(0)) > config.trainer.num_threads
    network = DenseNetwork(
        run_spec.size,
        seed=config.seed,
        learning_rate=config.trainer.learning_rate,
        device=config.trainer.device,
        products=products(),
        is_eager=not cluster.is_remote or config.cache.mode != "none" or has_spare_core,
    )
    counts = config.metrics.update_pls
    recovery = Recovery(
        cluster=cluster,
        supervisor=supervisor,
        strategy=run_spec.strategy,
        overhead=OverheadLedger(run_spec.costs),
        pls=PlsLedger(rank_weights(run_spec.placement), run_spec.total_samples, config.strategy.pls_since),
        updates=UpdateLedger(cluster.ranks) if counts else None,
        store=StoreSpec(
            root=checkpoints,
            fsync=config.store.fsync,
            config_hash=run_spec.result_hash,
            bytes_full=run_spec.bytes_full,
            in_background=config.save.mode == "async",
        ),
        dense_state=network.state,
        max_replacements_in_a_row=config.cluster.max_replacements_in_a_row,
        clock=time.monotonic,
    )
    trainer = Trainer(
        cluster=cluster,
        supervisor=supervisor,
        recovery=recovery,
        strategy=run_spec.strategy,
        network=network,
        make_path=partial(_data_path, run_spec, recovery, cluster.ranks),
        dataset=run_spec.dataset,
        placement=run_spec.placement,
        tracked=run_spec.tracked,
        schedule=Schedule(
            num_steps=run_spec.num_steps,
            batch_size=config.trainer.batch_size,
            kill_steps=kill_steps,
            log_every_steps=config.metrics.log_every_steps,
        ),
        evaluation=config.eval,
        clock=time.monotonic,
    )
    try:
        supervisor.record(trainer.run())
    finally:
        recovery.give_up_save()


def _data_path(
    run_spec: RunSpec, recovery: Recovery, ranks: tuple[Rank, ...], due_at: Callable[[int], Due]
) -> DataPath:
    """The data path that the config asks for."""
    config, tracker = run_spec.config, run_spec.strategy.tracker
    batches = Batches(
        run_spec.dataset,
        run_spec.placement,
        batch_size=config.trainer.batch_size,
        ssu_period=config.strategy.ssu_period,
    )
    if config.cache.mode == "none":
        rate, kind = config.trainer.learning_rate, config.cluster.data_path
        if kind == "fused":
            return DirectPath(
                recovery,
                batches,
                ranks,
                learning_rate=rate,
                num_steps=run_spec.num_steps,
                is_boundary=lambda step: due_at(step).anything,
            )
        return SplitPath(recovery, batches, ranks, learning_rate=rate, by_table=kind == "naive")
    if config.cache.mode == "stale":
        return StalePath(
            recovery,
            batches,
            ranks,
            dim=run_spec.size.embedding_dim,
            learning_rate=config.trainer.learning_rate,
            num_steps=run_spec.num_steps,
            staleness=config.cache.staleness,
            num_workers=config.cache.workers,
            max_rows=config.cache.max_rows,
            count_updates=UpdateCounter(run_spec.placement, run_spec.tracked),
            empties=lambda step: due_at(step).needs_all,
        )
    return LookaheadPath(
        recovery,
        batches,
        ranks,
        dim=run_spec.size.embedding_dim,
        learning_rate=config.trainer.learning_rate,
        num_steps=run_spec.num_steps,
        lookahead=config.cache.lookahead,
        max_rows=config.cache.max_rows,
        is_boundary=lambda step: due_at(step).anything,
        recovers_from_cache=config.cache.recover_from_cache,
        count_updates=UpdateCounter(run_spec.placement, run_spec.tracked),
        tells_samples=tracker in NEEDS_SAMPLES,
    )
