"""The objects by which a run survives failures, built from its constants."""

from functools import partial

from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster
from harness.core.faults import FaultTime
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress
from harness.core.pls import PlsLedger, UpdateLedger, rank_weights
from harness.core.resumable import Stateful
from harness.recovery.accounting import Accounting, ModelBytes
from harness.recovery.checkpointer import Checkpoints
from harness.recovery.failover import FailoverClient
from harness.recovery.injections import Injections
from harness.recovery.kinds.base import RunFacts
from harness.recovery.recoveries import Recoveries
from harness.run.boundaries import Boundaries, Schedule
from harness.run.evaluation import curve_samples, steps_between, whole_samples
from harness.run.spec import RunSpec
from harness.run.step_log import StepLog


class FaultTolerance:
    """What a run has besides its model: finished steps, what is due when, ledgers, checkpoints, kinds of recovery,
    planned faults, and requests to PS ranks that survive their deaths.

    ``progress``: of the run now.
    """

    def __init__(
        self,
        run_spec: RunSpec,
        checkpoints: Checkpoints,
        faults: tuple[FaultTime, ...],
        cluster: Cluster,
        effects: Effects,
    ) -> None:
        """Build the objects, each after those it uses."""
        self.checkpoints = checkpoints
        self.steps = _make_steps(run_spec, effects)
        self.progress = partial(_progress, run_spec, self.steps, checkpoints)
        self.accounting = _make_accounting(run_spec, cluster)
        self.recoveries = _make_recoveries(run_spec)
        self.injections = Injections(
            faults=faults,
            cluster=cluster,
            effects=effects,
            recoveries=self.recoveries,
            accounting=self.accounting,
            progress=self.progress,
            before_fault=self.steps.flush,
        )
        schedule = _make_schedule(run_spec, faults)
        self.boundaries = Boundaries(schedule, run_spec.strategy, self.progress, lambda: self.accounting.overhead_h)
        self.failover = FailoverClient(
            cluster=cluster,
            effects=effects,
            strategy=run_spec.strategy,
            checkpoints=checkpoints,
            accounting=self.accounting,
            recoveries=self.recoveries,
            injections=self.injections,
            before_recovery=self.steps.flush,
            max_replacements_in_a_row=run_spec.config.cluster.max_replacements_in_a_row,
        )

    @property
    def states(self) -> dict[str, Stateful]:
        """The objects with a state, by name."""
        return {
            name: getattr(self, name)
            for name in ("steps", "boundaries", "checkpoints", "accounting", "recoveries", "injections")
        }


def _make_steps(run_spec: RunSpec, effects: Effects) -> StepLog:
    return StepLog(
        effects,
        num_steps=run_spec.num_steps,
        batch_size=run_spec.config.trainer.batch_size,
        every_steps=run_spec.config.metrics.log_every_steps,
        repeats_exactly=run_spec.strategy.restores_exactly,
    )


def _progress(run_spec: RunSpec, steps: StepLog, checkpoints: Checkpoints) -> Progress:
    """How far the run is now."""
    batch_size, save = run_spec.config.trainer.batch_size, checkpoints.saving or checkpoints.newest
    return Progress(
        step=steps.step,
        samples=steps.step * batch_size,
        previous_samples=max(0, steps.step - 1) * batch_size,
        total_samples=run_spec.total_samples,
        saved_step=save and save.step,
        saved_samples=save and save.samples,
    )


def _make_schedule(run_spec: RunSpec, faults: tuple[FaultTime, ...]) -> Schedule:
    """The boundaries at which something is due that no strategy decides."""
    config = run_spec.config
    num_curve_samples = curve_samples(config.eval, run_spec.dataset, run_spec.total_samples)
    return Schedule(
        num_steps=run_spec.num_steps,
        batch_size=config.trainer.batch_size,
        faults=faults,
        clock=config.trace.clock,
        job_h=run_spec.costs.job_h,
        evaluate_every_steps=steps_between(config.eval, run_spec.num_steps),
        evaluates_last=num_curve_samples < whole_samples(config.eval, run_spec.dataset),
    )


def _make_accounting(run_spec: RunSpec, cluster: Cluster) -> Accounting:
    """The ledgers of the run, with nothing charged yet."""
    metrics = run_spec.config.metrics
    return Accounting(
        overhead=OverheadLedger(run_spec.costs),
        pls=PlsLedger(rank_weights(run_spec.placement), run_spec.total_samples, metrics.pls_since),
        updates=UpdateLedger(cluster.ranks) if metrics.update_pls else None,
        count_updates=run_spec.count_updates,
        sizes=ModelBytes(full=run_spec.bytes_full, shards=run_spec.shard_bytes),
        memory_bytes=run_spec.memory_bytes,
    )


def _make_recoveries(run_spec: RunSpec) -> Recoveries:
    """The kinds of recovery of the strategy."""
    return Recoveries(
        RunFacts(
            strategy=run_spec.strategy,
            placement=run_spec.placement,
            tracked=run_spec.tracked,
            dim=run_spec.size.embedding_dim,
            optimizer=run_spec.row_optimizer,
            learning_rate=run_spec.config.trainer.learning_rate,
            has_counts=run_spec.counts_updates,
            count_updates=run_spec.count_updates,
        )
    )
