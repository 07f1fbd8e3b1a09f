"""Strategies decide when to save, what to save, and how to recover lost ranks (docs/CPR.md). Others carry it out.

A new strategy is one class here, and one entry in ``STRATEGIES``; its ``Options`` are its keys under ``strategy:`` in a
configuration.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.core import choices
from harness.core.choices import CHOICES, Options, enter
from harness.core.clock import exact
from harness.core.errors import ConfigError, RunFailed
from harness.core.faults import Injection
from harness.core.overhead import o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import (
    Costs,
    DenseSource,
    Interval,
    MirrorSpec,
    ParityGroups,
    Progress,
    Rank,
    RecoveryPlan,
    SavePlan,
    Tier,
    buddy_of,
    ps_rank,
)

Lost = frozenset[Rank]


class StrategyOptions(Options):
    """The ``strategy`` group of a configuration: a strategy's name and the options of that strategy alone."""

    group = "strategy"

    name: str
    """When to save, what, and how to recover; the other keys of this group are this strategy's options."""


class Strategy:
    """The decisions of one run; the base of every strategy. They are pure functions of options, costs and progress.

    By default a strategy makes no save after the initial one, and recovers all ranks by one kind of recovery. A
    boundary follows each step, after the step's updates are applied and before an evaluation. After construction,
    results depend on ``progress`` alone, so a repeated step gets the same decisions.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    """The options, with types, limits and defaults. The field's docstring is its help text."""
    colours: ClassVar[tuple[str, str]] = ("#7a4fbf", "#b292f0")
    """The strategy's colour in figures, on a light page and on a dark one."""

    interval = Interval(samples=None)
    """The save interval, chosen from the run's costs."""
    tracker: str | None = None
    """The tracker of the ranks, a key of ``trackers.TRACKERS``; None if every save writes all rows."""
    tracker_options: Mapping[str, Any] = {}
    """Options of the tracker: ``r``, the fraction of a table that one save may write, and those of its kind alone."""
    sample_period: int | None = None
    """The sub-sample of inputs whose rows the tracker gets: each input whose global index is a multiple of this. None:
    there is no sub-sample."""
    saves_initially: bool = True
    """Whether a full save precedes step 0."""
    injects_failures: bool = True
    """Whether the failures of the trace are carried out."""
    restores_exactly: bool = True
    """Whether a save holds the exact bits of its rows."""
    repeats_exactly: bool = True
    """Whether steps that are repeated after a rollback have the losses of the first time."""
    recoveries: tuple[str, ...]
    """The kinds of recovery that plans of this strategy name, keys of ``harness.recovery.recoveries.RECOVERIES``."""
    resets_states: bool = False
    """Whether rows that are restored from a checkpoint without a rollback get the optimizer's initial state, instead of
    the state that was saved with them."""
    mirror: MirrorSpec | None = None
    """The rows whose newest values the trainer keeps for recoveries of kind ``mirror``; None: it keeps none."""

    groups: ParityGroups | None = None
    """The groups of PS ranks whose shards have a parity; None: there is no parity."""
    parts: tuple[str, ...] = ()
    """What every step pays for fault tolerance, besides the tracker: keys of ``profile.step_frac``, as ``replica``."""
    tiers: tuple[Tier, ...] = ("shared",)
    """Where saves are kept; the initial one is ``shared``. With others a rollback repeats the saves after its own."""

    _recovery: str = ""
    """The kind of recovery that :meth:`plan_recovery` chooses by default."""

    def __init__(self, options: Any, costs: Costs) -> None:
        pass

    @property
    def step_parts(self) -> tuple[str, ...]:
        """What every step pays for fault tolerance: the tracker's name, and ``parts``."""
        return self.parts if self.tracker is None else (self.tracker, *self.parts)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """The save to make at this boundary, or None.

        Called once each time the run reaches a boundary, also after a rollback, with the newest save in ``progress``.
        """
        return None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """Forecast the next save: the number of samples at which it is due, above ``after``; None for no further save.

        ``after`` is by default the samples of ``progress``. The forecast from there is binding: before the first
        boundary at or after it, ``plan_save`` returns None, and no newer forecast is earlier. At that boundary
        ``plan_save`` may still return None; a new forecast is then made. A client sends nothing ahead past a forecast
        save, and the simulator skips the boundaries before it.

        A forecast from a later ``after`` is an estimate. The lookahead cache plans by it; if it changes, the cache is
        emptied and plans again.
        """
        return None

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """The plan to recover from the death of the PS ranks ``lost``. Raises RunFailed if the strategy has none."""
        return RecoveryPlan(kinds=dict.fromkeys(lost, self._recovery))

    def lost_tiers(self, lost: Lost, injection: Injection) -> Collection[Tier]:
        """The tiers whose checkpoints so far are lost with the PS ranks ``lost``. ``injection``: facts of the failure.

        A recovery reads the newest checkpoint that is left, and ``progress`` names it.
        """
        return ()

    def plan_dense(self, progress: Progress) -> DenseSource:
        """What the dense network restarts from when all trainers have died.

        By default the newest checkpoint, with a rollback of all ranks if the strategy recovers by rollback; without a
        checkpoint the initial values.
        """
        if progress.saved_step is None:
            return "initial"
        return "rollback" if self._recovery == "rollback" else "checkpoint"


