"""The step loop of the trainer rank.

A step: rows of the batch -> forward, backward -> gradients to the PS ranks -> dense update. At a boundary between two
steps, in this order, whatever is due: save, evaluate, kill. How rows travel is the data path's business; deaths are
found by requests that fail, and mended inside ``Recovery.ask``.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import xxhash

from harness.client.direct import DataPath
from harness.cluster.protocol import Cluster, Digest, Initialise, SupervisorClient
from harness.config.model import EvalConfig
from harness.core.errors import RunFailed
from harness.core.events import Evaluated, Finished, Trained
from harness.core.lookup import BatchPlan, plan_batch
from harness.core.placement import Placement
from harness.core.plans import Progress, SavePlan
from harness.core.pls import UpdateCounter
from harness.core.strategies import Strategy
from harness.data.dataset import Dataset
from harness.model.dlrm import DenseNetwork
from harness.model.metrics import Quality, measure
from harness.recovery.failover import CHIEF, Recovery, RolledBack
from harness.store.format import bytes_of


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is fixed before the first step. Steps are counted from 1 once they are finished."""

    num_steps: int
    batch_size: int
    kill_steps: frozenset[int]  # boundaries at which to stop for the injector
    log_every_steps: int

    @property
    def total_samples(self) -> int:
        """S_total."""
        return self.num_steps * self.batch_size


@dataclass(frozen=True, kw_only=True)
class Due:
    """What happens at one boundary, in this order."""

    save: SavePlan | None
    evaluate: bool
    kill: bool
    is_last: bool

    @property
    def anything(self) -> bool:
        """Whether the ranks must be as they would be without any message running ahead."""
        return self.save is not None or self.evaluate or self.kill or self.is_last

    @property
    def needs_all(self) -> bool:
        """Whether the ranks must have been told of every update, also by a path that is not exact."""
        return self.save is not None or self.is_last


