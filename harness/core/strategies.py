"""The strategies: when to save, what, and what to do about the dead (docs/CPR.md).

Pure decisions. To add a strategy, write one small class and enter it in ``STRATEGIES`` (and its name in
``config.StrategyName``).
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Protocol

from harness.config.model import StrategyConfig
from harness.core.clock import exact
from harness.core.errors import RunFailed
from harness.core.overhead import interval_in_samples, o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import Costs, Interval, Progress, Rank, RecoveryPlan, SavePlan

Lost = frozenset[Rank]


class Strategy(Protocol):
    """What a run asks of its strategy. Everything is a function of config, costs and progress."""

    @property
    def name(self) -> str:
        """A key of ``STRATEGIES``."""
        ...

    @property
    def interval(self) -> Interval:
        """``choose_interval`` of the run's costs."""
        ...

    @property
    def tracker(self) -> str | None:
        """Which tracker the ranks keep, a key of ``trackers.TRACKERS``; None if every save writes everything."""
        ...

    @property
    def saves_initially(self) -> bool:
        """Whether a full save precedes step 0."""
        ...

    def choose_interval(self, costs: Costs) -> Interval:
        """How often to save under ``costs``."""
        ...

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """What to save at this boundary, if anything. Asked once at every boundary, between apply and evaluate."""
        ...

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """What to do about the dead ranks ``lost``."""
        ...


class _Unsaving:
    """Saves nothing; shared by the two controls."""

    tracker: str | None = None
    saves_initially = False

    def __init__(self, name: str, config: StrategyConfig, costs: Costs) -> None:
        self.name = name
        self.interval = self.choose_interval(costs)

    def choose_interval(self, costs: Costs) -> Interval:
        """Never."""
        return Interval(samples=None)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Nothing."""
        return None


class Reference(_Unsaving):
    """``none``: the run without failures that every other one is compared with."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Raises RunFailed: a reference that lost a shard is none."""
        raise RunFailed(f"{', '.join(sorted(lost))} died at step {progress.step}: strategy none cannot recover")


class NeverSave(_Unsaving):
    """``never_save``, an obligatory control: a dead shard goes back to its initial values."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Initialise the dead shards anew."""
        return RecoveryPlan(rollback=False, ranks=lost, source="initial")


class _Saving:
    """Saves everything at the multiples of its interval; shared by all that save."""

    tracker: str | None = None
    saves_initially = True
    _r = Fraction(1)  # a save is due at each multiple of r * interval

    def __init__(self, name: str, config: StrategyConfig, costs: Costs) -> None:
        self.name = name
        self.config = config
        self.interval = self.choose_interval(costs)

    def choose_interval(self, costs: Costs) -> Interval:
        """``T_save,full``, unless the config sets the interval."""
        if self.config.interval_samples is not None:
            return Interval(samples=self.config.interval_samples, overridden=True)
        return Interval(samples=interval_in_samples(t_save_full_h(costs), costs))

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Everything, at the first boundary at or after each multiple of the interval."""
        closes = self._due(progress)
        return None if closes is None else SavePlan(kind="full", closes_interval=closes)

    def _due(self, progress: Progress) -> bool | None:
        """None unless a multiple of ``r * interval`` was crossed since the last boundary, else whether a save here
        closes an interval: whether a whole multiple lies between the due sample before and this boundary.
        """
        interval = self.interval.samples
        if interval is None or progress.samples >= progress.total_samples:
            return None
        quantum, unit = self._r.numerator * interval, self._r.denominator  # due samples are multiples of quantum / unit
        num_before = progress.previous_samples * unit // quantum
        if progress.samples * unit // quantum == num_before:
            return None
        return progress.samples // interval > num_before * quantum // (unit * interval)


class Full(_Saving):
    """``full``: save everything at ``T_save,full``; every rank goes back to the checkpoint and lost steps run again."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Rollback everything."""
        return RecoveryPlan(rollback=True, ranks=lost)


class Partial(_Saving):
    """``partial``, naive: saves as ``full``, but only the dead shard is restored."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore the dead shards."""
        return RecoveryPlan(rollback=False, ranks=lost)


class CprVanilla(_Saving):
    """``cpr_vanilla``: partial recovery at ``T_save,part``; where that costs no less, exactly what ``full`` does."""

    def choose_interval(self, costs: Costs) -> Interval:
        """``T_save,part``, or ``T_save,full`` and ``fallback``; the config's interval overrides, without fallback."""
        own = super().choose_interval(costs)
        if own.overridden:
            return own
        part_h = t_save_part_h(costs, counts_ranks=self.config.interval_counts_ranks)
        if o_part_h(costs, part_h) >= o_full_h(costs, t_save_full_h(costs)):
            return Interval(samples=own.samples, fallback=True)
        return Interval(samples=interval_in_samples(part_h, costs))

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore the dead shards; rollback everything on fallback."""
        return RecoveryPlan(rollback=self.interval.fallback, ranks=lost)


class CprPriority(CprVanilla):
    """``cpr_mfu``, ``cpr_ssu``, ``cpr_random``: a fraction r of each tracked table every ``r * interval``."""

    def __init__(self, name: str, config: StrategyConfig, costs: Costs, *, tracker: str) -> None:
        super().__init__(name, config, costs)
        if not self.interval.fallback:
            self.tracker = tracker
            self._r = exact(config.r)

    def choose_interval(self, costs: Costs) -> Interval:
        """As ``cpr_vanilla``, cut into 1/r parts."""
        whole = super().choose_interval(costs)
        if whole.fallback:
            return whole
        return Interval(samples=whole.samples, divisor=1 / self.config.r, overridden=whole.overridden)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """The tracker's choice at each multiple of ``r * interval``; every 1/r-th falls where vanilla saves."""
        if self.interval.fallback:
            return super().plan_save(progress)
        closes = self._due(progress)
        return None if closes is None else SavePlan(kind="priority", closes_interval=closes)


STRATEGIES: dict[str, Callable[[str, StrategyConfig, Costs], Strategy]] = {
    "none": Reference,
    "never_save": NeverSave,
    "full": Full,
    "partial": Partial,
    "cpr_vanilla": CprVanilla,
    "cpr_random": partial(CprPriority, tracker="random"),
    "cpr_mfu": partial(CprPriority, tracker="mfu"),
    "cpr_ssu": partial(CprPriority, tracker="ssu"),
}


def make_strategy(config: StrategyConfig, costs: Costs) -> Strategy:
    """The strategy that ``config`` names, for a run of ``costs``."""
    return STRATEGIES[config.name](config.name, config, costs)
