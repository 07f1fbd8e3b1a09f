"""Gates for benchmarks/step.py: a training loop that runs so many steps when told, and reports what took time.

An order ``(lead, steps)`` lets the loop run ``lead + steps`` steps and times the last ``steps`` of them, from the start
of one step to the start of another.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from benchmarks._common import config_of, kaggle_tables, make_data, settings_of
from harness.cluster.leash import hold_leash
from harness.cluster.spawn import fork_server, nest_fork_server
from harness.config.model import Config
from harness.core.errors import HarnessError


class Enough(HarnessError):
    """The measurement is over."""


Parts = dict[str, float]
"""Seconds by part of a step."""


class Gate:
    """Where a step loop waits for orders. ``profile``: seconds by part since it was last called."""

    def __init__(self, pipe: Connection, profile: Callable[[], Parts] = dict) -> None:
        self._pipe = pipe
        self._profile = profile
        self._began_s: float | None = None
        self._left = self._timed = 0

    def step(self) -> None:
        """To be called at the start of every step. Raises Enough."""
        if self._left == 0:
            seconds = None if self._began_s is None else time.perf_counter() - self._began_s
            self._pipe.send(seconds if seconds is None else (seconds, self._profile()))
            order = self._pipe.recv()
            if order is None:
                raise Enough
            lead, self._timed = order
            self._left = lead + self._timed
        if self._left == self._timed:
            self._profile()  # and forget it
            self._began_s = time.perf_counter()
        self._left -= 1


Body = Callable[[Config, Path, Connection], None]
"""What a worker process does: (config, folder of its own, pipe of its gate)."""


class Worker:
    """A step loop in a process of its own."""

    def __init__(self, body: Body, config: Config, folder: Path) -> None:
        context = fork_server()
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(body, config, folder, theirs))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> Self:
        """Wait until the loop is before its first step. Raises EOFError if the process ended."""
        assert self._pipe.recv() is None
        return self

    def run(self, lead: int, steps: int) -> tuple[float, Parts]:
        """Run; seconds of the last ``steps`` steps, and the gate's profile of them."""
        self._pipe.send((lead, steps))
        return self._pipe.recv()

    def close(self) -> None:
        """End the process, and wait for it."""
        with suppress(OSError):  # the process has ended with an error
            self._pipe.send(None)
        self._pipe.close()
        self._process.join()


def _main(body: Body, config: Config, folder: Path, pipe: Connection) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    hold_leash(parent.pid)
    nest_fork_server()  # for ranks, before anything starts a thread
    with suppress(Enough, EOFError):
        body(config, folder, pipe)


@dataclass(frozen=True)
class Variant:
    """A worker's body and the settings that make it different."""

    body: Body
    settings: Mapping[str, Any] = field(default_factory=dict)


def configure(options: argparse.Namespace, folder: Path, num_steps: int) -> Config:
    """Make the data; the config that all variants have in common."""
    make_data(folder / "data", kaggle_tables(options.rows_scale), num_steps * options.batch_size)
    settings = settings_of(folder / "data", num_steps, batch_size=options.batch_size, threads=options.threads)
    return config_of(settings, {"trainer": {"backend": getattr(options, "backend", None) or "auto"}})


def start(variant: Variant, base: Config, folder: Path) -> Worker:
    """The variant's worker, on its way to its first step."""
    return Worker(variant.body, config_of(base.model_dump(), variant.settings), folder)
