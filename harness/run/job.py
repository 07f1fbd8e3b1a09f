"""The job of the trainer rank, on either engine."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from harness.client.clients import CLIENTS
from harness.client.embedding_client import Batches, ClientSpec, EmbeddingClient
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.faults import FaultTime
from harness.core.optimizers import OPTIMIZERS
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress
from harness.core.pls import PlsLedger, UpdateCounter, UpdateLedger, rank_weights
from harness.core.trackers import TRACKERS
from harness.model.backends import choose_backend
from harness.model.dlrm import DenseNetwork
from harness.recovery.accounting import Accounting
from harness.recovery.charges import ModelBytes
from harness.recovery.checkpointer import Checkpointer, Checkpoints, StoreSpec
from harness.recovery.failover import FailoverClient
from harness.recovery.injections import Injections
from harness.recovery.kinds.base import RunFacts
from harness.recovery.recoveries import Recoveries
from harness.run.boundaries import Boundaries, Schedule
from harness.run.evaluation import Evaluator, curve_samples, steps_between, whole_samples
from harness.run.resume_points import ResumePoints
from harness.run.spec import RunSpec
from harness.run.step_log import StepLog
from harness.run.trainer import Trainer


def train(config: Config, checkpoints: Path, faults: tuple[FaultTime, ...], cluster: Cluster, effects: Effects) -> None:
    """Train one epoch on the given cluster and record all events of the trainer, Finished the last."""
    run_spec = RunSpec(config)
    torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.device == "cuda":
        if not torch.cuda.is_available():  # asked here: whoever asks can fork no process that computes on the device
            raise ConfigError("trainer.device: expected a CUDA device for cuda, but torch finds none here; use cpu")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may round differently in each run
        torch.use_deterministic_algorithms(mode=True)
    saves = Checkpoints(checkpoints)
    trainer = _make_trainer(run_spec, saves, faults, cluster, effects)
    try:
        effects.record(trainer.run())
    finally:
        saves.give_up()


def _make_trainer(
    run_spec: RunSpec,
    saves: Checkpoints,
    faults: tuple[FaultTime, ...],
    cluster: Cluster,
    effects: Effects,
) -> Trainer:
    """Build the objects of a run, each after those it uses."""
    config = run_spec.config
    schedule = _make_schedule(run_spec, faults)
    steps = StepLog(
        effects,
        num_steps=schedule.num_steps,
        batch_size=schedule.batch_size,
        every_steps=config.metrics.log_every_steps,
        repeats_exactly=run_spec.strategy.restores_exactly,
    )
    progress = partial(_progress, schedule, steps, saves)
    accounting = _make_accounting(run_spec, cluster)
    boundaries = Boundaries(schedule, run_spec.strategy, progress, lambda: accounting.overhead_h)
    count_updates = UpdateCounter(run_spec.placement, run_spec.tracked)
    recoveries = _make_recoveries(run_spec, count_updates)
    injections = Injections(
        faults,
        cluster=cluster,
        effects=effects,
        recoveries=recoveries,
        accounting=accounting,
        progress=progress,
        before_fault=steps.flush,
    )
    failover = FailoverClient(
        cluster=cluster,
        effects=effects,
        strategy=run_spec.strategy,
        checkpoints=saves,
        accounting=accounting,
        recoveries=recoveries,
        injections=injections,
        before_recovery=steps.flush,
        max_replacements_in_a_row=config.cluster.max_replacements_in_a_row,
    )
    network = _make_network(run_spec, cluster)
    client = _make_client(run_spec, failover, boundaries, count_updates)
    failover.attach(client)
    resume_points = ResumePoints(
        parts={
            "steps": steps,
            "boundaries": boundaries,
            "checkpoints": saves,
            "accounting": accounting,
            "recoveries": recoveries,
            "injections": injections,
            "client": client,
            "network": network,
        },
        client=client,
        failover=failover,
        checkpoints=saves,
        effects=effects,
        every_s=config.resume.every_s,
        fsync=config.store.fsync,
    )
    return Trainer(
        failover=failover,
        checkpointer=Checkpointer(
            ask=failover.ask,
            ranks=cluster.ranks,
            effects=effects,
            checkpoints=saves,
            accounting=accounting,
            recoveries=recoveries,
            injections=injections,
            store=_store_spec(run_spec),
            dense_state=network.state,
        ),
        accounting=accounting,
        effects=effects,
        client=client,
        recoveries=recoveries,
        network=network,
        steps=steps,
        boundaries=boundaries,
        injections=injections,
        progress=progress,
        num_steps=schedule.num_steps,
        saves_initially=run_spec.strategy.saves_initially,
        overlaps=cluster.overlaps,
        evaluator=_make_evaluator(run_spec, network, client, lambda: effects.advanced(steps.step)),
        count_updates=count_updates,
        resume_points=resume_points,
    )


def _make_schedule(run_spec: RunSpec, faults: tuple[FaultTime, ...]) -> Schedule:
    """The boundaries at which something is due that no strategy decides."""
    config = run_spec.config
    return Schedule(
        num_steps=run_spec.num_steps,
        batch_size=config.trainer.batch_size,
        faults=faults,
        clock=config.trace.clock,
        job_h=run_spec.costs.job_h,
        evaluate_every_steps=steps_between(config.eval, run_spec.num_steps),
        evaluates_last=_num_curve_samples(run_spec) < whole_samples(config.eval, run_spec.dataset),
    )


def _progress(schedule: Schedule, steps: StepLog, saves: Checkpoints) -> Progress:
    """How far the run is now."""
    return Progress(
        step=steps.step,
        samples=steps.step * schedule.batch_size,
        previous_samples=max(0, steps.step - 1) * schedule.batch_size,
        total_samples=schedule.total_samples,
        saved_step=saves.saved_step,
        saved_samples=saves.saved_samples,
    )


def _make_accounting(run_spec: RunSpec, cluster: Cluster) -> Accounting:
    """The ledgers of the run, with nothing charged yet."""
    metrics = run_spec.config.metrics
    return Accounting(
        overhead=OverheadLedger(run_spec.costs),
        pls=PlsLedger(rank_weights(run_spec.placement), run_spec.total_samples, metrics.pls_since),
        updates=UpdateLedger(cluster.ranks) if metrics.update_pls else None,
        sizes=ModelBytes(full=run_spec.bytes_full, shards=run_spec.shard_bytes),
        memory_bytes=run_spec.memory_bytes,
    )


def _store_spec(run_spec: RunSpec) -> StoreSpec:
    """How the ranks write their files."""
    config = run_spec.config
    return StoreSpec(
        fsync=config.store.fsync,
        config_hash=run_spec.result_hash,
        in_background=config.save.mode == "async",
        dense_optimizer=config.trainer.dense_optimizer,
    )


def _make_evaluator(
    run_spec: RunSpec, network: DenseNetwork, client: EmbeddingClient, on_batch: Callable[[], None]
) -> Evaluator:
    """The evaluator, on the dense network and the rows of the run."""
    return Evaluator(
        run_spec.config.eval,
        dataset=run_spec.dataset,
        placement=run_spec.placement,
        network=network,
        client=client,
        curve_samples=_num_curve_samples(run_spec),
        on_batch=on_batch,
    )


def _num_curve_samples(run_spec: RunSpec) -> int:
    """Samples of each evaluation for the curve."""
    return curve_samples(run_spec.config.eval, run_spec.dataset, run_spec.total_samples)


def _make_recoveries(run_spec: RunSpec, count_updates: UpdateCounter) -> Recoveries:
    """The kinds of recovery of the strategy."""
    trainer = run_spec.config.trainer
    return Recoveries(
        RunFacts(
            strategy=run_spec.strategy,
            placement=run_spec.placement,
            tracked=run_spec.tracked,
            dim=run_spec.size.embedding_dim,
            optimizer=OPTIMIZERS[trainer.optimizer],
            learning_rate=trainer.learning_rate,
            has_counts=run_spec.counts_updates,
            count_updates=count_updates,
        )
    )


def _make_client(
    run_spec: RunSpec, failover: FailoverClient, boundaries: Boundaries, count_updates: UpdateCounter
) -> EmbeddingClient:
    """The embedding client that ``cache.mode`` names."""
    config = run_spec.config
    spec = ClientSpec(
        failover=failover,
        batches=Batches(
            run_spec.dataset,
            run_spec.placement,
            batch_size=config.trainer.batch_size,
            sample_period=run_spec.strategy.sample_period or 1,
        ),
        dim=run_spec.size.embedding_dim,
        optimizer=OPTIMIZERS[config.trainer.optimizer],
        learning_rate=config.trainer.learning_rate,
        num_steps=run_spec.num_steps,
        is_boundary=lambda step: boundaries.at(step).anything,
        needs_all=lambda step: boundaries.at(step).needs_all,
        cache=config.cache,
        count_updates=count_updates,
        tracker=TRACKERS[run_spec.strategy.tracker],
    )
    return CLIENTS[config.cache.mode](spec)


def _make_network(run_spec: RunSpec, cluster: Cluster) -> DenseNetwork:
    """The dense network. Its threads begin an update at once, unless a message under way needs their core."""
    config = run_spec.config
    has_spare_core = len(os.sched_getaffinity(0)) > config.trainer.num_threads
    return DenseNetwork(
        run_spec.size,
        seed=config.seed,
        learning_rate=config.trainer.learning_rate,
        optimizer=config.trainer.dense_optimizer,
        device=config.trainer.device,
        backend=choose_backend(config.trainer),
        is_eager=not cluster.overlaps or config.cache.mode != "none" or has_spare_core,
    )
