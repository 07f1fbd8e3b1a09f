"""A run without training: emulated overhead and PLS of a schedule of failures, by the real strategy and ledgers.

A schedule takes about a hundred microseconds at any size of model: only boundaries where something is due are visited.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.clock import boundary_at
from harness.core.overhead import OverheadLedger
from harness.core.placement import Placement, budget_rows
from harness.core.plans import Costs, PlannedKill, Progress, Rank, SavePlan
from harness.core.pls import PlsLedger
from harness.core.strategies import Strategy

ROW_ID_BYTES = 4  # of each row that a tracker chose; as the store writes them
_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class SaveSizes:
    """Payload bytes of one save, over all ranks and the dense network. ``priority``: the maximum of a priority save."""

    full: int
    priority: int

    def of(self, plan: SavePlan) -> int:
        """Bytes that ``plan`` writes when every tracker uses its whole budget."""
        return self.full if plan.kind == "full" else self.priority


def save_sizes(placement: Placement, *, dim: int, dense_bytes: int, tracked: Iterable[int], r: float) -> SaveSizes:
    """Sizes of saves of float32 rows of ``dim`` values. A priority save writes K rows and their ids per shard and
    tracked table, and the other tables and the dense network whole (reconstructed: docs/CPR.md).
    """
    row_bytes = dim * _FLOAT32_BYTES
    num_rows = sum(placement.cardinalities)
    tracked = tuple(tracked)
    num_chosen = sum(budget_rows(placement.local_rows(k, t), r) for k in range(placement.num_ps) for t in tracked)
    num_whole = num_rows - sum(placement.cardinalities[table] for table in tracked)
    return SaveSizes(
        full=num_rows * row_bytes + dense_bytes,
        priority=num_chosen * (row_bytes + ROW_ID_BYTES) + num_whole * row_bytes + dense_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """The simulated job: costs, steps, the share of the model that each PS rank holds, and the size of a save."""

    costs: Costs
    batch_size: int
    num_steps: int
    weights: Mapping[Rank, float]  # pls.rank_weights
    sizes: SaveSizes
    pls_since: Literal["save_or_restore", "save"] = "save_or_restore"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The cost of one schedule of failures: emulated hours in four buckets, and PLS."""

    save_h: float
    load_h: float
    lost_h: float
    reschedule_h: float
    overhead_frac: float
    pls: float
    num_saves: int
    payload_bytes: int


def saves_of(
    strategy: Strategy, *, batch_size: int, num_steps: int, total_samples: int
) -> Iterator[tuple[int, SavePlan]]:
    """The steps and plans of a run's saves, in order.

    ``plan_save`` is called as in a run, but only at boundaries given by ``next_save``: it returns None at others.
    """

    def at(step: int) -> Progress:
        return _progress(step, saved_step, batch_size, total_samples)

    step, saved_step = 0, 0 if strategy.saves_initially else None
    while (due := strategy.next_save(at(step))) is not None:
        step = max(step + 1, boundary_at(due, batch_size))
        if step > num_steps:
            return
        plan = strategy.plan_save(at(step))
        if plan is not None:
            saved_step = step
            yield step, plan


@dataclass(frozen=True, kw_only=True)
class DueSaves:
    """The saves of a run: their boundaries, those that close an interval, and the cost of all of them.

    They do not depend on failures: decisions depend on ``Progress`` alone, so repeated steps get the same decisions.
    """

    steps: tuple[int, ...]
    closing_steps: tuple[int, ...]
    charged: OverheadLedger

    def before(self, kill_step: int) -> int | None:
        """The last save before a kill at boundary ``kill_step``; at one boundary the save comes before the kill."""
        return _last(self.steps, kill_step)

    def closed_before(self, kill_step: int) -> int | None:
        """The last save that closes an interval before a kill at boundary ``kill_step``."""
        return _last(self.closing_steps, kill_step)


def _last(steps: Sequence[int], at: int) -> int | None:
    """The last of ascending ``steps`` that is not after ``at``."""
    index = bisect_right(steps, at)
    return steps[index - 1] if index else None


def due_saves(strategy: Strategy, job: Job) -> DueSaves:
    """The saves of ``strategy`` in a run of ``job``."""
    total_samples = job.costs.total_samples
    saves = saves_of(strategy, batch_size=job.batch_size, num_steps=job.num_steps, total_samples=total_samples)
    plans = dict(saves)
    charged = OverheadLedger(job.costs)
    for plan in plans.values():
        charged.charge_save(job.sizes.of(plan), job.sizes.full)
    closing = tuple(step for step, plan in plans.items() if plan.closes_interval)
    return DueSaves(steps=tuple(plans), closing_steps=closing, charged=charged)


def _progress(step: int, saved_step: int | None, batch_size: int, total_samples: int) -> Progress:
    return Progress(
        step=step,
        samples=step * batch_size,
        previous_samples=max(0, step - 1) * batch_size,
        total_samples=total_samples,
        saved_step=saved_step,
        saved_samples=None if saved_step is None else saved_step * batch_size,
    )


class _Run:
    """One simulated run: what its failures cost."""

    def __init__(self, strategy: Strategy, job: Job, saves: DueSaves) -> None:
        self.strategy = strategy
        self.job = job
        self.saves = saves
        self.overhead = OverheadLedger(job.costs)
        self.overhead.charge_saves_of(saves.charged)
        self.pls = PlsLedger(job.weights, job.costs.total_samples, job.pls_since)
        self.closed_step: int | None = None  # the last closing save that the PLS ledger has

    def kill_planned(self, planned_kill: PlannedKill) -> None:
        saved_step = self.saves.before(planned_kill.step)
        if saved_step is None and self.strategy.saves_initially:
            saved_step = 0
        total_samples = self.job.costs.total_samples
        progress = _progress(planned_kill.step, saved_step, self.job.batch_size, total_samples)
        plan = self.strategy.plan_recovery(frozenset(planned_kill.ranks), progress)
        if plan.rollback:
            assert progress.saved_samples is not None, "a rollback needs a checkpoint"
            self.overhead.charge_failure(progress.samples - progress.saved_samples, planned_kill.repair_h)
            return
        self.overhead.charge_failure(reschedule_h=planned_kill.repair_h)
        closed_step = self.saves.closed_before(planned_kill.step)
        if closed_step is not None and closed_step != self.closed_step:
            self.pls.saved(closed_step * self.job.batch_size)
            self.closed_step = closed_step
        for rank in planned_kill.ranks:
            if rank in plan.replicated:
                continue  # nothing is lost, and its newest durable rows are those of the last save
            self.pls.lost(rank, progress.samples)
            self.pls.restored(rank, progress.samples)


def simulate(
    strategy: Strategy, job: Job, planned_kills: Sequence[PlannedKill], saves: DueSaves | None = None
) -> Outcome:
    """The cost of ``planned_kills``, given in order of steps, under ``strategy``.

    ``saves`` is the result of ``due_saves`` for this strategy. A caller that simulates many schedules computes it once;
    the computing time of each schedule is then proportional to its number of kills.
    """
    run = _Run(strategy, job, due_saves(strategy, job) if saves is None else saves)
    for planned_kill in planned_kills:
        run.kill_planned(planned_kill)
    ledger = run.overhead
    return Outcome(
        save_h=ledger.save_h,
        load_h=ledger.load_h,
        lost_h=ledger.lost_h,
        reschedule_h=ledger.reschedule_h,
        overhead_frac=ledger.overhead_frac,
        pls=run.pls.total,
        num_saves=ledger.num_saves,
        payload_bytes=ledger.payload_bytes,
    )
