"""Strategies that save nothing, or whole shards (docs/CPR.md). They only decide; see ``core.strategy``."""

from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from harness.core.errors import ConfigError, RunFailed
from harness.core.overhead import interval_in_samples, o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import Costs, Interval, Progress, RecoveryPlan, SavePlan, buddy_of
from harness.core.strategy import Lost, Strategy, StrategyOptions


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
