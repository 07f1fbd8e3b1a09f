"""Failures on the wall clock that strike during a save or a recovery, which then begins anew (``trace.interrupts``)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from harness.cluster.protocol import Written
from harness.cluster.supervisor_client import SupervisorClient
from harness.core.events import Interrupted
from harness.core.faults import FaultTime
from harness.core.plans import Progress, Rank, RecoveryPlan, Tier
from harness.recovery.accounting import Accounting
from harness.recovery.injections import Injections
from harness.recovery.recoveries import rolls_back


@dataclass(kw_only=True, eq=False)
class Interrupts:
    """Carries out the next failure if its hour falls into those of a save or a recovery, and charges these until then.

    Failures of the same hour, or whose hours have all come when these begin, strike together.

    What is written or restored by then counts for nothing: a save has no manifest yet. The next request finds the dead
    ranks; it may be an empty one.

    Args:
        to_come: the faults to come, with their numbers, by hour; none without ``trace.interrupts``.
        take: marks faults to come as taken, by their numbers: the first ones.
        expect_losses: measures the model before the faults with these numbers.
    """

    to_come: Callable[[], Sequence[tuple[int, FaultTime]]]
    take: Callable[[Sequence[int]], None]
    expect_losses: Callable[[Sequence[int]], Awaitable[None]]
    injections: Injections
    accounting: Accounting
    supervisor: SupervisorClient

    async def strikes_save(self, written: Mapping[Rank, Written], progress: Progress, tier: Tier) -> bool:
        """Whether a failure struck before the save in ``tier`` was over, of which the ranks have ``written`` parts."""
        if not self.to_come():
            return False
        prices_h = self.accounting.save_prices_h(written, tier)
        if self._spent_h(prices_h, progress) is not None:
            await self.expect_losses(self.injections.losses(self._due(progress)))
        spent_h = self._spent_h(prices_h, progress)  # measuring may find a death, and a recovery takes hours too
        if spent_h is not None:
            sizes = self.accounting.save_bytes(written, self.accounting.dense_bytes)
            self._strike("save", spent_h, sizes, progress, tier)
        return spent_h is not None

    def strikes_recovery(self, plan: RecoveryPlan, progress: Progress, upload_bytes: int) -> bool:
        """Whether a failure struck before the recovery was over that has just been carried out by ``plan``."""
        prices_h = self.accounting.recovery_prices_h(plan, progress, self.injections.not_charged, upload_bytes)
        spent_h = self._spent_h(prices_h, progress)
        if spent_h is not None:
            sizes = self.accounting.recovery_bytes(plan, upload_bytes)
            self._strike("recovery", spent_h, sizes, progress, progress.saved_tier if rolls_back(plan) else "shared")
        return spent_h is not None

    def _hour(self) -> float | None:
        """The hour of the first fault to come that loses ranks."""
        return next((fault.hour for _, fault in self.to_come() if fault.loses_ranks), None)

    def _spent_h(self, prices_h: Mapping[str, float], progress: Progress) -> dict[str, float] | None:
        """The hours by bucket that are spent when the next failure strikes; None if it does not, or none is to come."""
        hour = self._hour()
        return None if hour is None else self.accounting.overhead.spent_by(hour, progress.samples, prices_h)

    def _due(self, progress: Progress) -> list[int]:
        """The numbers of the faults up to the first that loses ranks, and of those whose hour has come with it."""
        now_h = max(self._hour() or 0.0, self.accounting.overhead.wall_h(progress.samples))
        return [number for number, _ in takewhile(lambda each: each[1].hour <= now_h, self.to_come())]

    def _strike(
        self, what: str, spent_h: Mapping[str, float], sizes: tuple[int, int], progress: Progress, tier: Tier
    ) -> None:
        hour, numbers = self._hour(), self._due(progress)
        assert hour is not None, "a failure is to come"
        self.accounting.overhead.charge_spent(spent_h)
        self.supervisor.record(
            Interrupted(
                step=progress.step,
                samples=progress.samples,
                what=what,
                tier=tier,
                hour=hour,
                payload_bytes=sizes[0],
                slowest_bytes=sizes[1],
                save_h=spent_h.get("save", 0.0),
                load_h=spent_h.get("load", 0.0),
                reschedule_h=spent_h.get("reschedule", 0.0),
            )
        )
        self.take(numbers)
        self.injections.carry_out(numbers, at=progress)
