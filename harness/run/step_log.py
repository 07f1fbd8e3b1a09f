"""The losses of finished steps: recorded in batches, and compared when steps are repeated."""

import struct
from dataclasses import KW_ONLY, dataclass

from harness.cluster.supervisor_client import SupervisorClient
from harness.core.errors import RunFailed
from harness.core.events import Trained
from harness.core.repeats import Repeats
from harness.core.resumable import Resumable


@dataclass(eq=False)
class StepLog(Resumable):
    """The number of finished steps, and the loss of every step that was ever finished, before a rollback too.

    Args:
        num_steps: of the run.
        every_steps: the largest number of steps that one event covers.
        repeats_exactly: whether a repeated step must have the loss of its first run. If not, its last loss counts, as
            it does for a step that cannot repeat (``Repeats``).
    """

    _state = ("step", "losses", "_recorded", "_rerun_until", "_repeats")

    supervisor: SupervisorClient
    _: KW_ONLY
    num_steps: int
    batch_size: int
    every_steps: int
    repeats_exactly: bool = True

    def __post_init__(self) -> None:
        self._began_s = self.supervisor.clock()
        self._recorded = 0  # finished steps that are on record
        self._rerun_until = 0  # steps up to here had run before the last rollback
        self.step = 0
        self.losses: list[float] = []
        self._repeats = Repeats()

    def _loaded(self) -> None:
        """Leave out the time before, in which a new trainer waited."""
        self._began_s = self.supervisor.clock()

    def finish_step(self, loss: float) -> bool:
        """Count one more finished step; returns whether the step is a repetition after a rollback.

        Raises RunFailed if its loss differs from that of the first run although ``repeats_exactly``.
        """
        self.step += 1
        self.supervisor.advanced(self.step)
        is_rerun = self.step <= len(self.losses)
        if not is_rerun:
            self.losses.append(loss)
        elif not (self.repeats_exactly and self._repeats.num_alike(self.step - 1, self.step)):
            self.losses[self.step - 1] = loss
        elif struct.pack("d", first := self.losses[self.step - 1]) != struct.pack("d", loss):
            raise RunFailed(
                f"step {self.step}: its loss after a rollback is {loss!r}, expected {first!r} as in its first run"
            )
        return is_rerun

    def flush_if_due(self) -> None:
        """Call :meth:`flush` at each multiple of ``every_steps``, and when the last repeated step is finished."""
        if self.step == self._rerun_until or self.step % self.every_steps == 0:
            self.flush()

    def flush(self) -> None:
        """Record an event for the steps finished since the last call, and report progress. A no-op without any."""
        if self._recorded == self.step:
            return
        losses = self.losses[self._recorded : self.step]
        now_s = self.supervisor.clock()
        self.supervisor.record(
            Trained(
                step=self.step,
                samples=self.step * self.batch_size,
                first_step=self._recorded,
                losses=losses,
                rerun=self._recorded < self._rerun_until,
                machine={"seconds": now_s - self._began_s},
            )
        )
        self.supervisor.status(phase="train", step=self.step, num_steps=self.num_steps, loss=losses[-1])
        self._recorded, self._began_s = self.step, now_s

    def recover_partially(self) -> None:
        """Note that ranks were restored here without a rollback."""
        self._repeats.recover_partially(self.step, len(self.losses))

    def roll_back(self, step: int) -> None:
        """Set the number of finished steps back to ``step``. All losses stay, for comparison with repeated steps."""
        self._repeats.roll_back(step, self.step, len(self.losses))
        self._rerun_until = len(self.losses)
        self.step = self._recorded = step

    def mean_of_last_tenth(self) -> float:
        """Mean loss over the last tenth of the steps, at least one."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)
