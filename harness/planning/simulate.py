"""Simulation of a run without training: overhead and PLS of a schedule of failures, by the run's strategy and ledgers.

A schedule takes about a hundred microseconds for a model of any size: only boundaries where something is due are
visited. With failures on the wall clock it takes milliseconds, since the overhead of each save and failure delays the
next one.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch

from harness.core.clock import FailureClock, boundary_at, strike_step
from harness.core.faults import Injection, PlannedFault, merge_faults
from harness.core.overhead import FullSave, Moved, OverheadLedger
from harness.core.placement import Placement, budget_rows
from harness.core.plans import Costs, Progress, Rank, RecoveryPlan, SavePlan, Tier, is_ps, ps_rank
from harness.core.pls import PlsLedger
from harness.core.strategies import Strategy
from harness.recovery.accounting import Ledgers
from harness.recovery.notices import plan_notices
from harness.recovery.recoveries import plan_recovery, rolls_back
from harness.store.kinds import RowCounts, save_kind
from harness.store.rows import ENCODINGS, ROW_ID_BYTES

_FLOAT32_BYTES = 4
_UNSURE = 1e-9  # relative, far above the rounding of floats; closer values are compared exactly


@dataclass(frozen=True, kw_only=True)
class SaveSizes:
    """The largest possible payload bytes of saves. Every save writes the dense network.

    ``ranks``: the rows of each rank. ``width``: float32 numbers of a row, state of the optimizer included. ``dense``:
    bytes of the dense network. ``shards``: bytes of each rank's rows, which the recovery of that rank alone reads.
    """

    ranks: Sequence[RowCounts]
    width: int
    dense: int = 0
    shards: Mapping[Rank, int] = field(default_factory=dict)

    def of(self, kind: str) -> Moved:
        """The bytes of a save of this kind if every tracker uses its whole budget, and a delta is as large as a base.

        Raises ConfigError for a kind that does not exist.
        """
        save = save_kind(kind)
        row_bytes = ENCODINGS[save.encoding].row_bytes(torch.empty(1, self.width))
        most_rows = [save.most_rows(rows) for rows in self.ranks]
        by_rank = [(whole + chosen) * row_bytes + chosen * ROW_ID_BYTES for whole, chosen in most_rows]
        return Moved(self.dense + sum(by_rank), max(self.dense, *by_rank))

    @cached_property
    def full(self) -> FullSave:
        return FullSave.of(self.of("full").num, self.shards.values())


def save_sizes(
    placement: Placement, *, width: int, dense_bytes: int, tracked: Iterable[int], r: float, share: float = 0.0
) -> SaveSizes:
    """The sizes of saves. ``dense_bytes``: of the dense network. Fractions of a tracked table's rows on each shard:
    ``r``, which a tracker chooses for one save, and ``share``, which the trainer's mirror holds (docs/CPR.md).
    """
    tracked = tuple(tracked)

    def counts(k: int) -> RowCounts:
        shards = [placement.num_local_rows(k, table) for table in tracked]
        mirrored = [budget_rows(rows, share) if share else 0 for rows in shards]
        return RowCounts(
            all=placement.num_rows(k),
            tracked=sum(shards),
            chosen=sum(min(budget_rows(rows, r), rows - held) for rows, held in zip(shards, mirrored, strict=True)),
            mirrored=sum(mirrored),
        )

    return SaveSizes(
        ranks=[counts(k) for k in range(placement.num_ps)],
        width=width,
        dense=dense_bytes,
        shards={ps_rank(k): placement.num_rows(k) * width * _FLOAT32_BYTES for k in range(placement.num_ps)},
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """The simulated job: costs, steps, each PS rank's share of the model, and the sizes of saves.

    ``clock``: the clock of the failures' hours (``trace.clock``). ``interrupts``: whether failures strike during saves
    and recoveries (``trace.interrupts``). ``shrinks``: whether survivors take over the shards of dead nodes
    (``cluster.on_loss``). ``on_notice``: what ranks do that are told of their death (``cluster.on_notice``). All their
    rows count as updated since the last save.
    """

    costs: Costs
    batch_size: int
    num_steps: int
    weights: Mapping[Rank, float]  # pls.rank_weights
    sizes: SaveSizes
    pls_since: Literal["save_or_restore", "save"] = "save_or_restore"
    clock: FailureClock = "samples"
    interrupts: bool = False
    shrinks: bool = False
    on_notice: str = "none"

    def strike_step(self, hour: float, job_h: float | None = None, overhead_h: float = 0.0) -> int:
        """The boundary at which a failure strikes (``clock.strike_step``); ``job_h``: by default without overhead."""
        return strike_step(
            hour,
            job_h=self.costs.job_h if job_h is None else job_h,
            total_samples=self.costs.total_samples,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            overhead_h=overhead_h,
        )


class Outcome(OverheadLedger):
    """The cost of one schedule of failures: the overhead ledger of its emulated run, and ``pls``."""

    pls = 0.0


def saves_of(
    strategy: Strategy, *, batch_size: int, num_steps: int, total_samples: int
) -> Iterator[tuple[int, SavePlan]]:
    """The step and plan of each save of a run without failures, in order, without the initial save.

    ``plan_save`` is called only at boundaries that ``next_save`` gives, since it returns None at all others.
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
    """The saves of a run: their boundaries and bytes, the boundaries that close an interval, and the cost of all saves.

    Failures do not change the saves, since decisions depend on ``Progress`` alone: rerun steps get the same decisions.

    ``charged``: the ledger with the cost of all saves. None if that cost depends on failures, or failures on the cost:
    for saves in the background, which wait for each other; with the clock ``wall``; with spares, which are ready again
    at an hour of the wall clock; and with saves that a rollback repeats.

    ``tiers``: where each save is kept.
    """

    steps: tuple[int, ...]
    sizes: tuple[Moved, ...]
    tiers: tuple[Tier, ...]
    closing_steps: tuple[int, ...]
    charged: Outcome | None

    @cached_property
    def steps_of(self) -> dict[Tier, list[int]]:
        """The boundaries of the saves in each tier."""
        found: dict[Tier, list[int]] = {}
        for step, tier in zip(self.steps, self.tiers, strict=True):
            found.setdefault(tier, []).append(step)
        return found


