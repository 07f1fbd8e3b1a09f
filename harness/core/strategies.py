"""Strategies: when to save, what, and how to recover lost ranks (docs/CPR.md). They only decide.

A new strategy is one class here, and one entry in ``STRATEGIES``; its ``Options`` are its keys under ``strategy:`` in a
configuration.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from harness.core import choices
from harness.core.choices import CHOICES, Options, enter
from harness.core.clock import exact
from harness.core.errors import ConfigError, RunFailed
from harness.core.overhead import interval_in_samples, o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import (
    Costs,
    DenseSource,
    Interval,
    MirrorSpec,
    Progress,
    Rank,
    RecoveryPlan,
    SavePlan,
    buddy_of,
)

Lost = frozenset[Rank]


class StrategyOptions(Options):
    """The ``strategy`` group of a configuration: a strategy's name and the options of that strategy alone."""

    group = "strategy"

    name: str
    """When to save, what, and how to recover; the other keys of this group are this strategy's options."""


class Strategy:
    """The decisions of one run, and the base of every strategy: a pure function of options, costs and progress.

    By default it saves nothing, and recovers all ranks by one kind. A boundary follows each step, after its updates are
    applied and before an evaluation. Results depend on ``progress`` alone, so a repeated step gets the same decisions.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    """The options, with types, limits and defaults. The field's docstring is its help text."""
    colours: ClassVar[tuple[str, str]] = ("#7a4fbf", "#b292f0")
    """Its colour in figures, on a light page and on a dark one."""

    interval = Interval(samples=None)
    """The save interval, chosen from the run's costs."""
    tracker: str | None = None
    """The tracker of the ranks, a key of ``trackers.TRACKERS``; None if every save writes all rows."""
    tracker_options: Mapping[str, Any] = {}
    """Options of the tracker: ``r``, the fraction of a table that one save may write, and any specific to its kind."""
    sample_period: int | None = None
    """The tracker receives the rows of every ``sample_period``-th input (by global index); None: no sub-sampling."""
    saves_initially: bool = True
    """Whether a full save precedes step 0."""
    injects_failures: bool = True
    """Whether the failures of the trace are carried out."""
    restores_exactly: bool = True
    """Whether a save holds the very bits of its rows. Otherwise the losses of repeated steps differ from the first."""
    recoveries: ClassVar[tuple[str, ...]]
    """The kinds of recovery that plans of this strategy name, keys of ``harness.recovery.recoveries.RECOVERIES``."""
    resets_states: bool = False
    """Whether rows that are restored from a checkpoint, without a rollback, get the initial state of the optimizer, and
    not the one that was saved with them."""
    mirror: MirrorSpec | None = None
    """The rows whose newest values the trainer keeps for recoveries of kind ``mirror``; None: it keeps none."""

    _recovery: str = ""
    """The kind of recovery that :meth:`plan_recovery` chooses."""

    def __init__(self, options: Any, costs: Costs) -> None:
        pass

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """The save to make at this boundary, or None.

        Called once each time the run reaches a boundary, also after a rollback, with the newest save in ``progress``.
        """
        return None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """The number of samples, above ``after`` (default: those of ``progress``), of the next save.

        None for never. The forecast holds until the first boundary at or after it: before, ``plan_save`` returns None,
        and no later forecast is earlier. There ``plan_save`` may still return None; then a new forecast is made.
        Clients limit by it how far messages run ahead, and the simulator skips boundaries. For saves after the next one
        it is an estimate, by which the lookahead cache plans; if it changes, the cache is emptied and plans again.
        """
        return None

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """The plan to recover from the death of the PS ranks ``lost``."""
        return RecoveryPlan(kinds=dict.fromkeys(lost, self._recovery))

    def plan_dense(self, progress: Progress) -> DenseSource:
        """What the dense network restarts from when all trainers have died; by default the newest state possible."""
        if progress.saved_step is None:
            return "initial"
        return "rollback" if self._recovery == "rollback" else "checkpoint"


# --- strategies that save nothing, or whole shards --------------------------------------------------------------------


