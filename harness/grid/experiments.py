"""One run, or the cells of experiments as one grid, in folders that are checked and locked; for API and commands."""

# ruff: noqa: PLC0415 - torch takes a second to import

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.derived import group_of
from harness.config.experiment import Cell, Experiment
from harness.config.keys import is_setting
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import StoreError, UserError
from harness.core.events import Finished
from harness.files import held, write_text
from harness.grid.process import is_done
from harness.grid.runner import CellPool
from harness.processes.stop import StopRequest
from harness.record.code import difference_of
from harness.record.folder import (
    OtherRun,
    State,
    claim_grid,
    claim_run,
    discard_run,
    has_resume_point,
    inspect,
    is_same_config,
    reason_kept,
)
from harness.record.rundir import RunDir, differing_keys, read_config, verify
from harness.wandb.server import server_problem, server_url

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenRun:
    """A checked run. Its folder ``run_dir`` is held and locked unless the run is done already."""

    config: Config
    run_dir: Path
    is_done: bool

    def carry_out(
        self, on_status: "Callable[[RunStatus], None] | None" = None, stop: StopRequest | None = None
    ) -> Finished:
        """Train to the end; returns the event Finished. Raises as ``harness.run.assemble.run``.

        A HarnessError is also written to error.txt. If a UserError is raised before the run has an event or a resume
        point, the run's files are removed.
        """
        from harness.run import assemble

        with reason_kept(self.run_dir, discards=True):
            return assemble.run(self.config, self.run_dir, on_status=on_status, resumes=True, stop=stop)


@contextmanager
def opened_run(config: Config, *, afresh: bool = False) -> Iterator[OpenRun]:
    """Check a run and lock its folder for the time of the block. If the run is done, its files are verified instead.

    An interrupted run goes on from its resume point; without one it starts from the beginning. ``afresh``: a run of
    this config in the folder, finished or not, by whatever code, is removed first.

    Raises UserError if the config, the data, the trace or the folder cannot be used. A folder cannot be used if it
    holds other files, another run, a run of this config by other code, a run that trained to its end and failed there,
    or a damaged finished run, or if another process writes to it.
    """
    from harness.run import assemble
    from harness.run.spec import cell_hash, check

    run_dir = Path(config.out)
    for line in check(config):
        _log.warning("note: %s", line)
    digest = cell_hash(config)
    if afresh:
        discard_run(run_dir, digest)
    if _state(run_dir, config, digest) is State.DONE:
        verify(RunDir(run_dir))  # or no results follow
        yield OpenRun(config, run_dir, is_done=True)
        return
    if assemble.starts_processes(config):
        assemble.prepare_fork_server()
    failure = RunDir(run_dir).failure()
    with held(run_dir) as path, claim_run(path, digest, keeps_failed=not has_resume_point(path)) as found:
        if found is State.UNFINISHED and not has_resume_point(path) and not afresh:
            what = f"failed ({failure})" if failure else "was interrupted"
            _log.info("%s: this run %s; it starts afresh", run_dir, what)
        yield OpenRun(config, path, is_done=False)


def _state(run_dir: Path, config: Config, digest: str) -> State:
    """:func:`inspect`; if the folder holds another run, its error names the keys or the code that differ."""
    from harness.run.spec import RunSpec

    try:
        return inspect(run_dir, digest)
    except OtherRun as error:
        if is_same_config(digest, error.found):
            raise StoreError(
                f"{run_dir}: holds this run by other code ({difference_of(run_dir)}); --afresh starts it anew, "
                "out=FOLDER keeps both"
            ) from error
        keys = differing_keys(read_config(run_dir), RunSpec(config).config.model_dump(mode="json"))
        keys = [key for key in keys if is_setting(key)]
        what = ", ".join(keys) if keys else "the content of data or trace"
        raise StoreError(f"{error}; what differs: {what}") from error


_HEADING = "# The experiment with the overrides of the command line applied; `run.py grid` reads this file.\n"


