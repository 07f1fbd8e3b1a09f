"""The job of the trainer rank, on either engine."""

import os
from pathlib import Path

import torch

from harness.client.clients import CLIENTS
from harness.client.embedding_client import Batches, ClientSpec, EmbeddingClient
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.core.faults import FaultTime
from harness.core.trackers import TRACKERS
from harness.model.backends import choose_backend
from harness.model.dlrm import DenseNetwork
from harness.recovery.checkpointer import Checkpointer, Checkpoints
from harness.recovery.failover import FailoverClient
from harness.run.boundaries import Boundaries
from harness.run.evaluation import Evaluator, curve_samples
from harness.run.fault_tolerance import FaultTolerance
from harness.run.resume_points import ResumePoints
from harness.run.spec import RunSpec
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
    tolerance = FaultTolerance(run_spec, saves, faults, cluster, effects)
    trainer = _make_trainer(run_spec, tolerance, cluster, effects)
    try:
        effects.record(trainer.run())
    finally:
        saves.give_up()


def _make_trainer(run_spec: RunSpec, tolerance: FaultTolerance, cluster: Cluster, effects: Effects) -> Trainer:
    """Build the model's objects, each after those it uses, and the trainer of all."""
    network = _make_network(run_spec, cluster)
    client = _make_client(run_spec, tolerance.failover, tolerance.boundaries)
    tolerance.failover.attach(client.shards_restored, client.in_flight_updates)
    return Trainer(
        tolerance=tolerance,
        effects=effects,
        client=client,
        network=network,
        evaluator=Evaluator(
            run_spec.config.eval,
            dataset=run_spec.dataset,
            placement=run_spec.placement,
            network=network,
            client=client,
            curve_samples=curve_samples(run_spec.config.eval, run_spec.dataset, run_spec.total_samples),
            on_batch=lambda: effects.advanced(tolerance.steps.step),
        ),
        checkpointer=_make_checkpointer(run_spec, tolerance, effects, network),
        resume_points=ResumePoints(
            parts={**tolerance.states, "client": client, "network": network},
            client=client,
            failover=tolerance.failover,
            checkpoints=tolerance.checkpoints,
            effects=effects,
            every_s=run_spec.config.resume.every_s,
            fsync=run_spec.config.store.fsync,
        ),
        saves_initially=run_spec.strategy.saves_initially,
        overlaps=cluster.overlaps,
    )


def _make_checkpointer(
    run_spec: RunSpec, tolerance: FaultTolerance, effects: Effects, network: DenseNetwork
) -> Checkpointer:
    config, failover = run_spec.config, tolerance.failover
    return Checkpointer(
        ask=failover.ask,
        ranks=failover.ranks,
        effects=effects,
        checkpoints=tolerance.checkpoints,
        accounting=tolerance.accounting,
        recoveries=tolerance.recoveries,
        injections=tolerance.injections,
        fsync=config.store.fsync,
        config_hash=run_spec.result_hash,
        in_background=config.save.mode == "async",
        dense_state=network.state,
        dense_optimizer=config.trainer.dense_optimizer,
    )


def _make_client(run_spec: RunSpec, failover: FailoverClient, boundaries: Boundaries) -> EmbeddingClient:
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
        optimizer=run_spec.row_optimizer,
        learning_rate=config.trainer.learning_rate,
        num_steps=run_spec.num_steps,
        is_boundary=lambda step: boundaries.at(step).anything,
        needs_all=lambda step: boundaries.at(step).needs_all,
        cache=config.cache,
        count_updates=run_spec.count_updates,
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
