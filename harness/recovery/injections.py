"""The faults of a trace: at boundaries, waiting for a phase of the run, or for a time.

A fault with a phase is armed at its boundary, and carried out the first time that the phase occurs. So is a write that
fails: it strikes at the first save that is then written and committed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Request, Save, Written, exchanges_of
from harness.core.faults import FaultTime, Phase, Struck
from harness.core.overhead import OverheadLedger
from harness.core.plans import Progress, Rank
from harness.core.resumable import Resumable
from harness.recovery.recoveries import Recoveries


class TrainersDied(Exception):
    """A fault has ended all trainers, and this process goes on, as on engine ``local``: as new trainers."""


@dataclass(kw_only=True, eq=False)
class Injections(Resumable):
    """Has planned faults carried out, at boundaries and in phases; each strikes once. The trainer does not know whom.

    Args:
        faults: all planned faults of the run; they are named by their index.
        progress: the progress of the run now.
        before_fault: called before each fault, so that what happened first is recorded first.
        hand_over: gives what other trainers go on from, before a fault that ends all of them.
    """

    _state = ("_to_come", "_lasting", "_armed", "_struck")
    _state_types = (Struck,)

    faults: Sequence[FaultTime]
    cluster: Cluster
    effects: Effects
    recoveries: Recoveries
    overhead: OverheadLedger
    progress: Callable[[], Progress]
    before_fault: Callable[[], None]
    hand_over: Callable[[], Any]

    def __post_init__(self) -> None:
        later = [number for number, fault in enumerate(self.faults) if not fault.is_at_boundary]
        self._to_come = deque(sorted(later, key=lambda number: self.faults[number].step))
        self._lasting: set[int] = set()
        self._armed: list[int] = []
        self._is_evaluation = False
        self._struck = Struck()  # since the last failure
        self._is_hidden = False  # a loss that is not found yet

    def reach(self, step: int) -> None:
        """Boundary ``step`` begins: its faults begin to last or to wait for their phases; those that end here end."""
        while self._to_come and self.faults[self._to_come[0]].step <= step:
            number = self._to_come.popleft()
            if self.faults[number].last_step is None:
                self._armed.append(number)
            else:
                self._inject((number,))
                self.overhead.charge_slowdown(self.faults[number].wait_h)
                self._lasting.add(number)
        for number in sorted(self._lasting):
            last_step = self.faults[number].last_step
            if last_step is not None and last_step <= step:
                self._lasting.remove(number)
                self.effects.end_fault(number)

    @property
    def depend_on_messages(self) -> bool:
        """Whether it matters which message is in flight: a fault waits for the next one, or a loss is not found."""
        return self._is_hidden or any(self.faults[number].phase in _OF_MESSAGES for number in self._armed)

    def carry_out(self, numbers: Sequence[int]) -> None:
        """Have faults of one phase carried out: lost ranks as one failure, after the other faults.

        The requests in flight, or the next ones, find the lost ranks. If all trainers are lost, this never returns:
        on an engine where this process survives, it raises TrainersDied.
        """
        losses = [number for number in numbers if self.faults[number].loses_ranks]
        for number in numbers:
            if number not in losses:
                self._inject((number,))
        if any(self.faults[number].takes_trainers for number in losses):
            self.before_fault()
            self._inject(losses, state=self.hand_over())
            raise TrainersDied
        if losses:
            self.cluster.expect_losses()
            self._take(self._inject(losses))

    def take_over(self, struck: Struck) -> None:
        """Take over the run after all former trainers died of the fault ``struck``."""
        self._take(struck)

    def _take(self, struck: Struck) -> None:
        self._struck = self._struck.also(struck)
        self._is_hidden = True

    def _inject(self, numbers: Sequence[int], seconds: Mapping[Rank, float] | None = None, state: Any = None) -> Struck:
        self.before_fault()
        progress = self.progress()
        return self.effects.inject(progress.step, progress.samples, numbers, seconds, state)

    @property
    def write_faults(self) -> tuple[int, ...]:
        """The armed faults by which a write of the next save fails."""
        return tuple(number for number in self._armed if self.faults[number].fails_write)

    def wrote(self, written: Mapping[Rank, Written]) -> None:
        """All parts of a save are on disk: have the faults that struck it recorded; they do not strike again."""
        struck = {number for reply in written.values() for number in reply.struck}
        if struck:
            self._armed = [number for number in self._armed if number not in struck]
            self._inject(sorted(struck), {rank: reply.failed_s for rank, reply in written.items() if reply.struck})

    def waits_for(self, phase: Phase) -> bool:
        """Whether a fault strikes if ``phase`` comes now."""
        return bool(self._due(phase))

    def _due(self, phase: Phase) -> list[int]:
        of_phase = (number for number in self._armed if self.faults[number].phase == phase)
        return [number for number in of_phase if not self.faults[number].fails_write]

    def strike(self, phase: Phase) -> None:
        """The run is in ``phase``: have the armed faults of it carried out, if there are any."""
        if due := self._due(phase):
            self._armed = [number for number in self._armed if number not in due]
            self.carry_out(due)

    def sent(self, requests: Mapping[Rank, Request]) -> None:
        """Requests have been sent, and their replies are not waited for yet."""
        if self._armed:
            for phase in _phases(requests.values(), is_evaluation=self._is_evaluation):
                self.strike(phase)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """A context in which lookups count as those of an evaluation."""
        self._is_evaluation = True
        try:
            yield
        finally:
            self._is_evaluation = False

    @property
    def has_taken_trainers(self) -> bool:
        """Whether the current failure killed all trainers."""
        return self._struck.takes_trainers

    def take_struck(self) -> Struck:
        """The costs of the losses since the last call, as one failure. To be called once for each failure."""
        struck, self._struck, self._is_hidden = self._struck, Struck(), False
        return struck


_OF_MESSAGES: frozenset[Phase] = frozenset(("lookup", "apply"))


def _phases(requests: Iterable[Request], *, is_evaluation: bool) -> Iterator[Phase]:
    """The phases of a run that requests sent together belong to."""
    requests = tuple(requests)
    exchanges = [exchange for request in requests for exchange in exchanges_of(request)]
    if any(part.pull_N is not None and len(part.pull_N) for part in exchanges):
        if is_evaluation:
            yield "eval"
        yield "lookup"
    if any(part.push is not None and len(part.push.rows_N) for part in exchanges):
        yield "apply"
    if any(isinstance(request, Save) for request in requests):
        yield "save"
