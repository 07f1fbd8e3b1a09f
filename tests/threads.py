"""Trainers in the threads of one process: the plain twin of those that exchange over sockets."""

from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar, cast

from harness.cluster.trainers import SeveralTrainers

T = TypeVar("T")


class ThreadExchange:
    """One trainer of several that are threads; all give and read in turn."""

    has_met = True

    def __init__(self, index: int, given: list[Any], turns: Barrier) -> None:
        self.index, self.size = index, len(given)
        self._given, self._turns = given, turns
        self.new_trainers = set[int]()

    def exchange(self, what: str, value: Any, *, only_to: Set[int] | None = None) -> dict[int, Any]:
        self._given[self.index] = what, value
        self._turns.wait()
        given = [*self._given]
        self._turns.wait()  # nobody gives the next value before all have read these
        assert {name for name, _ in given} == {what}
        return {index: value for index, (_, value) in enumerate(given)}


def in_threads(size: int, program: Callable[[SeveralTrainers], T]) -> list[T]:
    """What ``program`` returns in each of so many trainers."""
    given, turns = [None] * size, Barrier(size, timeout=60)
    trainers = [SeveralTrainers(cast(Any, ThreadExchange(index, given, turns))) for index in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return [*threads.map(program, trainers)]
