"""Strategies that save some rows more often than others (docs/CPR.md). They only decide; see ``core.strategy``."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.clock import exact
from harness.core.plans import Costs, Interval, MirrorSpec, Progress, SavePlan
from harness.core.whole_strategies import CprVanilla


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
