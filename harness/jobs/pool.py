"""Runs cells as jobs of SLURM: submits the jobs, watches the cells' folders, and yields outcomes.

The command may be interrupted and started again: it asks SLURM for living jobs, and submits no second job for a cell.
A job has ended when squeue does not list it any more; a squeue that gives no answer has ended nothing.
"""

import logging
import select
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.experiment import Cell
from harness.core.errors import ConfigError
from harness.grid.process import Outcome
from harness.grid.runner import CellPool, GridView
from harness.jobs import slurm
from harness.jobs.arrays import arrays, done_outcome, folder_of, reason_of, show_progress, write_config
from harness.processes.stop import StopRequest
from harness.record.rundir import RunDir

_log = logging.getLogger(__name__)
_FIRST_POLL_S = 0.25
_MOST_NAMED = 20  # jobs in a line
LIMITS_S = {"settle": 20.0, "poll": 15.0}
"""Longest times, seconds: from a job's end until its last files are visible here; between two calls of squeue."""


@dataclass
class _Watched:
    """A cell and its job, submitted or found at ``began_s``, first seen to have ended at ``left_s`` (monotonic)."""

    cell: Cell
    job: str
    began_s: float
    left_s: float | None = None


class JobPool(CellPool):
    """Runs the cells of the grid ``name`` in ``out`` as jobs of SLURM."""

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._name = name

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """See :meth:`harness.grid.runner.CellPool.run`. Once ``stop`` is set, the generator ends; the jobs go on."""
        slurm.check()
        folder = folder_of(self._out)
        if (living := slurm.living(folder)) is None:
            raise ConfigError(
                "--scheduler slurm: expected to hear which jobs run, got no answer; run the same command again later"
            )
        watched: dict[str, _Watched] = {}
        try:
            self._submit(cells, living, watched, view)
            poll_s = _FIRST_POLL_S
            while watched and not (stop is not None and stop.is_set):
                ended = [*_ended(watched, slurm.living(folder))]
                for outcome in ended:
                    del watched[outcome.cell.run_dir.name]
                    yield outcome
                show_progress([one.cell for one in watched.values()], view)
                poll_s = _FIRST_POLL_S if ended else min(2 * poll_s, LIMITS_S["poll"])
                if watched:
                    select.select([] if stop is None else [stop.fileno()], [], [], poll_s)
        finally:
            if jobs := [one.job for one in watched.values()]:
                number = "1 job goes" if len(jobs) == 1 else f"{len(jobs)} jobs go"
                _log.info("%s on without this command; to end: scancel %s", number, " ".join(jobs))

    def _submit(
        self, cells: Sequence[Cell], living: Mapping[str, str], watched: dict[str, _Watched], view: GridView
    ) -> None:
        """Submit the cells that have no ``living`` job, and add all to ``watched``. Raises UserError, StoreError."""

        def watch(some: Sequence[Cell], jobs: Sequence[str], words: str) -> None:
            for cell, job in zip(some, jobs, strict=True):
                view.started(cell)
                watched[cell.run_dir.name] = _Watched(cell, job, time.monotonic())
            more = [f"and {len(jobs) - _MOST_NAMED} more"] if len(jobs) > _MOST_NAMED else []
            _log.info("%s: %s", words, " ".join([*jobs[:_MOST_NAMED], *more]))

        if found := [cell for cell in cells if cell.run_dir.name in living]:
            jobs = [living[cell.run_dir.name] for cell in found]
            watch(found, jobs, f"{len(found)} of {len(cells)} cells have a job already")
        for array in arrays(
            self._name, [cell for cell in cells if cell.run_dir.name not in living], slurm.most_in_an_array()
        ):
            for cell in array.cells:
                write_config(cell)
            jobs = slurm.submit(array)
            watch(array.cells, jobs, f"submitted {len(jobs)} job{'s' * (len(jobs) != 1)}")


def _ended(watched: Mapping[str, _Watched], living: Mapping[str, str] | None) -> Generator[Outcome, None, None]:
    """The outcomes of ended cells. ``living``: job ids by name of the cell's folder; None if squeue is silent."""
    now_s = time.monotonic()
    for name, one in watched.items():
        if living is None or name in living:
            one.left_s = None
            continue
        one.left_s = now_s if one.left_s is None else one.left_s
        if RunDir(one.cell.run_dir).done.exists():
            yield done_outcome(one.cell, now_s - one.began_s)
        elif now_s - one.left_s >= LIMITS_S["settle"]:
            reason = f"job {one.job} ended before the cell was done: {reason_of(one.cell)}"
            yield Outcome(cell=one.cell, status="failed", seconds=now_s - one.began_s, error=reason)
