"""The strategies: when to save, what, and how to recover lost ranks (docs/CPR.md).

Pure decisions. A new strategy is one class here and one entry in ``STRATEGIES``; its ``Options`` are its keys under
``strategy:`` in a configuration.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, create_model

from harness.core.clock import exact
from harness.core.errors import RunFailed
from harness.core.overhead import interval_in_samples, o_full_h, o_part_h, t_save_full_h, t_save_part_h
from harness.core.plans import Costs, Interval, Progress, Rank, RecoveryPlan, SavePlan

Lost = frozenset[Rank]


class StrategyOptions(BaseModel):
    """The ``strategy`` group of a configuration: a strategy's name and the options of that strategy alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: str
    """When to save, what, and how to recover; the other keys of this group are this strategy's options."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _options_from, (self.model_dump(),)  # the class of a named strategy has no import path


class Strategy(Protocol):
    """The decisions of one run, and the base of every strategy: a pure function of options, costs and progress.

    A boundary lies after each step, when its updates are applied and before an evaluation. Saves are two questions:

    - ``plan_save(progress)`` is the decision. It is asked exactly once at each boundary, when the run is there.
      ``progress`` holds what is true at that boundary, the newest save included. The steps that run again after a
      rollback reach their boundaries again: each is asked again, with the progress of then.
    - ``next_save(progress)`` is the forecast: samples at or after which the next save is due, as known now, or None
      for never. It stands until the first boundary at or after it: before that boundary ``plan_save`` returns None, and
      an answer asked for in between is never earlier. At that boundary the decision is free, also to save nothing,
      and the forecast is revised. A client reads from it how far messages may run ahead; the simulator, which
      boundaries to skip.
    - ``next_save(progress, after)`` is the first save due past ``after`` samples, as known now. Beyond the next save it
      is a guess: the lookahead cache plans by it, and plans anew, with an empty cache, where it is revised.

    Answers depend on ``progress`` alone, so a step that runs again meets the same decisions.
    """

    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    """The options, with types, limits and defaults. The field's docstring is its help text."""

    interval: Interval
    """How often to save under the run's costs."""
    tracker: str | None = None
    """Which tracker the ranks keep, a key of ``trackers.TRACKERS``; None if every save writes everything."""
    tracker_options: Mapping[str, Any] = {}
    """Options of the tracker: ``r``, the fraction of a table that one save may write, and those of its own kind."""
    sample_period: int | None = None
    """The tracker is told which rows one input in so many touched (by global sample index); None: no sub-sampling."""
    saves_initially: bool = True
    """Whether a full save precedes step 0."""
    injects_failures: bool = True
    """Whether the failures of the trace happen."""

    def __init__(self, options: Any, costs: Costs) -> None: ...

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """What to save at this boundary, None for nothing. Asked exactly once at each boundary."""
        ...

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """Samples at or after which the next save past ``after`` (None: this boundary) is due; None for never."""
        ...

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """How to recover from the death of the ranks ``lost``."""
        ...


class _Unsaving(Strategy):
    """Never saves; the base of the two controls."""

    saves_initially = False

    def __init__(self, options: StrategyOptions, costs: Costs) -> None:
        self.interval = Interval(samples=None)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """Nothing."""
        return None

    def next_save(self, progress: Progress, after: int | None = None) -> int | None:
        """Never."""
        return None


class Reference(_Unsaving):
    """``none``: the run without failures that every other one is compared with."""

    injects_failures = False

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Raises RunFailed: a reference run must not lose a rank."""
        raise RunFailed(f"{', '.join(sorted(lost))} died at step {progress.step}: strategy none cannot recover")


class NeverSave(_Unsaving):
    """``never_save``, a control: a lost shard starts again from its initial values."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Initialise the lost shards again."""
        return RecoveryPlan(rollback=False, ranks=lost, source="initial")


class _Saving(Strategy):
    """Saves at the multiples of ``r * interval`` samples; the base of all strategies that save."""

    class Options(StrategyOptions):
        """Options of every strategy that saves."""

        interval_samples: Annotated[int, Field(ge=1)] | None = None
        """Samples between saves; null computes the interval from the profile. The record says which it was."""

    _r = Fraction(1)
    _kind = "full"

    def __init__(self, options: Options, costs: Costs) -> None:
        self.interval = _full_interval(options, costs)

    def plan_save(self, progress: Progress) -> SavePlan | None:
        """A save at the first boundary at or after each multiple of ``r * interval``, none at the end of the run.

        It closes an interval if a whole multiple of it lies between the due sample before and this boundary.
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
        """``r * interval`` as a fraction of whole numbers: numerator and denominator."""
        return self._r.numerator * interval, self._r.denominator


class Full(_Saving):
    """``full``: save everything every ``T_save,full``; on a failure all ranks roll back and lost steps run again."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Roll back everything."""
        return RecoveryPlan(rollback=True, ranks=lost)


