"""The objects of the trainer rank, on either engine, and the evaluation of what it has trained."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from harness.client.clients import CLIENTS
from harness.client.embedding_client import Batches, ClientSpec, EmbeddingClient
from harness.cluster.protocol import Cluster
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.faults import FaultTime
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.overhead import FullSave, OverheadLedger
from harness.core.plans import Progress
from harness.core.pls import PlsLedger, UpdateLedger, rank_weights
from harness.core.trackers import TRACKERS
from harness.data.dataset import Batch
from harness.model.network import Network, make_network
from harness.recovery.accounting import Accounting
from harness.recovery.checkpointer import Checkpointer
from harness.recovery.failover import Failover
from harness.recovery.injections import Injections
from harness.recovery.interrupts import Interrupts
from harness.recovery.notices import Notices
from harness.recovery.recoveries import Recoveries
from harness.recovery.requests import Requests
from harness.run.boundaries import Boundaries
from harness.run.drops import Drops
from harness.run.moved_rows import RowReader
from harness.run.resume_points import ResumePoints
from harness.run.spec import RunSpec
from harness.run.step_log import StepLog
from harness.store import Store

_MOST_KEPT = 1 << 16
"""The most samples of a repeated evaluation that are kept in memory."""


@dataclass
class Evaluator:
    """Evaluates the model, dense network and embedding rows, at a boundary. Changes no tracker, counter or cache.

    ``on_batch`` is called after each batch.
    """

    run_spec: RunSpec
    network: Network
    client: EmbeddingClient
    on_batch: Callable[[], None]

    def __post_init__(self) -> None:
        self._batches_by_size: dict[int, list[tuple[Batch, BatchPlan]]] = {}

    async def score(self, progress: Progress, num_samples: int) -> tuple[Tensor, Tensor]:
        """Logits and labels of the first ``num_samples`` evaluation samples, (M,) each."""
        logits, labels = [], []
        for batch, plan in self._kept(num_samples) if num_samples <= _MOST_KEPT else self._batches(num_samples):
            rows_ND = await self.client.look_up(plan, progress)
            logits.append(self.network.predict(batch.dense_BI, rows_ND, plan))
            labels.append(batch.labels_B)
            self.on_batch()
        return torch.cat(logits), torch.cat(labels)

    def _kept(self, num_samples: int) -> list[tuple[Batch, BatchPlan]]:
        """The batches of a repeated evaluation, kept in memory with their plans."""
        if num_samples not in self._batches_by_size:
            self._batches_by_size[num_samples] = list(self._batches(num_samples))
        return self._batches_by_size[num_samples]

    def _batches(self, num_samples: int) -> Iterator[tuple[Batch, BatchPlan]]:
        config, placement = self.run_spec.config.eval, self.run_spec.placement
        for batch in self.run_spec.dataset.eval_batches(config.split, config.batch_size, num_samples):
            yield batch, plan_batch(batch.ids_BF, placement, np.zeros(len(batch.ids_BF), dtype=bool))


class Job:
    """The objects of a trainer rank, made in the order of their dependencies."""

    def __init__(
        self,
        run_spec: RunSpec,
        store: Store,
        faults: tuple[FaultTime, ...],
        cluster: Cluster,
        supervisor: SupervisorClient,
    ) -> None:
        config = run_spec.config
        self.run_spec = run_spec
        self.cluster = cluster
        self.supervisor = supervisor
        self.steps = StepLog(
            supervisor,
            num_steps=run_spec.num_steps,
            batch_size=config.trainer.batch_size,
            every_steps=config.metrics.log_every_steps,
            repeats_exactly=run_spec.strategy.repeats_exactly,
        )
        self.accounting = _make_accounting(run_spec, cluster)
        self.recoveries = Recoveries(run_spec.run_facts)
        self.injections = Injections(
            faults=faults,
            cluster=cluster,
            supervisor=supervisor,
            progress=self.progress,
            before_fault=self.steps.flush,
        )
        self.boundaries = Boundaries(run_spec, faults, self.progress, self.accounting.overhead)
        self.requests = Requests(cluster, self.recoveries, self.injections)
        self.network = _make_network(run_spec, cluster)
        self.drops = self._make_drops()
        self.interrupts = Interrupts(
            to_come=self.boundaries.to_come if config.trace.interrupts else lambda: (),
            take=self.boundaries.take_faults,
            expect_losses=self.drops.expect,
            injections=self.injections,
            accounting=self.accounting,
            supervisor=supervisor,
        )
        self.checkpointer = self._make_checkpointer(store)
        self.notices = Notices(
            run=run_spec.run_facts,
            ask=self.requests.ask,
            supervisor=supervisor,
            injections=self.injections,
            checkpointer=self.checkpointer,
            accounting=self.accounting,
        )
        self.failover = self._make_failover()
        self.client = self._make_client()
        self.evaluator = Evaluator(
            run_spec, self.network, self.client, on_batch=lambda: supervisor.advanced(self.steps.step)
        )
        self.resume_points = self._make_resume_points()

    def progress(self) -> Progress:
        """The present position of the run. Its save is the one under way or, if none is, the newest one not lost."""
        batch_size = self.run_spec.config.trainer.batch_size
        save = self.checkpointer.saving or self.checkpointer.newest_left
        return Progress(
            step=self.steps.step,
            samples=self.steps.step * batch_size,
            previous_samples=max(0, self.steps.step - 1) * batch_size,
            total_samples=self.run_spec.total_samples,
            saved_step=save and save.step,
            saved_samples=save and save.samples,
        )

    def _make_failover(self) -> Failover:
        return Failover(
            cluster=self.cluster,
            supervisor=self.supervisor,
            strategy=self.run_spec.strategy,
            checkpointer=self.checkpointer,
            recoveries=self.recoveries,
            injections=self.injections,
            interrupts=self.interrupts,
            notices=self.notices,
            accounting=self.accounting,
            max_replacements_in_a_row=self.run_spec.config.cluster.max_replacements_in_a_row,
        )

    def _make_client(self) -> EmbeddingClient:
        run_spec, config = self.run_spec, self.run_spec.config
        spec = ClientSpec(
            requests=self.requests,
            batches=Batches(
                run_spec.dataset,
                run_spec.placement,
                batch_size=config.trainer.batch_size,
                sample_period=run_spec.strategy.sample_period or 1,
            ),
            run=run_spec.run_facts,
            num_steps=run_spec.num_steps,
            is_boundary=self.boundaries.is_due,
            needs_all=self.boundaries.needs_all,
            cache=config.cache,
            tracker=TRACKERS[run_spec.strategy.tracker],
        )
        return CLIENTS[config.cache.mode](spec)

    def _make_drops(self) -> Drops:
        rows = RowReader(
            planned_faults=self.run_spec.planned_faults,
            placement=self.run_spec.placement,
            dim=self.run_spec.model.row_values,
            look_up=lambda plan: self.client.look_up(plan, self.progress()),
        )
        return Drops(
            num_samples=self.run_spec.num_recovery_samples,
            score=lambda num_samples: self.evaluator.score(self.progress(), num_samples),
            accounting=self.accounting,
            injections=self.injections,
            supervisor=self.supervisor,
            progress=self.progress,
            repeats_exactly=self.run_spec.strategy.repeats_exactly,
            rows=rows if self.run_spec.config.eval.movement else None,
        )

    def _make_checkpointer(self, store: Store) -> Checkpointer:
        config = self.run_spec.config
        return Checkpointer(
            requests=self.requests,
            ranks=self.cluster.ranks,
            supervisor=self.supervisor,
            store=store,
            accounting=self.accounting,
            recoveries=self.recoveries,
            injections=self.injections,
            interrupts=self.interrupts,
            config_hash=self.run_spec.result_hash,
            in_background=config.save.mode == "async",
            dense_state=self.network.state,
            dense_optimizer=config.trainer.dense_optimizer,
        )

    def _make_resume_points(self) -> ResumePoints:
        names = ("steps", "boundaries", "checkpointer", "accounting", "recoveries", "injections", "drops", "client")
        names += ("network", "notices")
        return ResumePoints(
            parts={name: getattr(self, name) for name in names},
            client=self.client,
            requests=self.requests,
            recoveries=self.recoveries,
            injections=self.injections,
            checkpointer=self.checkpointer,
            supervisor=self.supervisor,
            every_s=self.run_spec.config.resume.every_s,
            fsync=self.run_spec.config.store.fsync,
        )


def _make_accounting(run_spec: RunSpec, cluster: Cluster) -> Accounting:
    metrics = run_spec.config.metrics
    shards = {rank: run_spec.row_bytes * rows for rank, rows in zip(cluster.ranks, run_spec.rank_rows, strict=True)}
    full = FullSave.of(run_spec.bytes_full, shards.values())
    return Accounting(
        overhead=OverheadLedger(run_spec.costs, run_spec.strategy.step_parts, full),
        pls=PlsLedger(rank_weights(run_spec.placement), run_spec.total_samples, metrics.pls_since),
        updates=UpdateLedger(cluster.ranks) if metrics.update_pls else None,
        count_updates=run_spec.count_updates,
        shard_bytes=shards,
        groups=run_spec.strategy.groups,
        memory_bytes=run_spec.memory_bytes,
    )


def _make_network(run_spec: RunSpec, cluster: Cluster) -> Network:
    """The dense network. Its threads begin an update at once, unless a message in flight needs their cores."""
    config = run_spec.config
    has_spare_core = len(os.sched_getaffinity(0)) > config.trainer.num_threads
    network = make_network(
        *(config.model, run_spec.shape, config.trainer),
        seed=config.seed,
        is_eager=not cluster.overlaps or config.cache.mode != "none" or has_spare_core,
    )
    if run_spec.initial is not None:
        network.load(run_spec.initial.dense())
    return network
