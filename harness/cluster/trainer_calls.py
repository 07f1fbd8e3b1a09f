"""Results that the supervisor keeps, so that a trainer can repeat the calls that a dead trainer has begun."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from harness.cluster.mesh import Verdict
from harness.core.errors import HarnessError
from harness.core.plans import Rank, rank_order

Result = tuple[Any, HarnessError | None]
"""Of a call: what it returned, or the error that it raised."""


class NumberedCalls:
    """Deduplicates numbered calls of the supervisor by trainers: an heir repeats the call of a dead trainer."""

    def __init__(self) -> None:
        self._last = 0
        self._result: Result = (None, None)

    def is_new(self, number: int | None) -> bool:
        """Whether a call of this number was not made before; calls without a number always are new."""
        if number is None:
            return True
        is_new, self._last = number > self._last, max(number, self._last)
        return is_new

    def result(self, number: int | None, carry_out: Callable[[], Result]) -> Result:
        """The result of a call, which is carried out if it is new; else that of the last one that has a number."""
        if not self.is_new(number):
            return self._result
        result = carry_out()
        if number is not None:
            self._result = result
        return result


class Verdicts:
    """Settles an exchange in which a trainer has died: all others ask, and all get the answer at once.

    Args:
        tell: sends a message to a trainer.
    """

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._finished: set[Rank] = set()
        self._mourners: dict[Rank, tuple[int, Mapping[int, bytes]]] = {}

    def finished(self, trainer: Rank) -> None:
        """Record that a trainer has finished its job; it asks for no verdict any more."""
        self._finished.add(trainer)

    def have_finished(self, trainers: Collection[Rank]) -> bool:
        """Whether all these have finished."""
        return self._finished.issuperset(trainers)

    def ask(self, trainer: Rank, num_calls: int, values: Mapping[int, bytes]) -> None:
        """Record that a trainer waits for a verdict.

        ``num_calls``: the exchanges that it has completed. ``values``: those of dead trainers in the last exchange.
        """
        self._mourners[trainer] = num_calls, values

    def ask_again(self) -> None:
        """Tell all waiting trainers to ask again, because another one has died."""
        for mourner in self._mourners:
            self._tell(mourner, "result", None, None)
        self._mourners.clear()

    def judge(self, trainers: Collection[Rank]) -> None:
        """Send the verdict, once all of ``trainers`` that go on have asked for it: the most advanced is right."""
        waiting = set(trainers) - self._finished
        if not self._mourners or self._mourners.keys() != waiting:
            return
        living = tuple(rank_order(trainer)[1] for trainer in trainers)
        num_calls, values = max(self._mourners.values(), key=lambda each: each[0])
        for mourner in waiting:
            self._tell(mourner, "result", Verdict(living, num_calls, values), None)
        self._mourners.clear()