class Reference(Strategy):
    """``none``: the run without failures and saves, with which the other strategies are compared."""

    colours = ("#333333", "#d0d0d0")
    saves_initially = False
    injects_failures = False
    recoveries = ()

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Raise RunFailed: a reference run cannot recover from the death of a rank."""
        dead = ", ".join(sorted(lost))
        raise RunFailed(f"step {progress.step}: {dead} died; strategy none cannot recover, choose another")


class NeverSave(Strategy):
    """``never_save``, a control: no checkpoint exists, and a lost shard is reset to its initial values."""

    colours = ("#d55e00", "#ff8145")
    saves_initially = False
    recoveries = ("initial",)
    _recovery = "initial"


class _Saving(Strategy):
    """Saves at the multiples of ``r * interval`` samples; the base of all strategies that save."""

    class Options(StrategyOptions):
        interval_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves; null computes the interval from the profile. The record states which it was."""

    _r = Fraction(1)
    _kind = "full"

    def __init__(self, options: Options, costs: Costs) -> None:
        samples = options.interval_samples
        computed = interval_in_samples(t_save_full_h(costs), costs) if samples is None else samples
        self.interval = Interval(samples=computed, overridden=samples is not None)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """A save at the first boundary at or after each multiple of ``r * interval``, except at the end of the run.

        It closes an interval if a multiple of ``interval`` lies after the previous due sample, up to this boundary.
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
        """The next multiple of ``r * interval``, which never changes; None if it lies at or beyond the run's end."""
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
    """``full``: full saves every ``T_save,full``; after a failure all ranks roll back and lost steps are repeated."""

    colours = ("#0072b2", "#5aa9e6")
    recoveries = ("rollback",)
    _recovery = "rollback"


class Partial(_Saving):
    """``partial``: saves as ``full`` does, but only the lost shards are restored."""

    colours = ("#3a95cf", "#9ad4ff")
    recoveries = ("checkpoint",)
    _recovery = "checkpoint"

    class Options(_Saving.Options):
        restore_optimizer: Literal["with_rows", "reset"] = "with_rows"
        """Optimizer state of a shard that is restored alone: `with_rows` as it was saved with each row, `reset` the
        initial state. `sgd` has none."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        self.resets_states = options.restore_optimizer == "reset"


class CprVanilla(Partial):
    """``cpr_vanilla``: partial recovery at ``T_save,part``; acts as ``full`` if full recovery costs no more."""

    colours = ("#c27c00", "#f0b429")
    recoveries = ("checkpoint", "rollback")

    class Options(Partial.Options):
        pls_target: Annotated[float, Field(gt=0, lt=1)] | None = None
        """Portion of lost samples that CPR may cost; null takes the profile's."""
        interval_counts_ranks: bool = True
        """Divide T_save,part by k, the ranks lost per failure (reconstructed: docs/CPR.md)."""

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.interval.overridden:
            return
        part_h = t_save_part_h(costs, counts_ranks=options.interval_counts_ranks)
        if o_part_h(costs, part_h) < o_full_h(costs, t_save_full_h(costs)):
            self.interval = Interval(samples=interval_in_samples(part_h, costs))
        else:
            self.interval, self._recovery = replace(self.interval, fallback=True), "rollback"


class Differential(Partial):
    """``differential``: saves of the rows that changed since the last full one, quantised or not (Check-N-Run)."""

    colours = ("#1d7f8c", "#56c5d4")
    recoveries = ("checkpoint", "rollback")

    class Options(Partial.Options):
        bits: Literal[32, 8, 4, 2] = 32
        """Bits of a saved value: 32 are exact, fewer are steps of a scale of the row's own. With fewer, what a failure
        restores is rounded, and with full recovery the run no longer equals `none`. Only 32 where rows have optimizer
        state."""
        recovery: Literal["full", "partial"] = "full"
        """The ranks to restore: all, and lost steps run again, or the lost shards alone; the interval is the same."""

    tracker = "changed"

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        self.restores_exactly = options.bits == 32
        self._kind = "differential" if self.restores_exactly else f"differential_{options.bits}"
        if options.recovery == "full":
            self._recovery = "rollback"


class Buddy(_Saving):
    """``buddy``: a lost shard comes back from a replica in the memory of the next rank (Gemini, SOSP 2023).

    Only the initial save is made, unless an interval is set. A rank that dies together with its buddy is restored from
    the newest checkpoint.
    """

    colours = ("#8c6d31", "#c8a45c")
    recoveries = ("replica", "checkpoint")

    class Options(_Saving.Options):
        interval_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves; null: no save after the initial one."""

    def __init__(self, options: Options, costs: Costs) -> None:
        if costs.num_ps < 2:
            raise ConfigError(f"strategy.name: buddy needs cluster.num_ps >= 2, got {costs.num_ps}")
        self._num_ps = costs.num_ps
        self.interval = Interval(samples=options.interval_samples, overridden=options.interval_samples is not None)

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore each lost shard: from its buddy if that is alive, otherwise from the newest checkpoint."""
        kinds = {rank: "checkpoint" if buddy_of(rank, self._num_ps) in lost else "replica" for rank in lost}
        return RecoveryPlan(kinds=kinds)


# --- strategies that save some rows more often than others ------------------------------------------------------------


