"""The trainers of a run, as each of them sees the others.

All trainers run the same program on the same inputs. Each has the whole state of the run, and all make the same calls
in the same order. Work that costs much time is divided among them, and one of them carries out each action with an
effect outside. The results are exchanged, so that each trainer's state equals that of a lone trainer to the bit.
"""

from collections.abc import Callable, Set
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")


class TrainerGroup:
    """The interface of the trainers' group, and the group of a run with one trainer.

    Attributes:
        index: number of this trainer, from 0; -1 for a spare trainer.
        size: number of shares that work is divided into, which is the number of trainers when all live.
        acts: whether this trainer carries out the actions that have effects outside its process.
        dead: numbers of the trainers that have died and were not replaced yet. A dead trainer may have begun an action
            that is carried out now.
        num_samples: samples of divided batches that this trainer has trained on.
    """

    index: int = 0
    size: int = 1
    acts: bool = True
    dead: Set[int] = frozenset()
    num_samples: int = 0

    def share(self, what: str, work: Callable[[int], T], *, carries: bool = False) -> list[T]:
        """The results of ``work`` on all shares, in order. Each trainer does its own share; the acting one also the
        shares of dead trainers.

        ``what``: a name for errors. ``carries``: whether the results of :meth:`share_later` and the answers of
        :meth:`late_answer` travel with these results. Raises RunFailed if trainers make different calls.
        """
        return [work(0)]

    def share_later(self, what: str, work: Callable[[int], T]) -> Callable[[], list[T]]:
        """As :meth:`share`, but later: the work is done with the next share that ``carries``.

        Returns a function that gives the results. If no such share has come before it is called, it does the work.
        """
        return lambda: self.share(what, work)

    def once(self, action: Callable[[], T]) -> T:
        """Carry out ``action`` in one trainer. Returns its result, or raises its HarnessError, in all trainers."""
        return action()

    def late_answer(self, what: str, question: Callable[[], bool]) -> bool:
        """Whether the acting trainer answered ``question`` by yes at a share that ``carries``, since the last True.

        A lone trainer answers at once. ``what``: the name of the question.
        """
        return question()

    def agree(self, what: str, value: Any) -> None:
        """Raise RunFailed, which names the trainers that differ, unless all trainers give the same ``value``."""

    def spans(self, num_items: int) -> list[range]:
        """``num_items`` items as one range for each share: successive ranges, whose lengths differ by at most one."""
        bounds = [num_items * number // self.size for number in range(self.size + 1)]
        return [range(first, last) for first, last in pairwise(bounds)]


ALONE = TrainerGroup()
"""The group of a run with one trainer."""
