"""The supervisor's part in the death of one of several trainers: its repeated calls, its last exchange."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from harness.cluster.mesh import ExchangeOutcome
from harness.core.errors import HarnessError
from harness.core.plans import Rank, rank_order

Result = tuple[Any, HarnessError | None]
"""What a call returned, or the error that it raised."""


class NumberedCalls:
    """Carries out each numbered call of the supervisor once, also if another trainer repeats a dead one's call."""

    def __init__(self) -> None:
        self._last = 0
        self._result: Result = (None, None)

    def is_new(self, number: int | None) -> bool:
        """Whether no earlier call had this number or a higher one; a call without a number is always new."""
        if number is None:
            return True
        is_new, self._last = number > self._last, max(number, self._last)
        return is_new

    def result(self, number: int | None, carry_out: Callable[[], Result]) -> Result:
        """Carry out a new call and return its result; for a repetition, return the result of the last numbered call."""
        if not self.is_new(number):
            return self._result
        result = carry_out()
        if number is not None:
            self._result = result
        return result


class ExchangeOutcomes:
    """Settles an exchange in which a trainer has died: waits until all others ask, then answers all at once.

    Args:
        tell: sends a message to a trainer.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._finished: set[Rank] = set()
        self._asking: dict[Rank, tuple[int, Mapping[int, bytes]]] = {}

    def finished(self, trainer: Rank) -> None:
        """Record that a trainer has finished its job; it will not ask any more."""
        self._finished.add(trainer)

    def have_finished(self, trainers: Collection[Rank]) -> bool:
        """Whether all ``trainers`` have finished their jobs."""
        return self._finished.issuperset(trainers)

    def ask(self, trainer: Rank, num_calls: int, values: Mapping[int, bytes]) -> None:
        """Record that a trainer waits for the outcome of an exchange.

        ``num_calls``: the exchanges that it has completed. ``values``: of dead trainers in the last of these, encoded.
        """
        self._asking[trainer] = num_calls, values

    def ask_again(self) -> None:
        """Tell all waiting trainers to ask again, because another one has died."""
        for trainer in self._asking:
            self._tell(trainer, "result", None, None)
        self._asking.clear()

    def settle(self, trainers: Collection[Rank]) -> None:
        """Send the outcome once all ``trainers`` at work have asked for it. The most advanced one's values count."""
        waiting = set(trainers) - self._finished
        if not self._asking or self._asking.keys() != waiting:
            return
        living = tuple(rank_order(trainer)[1] for trainer in trainers)
        num_calls, values = max(self._asking.values(), key=lambda each: each[0])
        for trainer in waiting:
            self._tell(trainer, "result", ExchangeOutcome(living, num_calls, values), None)
        self._asking.clear()