class Trainer:
    """Trains one model over one epoch, whatever happens to the PS ranks."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        supervisor: SupervisorClient,
        recovery: Recovery,
        strategy: Strategy,
        network: DenseNetwork,
        make_path: Callable[[Callable[[int], Due]], DataPath],
        dataset: Dataset,
        placement: Placement,
        tracked: tuple[int, ...],
        schedule: Schedule,
        evaluation: EvalConfig,
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._supervisor = supervisor
        self._recovery = recovery
        self._strategy = strategy
        self._network = network
        # A message needs a core, too, while it is under way.
        self._meanwhile = partial(network.step, is_alone=True) if cluster.is_remote else _nothing
        self._dataset = dataset
        self._placement = placement
        self._count_updates = UpdateCounter(placement, tracked)
        self._schedule = schedule
        self._evaluation = evaluation
        self._clock = clock
        self._step = 0  # finished steps
        self._losses: list[float] = []  # of every step ever finished: a rerun is compared with it
        self._logged = 0  # finished steps that are on record
        self._rerun_until = 0  # steps up to here had run before the last rollback
        self._log_began_s = clock()
        self._evaluated_step = 0
        self._killed: set[int] = set()
        recovery.before = self._log
        self._path = make_path(self._due_at)

    def run(self) -> Finished:
        """All steps, and the last event."""
        began_s = self._clock()
        self._supervisor.status(phase="start", step=0, num_steps=self._schedule.num_steps, loss=None)
        self._recovery.ask({rank: Initialise(step=0) for rank in self._cluster.ranks}, self._progress())
        finished: Finished | None = None
        pending = self._begin
        while finished is None:
            try:
                pending()
                while self._step < self._schedule.num_steps:
                    self._advance()
                finished = self._finish(began_s)
            except RolledBack as rolled_back:
                self._rollback(rolled_back)
                pending = _nothing
        return finished

    def _begin(self) -> None:
        if self._strategy.saves_initially:
            self._recovery.save(SavePlan(kind="full"), self._progress(), charged=False)
            self._recovery.finish_pending_save(self._progress())
        self._kill_if_due()

    def _progress(self) -> Progress:
        return self._progress_at(self._step)

    def _progress_at(self, step: int) -> Progress:
        size = self._schedule.batch_size
        return Progress(
            step=step,
            samples=step * size,
            previous_samples=max(0, step - 1) * size,
            total_samples=self._schedule.total_samples,
            saved_step=self._recovery.saved_step,
            saved_samples=self._recovery.saved_samples,
        )

    # --- a step ---------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """One step, and what is due at the boundary after it."""
        began_s = self._clock()
        fetched = self._path.fetch(self._progress())
        batch, plan = fetched.batch, fetched.plan
        loss, grads_ND = self._network.train(batch.dense_BI, fetched.rows_XD, plan, batch.labels_B, fetched.slots_N)
        due = self._due_at(self._step + 1)
        self._path.push(plan, grads_ND, self._progress(), is_boundary=due.anything, meanwhile=self._meanwhile)
        self._finish_step(loss, plan, self._clock() - began_s)
        if due.anything:
            self._recovery.finish_pending_save(self._progress())
        if due.save is not None:
            self._log()
            self._recovery.save(due.save, self._progress(), charged=True)
        if due.evaluate:
            self._evaluate(final=False)
        if due.kill:
            self._kill_if_due()

    def _due_at(self, step: int) -> Due:
        """What happens at the boundary after ``step`` steps."""
        return Due(
            save=self._strategy.plan_save(self._progress_at(step)),
            evaluate=self._evaluates_at(step),
            kill=self._kills_at(step),
            is_last=step == self._schedule.num_steps,
        )

    def _finish_step(self, loss: float, plan: BatchPlan, seconds: float) -> None:
        self._step += 1
        if self._step <= len(self._losses):
            first = self._losses[self._step - 1]
            if struct.pack("d", first) != struct.pack("d", loss):
                raise RunFailed(
                    f"step {self._step}: run again after a rollback it lost {loss!r}, the first time {first!r}"
                )
            self._recovery.measured_s["lost"] += seconds
        else:
            self._losses.append(loss)
        if self._recovery.updates is not None:
            counted = self._count_updates(plan.keys_N, plan.counts_N)
            for rank, *counts in zip(self._cluster.ranks, *counted, strict=True):
                self._recovery.updates.sent(rank, *counts)
        if self._step == self._rerun_until or self._step % self._schedule.log_every_steps == 0:
            self._log()

    # --- at a boundary --------------------------------------------------------------------------------------------

    def _evaluates_at(self, step: int) -> bool:
        every = self._evaluation.every_steps
        return every is not None and step % every == 0 and self._evaluated_step < step < self._schedule.num_steps

    def _kills_at(self, step: int) -> bool:
        return step in self._schedule.kill_steps and step not in self._killed

    def _kill_if_due(self) -> None:
        """Stop for the injector, if a kill is due here; whom it hits is found out by the next request."""
        if self._kills_at(self._step):
            self._recovery.finish_pending_save(
                self._progress()
            )  # a kill finds what it would find had the save been waited for
            self._killed.add(self._step)
            self._log()
            self._recovery.reschedule_h = self._cluster.kill_planned(self._step, self._progress().samples)

    def _evaluate(self, *, final: bool) -> Quality:
        self._log()
        began_s = self._clock()
        self._supervisor.status(phase="evaluate")
        logits, labels = [], []
        config = self._evaluation
        for batch in self._dataset.eval_batches(config.split, config.batch_size, config.max_samples):
            plan = plan_batch(batch.ids_BF, self._placement, np.zeros(len(batch.ids_BF), dtype=bool))
            rows_ND = self._path.look_up(plan, self._progress())
            logits.append(self._network.predict(batch.dense_BI, rows_ND, plan))
            labels.append(batch.labels_B)
        quality = measure(torch.cat(logits), torch.cat(labels))
        self._evaluated_step = self._step
        self._supervisor.record(
            Evaluated(
                step=self._step,
                samples=self._progress().samples,
                auc=quality.auc,
                log_loss=quality.log_loss,
                accuracy=quality.accuracy,
                num_samples=quality.num_samples,
                final=final,
                machine={"seconds": self._clock() - began_s},
            )
        )
        return quality

    def _log(self) -> None:
        """Put the steps finished since the last time on record."""
        if self._logged == self._step:
            return
        losses = self._losses[self._logged : self._step]
        now_s = self._clock()
        self._supervisor.record(
            Trained(
                step=self._step,
                samples=self._progress().samples,
                first_step=self._logged,
                losses=losses,
                rerun=self._logged < self._rerun_until,
                machine={"seconds": now_s - self._log_began_s},
            )
        )
        self._supervisor.status(phase="train", step=self._step, num_steps=self._schedule.num_steps, loss=losses[-1])
        self._logged, self._log_began_s = self._step, now_s

    def _rollback(self, rolled_back: RolledBack) -> None:
        """Follow the PS ranks back to a checkpoint."""
        self._network.load_state(rolled_back.dense)
        self._rerun_until = len(self._losses)
        self._step = self._logged = rolled_back.step
        self._path.reset()

    # --- the end --------------------------------------------------------------------------------------------------

    def _finish(self, began_s: float) -> Finished:
        quality = self._evaluate(final=True)
        digests = self._recovery.ask({rank: Digest() for rank in self._cluster.ranks}, self._progress())
        recovery, overhead, updates = self._recovery, self._recovery.overhead, self._recovery.updates
        last_tenth = self._losses[-max(1, len(self._losses) // 10) :]
        return Finished(
            step=self._step,
            samples=self._progress().samples,
            auc=quality.auc,
            log_loss=quality.log_loss,
            accuracy=quality.accuracy,
            train_loss=sum(last_tenth) / len(last_tenth),
            pls=recovery.pls.total,
            update_pls=updates.update_pls if updates else None,
            update_pls_tracked=updates.update_pls_tracked if updates else None,
            applied_updates=updates.applied_updates if updates else None,
            lost_updates=updates.lost_updates if updates else None,
            applied_tracked=updates.applied_tracked if updates else None,
            lost_tracked=updates.lost_tracked if updates else None,
            recovered_updates=updates.recovered_updates if updates else None,
            recovered_tracked=updates.recovered_tracked if updates else None,
            num_failures=overhead.num_failures,
            num_lost_ranks=recovery.num_lost_ranks,
            num_unplanned=0,
            num_saves=overhead.num_saves,
            payload_bytes=overhead.payload_bytes,
            save_h=overhead.save_h,
            load_h=overhead.load_h,
            lost_h=overhead.lost_h,
            reschedule_h=overhead.reschedule_h,
            overhead_frac=overhead.overhead_frac,
            generation=0,
            cache=self._path.summary(),
            digests={**digests, CHIEF: _digest(self._network)},
            machine={"seconds": self._clock() - began_s, "overhead_seconds": dict(recovery.measured_s)},
        )


def _nothing() -> None:
    """Begin nothing: a rolled_back run has begun. Do nothing while waiting for nobody."""


def _digest(network: DenseNetwork) -> str:
    """xxh3 of all dense parameters, in order of their names' first appearance."""
    hasher = xxhash.xxh3_64()
    for parameter in network.state().values():
        hasher.update(bytes_of(parameter.contiguous()))
    return hasher.hexdigest()
