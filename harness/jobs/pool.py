"""Cells as jobs: submits them, follows them by their folders, and says how they ended.

The command may end at any time and be started again: it finds the jobs by their records (harness.jobs.files), and
submits no cell whose job lives.
"""

import logging
import select
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.jobs import ClusterName
from harness.core.errors import ConfigError
from harness.grid.process import Outcome
from harness.grid.runner import GridView
from harness.jobs.clusters import CLUSTERS, Cluster
from harness.jobs.files import JobFiles, JobRecord, last_line, read_record
from harness.jobs.plan import processors_of
from harness.jobs.progress import progress_of
from harness.jobs.submitter import submit, wait_for_submitter
from harness.processes.stop import StopRequest
from harness.record.event_log import EventLog
from harness.record.place import Place
from harness.record.rundir import RunDir

_log = logging.getLogger(__name__)
_FIRST_POLL_S = 0.25
_LINGER_S = 30.0  # for the job of a cell that is done; a cluster may list it for long
_MOST_NAMED = 20  # jobs in a line


@dataclass(kw_only=True)
class _Watched:
    """A cell whose job was submitted, or found, at ``began_s``.

    ``left_s``, ``done_s``: when the job was first found to have ended, and the cell to be done.
    """

    cell: Cell
    job: JobRecord
    began_s: float
    left_s: float | None = None
    done_s: float | None = None


class JobPool:
    """Runs the cells of the grid in ``out`` as jobs of ``cluster``; None: of the one that ``jobs.cluster`` names."""

    def __init__(self, out: Path, name: str, cluster: ClusterName | None = None) -> None:
        self._out = out
        self._name = name
        self._cluster: ClusterName | None = cluster

    def prepare(self) -> None:
        """See CellPool.prepare: a no-op, as no process is forked from this one."""

    def run(self, cells: Sequence[Cell], view: GridView, *, stop: StopRequest | None) -> Generator[Outcome, None, None]:
        """See CellPool.run. Once ``stop`` is set, jobs go on, and cells are left without an outcome."""
        name = self._cluster or cluster_of(cells)
        try:
            yield from self._run(name, cells, view, stop)
        finally:
            for cluster in CLUSTERS.values():
                cluster.close()

    def _run(
        self,
        name: ClusterName,
        cells: Sequence[Cell],
        view: GridView,
        stop: StopRequest | None,
    ) -> Generator[Outcome, None, None]:
        cluster = CLUSTERS[name]
        for settings in dict.fromkeys(cell.config.jobs for cell in cells):
            cluster.check(settings)
        wait_for_submitter(self._out)
        watched = _find_jobs(cells)
        for one in watched:
            view.started(one.cell)
        if watched:
            _say(f"{len(watched)} of {len(cells)} cells have a job already", [one.job for one in watched])
        having = {one.cell.run_dir for one in watched}
        waiting = deque(cell for cell in cells if cell.run_dir not in having)
        poll_s, place = _FIRST_POLL_S, Place(self._out)
        try:
            while (waiting or watched) and not (stop is not None and stop.is_set):
                place.check()
                chosen = _choose(cluster, waiting, len(watched))
                for cell in chosen:
                    view.started(cell)
                new = self._submit(name, chosen, stop) if chosen else []
                watched += new
                ended = list(_ended(watched))
                for outcome in ended:
                    watched = [one for one in watched if one.cell.run_dir != outcome.cell.run_dir]
                    yield outcome
                _show_progress(watched, view)
                poll_s = _FIRST_POLL_S if new or ended else min(2 * poll_s, cluster.longest_poll_s)
                if watched:
                    select.select([] if stop is None else [stop.fileno()], [], [], poll_s)
        finally:
            _say_how_to_end(watched)

    def _submit(self, name: ClusterName, cells: Sequence[Cell], stop: StopRequest | None) -> list[_Watched]:
        """Submit ``cells``; those of a cluster whose jobs are waited for have ended."""
        cluster = CLUSTERS[name]
        submit(self._out, self._name, cells, cluster=name, is_detached=cluster.is_detached, stop=stop)
        now_s = time.monotonic()
        found = [(cell, read_record(JobFiles(cell.run_dir).record)) for cell in cells]
        jobs = [_Watched(cell=cell, job=job, began_s=now_s) for cell, job in found if job is not None]
        if cluster.is_detached:
            _say(f"submitted {len(jobs)} job{'s' * (len(jobs) != 1)}", [one.job for one in jobs])
        return jobs


