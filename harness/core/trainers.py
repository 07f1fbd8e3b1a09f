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
        size: number of shares that work is divided into: of trainers that the run has when all live.
        acts: whether this trainer is the one that has effects outside.
        dead: numbers of trainers that have died: what is done now may have been begun by one of them.
        num_samples: that this trainer has trained on, of batches that are divided.
    """

    index: int = 0
    size: int = 1
    acts: bool = True
    dead: Set[int] = frozenset()
    num_samples: int = 0

    def share(self, what: str, work: Callable[[int], T], *, carries: bool = False) -> list[T]:
        """The results of ``work`` on each share: on its own here, on the others by other trainers.

        ``what``: a name for the record of errors: trainers that make different calls have parted, which is a RunFailed.
        ``carries``: the results of :meth:`share_later` and the answers of :meth:`noticed` travel with these.
        """
        return [work(0)]

    def share_later(self, what: str, work: Callable[[int], T]) -> Callable[[], list[T]]:
        """As :meth:`share`, but ``work`` is carried out, and its results are exchanged, with the next share that
        carries; at the latest when they are asked for, by a call of the result.
        """
        return lambda: self.share(what, work)

    def once(self, action: Callable[[], T]) -> T:
        """The result of ``action``, which one trainer carries out, or the HarnessError that it raises."""
        return action()

    def noticed(self, what: str, question: Callable[[], bool]) -> bool:
        """The answer to a question that may be answered late: that of one trainer, as of the last share that carries.

        ``what`` names it. A question answered by "yes" is not answered again before it is asked again.
        """
        return question()

    def agree(self, what: str, value: Any) -> None:
        """Check that all trainers give the same ``value``. Raises RunFailed, which names those that differ."""

    def spans(self, num_items: int) -> list[range]:
        """So many items in as many shares as the group has: successive ones, as long as each other give or take one."""
        bounds = [num_items * number // self.size for number in range(self.size + 1)]
        return [range(first, last) for first, last in pairwise(bounds)]


ALONE = TrainerGroup()
"""The group of a run with one trainer."""
