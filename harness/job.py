"""The job of the trainer rank, on either engine."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from harness.blueprint import Blueprint
from harness.cluster.protocol import Cluster, Supervisor
from harness.core.config import Config
from harness.core.overhead import OverheadLedger
from harness.core.plans import Rank
from harness.core.pls import PlsLedger, UpdateCounter, UpdateLedger, rank_weights
from harness.core.trackers import NEEDS_SAMPLES
from harness.datapath import Batches, DataPath, DirectPath, SplitPath
from harness.environment import products
from harness.lookahead import LookaheadPath
from harness.model.dlrm import DenseNetwork
from harness.recovery import Recovery, StoreSpec
from harness.stale import StalePath
from harness.trainer import Due, Schedule, Trainer


def train(
    config: Config, checkpoints: Path, kill_steps: frozenset[int], cluster: Cluster, supervisor: Supervisor
) -> None:
    """The job of the trainer rank, on either engine: train, and record the last event."""
    blueprint = Blueprint(config)
    torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may round differently in each run
        torch.use_deterministic_algorithms(mode=True)
    # Helpers begin an update at once, unless a message is under way and needs the core that they would take.
    has_spare_core = len(os.sched_getaffinity(0)) > config.trainer.num_threads
    network = DenseNetwork(
        blueprint.size,
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
        strategy=blueprint.strategy,
        overhead=OverheadLedger(blueprint.costs),
        pls=PlsLedger(rank_weights(blueprint.placement), blueprint.total_samples, config.strategy.pls_since),
        updates=UpdateLedger(cluster.ranks) if counts else None,
        store=StoreSpec(
            root=checkpoints,
            fsync=config.store.fsync,
            config_hash=blueprint.result_hash,
            bytes_full=blueprint.bytes_full,
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
        strategy=blueprint.strategy,
        network=network,
        make_path=partial(_data_path, blueprint, recovery, cluster.ranks),
        dataset=blueprint.dataset,
        placement=blueprint.placement,
        tracked=blueprint.tracked,
        schedule=Schedule(
            num_steps=blueprint.num_steps,
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
    blueprint: Blueprint, recovery: Recovery, ranks: tuple[Rank, ...], due_at: Callable[[int], Due]
) -> DataPath:
    """The data path that the config asks for."""
    config, tracker = blueprint.config, blueprint.strategy.tracker
    batches = Batches(
        blueprint.dataset,
        blueprint.placement,
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
                num_steps=blueprint.num_steps,
                is_boundary=lambda step: due_at(step).anything,
            )
        return SplitPath(recovery, batches, ranks, learning_rate=rate, by_table=kind == "naive")
    if config.cache.mode == "stale":
        return StalePath(
            recovery,
            batches,
            ranks,
            dim=blueprint.size.embedding_dim,
            learning_rate=config.trainer.learning_rate,
            num_steps=blueprint.num_steps,
            staleness=config.cache.staleness,
            num_workers=config.cache.workers,
            max_rows=config.cache.max_rows,
            count_updates=UpdateCounter(blueprint.placement, blueprint.tracked),
            empties=lambda step: due_at(step).needs_all,
        )
    return LookaheadPath(
        recovery,
        batches,
        ranks,
        dim=blueprint.size.embedding_dim,
        learning_rate=config.trainer.learning_rate,
        num_steps=blueprint.num_steps,
        lookahead=config.cache.lookahead,
        max_rows=config.cache.max_rows,
        is_boundary=lambda step: due_at(step).anything,
        recovers_from_cache=config.cache.recover_from_cache,
        count_updates=UpdateCounter(blueprint.placement, blueprint.tracked),
        tells_samples=tracker in NEEDS_SAMPLES,
    )
