"""Actions due at the boundaries between steps: saves, evaluations, planned faults, in this order."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.core.clock import strike_step
from harness.core.errors import RunFailed
from harness.core.faults import FaultTime
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress, SavePlan
from harness.core.resumable import Resumable
from harness.run.spec import RunSpec


@dataclass(eq=False)
class Boundaries(Resumable):
    """The actions due at each boundary: a forecast for later boundaries, a decision for the present one.

    Boundary k follows k finished steps.

    Args:
        faults: all planned faults; those that strike at boundaries are in order of step and hour.
        progress: returns the present progress of the run.
        overhead: the emulated hours of overhead charged so far.
    """

    _state = ("_num_taken", "_evaluated_step")

    run_spec: RunSpec
    faults: Sequence[FaultTime]
    progress: Callable[[], Progress]
    overhead: OverheadLedger

    def __post_init__(self) -> None:
        self._at_boundaries = [(number, fault) for number, fault in enumerate(self.faults) if fault.phase == "boundary"]
        self._num_taken = 0  # planned faults at boundaries that were given
        self._strikes = lru_cache(maxsize=1)(self._strikes_with)
        self._evaluated_step = 0

    def is_due(self, step: int) -> bool:
        """Forecast whether a save, an evaluation, a planned fault or the end of the run is due at boundary ``step``.

        At such a boundary the ranks must hold the same state as without a cache. The forecast for later boundaries
        changes only at a save or, with the clock ``wall``, also in a recovery, which charges hours of overhead.
        """
        return self.needs_all(step) or self.evaluates_at(step) or self.faults_at(step)

    def needs_all(self, step: int) -> bool:
        """Whether the ranks must have all updates at boundary ``step``, also from a client with bounded staleness."""
        is_told = self.run_spec.on_notice != "none" and self.faults_at(step)
        return step == self.run_spec.num_steps or self.saves_at(step) or is_told

    def plan_save(self, *, announced: bool) -> SavePlan | None:
        """The strategy's decision at the present boundary. To be called once per boundary.

        ``announced``: whether :meth:`saves_at` forecast a save here. Raises RunFailed for a save that it did not
        forecast, since requests of later steps may have been sent.
        """
        progress = self.progress()
        plan = self.run_spec.strategy.plan_save(progress)
        if plan is not None and not announced:
            raise RunFailed(
                f"step {progress.step}: the strategy plans a save at {progress.samples} samples; "
                "expected no save earlier than its method next_save had announced"
            )
        return plan

    def faults_at(self, step: int) -> bool:
        """Whether a planned fault strikes at boundary ``step``. It does so once, even if the step is repeated.

        With the clock ``wall``, a fault whose hour fell into charged overhead is due at the next boundary.
        """
        strikes = self._pending()
        if step <= self.progress().step + 1:
            return bool(strikes) and strikes[0] <= step < self.run_spec.num_steps
        return step < self.run_spec.num_steps and step in strikes

    def due_faults(self) -> list[int]:
        """The numbers of the faults that strike at the present boundary."""
        num_due = bisect_right(self._pending(), self.progress().step)
        return [number for number, _ in self._at_boundaries[self._num_taken : self._num_taken + num_due]]

    def to_come(self) -> list[tuple[int, FaultTime]]:
        """The faults at boundaries that were not taken, with their numbers, in order."""
        return self._at_boundaries[self._num_taken :]

    def take_faults(self, due: Sequence[int]) -> None:
        """Take the faults that :meth:`due_faults` has given: it does not give them again."""
        self._num_taken += len(due)

    def _pending(self) -> tuple[int, ...]:
        """The boundaries of faults not taken yet, ascending. With the clock ``wall``, charged overhead moves them."""
        is_wall = self.run_spec.config.trace.clock == "wall"
        return self._strikes(self._num_taken, self.overhead.delay_h if is_wall else 0.0)

    def _strikes_with(self, num_taken: int, delay_h: float) -> tuple[int, ...]:
        faults = [fault for _, fault in self._at_boundaries[num_taken:]]
        if self.run_spec.config.trace.clock == "samples":
            return tuple(fault.step for fault in faults)
        return tuple(
            strike_step(
                fault.hour,
                job_h=self.overhead.steps_job_h,
                total_samples=self.run_spec.total_samples,
                batch_size=self.run_spec.config.trainer.batch_size,
                num_steps=self.run_spec.num_steps,
                overhead_h=delay_h,
            )
            for fault in faults
        )

    def evaluated(self, step: int) -> None:
        """Record that the evaluation at boundary ``step`` was made. It is not made again if the step is repeated."""
        self._evaluated_step = step

    def saves_at(self, step: int) -> bool:
        """Forecast whether a save is due at the later boundary ``step``, by the strategy's present ``next_save``."""
        size = self.run_spec.config.trainer.batch_size
        due = self.run_spec.strategy.next_save(self.progress(), after=(step - 1) * size)
        return due is not None and due <= step * size < self.run_spec.total_samples

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation for the curve is due at boundary ``step``; False if one was made before a rollback."""
        every, last = self.run_spec.evaluate_every_steps, self.run_spec.num_steps
        if every is None or step <= self._evaluated_step:
            return False
        if step < last:
            return step % every == 0
        return self.run_spec.num_curve_samples < self.run_spec.num_eval_samples  # else the result is this point
