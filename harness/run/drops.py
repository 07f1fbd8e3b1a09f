"""What each failure costs the model at once: evaluations right before it, and right after the recovery from it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from harness.cluster.supervisor_client import SupervisorClient
from harness.core.events import Dropped, error_of
from harness.core.plans import Progress
from harness.core.resumable import Resumable
from harness.model.metrics import auc_deviations, exact_auc
from harness.recovery.accounting import Accounting
from harness.recovery.injections import Injections

_MOST_STEPS = 2
"""Steps that end between both evaluations: a rank that dies in the message of a step may be found dead in the next."""


class _Quality(NamedTuple):
    step: int
    auc: float | None
    deviations: list[float]
    num_samples: int
    seconds: float


@dataclass(kw_only=True, eq=False)
class Drops(Resumable):
    """Measures the drop in AUC of each planned failure. Both evaluations are of the same samples, and change no result.

    Args:
        num_samples: of each evaluation; 0: nothing is measured.
        score: gives logits and labels of so many evaluation samples, by the present model.
        repeats_exactly: whether steps that run again after a rollback have the bits of their first run.
    """

    _state = ("_before",)
    _state_types = (_Quality,)

    num_samples: int
    score: Callable[[int], Awaitable[tuple[Tensor, Tensor]]]
    accounting: Accounting
    injections: Injections
    supervisor: SupervisorClient
    progress: Callable[[], Progress]
    repeats_exactly: bool

    def __post_init__(self) -> None:
        self._before: _Quality | None = None

    async def expect(self, *, is_lost: bool) -> None:
        """Evaluate the model before a failure, unless ``is_lost`` says that no rank is lost by what comes next.

        A no-op while a rank is lost that has not been found dead: what comes next belongs to the same failure. The drop
        of recoveries before it ends here, unless training has not gone on since they were expected.
        """
        is_due = is_lost and self.num_samples > 0 and not self.injections.is_hidden
        if is_due and (self._before is None or self._before.step < self.progress().step):
            await self.measure()
            before = await self._measure()
            if self.accounting.unmeasured:  # an unplanned death was found by this evaluation
                self._record(drop=None)
            self._before = before

    async def measure(self) -> None:
        """Evaluate the model after the recoveries since the last drop, and record what they cost together.

        A no-op without any, or while another rank is lost that has not been found dead. The drop is unknown if the
        failure was not planned, or was found too many steps later, as happens within a window of the lookahead cache.
        """
        if self.accounting.unmeasured and self.num_samples and not self.injections.is_hidden:
            before, self._before = self._before, None
            is_known = before is not None and before.step >= self.progress().step - _MOST_STEPS
            self._record(drop=None, before=before, after=await self._measure() if is_known else None)

    def rolled_back(self) -> None:
        """Record that the recoveries since the last call cost nothing, or an unknown amount if steps do not repeat."""
        self._before = None
        if self.num_samples:
            self._record(drop=0.0 if self.repeats_exactly else None)

    async def _measure(self) -> _Quality:
        began_s = self.supervisor.clock()
        scores, labels = await self._score()
        auc, deviations = exact_auc(scores, labels), auc_deviations(scores, labels)
        return _Quality(self.progress().step, auc, deviations, len(scores), self.supervisor.clock() - began_s)

    async def _score(self) -> tuple[Tensor, Tensor]:
        """Logits and labels by one model: anew if a rank was found dead, and recovered, in the middle."""
        while True:
            num_recoveries = len(self.accounting.unmeasured)
            with self.injections.suspended():
                found = await self.score(self.num_samples)
            if len(self.accounting.unmeasured) == num_recoveries:
                return found

    def _record(self, *, drop: float | None, before: _Quality | None = None, after: _Quality | None = None) -> None:
        """Record the recoveries that are not on record yet: by the two evaluations or, without them, as ``drop``."""
        failures, self.accounting.unmeasured = self.accounting.unmeasured, []
        deviations: list[float] = []
        if before is not None and after is not None and before.auc is not None and after.auc is not None:
            drop = before.auc - after.auc
            deviations = [first - second for first, second in zip(before.deviations, after.deviations, strict=True)]
        progress = self.progress()
        self.supervisor.record(
            Dropped(
                step=progress.step,
                samples=progress.samples,
                ranks=[rank for failure in failures for rank in failure],
                num_failures=len(failures),
                auc_before=before and before.auc,
                auc_after=after and after.auc,
                drop=drop,
                deviations=deviations or None,
                standard_error=error_of(deviations) if deviations else None,
                num_samples=after.num_samples if after else 0,
                machine={"seconds": sum(each.seconds for each in (before, after) if each)},
            )
        )