class Partial(_Saving):
    """``partial``: saves as ``full`` does, but only the lost shards are restored."""

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore the lost shards."""
        return RecoveryPlan(rollback=False, ranks=lost)


class CprVanilla(_Saving):
    """``cpr_vanilla``: partial recovery at ``T_save,part``; where that costs no less, the decisions of ``full``."""

    class Options(_Saving.Options):
        """Options of the strategies that choose their interval by a PLS target."""

        pls_target: Annotated[float, Field(gt=0, lt=1)] | None = None
        """Portion of lost samples that CPR may cost; null takes the profile's."""
        interval_counts_ranks: bool = True
        """(R) Divide T_save,part by k, the ranks lost per failure."""

    def __init__(self, options: Options, costs: Costs) -> None:
        self.interval = _part_interval(options, costs)

    def plan_recovery(self, lost: Lost, progress: Progress) -> RecoveryPlan:
        """Restore the lost shards; roll back everything on fallback."""
        return RecoveryPlan(rollback=self.interval.fallback, ranks=lost)


class CprPriority(CprVanilla):
    """Saves a fraction r of each tracked table, chosen by a tracker, every ``r * interval``.

    Every 1/r-th save falls where ``cpr_vanilla`` saves. On fallback: the decisions of ``full``, without a tracker.
    """

    class Options(CprVanilla.Options):
        """Options of the strategies with priority saves."""

        r: Annotated[float, Field(gt=0, le=1)] = 0.125
        """Priority saves write this fraction of each tracked table, every r intervals."""

    _tracker: ClassVar[str]

    def __init__(self, options: Options, costs: Costs) -> None:
        whole = _part_interval(options, costs)
        if whole.fallback:
            self.interval = whole
            return
        self.interval = Interval(samples=whole.samples, divisor=1 / options.r, overridden=whole.overridden)
        self.tracker, self._r, self._kind = self._tracker, exact(options.r), "priority"
        self.tracker_options = {"r": options.r}


class CprMfu(CprPriority):
    """``cpr_mfu``: priority saves of the rows with the most accesses since their last save."""

    _tracker = "mfu"


class CprRandom(CprPriority):
    """``cpr_random``, a control: priority saves of rows drawn at random."""

    class Options(CprPriority.Options):
        """Options of ``cpr_random``."""

        pool: Literal["touched", "all"] = "touched"
        """(R) Draw among the rows touched since their last save, or among all (and then skip untouched ones)."""

    _tracker = "random"

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.tracker is not None:
            self.tracker_options = {"r": options.r, "pool": options.pool}


class CprSsu(CprPriority):
    """``cpr_ssu``: priority saves of the rows that a sub-sample of the inputs touched."""

    class Options(CprPriority.Options):
        """Options of ``cpr_ssu``."""

        period: Annotated[int, Field(ge=1)] = 2
        """(R) Sample one input in so many: those whose global sample index is a multiple of it."""

    _tracker = "ssu"

    def __init__(self, options: Options, costs: Costs) -> None:
        super().__init__(options, costs)
        if self.tracker is not None:
            self.sample_period = options.period


def _full_interval(options: _Saving.Options, costs: Costs) -> Interval:
    """``T_save,full``, unless the options set the interval."""
    if options.interval_samples is not None:
        return Interval(samples=options.interval_samples, overridden=True)
    return Interval(samples=interval_in_samples(t_save_full_h(costs), costs))


def _part_interval(options: CprVanilla.Options, costs: Costs) -> Interval:
    """``T_save,part``, or ``T_save,full`` and ``fallback``; an interval of the options wins, without fallback."""
    full = _full_interval(options, costs)
    if full.overridden:
        return full
    part_h = t_save_part_h(costs, counts_ranks=options.interval_counts_ranks)
    if o_part_h(costs, part_h) >= o_full_h(costs, t_save_full_h(costs)):
        return Interval(samples=full.samples, fallback=True)
    return Interval(samples=interval_in_samples(part_h, costs))


STRATEGIES: dict[str, type[Strategy]] = {
    "none": Reference,
    "never_save": NeverSave,
    "full": Full,
    "partial": Partial,
    "cpr_vanilla": CprVanilla,
    "cpr_random": CprRandom,
    "cpr_mfu": CprMfu,
    "cpr_ssu": CprSsu,
}

DEFAULT = "full"
"""The strategy of a configuration that names none."""


def _named(name: str, strategy: type[Strategy]) -> type[StrategyOptions]:
    """The options of ``strategy``, for ``name`` alone: the name is its own default and its only value."""
    title = "".join(word.capitalize() for word in name.split("_"))
    named: Any = (Literal[name], Field(name, description=StrategyOptions.model_fields["name"].description))
    return create_model(f"{title}Options", __base__=strategy.Options, __doc__=strategy.__doc__, name=named)


OPTIONS: dict[str, type[StrategyOptions]] = {name: _named(name, strategy) for name, strategy in STRATEGIES.items()}
"""The model of the ``strategy`` group by the strategy's name."""


def options_of(name: str, /, **values: Any) -> StrategyOptions:
    """The options of strategy ``name``, defaults where ``values`` has none. Raises pydantic's ValidationError."""
    return OPTIONS[name].model_validate(values)


def _options_from(values: dict[str, Any]) -> StrategyOptions:
    return OPTIONS[values["name"]].model_validate(values)


def make_strategy(options: StrategyOptions, costs: Costs) -> Strategy:
    """The strategy that ``options`` name, for a run of ``costs``."""
    return STRATEGIES[options.name](options, costs)