@contextmanager
def opened_grid(experiments: Sequence[Experiment], pool: CellPool, *, afresh: bool = False) -> Iterator[Sequence[Cell]]:
    """Lock the folders of experiments for the time of the block, and write grid.yaml there; yields all cells.

    If a cell is not done, all cells get a wandb group. ``afresh``: the cells' runs, finished or not, are removed first.
    Raises UserError if a folder cannot be used, or another process writes to it.
    """
    done = [cell for experiment in experiments for cell in experiment.cells if is_done(cell)]  # raises first
    if afresh or len(done) < sum(len(experiment.cells) for experiment in experiments):
        pool.prepare()  # before wandb starts a thread
        experiments = [prepared(experiment) for experiment in experiments]
    cells = [cell for experiment in experiments for cell in experiment.cells]
    with ExitStack() as locks:
        for experiment in experiments:
            locks.enter_context(claim_grid(experiment.out))
            locks.enter_context(held(experiment.out))  # says at the end if it is elsewhere
        for experiment in experiments:
            write_text(experiment.out / "grid.yaml", _HEADING + to_yaml(experiment.resolved))
        for cell in cells if afresh else ():
            discard_run(cell.run_dir, cell.hash)
        if resumable := sum(has_resume_point(cell.run_dir) for cell in cells if not is_done(cell)):
            _log.info("%d unfinished cell%s with a resume point: to be resumed", resumable, "s" * (resumable > 1))
        yield cells


def check_grid(experiment: Experiment) -> None:
    """Log what a user may not expect of the cells. Raises UserError, one line per distinct mistake."""
    from harness.run.spec import check

    mistakes: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for cell in experiment.cells:
        try:
            remarks |= dict.fromkeys(check(cell.config))
        except UserError as error:
            mistakes[str(error)] = None
    if mistakes:
        raise UserError("\n".join(mistakes))
    for line in (*(f"note: {remark}" for remark in remarks), *_finished_beside(experiment)):
        _log.warning("%s", line)


def _finished_beside(experiment: Experiment) -> Iterator[str]:
    """Lines on finished runs in the grid's folder that are no cells: of other code, to be run anew, and others."""

    def setting(run_dir: Path) -> str:
        return run_dir.name.rpartition("-")[0]  # without the hash of the code

    cells = {setting(cell.run_dir): cell.run_dir.name for cell in experiment.cells}
    runs = sorted(done.parent for done in experiment.out.glob("*/DONE"))
    names = {run.name for run in runs}
    again = {setting(run): run for run in runs if setting(run) in cells and cells[setting(run)] not in names}
    if again:
        number = "1 finished run is" if len(again) == 1 else f"{len(again)} finished runs are"
        first = min(again.values())
        why = f"computed anew beside: {first.name}: {difference_of(first)}"
        yield f"{experiment.out}: {number} of other code, plugins included, and {why}"
    if others := [run.name for run in runs if setting(run) not in cells]:
        number = f"{len(others)} finished run{'s' * (len(others) > 1)}"
        yield f"{experiment.out}: tables also show {number} of other settings, or of a former version ({others[0]}, …)"


def prepared(experiment: Experiment) -> Experiment:
    """The experiment with ``wandb.group`` filled in, and offline instead of online if the server does not answer."""
    group = group_of([cell.config.model_dump(mode="json") for cell in experiment.cells])
    problem = server_problem(server_url()) if is_online(experiment) else None
    if problem is not None:
        _log.info("%s; the runs go on offline, `run.py sync %s` sends them", problem, experiment.out)
    cells = []
    for cell in experiment.cells:
        wandb = cell.config.wandb
        mode = "offline" if problem and wandb.mode == "online" else wandb.mode
        wandb = wandb.model_copy(update={"group": group if wandb.group is None else wandb.group, "mode": mode})
        cells.append(replace(cell, config=cell.config.model_copy(update={"wandb": wandb})))
    return replace(experiment, cells=tuple(cells))


def is_online(experiment: Experiment) -> bool:
    """Whether any cell has ``wandb.mode`` online."""
    return any(cell.config.wandb.mode == "online" for cell in experiment.cells)
