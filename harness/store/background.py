"""Work in a thread of this process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Run ``work`` in a daemon thread called ``name``; returns the future of its result or exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            future.set_exception(error)

    # A daemon: a process that ends without waiting for it needs no result.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future
