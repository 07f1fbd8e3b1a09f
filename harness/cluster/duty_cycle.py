"""Slow ranks: a thread stops and continues their processes, so that each runs a fraction of the time."""

import threading
import time
from collections.abc import Mapping

from harness.cluster.launcher import RankProcess

_PERIOD_S = 0.02


class DutyCycle:
    """Stops each slow process for ``(factor - 1) / factor`` of every period of 20 ms. Skips ended processes."""

    def __init__(self) -> None:
        self._factors: dict[RankProcess, float] = {}
        self._changing = threading.Lock()
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def set(self, factors: Mapping[RankProcess, float]) -> None:
        """Slow down exactly the processes in ``factors``, by these factors; the others run at full speed.

        Each process that was not slow before is stopped once before this returns, even if the thread is late.
        """
        with self._changing:
            faster, slower = self._factors.keys() - factors.keys(), factors.keys() - self._factors.keys()
            self._factors = dict(factors)
            for process in faster:
                process.resume()
            for process in slower:
                process.pause()
        if factors and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slow", daemon=True)
            self._thread.start()

    def release(self, process: RankProcess) -> None:
        """Let the process run at full speed again; the thread sends it no further signal."""
        self.set({other: factor for other, factor in self._factors.items() if other is not process})

    def close(self) -> None:
        """Continue all processes and end the thread."""
        self.set({})
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._has_ended.is_set():
            began_s = time.monotonic()
            with self._changing:
                factors = dict(self._factors)
                for process in factors:
                    process.pause()
            for process in sorted(factors, key=factors.__getitem__):
                self._wait_until(began_s + _PERIOD_S * (1 - 1 / factors[process]))
                with self._changing:
                    if process in self._factors:
                        process.resume()
            self._wait_until(began_s + _PERIOD_S)

    def _wait_until(self, monotonic_s: float) -> None:
        self._has_ended.wait(max(0.0, monotonic_s - time.monotonic()))
