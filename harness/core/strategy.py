"""The contract of strategies, which decide when to save, what to save, and how to recover lost ranks.

The strategies of the harness, and their table: ``core.strategies``.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from harness.core.choices import Options
from harness.core.plans import Costs, DenseSource, Interval, MirrorSpec, Progress, Rank, RecoveryPlan, SavePlan

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
