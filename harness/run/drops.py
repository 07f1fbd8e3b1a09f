"""What each failure costs the model at once: evaluations right before it, and right after the recovery from it."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from harness.cluster.supervisor_client import SupervisorClient
from harness.core.events import Dropped, error_of
from harness.core.plans import Progress, Rank, is_ps
from harness.core.resumable import Resumable
from harness.model.metrics import auc_deviations, exact_auc
from harness.recovery.accounting import Accounting
from harness.recovery.injections import Injections
from harness.run.moved_rows import RowReader, Rows

_MOST_STEPS = 2
"""Steps that end between both evaluations: a rank that dies in the message of a step may be found dead in the next."""


class _Quality(NamedTuple):
    """An evaluation. ``rows``: of the shards to be lost. ``squares``: squared distances of shards from earlier rows."""

    step: int
    auc: float | None
    deviations: list[float]
    num_samples: int
    seconds: float
    rows: Rows
    squares: dict[Rank, float]


@dataclass(kw_only=True, eq=False)
class Drops(Resumable):
    """Measures the drop in AUC of each planned failure. Both evaluations are of the same samples, and change no result.

    With ``rows`` the movement is measured too: the L2 distance, over all values of the shards that were lost, of the
    rows after the recovery from those before the failure. It is one norm of one perturbation, as the bound of SCAR on
    its cost in iterations has it (Qiao et al. 2019), and not a mean over rows, most of which no failure moves.

    Args:
        num_samples: of each evaluation; 0: nothing is measured.
        score: gives logits and labels of so many evaluation samples, by the present model.
        repeats_exactly: whether steps that run again after a rollback have the bits of their first run.
        rows: reads the rows of shards; None: no movement is measured.
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
    rows: RowReader | None = None

    def __post_init__(self) -> None:
        self._before: _Quality | None = None

    async def expect(self, losses: Sequence[int]) -> None:
        """Evaluate the model before a failure. ``losses``: the planned faults that lose ranks by what comes next.

        A no-op without any, and while a rank is lost that has not been found dead: what comes next belongs to the same
        failure. The drop of recoveries before it ends here, unless training has not gone on since they were expected.
        """
        if not losses or self.num_samples == 0 or self.injections.is_hidden:
            return
        lost = [] if self.rows is None else self.rows.lost_ranks(losses)
        if self._before is None or self._before.step < self.progress().step:
            await self.measure()
            before = await self._measure(lost)
            if self.accounting.unmeasured:  # an unplanned death was found by this evaluation
                self._record(drop=None)
            self._before = before
        elif self.rows is not None:
            with self.injections.suspended():
                more = await self.rows.read(rank for rank in lost if rank not in self._before.rows)
            self._before.rows.update(more)

    async def measure(self) -> None:
        """Evaluate the model after the recoveries since the last drop, and record what they cost together.

        A no-op without any, or while another rank is lost that has not been found dead. The drop is unknown if the
        failure was not planned, or was found too many steps later, as happens within a window of the lookahead cache.
        """
        if self.accounting.unmeasured and self.num_samples and not self.injections.is_hidden:
            before, self._before = self._before, None
            is_known = before is not None and before.step >= self.progress().step - _MOST_STEPS
            self._record(drop=None, before=before, after=await self._measure(since=before) if is_known else None)

    def rolled_back(self) -> None:
        """Record that the recoveries since the last call cost nothing, or an unknown amount if steps do not repeat."""
        self._before = None
        if self.num_samples:
            self._record(drop=0.0 if self.repeats_exactly else None)

    async def _measure(self, lost: Sequence[Rank] = (), since: _Quality | None = None) -> _Quality:
        """Evaluate one model: anew if a rank was found dead, and recovered, in the middle.

        Reads the rows of the shards ``lost``, and how far shards have moved ``since``.
        """
        began_s = self.supervisor.clock()
        rows, squares = Rows(), dict[Rank, float]()
        while True:
            num_recoveries = len(self.accounting.unmeasured)
            with self.injections.suspended():
                scores, labels = await self.score(self.num_samples)
                if self.rows is not None:
                    rows, squares = await self.rows.read(lost), await self.rows.squares(since.rows if since else {})
            if len(self.accounting.unmeasured) == num_recoveries:
                break
        auc, deviations = exact_auc(scores, labels), auc_deviations(scores, labels)
        seconds = self.supervisor.clock() - began_s
        return _Quality(self.progress().step, auc, deviations, len(scores), seconds, rows, squares)

    def _record(self, *, drop: float | None, before: _Quality | None = None, after: _Quality | None = None) -> None:
        """Record the recoveries that are not on record yet: by the two evaluations or, without them, as ``drop``."""
        failures, self.accounting.unmeasured = self.accounting.unmeasured, []
        lost = {rank for failure in failures for rank in failure if is_ps(rank)}
        deviations: list[float] = []
        movement = None if self.rows is None else drop
        if self.rows is not None and after is not None and lost <= after.squares.keys():
            movement = math.sqrt(math.fsum(after.squares[rank] for rank in lost))
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
                movement=movement,
                num_samples=after.num_samples if after else 0,
                machine={"seconds": sum(each.seconds for each in (before, after) if each)},
            )
        )