class CprPriority(CprVanilla):
    """The base of strategies that save a fraction r of each tracked table, chosen by a tracker, every ``r * interval``.

    Each 1/r-th save is at a boundary where ``cpr_vanilla`` saves. On fallback it acts as ``full``, without a tracker.
    """

    class Options(CprVanilla.Options):
        r: Annotated[float, Field(gt=0, le=1)] = 0.125
        """Fraction of each tracked table that a priority save writes; a save is due every ``r * interval``."""
        untracked: Literal["priority", "interval"] = "priority"
        """When untracked tables are written, which is whole: with each `priority` save, or where `cpr_vanilla` saves,
        with those that close an `interval` (reconstructed: docs/CPR.md)."""

    _tracker: ClassVar[str]
    _for_tracker: ClassVar[tuple[str, ...]] = ("r",)  # options
    _between = "priority"  # kind of the saves that close no interval

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        whole = self.interval
        if whole.fallback:
            return
        self.interval = Interval(samples=whole.samples, divisor=1 / options.r, overridden=whole.overridden)
        self.tracker, self._r, self._kind = self._tracker, exact(options.r), "priority"
        self.tracker_options = {name: getattr(options, name) for name in self._for_tracker}
        self._between = "tracked" if options.untracked == "interval" else "priority"

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Plan a save at each multiple of ``r * interval``; with ``untracked: interval`` most omit untracked tables."""
        plan = super().plan_save(progress)
        return plan if plan is None or plan.closes_interval else replace(plan, kind=self._between)


class CprMfu(CprPriority):
    """``cpr_mfu``: priority saves of the rows with the most accesses since their last save."""

    colours = ("#009e73", "#2fc79a")
    _tracker = "mfu"


class CprRandom(CprPriority):
    """``cpr_random``, a control: priority saves of rows drawn at random."""

    colours = ("#7f7f7f", "#a0a0a0")

    class Options(CprPriority.Options):
        pool: Literal["touched", "all"] = "touched"
        """Rows to draw from: `touched` since their last save, or `all`, of which untouched ones are skipped."""

    _tracker = "random"
    _for_tracker = ("r", "pool")


class CprSsu(CprPriority):
    """``cpr_ssu``: priority saves of the rows that a sub-sample of the inputs touched."""

    colours = ("#c95f9c", "#e79ac6")

    class Options(CprPriority.Options):
        period: Annotated[int, Field(ge=1)] = 2
        """The sub-sample is each input whose global sample index is a multiple of this (reconstructed: docs/CPR.md)."""
        eviction: Literal["random", "oldest"] = "random"
        """Which row of a full list a new one replaces (reconstructed: docs/CPR.md)."""

    _tracker = "ssu"
    _for_tracker = ("r", "eviction")

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.tracker is not None:
            self.sample_period = options.period


class CprMass(CprPriority):
    """``cpr_mass``: priority saves of the rows that moved most, step by step, since their last save."""

    colours = ("#5b7f1d", "#a6cf55")
    _tracker = "mass"


class CprScar(CprPriority):
    """``cpr_scar``: priority saves of the rows that lie farthest from their saved copy."""

    colours = ("#8c5a2b", "#d9a066")
    _tracker = "scar"


class CprMirror(CprPriority):
    """``cpr_mirror``: as ``cpr_mfu``, for rows whose newest values the trainer does not keep (docs/MIRROR.md).

    A save writes mirrored rows only if it closes an interval. A replacement gets the mirrored rows from the trainer.
    """

    colours = ("#b0003a", "#ff7a9c")

    class Options(CprPriority.Options):
        untracked: Literal["interval"] = "interval"  # pyright: ignore[reportIncompatibleVariableOverride] - it is frozen
        """Untracked tables are mirrored, so they are written by saves that close an `interval`."""
        share: Annotated[float, Field(gt=0, le=1)] = 0.01
        """Fraction of each tracked table, the most accessed rows, that the trainer mirrors besides the other tables."""

    recoveries = ("mirror", "rollback")
    _recovery = "mirror"
    _tracker = "mfu"

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
}

BUILT_IN = tuple(STRATEGIES)
"""Names of the package's own strategies."""


OPTIONS = CHOICES["strategy"]
"""The model of the ``strategy`` group by the strategy's name."""


def name_options() -> None:
    """Complete the table ``OPTIONS`` after entries were added to ``STRATEGIES``."""
    for name, strategy in STRATEGIES.items():
        if name not in OPTIONS:
            enter(name, strategy.Options, strategy.__doc__)


name_options()


def options_of(name: str, /, **values: Any) -> StrategyOptions:
    """The options of strategy ``name``: ``values``, and defaults for the rest. Raises pydantic's ValidationError."""
    options = choices.options_of("strategy", name, **values)
    assert isinstance(options, StrategyOptions)
    return options


def make_strategy(options: StrategyOptions, costs: Costs) -> Strategy:
    """The strategy named in ``options``, for a run with these costs."""
    return STRATEGIES[options.name](options, costs)
