"""A group of several trainers: how work is divided among them, and how its results are exchanged."""

from collections.abc import Callable, Set
from typing import Any, TypeVar

from harness.cluster.mesh import Mesh
from harness.core.errors import HarnessError, RunFailed
from harness.core.plans import trainer_rank
from harness.core.resumable import Resumable
from harness.core.trainers import TrainerGroup

T = TypeVar("T")


class SeveralTrainers(TrainerGroup, Resumable):
    """One trainer of several. Until the trainers are connected, each carries out the actions of :meth:`once` itself.

    The living trainer with the lowest number acts for the group. It also does the dead trainers' shares of all work.

    Args:
        number_calls: called before each action of :meth:`once` with the action's number. A trainer that repeats the
            action of a dead one calls it with the same number.
    """

    _state = ("_num_actions", "_answers")

    def __init__(self, exchange: Mesh, number_calls: Callable[[int], None] = lambda _: None) -> None:
        self._exchange, self._number_calls = exchange, number_calls
        self.size = exchange.size
        self._living = {*range(exchange.size)}
        self._num_actions = 0
        self._late: _Late | None = None
        self._questions: dict[str, Callable[[], bool]] = {}
        self._answers: set[str] = set()  # names of questions answered by yes

    @property
    def index(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of this trainer; -1 for a spare trainer."""
        return self._exchange.index

    @property
    def acts(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.index == min(self._living)

    @property
    def dead(self) -> Set[int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Numbers of trainers that have died and whose replacements do not take part yet."""
        return set(range(self.size)) - self._living

    def _exchanged(self, what: str, value: Any) -> dict[int, Any]:
        values = self._exchange.exchange(what, value)
        self._living = {*values}
        return values

    def admit(self, state: Callable[[], Any]) -> None:
        """Give the trainers that were connected last the group's state and ``state()``, both of the acting trainer."""
        given = (self.state(), state()) if self.acts else None
        self._living = {*self._exchange.exchange("admission", given, only_to=self._exchange.new_trainers)}

    def enter(self) -> Any:
        """Load the group's state that the acting trainer gives in :meth:`admit`; returns its ``state()``."""
        given = next(filter(None, self._exchanged("admission", None).values()))
        self.load(given[0])
        return given[1]

    def share(self, what: str, work: Callable[[int], T], *, carries: bool = False) -> list[T]:
        late = self._late if carries else None
        results: dict[int, tuple[T, Any]] = {}
        while len(results) < self.size:
            shares = [self.index, *(self.dead if self.acts else ())]
            # The work comes first, since late work waits for messages that arrive meanwhile.
            done = {number: work(number) for number in shares if number not in results}
            own = {number: (result, late and late.work(number)) for number, result in done.items()}
            asked = self._questions if carries and self.acts else {}
            answers = {what for what, question in asked.items() if question()}
            for theirs, yes in self._exchanged(what, (own, answers)).values():
                results |= theirs
                self._answers |= yes
        if late is not None:
            late.results, self._late = [results[number][1] for number in range(self.size)], None
        return [results[number][0] for number in range(self.size)]

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
        self._num_actions += 1
        outcome: tuple[Any, HarnessError | None] | None = None
        while outcome is None:
            mine = None
            if self.acts:
                self._number_calls(self._num_actions)
                try:
                    mine = action(), None
                except HarnessError as error:
                    mine = None, error
            outcome = next(filter(None, self._exchanged("once", mine).values()), None)
        result, error = outcome
        if error is not None:
            raise error
        return result

    def late_answer(self, what: str, question: Callable[[], bool]) -> bool:
        self._questions[what] = question
        if what not in self._answers:
            return False
        self._answers.remove(what)
        del self._questions[what]
        return True

    def agree(self, what: str, value: Any) -> None:
        values = self._exchanged(what, value)
        parted = [trainer_rank(number) for number, theirs in values.items() if theirs != values[min(values)]]
        if parted:
            raise RunFailed(
                f"{', '.join(parted)}: {what}: expected that of {trainer_rank(min(values))}, got another: the replicas "
                "of the trainers have parted"
            )


class _Late:
    """The work of one :meth:`TrainerGroup.share_later`, and its results once they were exchanged."""

    def __init__(self, work: Callable[[int], Any]) -> None:
        self.work = work
        self.results: list[Any] | None = None
