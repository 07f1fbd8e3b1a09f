"""Runs cells as jobs of submitit: submits the jobs, watches the cells' folders, and yields outcomes.

The command may be interrupted and started again: it asks the cluster for living jobs, and submits no second job for a
cell. Jobs are found by their names: on SLURM that of a job array leads to the list of its cells, written before the
array is submitted; a local job is a process whose command line names a folder of its cell. A job has ended when its
cluster does not list it any more; a cluster that does not answer has ended nothing. SIGINT is blocked while sbatch
runs, and local jobs have a session of their own. A command that is killed between sbatch and submitit's move of the
jobs' files leaves jobs that end after a minute, and their cells are submitted again.
"""

import logging
import select
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.model import ClusterName
from harness.core.errors import ConfigError
from harness.grid.process import Outcome
from harness.grid.runner import GridView
from harness.jobs.arrays import (
    JobArray,
    arrays,
    done_outcome,
    folder_of,
    processors_of,
    reason_of,
    show_progress,
    write_config,
)
from harness.jobs.clusters import CLUSTERS, Cluster
from harness.processes.stop import StopRequest
from harness.record.rundir import RunDir

_log = logging.getLogger(__name__)
_FIRST_POLL_S = 0.25
_LINGER_S = 30.0  # for the job of a cell that is done; a cluster may list it for long
_MOST_NAMED = 20  # jobs in a line


@dataclass(kw_only=True)
class _Watched:
    """A cell with a job, which was submitted or found at ``began_s``. Times are in seconds of ``time.monotonic``.

    ``left_s``: when the job was first seen to have ended. ``done_s``: when the cell was first seen to be done.
    """

    cell: Cell
    job: str
    began_s: float
    left_s: float | None = None
    done_s: float | None = None


class JobPool:
    """Runs the cells of the grid ``name`` in ``out`` as jobs of the cluster that ``jobs.cluster`` names."""

    def __init__(self, out: Path, name: str) -> None:
        self._out = out
        self._name = name

    def prepare(self) -> None:
        """A no-op: this pool forks no process (:meth:`harness.grid.runner.CellPool.prepare`)."""

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """See :meth:`harness.grid.runner.CellPool.run`. Once ``stop`` is set, the generator ends; the jobs go on."""
        cluster, folder = CLUSTERS[cluster_of(cells)], folder_of(self._out)
        cluster.check()
        if cluster.living(folder) is None:
            raise ConfigError(
                "jobs.cluster: expected to hear which jobs run, got no answer; run the same command again later"
            )
        waiting = {cell.run_dir.name: cell for cell in cells}
        watched: dict[str, _Watched] = {}
        poll_s = _FIRST_POLL_S
        try:
            while (waiting or watched) and not (stop is not None and stop.is_set):
                living = cluster.living(folder)
                found = [(waiting.pop(name), job) for name, job in (living or {}).items() if name in waiting]
                for cell, job in found:
                    view.started(cell)
                    watched[cell.run_dir.name] = _Watched(cell=cell, job=job, began_s=time.monotonic())
                if found:
                    _say(f"{len(found)} of {len(cells)} cells have a job already", [job for _, job in found])
                ended = [*_ended(watched, cluster, living)]
                for outcome in ended:
                    del watched[outcome.cell.run_dir.name]
                    yield outcome
                show_progress([one.cell for one in watched.values()], view)
                chosen = [] if living is None else _choose(cluster, [*waiting.values()], len(watched))
                for array in arrays(self._name, chosen):
                    watched |= _submit(cluster, array, view)
                waiting = {name: cell for name, cell in waiting.items() if name not in watched}
                poll_s = _FIRST_POLL_S if chosen or ended else min(2 * poll_s, cluster.longest_poll_s)
                if watched or waiting:
                    select.select([] if stop is None else [stop.fileno()], [], [], poll_s)
        finally:
            jobs = [one.job for one in watched.values()]
            if jobs and (command := cluster.ending(jobs)):
                number = "1 job goes" if len(jobs) == 1 else f"{len(jobs)} jobs go"
                _log.info("%s on without this command; to end: %s", number, command)


def cluster_of(cells: Iterable[Cell]) -> ClusterName:
    """The value of ``jobs.cluster``. Raises ConfigError if the cells have several values."""
    names: list[ClusterName] = list(dict.fromkeys(cell.config.jobs.cluster for cell in cells))
    if len(names) > 1:
        raise ConfigError(f"jobs.cluster: expected one value for all cells, got {' and '.join(names)}")
    return names[0]


def _choose(cluster: Cluster, waiting: Sequence[Cell], num_alive: int) -> list[Cell]:
    """The first of the ``waiting`` cells, as many as the cluster has room for beside ``num_alive`` living jobs."""
    chosen: list[Cell] = []
    for cell in waiting:
        room = cluster.room(cell.config.jobs, processors_of(cell.config))
        if room is not None and num_alive + len(chosen) >= room:
            break
        chosen.append(cell)
    return chosen


def _submit(cluster: Cluster, array: JobArray, view: GridView) -> dict[str, _Watched]:
    """Submit an array of jobs. Returns its cells, by the name of the cell's folder.

    Raises UserError if the cluster refuses the jobs, StoreError if a file of theirs cannot be written.
    """
    for cell in array.cells:
        write_config(cell)
        view.started(cell)
    jobs, now_s = cluster.submit(array), time.monotonic()
    _say(f"submitted {len(jobs)} job{'s' * (len(jobs) != 1)}", jobs)
    pairs = zip(array.cells, jobs, strict=True)
    return {cell.run_dir.name: _Watched(cell=cell, job=job, began_s=now_s) for cell, job in pairs}


def _ended(
    watched: Mapping[str, _Watched], cluster: Cluster, living: Mapping[str, str] | None
) -> Generator[Outcome, None, None]:
    """The outcomes of ended cells. ``living``: job ids by name of the cell's folder; None if the cluster is silent."""
    now_s = time.monotonic()
    for name, one in watched.items():
        is_done, has_left = RunDir(one.cell.run_dir).done.exists(), living is not None and name not in living
        one.done_s = (now_s if one.done_s is None else one.done_s) if is_done else None
        one.left_s = (now_s if one.left_s is None else one.left_s) if has_left else None
        if one.left_s is None and (one.done_s is None or now_s - one.done_s < _LINGER_S):
            continue
        if is_done:
            yield done_outcome(one.cell, now_s - one.began_s)
        elif one.left_s is not None and now_s - one.left_s >= cluster.settle_s:
            reason = f"job {one.job} ended before the cell was done: {reason_of(one.cell)}"
            yield Outcome(cell=one.cell, status="failed", seconds=now_s - one.began_s, error=reason)


def _say(words: str, jobs: Sequence[str]) -> None:
    more = [f"and {len(jobs) - _MOST_NAMED} more"] if len(jobs) > _MOST_NAMED else []
    _log.info("%s: %s", words, " ".join([*jobs[:_MOST_NAMED], *more]))
