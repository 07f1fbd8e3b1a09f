"""Runs cells as plain tasks of a running Ray cluster. The tasks end when the command ends.

A child process connects to Ray (``harness/hosts/ray_tasks.py``), and ends with the command too.
"""

import math
import select
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from harness.config.experiment import Cell
from harness.core.errors import ConfigError
from harness.grid.process import Outcome
from harness.grid.runner import CellPool, GridView
from harness.hosts.ray_launcher import PROGRAM
from harness.jobs.arrays import (
    JobFiles,
    done_outcome,
    processors_of,
    reason_of,
    show_progress,
    write_config,
)
from harness.jobs.cell_job import command_of
from harness.processes.child import Child
from harness.processes.stop import StopRequest
from harness.record.rundir import RunDir

_MARGIN_S = 5.0  # for a run to end in, after its own time of grace
_LOOK_S = 0.5  # between two looks at the cells' progress


class RayPool(CellPool):
    """Runs the cells of a grid as tasks of the Ray cluster at ``jobs.ray_address``.

    A run that is asked to stop has ``grace_s`` seconds to write its resume point.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """See :meth:`harness.grid.runner.CellPool.run`. After ``stop``, running tasks are asked to stop, with outcomes.

        Raises ConfigError if the cells have several addresses, or the Ray cluster cannot be used or ends.
        """
        addresses = {cell.config.jobs.ray_address for cell in cells}
        if len(addresses) > 1:
            raise ConfigError(f"jobs.ray_address: expected one value for all cells, got {' and '.join(addresses)}")
        for cell in cells:
            write_config(cell)
            view.started(cell)
        left, began_s = {cell.run_dir.name: cell for cell in cells}, time.monotonic()
        is_stopping = False
        with closing(Child([*PROGRAM, "cells", *addresses], errors=subprocess.DEVNULL)) as process:
            process.send(self._request(cells))
            while left:
                ready, _, _ = select.select([process, *([] if stop is None else [stop])], [], [], _LOOK_S)
                if stop is not None and stop.is_set:
                    process.send("stop")
                    stop, is_stopping = None, True
                if process in ready:
                    end = process.answer()
                    if end is None and is_stopping:
                        return
                    if end is None:
                        raise ConfigError(
                            f"jobs.ray_address: the Ray at {min(addresses)} has ended, and its cells with it; the same "
                            "command goes on with them when a Ray runs"
                        )
                    if "problem" in end:
                        raise ConfigError(end["problem"])
                    yield from _outcomes(left.pop(end["name"]), end, time.monotonic() - began_s)
                show_progress(left.values(), view)

    def _request(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """The request for :func:`harness.hosts.ray_tasks.train_cells`."""
        limits = [most for cell in cells if (most := cell.config.jobs.max_parallel) is not None]
        return {"most": min(limits, default=len(cells)), "cells": [self._task(cell) for cell in cells]}

    def _task(self, cell: Cell) -> dict[str, Any]:
        settings = cell.config.jobs
        options = {"num_cpus": processors_of(cell.config), "max_retries": settings.max_timeouts}
        if settings.memory_gb is not None:
            options["memory"] = math.ceil(2**30 * settings.memory_gb)
        files = JobFiles(cell.run_dir)
        command = command_of(files.config, self._grace_s)
        arguments = [command, str(Path.cwd()), str(files.log), self._grace_s + _MARGIN_S]
        return {"name": cell.run_dir.name, "arguments": arguments, "options": options}


def _outcomes(cell: Cell, end: dict[str, Any], seconds: float) -> Iterator[Outcome]:
    """The outcome of a cell whose task has ended; none if the task was cancelled before it began."""
    if RunDir(cell.run_dir).done.exists():
        yield done_outcome(cell, seconds)
    elif end["code"] in (128 + signal.SIGINT, -signal.SIGINT):  # the latter: it was just starting
        yield Outcome(cell=cell, status="stopped", seconds=seconds, error=reason_of(cell))
    elif end["code"] is not None or end["error"]:
        yield Outcome(cell=cell, status="failed", seconds=seconds, error=end["error"] or reason_of(cell))
