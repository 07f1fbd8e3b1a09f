"""Saves beside training steps: a thread for the work, and a snapshot that two threads share."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Generic, TypeVar

from torch import Tensor

from harness.store.row_sources import Part
from harness.store.snapshot import Snapshot

T = TypeVar("T")


class Background(Generic[T]):
    """A thread that runs the function ``work`` and keeps its result."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._work = work
        # A daemon: a process that ends without waiting for it needs no result.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._future.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            self._future.set_exception(error)

    def result(self) -> T:
        """Wait until ``work`` has ended and return its result. Raises the exception that it raised."""
        self.wait()
        return self._future.result()

    def wait(self) -> None:
        """Wait until the thread has ended, with a result or an exception."""
        self._thread.join()


class GivenUp(Exception):
    """The snapshot was abandoned while the writer was reading it."""


class FrozenRows:
    """A snapshot that one thread reads while another changes the rows. A :class:`harness.store.row_sources.RowSource`.

    ``before_change`` is for the thread that changes rows, ``read`` and ``release`` for the one that writes them.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.rows_MD = snapshot.rows_MD
        self.waited_s = 0.0
        """Seconds that changes of rows waited for free space in the buffer."""
        self._snapshot: Snapshot | None = snapshot
        self._is_given_up = False
        self._moved = threading.Condition()

    def before_change(self, rows_N: Tensor) -> None:
        """Copy the values of ``rows_N`` (int64, distinct) that are still to be read; returns when they may change."""
        with self._moved:
            left_N = self._put_aside(rows_N)
            if len(left_N):
                began_s = time.monotonic()
                while len(left_N):
                    self._moved.wait()
                    left_N = self._put_aside(left_N)
                self.waited_s += time.monotonic() - began_s

    def _put_aside(self, rows_N: Tensor) -> Tensor:
        return rows_N[:0] if self._snapshot is None else self._snapshot.put_aside(rows_N)

    def read(self, part: Part) -> Iterator[Tensor]:
        """Rows as of the snapshot. Raises GivenUp after :meth:`give_up`."""
        snapshot = self._snapshot
        if snapshot is None:
            raise GivenUp
        for chunk in snapshot.chunks(part):
            chunk_WD = snapshot.copy(chunk)
            with self._moved:
                if self._is_given_up:
                    raise GivenUp
                snapshot.lay_over(chunk, chunk_WD)
                self._moved.notify()
            yield chunk_WD

    def release(self) -> None:
        """End the snapshot: rows may change freely, and its buffer is freed."""
        with self._moved:
            self._snapshot = None
            self._moved.notify()

    def give_up(self) -> None:
        """Abandon the save: the next read raises GivenUp, and changes no longer wait."""
        with self._moved:
            self._is_given_up = True
            self._snapshot = None
            self._moved.notify()