# --- strategies that save nothing, or whole shards --------------------------------------------------------------------


class Reference(Strategy):
    """``none``: a run without failures and saves, the reference for all other strategies."""

    colours = ("#333333", "#d0d0d0")
    saves_initially = False
    injects_failures = False
    recoveries = ()

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        dead = ", ".join(sorted(lost))
        raise RunFailed(f"step {progress.step}: {dead} died; strategy none cannot recover, choose another")


class NeverSave(Strategy):
    """``never_save``, a control: no checkpoint exists, and a lost shard is reset to its initial values."""

    colours = ("#d55e00", "#ff8145")
    saves_initially = False
    recoveries = ("initial",)
    _recovery = "initial"

    class Options(StrategyOptions):
        start: Literal["initial", "mean"] = "initial"
        """Values of rows that are lost and have no saved copy. `initial`: their initial values. `mean`: the mean of the
        surviving rows of their table (after CheckFree, arXiv 2506.15461)."""

    def __init__(self, options: Options, costs: Costs) -> None:
        self._recovery = options.start
        self.recoveries = (options.start,)


class _Saving(Strategy):
    """The base of all strategies that save. A save is due at each multiple of ``r * interval`` samples."""

    class Options(StrategyOptions):
        interval_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves; null: computed from the profile. The record says which of the two it was."""

    _r = Fraction(1)
    _kind = "full"

    def __init__(self, options: Options, costs: Costs) -> None:
        samples = options.interval_samples
        computed = costs.samples_of(t_save_full_h(costs)) if samples is None else samples
        self.interval = Interval(samples=computed, overridden=samples is not None)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Plan a save at the first boundary at or after each multiple of ``r * interval``, but none at the run's end.

        The save closes an interval if a multiple of ``interval`` lies above the multiple of ``r * interval`` at which
        the save before was due, and not above the samples of this boundary.
        """
        interval = self.interval.samples
        if interval is None or progress.samples >= progress.total_samples:
            return None
        quantum, unit = self._quantum(interval)
        num_before = progress.previous_samples * unit // quantum
        if progress.samples * unit // quantum == num_before:
            return None
        closes = progress.samples // interval > num_before * quantum // (unit * interval)
        return SavePlan(kind=self._kind, closes_interval=closes)

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """The first multiple of ``r * interval`` above ``after``; None if it lies at or beyond the run's end.

        Also the forecast from a later ``after`` is final, since these multiples do not depend on the run.
        """
        if self.interval.samples is None:
            return None
        quantum, unit = self._quantum(self.interval.samples)
        start = progress.samples if after is None else max(after, progress.samples)
        due = -(-(start * unit // quantum + 1) * quantum // unit)
        return due if due < progress.total_samples else None

    def _quantum(self, interval: int) -> tuple[int, int]:
        """``r * interval`` as a fraction of integers: numerator and denominator."""
        return self._r.numerator * interval, self._r.denominator


class Full(_Saving):
    """``full``: full saves every ``T_save,full``. After a failure all ranks roll back, and lost steps are repeated."""

    colours = ("#0072b2", "#5aa9e6")
    recoveries = ("rollback",)
    _recovery = "rollback"


class Partial(_Saving):
    """``partial``: the saves of ``full``, but after a failure only the lost shards are restored."""

    colours = ("#3a95cf", "#9ad4ff")
    recoveries = ("checkpoint",)
    _recovery = "checkpoint"

    class Options(_Saving.Options):
        restore_optimizer: Literal["with_rows", "reset"] = "with_rows"
        """Optimizer state of a shard that is restored without a rollback. `with_rows`: the state that was saved with
        each row. `reset`: the initial state. `sgd` has no state."""
        guard: Annotated[float, Field(ge=0, le=100)] | None = None
        """Most lost samples (PLS) in % that partial recoveries may add up to. A failure that would exceed it rolls all
        ranks back instead, which undoes the losses since the save (after MoEGambit). null: no limit."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        self.resets_states = options.restore_optimizer == "reset"
        self._guard = options.guard
        if options.guard is not None and "rollback" not in self.recoveries:
            self.recoveries = (*self.recoveries, "rollback")

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        if self._guard is not None and 100 * progress.pls > self._guard:
            return RecoveryPlan(kinds=dict.fromkeys(lost, "rollback"))
        return super().plan_recovery(lost, progress)


class CprVanilla(Partial):
    """``cpr_vanilla``: partial recovery with saves every ``T_save,part``; acts as ``full`` if that costs no more.

    With ``interval_samples`` recovery is always partial.
    """

    colours = ("#c27c00", "#f0b429")
    recoveries = ("checkpoint", "rollback")

    class Options(Partial.Options):
        pls_target: Annotated[float, Field(gt=0, lt=1)] | None = None
        """Expected portion of lost samples (PLS) that CPR accepts; null: the profile's."""
        interval_counts_ranks: bool = True
        """Whether T_save,part is divided by k, the ranks lost per failure (reconstructed: docs/CPR.md)."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.interval.overridden:
            return
        part_h = t_save_part_h(costs, counts_ranks=options.interval_counts_ranks)
        if o_part_h(costs, part_h, self.step_parts) < o_full_h(costs, t_save_full_h(costs)):
            self.interval = Interval(samples=costs.samples_of(part_h))
        else:
            self.interval, self._recovery = replace(self.interval, fallback=True), "rollback"
            self.tracker, self.parts = None, ()


class Differential(Partial):
    """``differential``: saves only rows that changed since the last full save, quantised or exact (Check-N-Run)."""

    colours = ("#1d7f8c", "#56c5d4")
    recoveries = ("checkpoint", "rollback")

    class Options(Partial.Options):
        bits: Literal[32, 8, 4, 2] = 32
        """Bits of a saved value. 32: exact. Fewer: the value is rounded to one of 2**bits evenly spaced values between
        the least and the largest value of its row. A restored row is then rounded, so that a run with full recovery
        differs from `none`. Rows with optimizer state need 32."""
        recovery: Literal["full", "partial"] = "full"
        """`full`: after a failure all ranks are restored, and lost steps are repeated. `partial`: only the lost shards
        are restored. The interval is the same."""

    tracker = "changed"

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        self.restores_exactly = self.repeats_exactly = options.bits == 32
        self._kind = "differential" if self.restores_exactly else f"differential_{options.bits}"
        if options.recovery == "full":
            self._recovery = "rollback"


class Buddy(_Saving):
    """``buddy``: a lost shard is copied from its replica in the memory of the next rank, its buddy (Gemini, SOSP 2023).

    Only the initial save is made, unless an interval is set. A rank that dies together with its buddy is restored from
    the newest checkpoint.
    """

    colours = ("#8c6d31", "#c8a45c")
    recoveries = ("replica", "checkpoint")
    parts = ("replica",)

    class Options(_Saving.Options):
        interval_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves; null: no save after the initial one."""

    def __init__(self, options: Options, costs: Costs) -> None:
        if costs.num_ps < 2:
            raise ConfigError(f"strategy.name: buddy needs cluster.num_ps >= 2, got {costs.num_ps}")
        self._num_ps = costs.num_ps
        self.interval = Interval(samples=options.interval_samples, overridden=options.interval_samples is not None)

    def _sources(self, rank: Rank) -> frozenset[Rank]:
        """The ranks that must live for ``rank`` to be restored from their memory."""
        return frozenset({buddy_of(rank, self._num_ps)})

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore each lost shard from its sources or, if one of them is lost too, from the newest checkpoint."""
        in_memory, checkpoint = self.recoveries
        return RecoveryPlan(kinds={rank: checkpoint if self._sources(rank) & lost else in_memory for rank in lost})


class Parity(Buddy):
    """``parity``: a lost shard is computed from its group's other shards and their parity, at another rank (ECRec).

    Only the initial save is made, unless an interval is set. A rank that dies together with another rank of its group,
    or with the holder of the parity, is restored from the newest checkpoint.
    """

    colours = ("#6f4e7c", "#b497c4")
    recoveries = ("parity", "checkpoint")
    parts = ("parity",)

    class Options(Buddy.Options):
        group_size: Annotated[int, Field(ge=1)] | None = None
        """PS ranks whose shards have a parity together, which the rank after them holds; less than `cluster.num_ps`.
        null: 4, or half of `cluster.num_ps` if that is less. Parities take 1/`group_size` of the memory of replicas."""

    def __init__(self, options: Options, costs: Costs) -> None:
        if costs.num_ps <= (size := options.group_size or 1):
            raise ConfigError(
                f"strategy.group_size: expected less than cluster.num_ps ({costs.num_ps}), got {size}; a parity is "
                "held outside of its group"
            )
        super().__init__(options, costs)
        self.groups = ParityGroups(options.group_size, costs.num_ps)
        self._sources = self.groups.needed_for


class Tiers(Full):
    """``tiers``: as ``full``, with further saves in the memory of the next rank and on local disks (SCR, SC 2010).

    A failure rolls all ranks back to the newest save that it has left. Where several saves are due at once, the one
    that survives most is made. The memory's copies are lost with a rank and its buddy, and with all trainers and
    ``ps0``, which has those of the dense network. Local disks are lost with a node.
    """

    colours = ("#1b4f9c", "#86b6f2")

    class Options(Full.Options):
        memory_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves in the memory of each rank and of the next one; null: none. Needs a price of `memory`
        in `profile.tier_frac`."""
        disk_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves on the disk of each rank's node; null: none. Needs a price of `disk`."""
        kill_loses: Literal["process", "node"] = "process"
        """What a rank that dies alone takes along. `process`: its memory; the disk of its node is lost only with a
        host of the trace (`host1`). `node`: the disk too."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        every: dict[Tier, int | None] = {"shared": self.interval.samples}
        every |= {"disk": options.disk_samples, "memory": options.memory_samples}
        self._every: dict[Tier, int] = {tier: samples for tier, samples in every.items() if samples is not None}
        self.tiers = tuple(self._every)
        self._num_ps, self._loses_nodes = costs.num_ps, options.kill_loses == "node"
        for place, (tier, samples) in enumerate(self._every.items()):
            for other in self.tiers[:place]:  # which survive more
                if samples % self._every[other] == 0:
                    raise ConfigError(
                        f"strategy.{tier}_samples: expected saves of its own, got {samples}; tier {other} saves every "
                        f"{self._every[other]} samples, and takes the place of each"
                    )
        if missing := [tier for tier in self.tiers[1:] if tier not in (costs.tier_frac or {})]:
            raise ConfigError(
                f"profile.tier_frac: expected a price of {' and '.join(missing)}, where strategy tiers saves, got none"
            )

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Plan a save at the first boundary at or after each multiple of a tier's samples, but not at the run's end."""
        if progress.samples < progress.total_samples:
            for tier, samples in self._every.items():
                if progress.samples // samples > progress.previous_samples // samples:
                    return SavePlan(kind=self._kind, tier=tier)
        return None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        start = progress.samples if after is None else max(after, progress.samples)
        due = min((start // samples + 1) * samples for samples in self._every.values())
        return due if due < progress.total_samples else None

    def lost_tiers(self, lost: Lost, injection: Injection) -> Collection[Tier]:
        tiers: set[Tier] = set()
        holds_dense = injection.takes_trainers and ps_rank(0) in lost
        if holds_dense or any(buddy_of(rank, self._num_ps) in lost for rank in lost):
            tiers.add("memory")
        if (lost or injection.takes_trainers) and (self._loses_nodes or injection.loses_hosts):
            tiers.add("disk")
        return tiers


# --- strategies that save some rows more often than others ------------------------------------------------------------


class CprPriority(CprVanilla):
    """The base of strategies that save a fraction r of each tracked table, chosen by a tracker, every ``r * interval``.

    If 1/r is a whole number, each 1/r-th save is at a boundary where ``cpr_vanilla`` saves. On fallback such a strategy
    acts as ``full``, without a tracker.
    """

    class Options(CprVanilla.Options):
        r: Annotated[float, Field(gt=0, le=1)] = 0.125
        """Fraction of each tracked table that a priority save writes; a save is due every ``r * interval``."""
        untracked: Literal["priority", "interval"] = "priority"
        """Which saves write the untracked tables, always with all rows. `priority`: every save. `interval`: only the
        saves that close an interval, which are those of `cpr_vanilla` if 1/r is whole (reconstructed: docs/CPR.md)."""

    _for_tracker: ClassVar[tuple[str, ...]] = ("r",)  # options
    _between = "priority"  # kind of the saves that close no interval

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        whole = self.interval
        if whole.fallback:
            return
        self.interval = Interval(samples=whole.samples, divisor=1 / options.r, overridden=whole.overridden)
        self._r, self._kind = exact(options.r), "priority"
        self.tracker_options = {name: getattr(options, name) for name in self._for_tracker}
        self._between = "tracked" if options.untracked == "interval" else "priority"
        self.repeats_exactly = options.guard is None  # a rollback restores rows of different ages

    def plan_save(self, progress: Progress) -> SavePlan | None:
        plan = super().plan_save(progress)
        return plan if plan is None or plan.closes_interval else replace(plan, kind=self._between)


class CprMfu(CprPriority):
    """``cpr_mfu``: priority saves of the rows with the most accesses since their last save."""

    colours = ("#009e73", "#2fc79a")
    tracker = "mfu"


class CprRandom(CprPriority):
    """``cpr_random``, a control: priority saves of rows drawn at random."""

    colours = ("#7f7f7f", "#a0a0a0")

    class Options(CprPriority.Options):
        pool: Literal["touched", "all"] = "touched"
        """Rows to draw from. `touched`: rows with updates since their last save. `all`: all rows; those without updates
        are then left out, so that a save writes fewer rows."""

    tracker = "random"
    _for_tracker = ("r", "pool")


class CprSsu(CprPriority):
    """``cpr_ssu``: priority saves of the rows that a sub-sample of the inputs touched."""

    colours = ("#c95f9c", "#e79ac6")

    class Options(CprPriority.Options):
        period: Annotated[int, Field(ge=1)] = 2
        """The sub-sample is each input whose global sample index is a multiple of this (reconstructed: docs/CPR.md)."""
        eviction: Literal["random", "oldest"] = "random"
        """Which row of a full list a new row replaces (reconstructed: docs/CPR.md)."""

    tracker = "ssu"
    _for_tracker = ("r", "eviction")

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.tracker is not None:
            self.sample_period = options.period


class CprMass(CprPriority):
    """``cpr_mass``: priority saves of the rows with the largest sum of changes, step by step, since their last save."""

    colours = ("#5b7f1d", "#a6cf55")
    tracker = "mass"


class CprScar(CprPriority):
    """``cpr_scar``: priority saves of the rows whose values differ most from their last save (L2 distance)."""

    colours = ("#8c5a2b", "#d9a066")
    tracker = "scar"


class CprOldest(CprPriority):
    """``cpr_oldest``: priority saves of the rows that are longest unsaved, in turn, without an access counter."""

    colours = ("#4f5fb5", "#9aa5ee")
    tracker = "oldest"


class CprState(CprPriority):
    """``cpr_state``: priority saves of the rows whose optimizer state has grown most since their last save."""

    colours = ("#a04000", "#e08e45")
    tracker = "state"


class CprMirror(CprPriority):
    """``cpr_mirror``: ``cpr_mfu`` with a mirror: the trainer keeps the newest values of some rows (docs/MIRROR.md).

    A save writes mirrored rows only if it closes an interval. After a failure, the replacement of a rank gets the
    rank's mirrored rows from the trainer.
    """

    colours = ("#b0003a", "#ff7a9c")

    class Options(CprPriority.Options):
        untracked: Literal["interval"] = "interval"  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
        """Untracked tables are mirrored, so only the saves that close an interval write them."""
        share: Annotated[float, Field(gt=0, le=1)] = 0.01
        """Fraction of the rows of each tracked table that the trainer mirrors, the most accessed ones. It mirrors all
        rows of the other tables."""

    recoveries = ("mirror", "rollback")
    parts = ("mirror",)
    _recovery = "mirror"
    tracker = "mfu"

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.tracker is not None:
            self.mirror = MirrorSpec(share=options.share)
            self._kind = "with_mirror"


STRATEGIES: dict[str, type[Strategy]] = {
    "none": Reference,
    "never_save": NeverSave,
    "full": Full,
    "partial": Partial,
    "cpr_vanilla": CprVanilla,
    "cpr_random": CprRandom,
    "cpr_mfu": CprMfu,
    "cpr_ssu": CprSsu,
    "cpr_mass": CprMass,
    "cpr_scar": CprScar,
    "cpr_mirror": CprMirror,
    "differential": Differential,
    "buddy": Buddy,
    "parity": Parity,
    "cpr_oldest": CprOldest,
    "cpr_state": CprState,
    "tiers": Tiers,
}

BUILT_IN = tuple(STRATEGIES)
"""Names of the package's own strategies."""


OPTIONS = CHOICES["strategy"]
"""The model of the ``strategy`` group by the strategy's name."""


def name_options() -> None:
    """Add the options of strategies that were added to ``STRATEGIES`` to the table ``OPTIONS``."""
    for name, strategy in STRATEGIES.items():
        if name not in OPTIONS:
            enter(name, strategy.Options, strategy.__doc__)


name_options()


def options_of(name: str, /, **values: Any) -> StrategyOptions:
    """The options of strategy ``name``: ``values``, and defaults for the rest.

    Raises KeyError for an unknown name, and pydantic's ValidationError for invalid values.
    """
    options = choices.options_of("strategy", name, **values)
    assert isinstance(options, StrategyOptions)
    return options


def make_strategy(options: StrategyOptions, costs: Costs) -> Strategy:
    """The strategy named in ``options``, for a run with these costs. Raises ConfigError if it cannot work with them."""
    return STRATEGIES[options.name](options, costs)