def _last(steps: Sequence[int], at: int) -> int | None:
    """The last of ascending ``steps`` up to and including ``at``, as a save precedes a kill; None without one."""
    index = bisect_right(steps, at)
    return steps[index - 1] if index else None


def due_saves(strategy: Strategy, job: Job) -> DueSaves:
    """The saves of ``strategy`` in a run of ``job``."""
    total_samples = job.costs.total_samples
    saves = saves_of(strategy, batch_size=job.batch_size, num_steps=job.num_steps, total_samples=total_samples)
    plans = dict(saves)
    by_kind = {kind: job.sizes.of(kind) for kind in {plan.kind for plan in plans.values()}}
    sizes = tuple(by_kind[plan.kind] for plan in plans.values())
    charged = None
    has_spares = job.costs.spare_o_res_h is not None and job.costs.num_spares
    if job.costs.snapshot_frac is None and job.clock != "wall" and not has_spares and strategy.tiers == ("shared",):
        charged = Outcome(job.costs, strategy.step_parts, job.sizes.full)
        for size in sizes:
            charged.charge_save(size)
    closing = tuple(step for step, plan in plans.items() if plan.closes_interval)
    tiers: tuple[Tier, ...] = tuple(plan.tier for plan in plans.values())
    return DueSaves(steps=tuple(plans), sizes=sizes, tiers=tiers, closing_steps=closing, charged=charged)


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
    """The state of one simulated run: its ledgers, and the saves charged so far."""

    def __init__(self, strategy: Strategy, job: Job, saves: DueSaves) -> None:
        self.strategy = strategy
        self.job = job
        self.saves = saves
        self.overhead = copy(saves.charged) or Outcome(job.costs, strategy.step_parts, job.sizes.full)
        self._num_charged = len(saves.steps) if saves.charged else 0  # saves that have been charged
        self.pls = PlsLedger(job.weights, job.costs.total_samples, job.pls_since)
        self.ledgers = Ledgers(
            overhead=self.overhead, pls=self.pls, shard_bytes=job.sizes.shards, groups=strategy.groups
        )
        self.closed_step: int | None = None  # the last closing save that the PLS ledger has
        self._lost_to: dict[Tier, int] = {}  # by tier, the boundary up to which its saves are lost
        self._next_step = 0  # the first boundary at which a kill may strike
        self._to_come: deque[PlannedFault] = deque()
        self._is_saving = False  # whether the kill to come interrupts the save of its boundary
        self._struck_h = 0.0  # failures up to this hour strike with the one that interrupted last

    def strikes(self, planned_kills: Sequence[PlannedFault]) -> Iterator[PlannedFault]:
        """The faults in order, each at the boundary at which the wall clock reaches its hour; for the clock ``wall``.

        Faults of one boundary are merged into one. Faults after the job's end are left out. The caller must charge each
        one before it asks for the next, as its overhead moves the clock.
        """
        self._to_come = to_come = deque(planned_kills)
        while to_come and (step := self._strike_step(to_come[0])) < self.job.num_steps:
            yield self._take(step, is_struck=self._is_saving)

    def _take(self, step: int, *, is_struck: bool) -> PlannedFault:
        """The failures that strike together at boundary ``step``: those whose hour the clock has read by then.

        ``is_struck``: or, if they interrupt what began there, those whose hour had come with that of the first.
        """
        due = [self._to_come.popleft()]
        while self._to_come and (
            self._to_come[0].hour <= self._struck_h if is_struck else self._reads(self._to_come[0]) <= step
        ):
            due.append(self._to_come.popleft())
        return merge_faults(step, due)

    def _strike_step(self, planned_kill: PlannedFault) -> int:
        """The boundary at which the fault strikes. The saves up to it are charged, since they move the clock."""
        saves, hour = self.saves, planned_kill.hour
        while self._num_charged < len(saves.steps):
            save = saves.steps[self._num_charged]
            is_before = self.overhead.wall_h(save * self.job.batch_size) < hour * (1 - _UNSURE)
            if not is_before and max(self._reads(planned_kill), self._next_step) < save:
                break
            self._next_step = max(self._next_step, save)
            size, tier = saves.sizes[self._num_charged], saves.tiers[self._num_charged]
            prices_h = self.overhead.save_prices_h(size, tier)
            if self._interrupts(hour, save * self.job.batch_size, prices_h):
                self._is_saving = True
                return save
            self.charge_saves_through(save)
        return max(self._reads(planned_kill), self._next_step)

    def _interrupts(self, hour: float, samples: int, prices_h: Mapping[str, float]) -> bool:
        """Whether a failure at ``hour`` interrupts what begins now and has these prices. Charges what is then spent."""
        spent_h = self.overhead.spent_by(hour, samples, prices_h) if self.job.interrupts else None
        self._struck_h = max(hour, self.overhead.wall_h(samples))
        self.overhead.charge_spent(spent_h or {})
        return spent_h is not None

    def _strike_in_recovery(self, plan: RecoveryPlan, progress: Progress, injection: Injection) -> PlannedFault | None:
        """The next failure, if it interrupts the recovery that begins now; what is then spent is charged."""
        if not (self.job.interrupts and self._to_come):
            return None
        prices_h = self.ledgers.recovery_prices_h(plan, progress, injection)
        is_struck = self._interrupts(self._to_come[0].hour, progress.samples, prices_h)
        return self._take(progress.samples // self.job.batch_size, is_struck=True) if is_struck else None

    def _reads(self, planned_kill: PlannedFault) -> int:
        """The boundary at which the wall clock reaches the fault's hour, by the overhead charged so far."""
        return self.job.strike_step(planned_kill.hour, self.overhead.steps_job_h, self.overhead.delay_h)

    def charge_saves_through(self, step: int) -> None:
        """Charge the saves up to boundary ``step`` in order, since each may wait for the one before."""
        saves = self.saves
        for index in range(self._num_charged, bisect_right(saves.steps, step)):
            samples = saves.steps[index] * self.job.batch_size
            self.overhead.charge_save(saves.sizes[index], samples, saves.tiers[index])
            self._num_charged = index + 1

    def kill_planned(self, planned_kill: PlannedFault) -> None:
        if not self._is_saving:
            self.charge_saves_through(planned_kill.step)
        if nodes := planned_kill.time.returns:
            self.ledgers.charge_return(nodes)
            return
        last_step, injection = planned_kill.step - self._is_saving, planned_kill.injection
        ranks, takes_trainers = frozenset(planned_kill.ranks), planned_kill.takes_trainers
        progress = self._progress(planned_kill.step, last_step, ranks, injection)
        kept = self._serve_notices(planned_kill.notices, has_checkpoint=progress.saved_step is not None)
        closed_step = _last(self.saves.closing_steps, last_step)
        if closed_step is not None and closed_step != self.closed_step:
            self.pls.saved(closed_step * self.job.batch_size)
            self.closed_step = closed_step
        while True:
            at_loss = self.ledgers.with_loss_of(filter(is_ps, ranks - kept.keys()), progress)
            plan = plan_recovery(self.strategy, ranks, at_loss, takes_trainers=takes_trainers, kept=kept)
            if (again := self._strike_in_recovery(plan, progress, injection)) is None:
                break
            ranks, injection = ranks.union(again.ranks), injection.also(again.injection)
            progress = self._progress(planned_kill.step, last_step, ranks, injection)
        self.ledgers.charge_recovery(plan, progress, injection)
        self._next_step = progress.saved_step or 0 if rolls_back(plan) else last_step + 1
        self._is_saving = False
        if rolls_back(plan) and not self.saves.charged:  # the saves after that are made again, and are there again
            self._num_charged = bisect_right(self.saves.steps, self._next_step)
            self._lost_to = {tier: min(step, self._next_step) for tier, step in self._lost_to.items()}

    def _progress(self, step: int, last_step: int, ranks: frozenset[Rank], injection: Injection) -> Progress:
        """The position of a failure at ``step``; of the saves up to ``last_step`` some tiers are lost with it."""
        lost_tiers = self.strategy.lost_tiers(frozenset(filter(is_ps, ranks)), injection)
        self._lost_to |= dict.fromkeys(lost_tiers, last_step)
        saved_step, tier = self._newest_save(last_step)
        progress = _progress(step, saved_step, self.job.batch_size, self.job.costs.total_samples)
        return replace(progress, saved_tier=tier)

    def _newest_save(self, at: int) -> tuple[int | None, Tier]:
        """The boundary and tier of the newest save up to ``at`` that no failure has lost; None without one."""
        left: dict[int, Tier] = {0: "shared"} if self.strategy.saves_initially else {}
        for tier, steps in self.saves.steps_of.items():
            step = _last(steps, at)
            if step is not None and step > self._lost_to.get(tier, -1):
                left[step] = tier
        newest = max(left, default=None)
        return newest, "shared" if newest is None else left[newest]

    def _serve_notices(self, notices_h: Mapping[Rank, float], *, has_checkpoint: bool) -> dict[Rank, str]:
        """Charge what ranks do on notice of their death; returns the kind of recovery of those that lose nothing."""
        job, sizes = self.job, self.job.sizes
        plans = plan_notices(
            *(self.strategy, job.on_notice, notices_h, self.ledgers),
            width=sizes.width,
            has_checkpoint=has_checkpoint,
        )
        row_bytes = sizes.width * _FLOAT32_BYTES
        num_rows = {rank: min(plan.most_rows, sizes.shards[rank] // row_bytes) for rank, plan in plans.items()}
        saved = {rank: number * (row_bytes + ROW_ID_BYTES) for rank, number in num_rows.items()}
        if plans:
            payloads = (sizes.shards[rank] if plan.hands_over else saved[rank] for rank, plan in plans.items())
            self.overhead.charge_notice(payloads)
        kinds = {rank: plan.kept_as(num_rows[rank]) for rank, plan in plans.items()}
        return {rank: kind for rank, kind in kinds.items() if kind is not None}


def simulate(
    strategy: Strategy, job: Job, planned_faults: Sequence[PlannedFault], saves: DueSaves | None = None
) -> Outcome:
    """The overhead and PLS of a run of ``job`` under ``strategy`` and ``planned_faults``.

    Faults of one step must be in order of hours. Lost ranks and returns are charged. Failed writes are not, since only
    a rank knows how many bytes it writes again.

    ``saves``: the result of ``due_saves`` for this strategy; a caller with many schedules computes it once, and each
    schedule then takes a time proportional to its number of kills.
    """
    run = _Run(strategy, job, due_saves(strategy, job) if saves is None else saves)
    counted = (each for each in planned_faults if each.fault.loss or each.time.returns)
    charged = sorted(counted, key=lambda each: each.step)
    for planned in run.strikes(charged) if job.clock == "wall" else charged:
        run.kill_planned(planned)
    run.charge_saves_through(job.num_steps)
    run.overhead.pls = run.pls.total
    return run.overhead
