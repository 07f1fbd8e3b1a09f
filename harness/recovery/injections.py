"""The planned faults of a run: at boundaries, or in a phase of the run.

A fault with a phase is armed at its boundary, and carried out when the run next enters the phase. The failure of a
write is armed likewise. It strikes the next save, and counts as carried out when all parts of that save are written.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.cluster.protocol import Cluster, Request, Save, Written, exchanges_of
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.faults import FaultTime, Injection, Phase
from harness.core.plans import Progress, Rank
from harness.core.resumable import Resumable


class ChiefDied(Exception):
    """Control flow: a planned fault has killed ``trainer0``, and this process (engine ``local``) plays the new one."""


@dataclass(kw_only=True, eq=False)
class Injections(Resumable):
    """Asks the supervisor to carry out planned faults, each once. It does not know which ranks they strike.

    ``is_hidden``: whether a rank is lost that no request has found dead yet.

    Args:
        faults: all planned faults of the run; a fault's number is its index.
        progress: gives the present progress of the run.
        before_fault: called before each fault, to record earlier events before those of the fault.
    """

    _state = ("_to_come", "_armed", "_injection")
    _state_types = (Injection,)

    faults: Sequence[FaultTime]
    cluster: Cluster
    supervisor: SupervisorClient
    progress: Callable[[], Progress]
    before_fault: Callable[[], None]

    def __post_init__(self) -> None:
        later = [number for number, fault in enumerate(self.faults) if fault.phase != "boundary"]
        self._to_come = deque(sorted(later, key=lambda number: self.faults[number].step))
        self._armed: list[int] = []
        self._is_evaluation = self._is_suspended = False
        self._injection = Injection()  # since the last failure
        self.is_hidden = False

    def arm(self, step: int) -> None:
        """Arm the faults with a phase that are due at boundary ``step`` or before."""
        while self._to_come and self.faults[self._to_come[0]].step <= step:
            self._armed.append(self._to_come.popleft())

    @property
    def depend_on_messages(self) -> bool:
        """Whether further messages matter: a fault waits for one, or a lost rank has not been detected yet."""
        return self.is_hidden or any(self.faults[number].phase in _OF_MESSAGES for number in self._armed)

    def awaited_losses(self, *phases: Phase) -> list[int]:
        """The faults that lose ranks when the run next enters one of ``phases``."""
        return self.losses(number for number in self._armed if self.faults[number].phase in phases)

    def losses(self, numbers: Iterable[int]) -> list[int]:
        """Those of the faults with these numbers that lose ranks."""
        return [number for number in numbers if self.faults[number].loses_ranks]

    def carry_out(self, numbers: Sequence[int], state: bytes | None = None, at: Progress | None = None) -> None:
        """Have faults of one phase carried out: first those that lose no rank, then all losses as one failure.

        The requests in flight, or the next ones, detect the lost ranks. If ``trainer0`` is lost, this process is
        killed, and the new one starts from ``state``; on engine ``local``, where it survives, ChiefDied is raised.
        ``at``: the position that a recovery belongs to; None: the present one.
        """
        losses = self.losses(numbers)
        for number in numbers:
            if number not in losses:
                self._inject((number,), at=at)
        if self.takes_chief(losses):
            self._inject(losses, state=state)
            raise ChiefDied
        if losses:
            self.take_over(self._inject(losses, at=at))

    def takes_chief(self, numbers: Iterable[int]) -> bool:
        """Whether any of the faults with these numbers kills ``trainer0``."""
        return any(self.faults[number].takes_chief for number in numbers)

    def takes_trainers(self, numbers: Iterable[int]) -> bool:
        """Whether any of the faults with these numbers kills all trainers."""
        return any(self.faults[number].takes_trainers for number in numbers)

    def take_over(self, injection: Injection) -> None:
        """Add ``injection``, also of a former trainer, to the failure not charged yet. The next request finds it."""
        self.cluster.expect_losses()
        self._injection = self._injection.also(injection)
        self.is_hidden = True

    def _inject(
        self,
        numbers: Sequence[int],
        seconds: Mapping[Rank, float] | None = None,
        state: bytes | None = None,
        at: Progress | None = None,
    ) -> Injection:
        self.before_fault()
        progress = at or self.progress()
        return self.supervisor.inject(progress.step, progress.samples, numbers, seconds, state)

    @property
    def write_faults(self) -> tuple[int, ...]:
        """The armed faults by which a write of the next save fails."""
        return tuple(number for number in self._armed if self.faults[number].fails_write)

    def record_write_faults(self, written: Mapping[Rank, Written]) -> None:
        """Have the faults recorded that struck a save, all parts of which are on disk now. They do not strike again."""
        struck = {number for reply in written.values() for number in reply.faults}
        if struck:
            self._armed = [number for number in self._armed if number not in struck]
            self._inject(sorted(struck), {rank: reply.failed_s for rank, reply in written.items() if reply.faults})

    def waits_for(self, phase: Phase) -> bool:
        """Whether a fault would strike if the run entered ``phase`` now."""
        return bool(self._due(phase))

    def _due(self, phase: Phase) -> list[int]:
        of_phase = (number for number in self._armed if self.faults[number].phase == phase)
        return [number for number in of_phase if not self.faults[number].fails_write]

    def strike(self, phase: Phase) -> None:
        """Have the faults armed for ``phase`` carried out. Called when the run is in this phase."""
        if due := self._due(phase):
            self._armed = [number for number in self._armed if number not in due]
            self.carry_out(due)

    def strike_on_sending(self, requests: Mapping[Rank, Request]) -> None:
        """Have the faults carried out that wait for a phase to which ``requests``, just sent, belong."""
        if self._armed and not self._is_suspended:
            for phase in _phases(requests.values(), is_evaluation=self._is_evaluation):
                self.strike(phase)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """A context in which lookups belong to phase ``eval`` too."""
        self._is_evaluation = True
        try:
            yield
        finally:
            self._is_evaluation = False

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A context in which requests belong to no phase: no fault strikes."""
        self._is_suspended = True
        try:
            yield
        finally:
            self._is_suspended = False

    @property
    def not_charged(self) -> Injection:
        """The facts of all losses since the last failure that was charged, merged into one failure."""
        return self._injection

    def take_injection(self) -> Injection:
        """Return the facts of all losses since the last call, merged into one failure."""
        injection, self._injection, self.is_hidden = self._injection, Injection(), False
        return injection


_OF_MESSAGES: frozenset[Phase] = frozenset(("lookup", "apply"))


def _phases(requests: Iterable[Request], *, is_evaluation: bool) -> Iterator[Phase]:
    """The phases to which ``requests`` belong. A message without rows belongs to none."""
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