def _choose(cluster: Cluster, waiting: deque[Cell], num_alive: int) -> list[Cell]:
    """Those of ``waiting`` for which there is room beside ``num_alive`` jobs, in order; they are taken out."""
    chosen: list[Cell] = []
    while waiting:
        config = waiting[0].config
        room = cluster.room(config.jobs, processors_of(config))
        if room is not None and num_alive + len(chosen) >= room:
            break
        chosen.append(waiting.popleft())
    return chosen


def cluster_of(cells: Iterable[Cell]) -> ClusterName:
    """The cluster of submitit for ``cells``. Raises ConfigError if they name several."""
    names: list[ClusterName] = list(dict.fromkeys(cell.config.jobs.cluster for cell in cells))
    if len(names) > 1:
        raise ConfigError(f"jobs.cluster: expected one value for all cells, got {' and '.join(names)}")
    return names[0]


def _find_jobs(cells: Sequence[Cell]) -> list[_Watched]:
    """The cells whose jobs live. Raises ConfigError if a cluster does not say which do."""
    now_s = time.monotonic()
    found = [(cell, read_record(JobFiles(cell.run_dir).record)) for cell in cells]
    jobs = [_Watched(cell=cell, job=job, began_s=now_s) for cell, job in found if job is not None]
    alive, unknown = _alive(jobs)
    if unknown:
        raise ConfigError(
            f"jobs.cluster: {unknown[0].cluster}: expected to hear whether job {unknown[0].job} runs, got no answer; "
            "run the same command again later"
        )
    return [one for one in jobs if one.job in alive]


def _alive(jobs: Sequence[_Watched]) -> tuple[set[JobRecord], list[JobRecord]]:
    """The jobs that live or may live, and those of which that is not known now."""
    alive: set[JobRecord] = set()
    unknown: list[JobRecord] = []
    for name, cluster in CLUSTERS.items():
        of_cluster = [one.job for one in jobs if one.job.cluster == name]
        if of_cluster and (found := cluster.alive(of_cluster)) is not None:
            alive.update(found)
        elif of_cluster:
            unknown += of_cluster
            alive.update(of_cluster)
    return alive, unknown


def _ended(watched: Sequence[_Watched]) -> Generator[Outcome, None, None]:
    """The outcomes of cells whose jobs have ended. The jobs are asked for before the folders are read."""
    alive, _ = _alive(watched)
    now_s = time.monotonic()
    for one in watched:
        is_done = RunDir(one.cell.run_dir).done.exists()
        one.done_s = (now_s if one.done_s is None else one.done_s) if is_done else None
        one.left_s = (now_s if one.left_s is None else one.left_s) if one.job not in alive else None
        if one.left_s is None and (one.done_s is None or now_s - one.done_s < _LINGER_S):
            continue
        if is_done:
            finished = EventLog.of(RunDir(one.cell.run_dir)).finished
            assert finished is not None, "a run that is done has a result"
            seconds = finished.machine.get("seconds", now_s - one.began_s)
            yield Outcome(cell=one.cell, status="done", seconds=seconds, finished=finished)
        elif one.left_s is not None and now_s - one.left_s >= CLUSTERS[one.job.cluster].settle_s:
            reason = _reason(one)
            yield Outcome(cell=one.cell, status="failed", seconds=now_s - one.began_s, error=reason)


def _reason(one: _Watched) -> str:
    log = JobFiles(one.cell.run_dir).log
    words = RunDir(one.cell.run_dir).reason() or last_line(log) or "it has printed nothing"
    return f"job {one.job.job} ended before the cell was done: {words} (see {log})"


def _show_progress(watched: Iterable[_Watched], view: GridView) -> None:
    for one in watched:
        if (status := progress_of(one.cell.run_dir)) is not None:
            view.status(one.cell, status)


def _say_how_to_end(watched: Sequence[_Watched]) -> None:
    """A line for each cluster: how many jobs go on, and what ends them."""
    by_cluster: Mapping[str, list[JobRecord]] = {
        name: [one.job for one in watched if one.job.cluster == name] for name in CLUSTERS
    }
    for name, cluster in CLUSTERS.items():
        if jobs := by_cluster[name]:
            number = "1 job goes" if len(jobs) == 1 else f"{len(jobs)} jobs go"
            _log.info("%s on without this command; to end: %s", number, cluster.ending(jobs))


def _say(words: str, jobs: Sequence[JobRecord]) -> None:
    names = [job.job for job in jobs[:_MOST_NAMED]]
    more = [f"and {len(jobs) - _MOST_NAMED} more"] if len(jobs) > _MOST_NAMED else []
    _log.info("%s: %s", words, " ".join([*names, *more]))
