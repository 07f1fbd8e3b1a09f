"""What is due at the boundaries between steps: saves, evaluations, planned kills, in this order."""

from collections.abc import Callable
from dataclasses import dataclass

from harness.core.errors import RunFailed
from harness.core.plans import Progress, SavePlan
from harness.core.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What is fixed before the first step. Boundary k lies behind k finished steps."""

    num_steps: int
    batch_size: int
    kill_steps: frozenset[int]  # boundaries at which to stop for planned kills
    evaluate_every_steps: int | None

    @property
    def total_samples(self) -> int:
        """S_total."""
        return self.num_steps * self.batch_size


@dataclass(frozen=True, kw_only=True)
class Due:
    """What is due at one boundary, in this order; ``save`` as known when it was asked."""

    save: bool
    evaluate: bool
    kill: bool
    is_last: bool

    @property
    def anything(self) -> bool:
        """Whether every rank must hold what it would hold had each step been sent to it alone."""
        return self.save or self.evaluate or self.kill or self.is_last

    @property
    def needs_all(self) -> bool:
        """Whether the ranks must have every update, also from a client that is not exact."""
        return self.save or self.is_last


class Boundaries:
    """Answers what is due: as known now for later boundaries, and decided for the present one.

    Args:
        progress: the progress of the run now.
    """

    def __init__(self, schedule: Schedule, strategy: Strategy, progress: Callable[[], Progress]) -> None:
        self._schedule = schedule
        self._strategy = strategy
        self._progress = progress
        self._killed: set[int] = set()
        self._evaluated_step = 0

    def at(self, step: int) -> Due:
        """What is due at the later boundary ``step``, as known now. Answers change only where a save is due."""
        return Due(
            save=self._saves_at(step),
            evaluate=self._evaluates_at(step),
            kill=self.kills_at(step),
            is_last=step == self._schedule.num_steps,
        )

    def plan_save(self, *, announced: bool) -> SavePlan | None:
        """The strategy's decision at the present boundary; to be asked once.

        Raises RunFailed if it is a save that was not ``announced``: requests may have run ahead of this boundary.
        """
        progress = self._progress()
        plan = self._strategy.plan_save(progress)
        if plan is not None and not announced:
            raise RunFailed(
                f"step {progress.step}: the strategy plans a save at {progress.samples} samples; "
                "expected none before the samples that its next_save gave"
            )
        return plan

    def kills_at(self, step: int) -> bool:
        """Whether a planned kill is due; each happens once, also where steps run again."""
        return step in self._schedule.kill_steps and step not in self._killed

    def killed(self, step: int) -> None:
        """The kills planned for boundary ``step`` are being carried out."""
        self._killed.add(step)

    def evaluated(self, step: int) -> None:
        """An evaluation took place; steps that run again are not evaluated again."""
        self._evaluated_step = step

    def _saves_at(self, step: int) -> bool:
        size = self._schedule.batch_size
        due = self._strategy.next_save(self._progress(), after=(step - 1) * size)
        return due is not None and due <= step * size < self._schedule.total_samples

    def _evaluates_at(self, step: int) -> bool:
        every = self._schedule.evaluate_every_steps
        return every is not None and step % every == 0 and self._evaluated_step < step < self._schedule.num_steps
