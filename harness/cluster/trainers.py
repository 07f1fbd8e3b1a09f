"""A group of several trainers: who does what, and what travels together."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from harness.core.errors import HarnessError, RunFailed
from harness.core.plans import trainer_rank
from harness.core.trainers import TrainerGroup

T = TypeVar("T")


class Exchange(Protocol):
    """The connections of a trainer with the others.

    Attributes:
        index, size: of the trainer, and of the group.
    """

    index: int
    size: int

    @property
    def has_met(self) -> bool:
        """Whether the trainers are connected."""
        ...

    def exchange(self, what: str, value: Any) -> dict[int, Any]:
        """Give ``value`` to the others; the values of all that live, by trainer: the same in each of them.

        Raises RunFailed if another trainer makes another call than ``what``.
        """
        ...


class SeveralTrainers(TrainerGroup):
    """One trainer of several. Before they have met, each acts by itself."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.index, self.size, self.acts = exchange.index, exchange.size, exchange.index == 0
        self._late: _Late | None = None
        self._questions: dict[str, Callable[[], bool]] = {}
        self._answers: set[str] = set()  # of which the answer is yes

    def share(self, what: str, work: Callable[[int], T], *, carries: bool = False) -> list[T]:
        late = self._late if carries else None
        own = work(self.index)  # first: what travels with it is waited for meanwhile
        own_late = None if late is None else late.work(self.index)
        answers = {what for what, question in self._questions.items() if question()} if carries and self.acts else set()
        values = self._exchange.exchange(what, (own, own_late, answers))
        if late is not None:
            late.results, self._late = [values[number][1] for number in range(self.size)], None
        self._answers |= values[0][2]
        return [values[number][0] for number in range(self.size)]

    def share_later(self, what: str, work: Callable[[int], T]) -> Callable[[], list[T]]:
        self._late = late = _Late(work)

        def results() -> list[T]:
            if late.results is None:
                self._late = None
                return self.share(what, work)
            return late.results

        return results

    def once(self, action: Callable[[], T]) -> T:
        if not self._exchange.has_met:
            return action()
        result: Any = None
        error: HarnessError | None = None
        if self.acts:
            try:
                result = action()
            except HarnessError as raised:
                error = raised
        result, error = self._exchange.exchange("once", (result, error))[0]
        if error is not None:
            raise error
        return result

    def noticed(self, what: str, question: Callable[[], bool]) -> bool:
        self._questions[what] = question
        if what not in self._answers:
            return False
        self._answers.remove(what)
        del self._questions[what]
        return True

    def agree(self, what: str, value: Any) -> None:
        values = self._exchange.exchange(what, value)
        parted = [trainer_rank(number) for number, theirs in values.items() if theirs != values[min(values)]]
        if parted:
            raise RunFailed(
                f"{', '.join(parted)}: {what}: expected that of {trainer_rank(min(values))}, got another: the replicas "
                "of the trainers have parted"
            )


class _Late:
    """Work whose results travel with others."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self.work = work
        self.results: list[Any] | None = None
