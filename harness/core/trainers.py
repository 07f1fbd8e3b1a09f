"""The trainers of a run, as each of them sees the others.

All trainers run the same program on the same inputs: each has the whole state of the run, and all make the same calls
in the same order. Work that costs time or has an effect outside is divided among them; its results are exchanged, so
that every state is that of a run with one trainer, to the bit.
"""

from collections.abc import Callable, Set
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")


class TrainerGroup:
    """The group of a run with one trainer, and the interface of all groups.

    Attributes:
        index: number of this trainer, from 0.
        size: number of shares that work is divided into: the number of trainers when all live.
        acts: whether this trainer is the one whose actions have effects outside its process.
        dead: numbers of trainers that have died; a dead trainer may have begun what is done now.
        num_samples: samples of divided batches that this trainer has trained on.
    """

    index: int = 0
    size: int = 1
    acts: bool = True
    dead: Set[int] = frozenset()
    num_samples: int = 0

    def share(self, what: str, work: Callable[[int], T], *, carries: bool = False) -> list[T]:
        """The results of ``work`` on all shares: its own share done here, the others by other trainers.

        ``what``: a name for errors; RunFailed if trainers make different calls. ``carries``: the results of
        :meth:`share_later` and the answers of :meth:`late_answer` travel with these results.
        """
        return [work(0)]

    def share_later(self, what: str, work: Callable[[int], T]) -> Callable[[], list[T]]:
        """As :meth:`share`, but done with the next share that ``carries``; returns a function that gives the results.

        If no such share comes before the function is called, the call does the work.
        """
        return lambda: self.share(what, work)

    def once(self, action: Callable[[], T]) -> T:
        """The result of ``action``, which one trainer carries out, or the HarnessError that it raises."""
        return action()

    def late_answer(self, what: str, question: Callable[[], bool]) -> bool:
        """Whether the acting trainer's answer to ``question`` was yes, as of the last share that ``carries``.

        ``what``: a name of the question. After a yes the answer is False until the question has been asked again.
        """
        return question()

    def agree(self, what: str, value: Any) -> None:
        """Check that all trainers give the same ``value``. Raises RunFailed, which names the trainers that differ."""

    def spans(self, num_items: int) -> list[range]:
        """``num_items`` items as one range for each share: successive, of lengths that differ by at most one."""
        bounds = [num_items * number // self.size for number in range(self.size + 1)]
        return [range(first, last) for first, last in pairwise(bounds)]


ALONE = TrainerGroup()
"""The group of a run with one trainer."""
