"""Saves beside training steps: a thread for the work, and a snapshot that two threads share."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from torch import Tensor

from harness.store.row_sources import Part
from harness.store.snapshot import Snapshot

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """The result of ``work``, which runs in a thread of its own, called ``name``."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            future.set_exception(error)

    # A daemon: a process that ends without waiting for it needs no result.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


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
            self.release()
