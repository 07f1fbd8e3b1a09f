"""Trainers in the threads of one process: the plain twin of those that exchange over sockets."""

from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import Any, TypeVar

from harness.cluster.trainers import SeveralTrainers
from harness.core.errors import RunFailed

T = TypeVar("T")


class Board:
    """What the trainers of a process have given, by the number of the call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = Condition()
        self.given: dict[int, dict[int, tuple[str, Any]]] = {}
        self.is_broken = False


class ThreadExchange:
    """One trainer of a process, as the others see it through the board."""

    has_met = True

    def __init__(self, board: Board, index: int) -> None:
        self._board = board
        self.index, self.size = index, board.size
        self._num_calls = 0
        self.new_trainers = set[int]()

    def exchange(self, what: str, value: Any, *, only_to: Set[int] | None = None) -> dict[int, Any]:
        """Give ``value``; those of all."""
        board, number = self._board, self._num_calls
        self._num_calls += 1
        with board.changed:
            given = board.given.setdefault(number, {})
            given[self.index] = what, value
            board.changed.notify_all()
            board.changed.wait_for(lambda: len(given) == self.size or board.is_broken, timeout=60)
        if len(given) < self.size or {what for what, _ in given.values()} != {what}:
            raise RunFailed(f"call {number}: trainer{self.index} makes {what}; all: {given}")
        return {index: given[index][1] for index in range(self.size)}


def in_threads(size: int, program: Callable[[SeveralTrainers], T]) -> list[T]:
    """What ``program`` returns in each of so many trainers. Raises what it raises."""
    board = Board(size)

    def run(index: int) -> T:
        try:
            return program(SeveralTrainers(ThreadExchange(board, index)))
        except BaseException:
            with board.changed:
                board.is_broken = True
                board.changed.notify_all()
            raise

    with ThreadPoolExecutor(size) as threads:
        return [job.result() for job in [threads.submit(run, index) for index in range(size)]]
