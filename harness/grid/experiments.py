"""The cells of experiments, run as one grid, each in its experiment's folder, for API and commands."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from harness.config.derived import group_of
from harness.config.experiment import Cell, Experiment
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import UserError
from harness.files import Place, write_text
from harness.grid.process import Outcome, is_done
from harness.grid.runner import CellPool, GridView, run_cells
from harness.processes.stop import StopRequest
from harness.record.folder import claim_grid, discard_run, has_resume_point
from harness.record.rundir import RunDir, damage_of
from harness.wandb.server import server_problem, server_url

_log = logging.getLogger(__name__)
_HEADING = "# The experiment with the overrides of the command line applied; `run.py grid` reads this file.\n"


@dataclass(frozen=True)
class OpenGrid:
    """Experiments whose folders are locked."""

    cells: Sequence[Cell]
    pool: CellPool
    places: Sequence[Place]

    def run(self, view: GridView, stop: StopRequest | None = None) -> list[Outcome]:
        """Run the cells that are not done, verify the files of all, and return one outcome a cell, in order.

        Raises as :func:`run_cells`.
        """
        outcomes = run_cells(self.cells, self.pool, view, stop=stop)
        for place in self.places:
            place.check()
        return [_checked(outcome) for outcome in outcomes]


def _checked(outcome: Outcome) -> Outcome:
    if outcome.status == "failed" or not (damage := damage_of(RunDir(outcome.cell.run_dir))):
        return outcome
    return replace(outcome, status="damaged", error=damage)


@contextmanager
def opened_grid(experiments: Sequence[Experiment], pool: CellPool, *, afresh: bool = False) -> Iterator[OpenGrid]:
    """Lock the folders of experiments for the time of the block, and write grid.yaml there; cells get a wandb group.

    ``afresh``: the cells' runs, finished or not, are removed first. Raises UserError, before anything is
    written, if a folder or a finished cell cannot be used.
    """
    done = [cell for experiment in experiments for cell in experiment.cells if is_done(cell)]  # raises first
    if afresh or len(done) < sum(len(experiment.cells) for experiment in experiments):
        pool.prepare()  # before wandb starts a thread
        experiments = [prepared(experiment) for experiment in experiments]
    cells = [cell for experiment in experiments for cell in experiment.cells]
    with ExitStack() as locks:
        places: list[Place] = []
        for experiment in experiments:
            places.append(locks.enter_context(claim_grid(experiment.out)))
            write_text(experiment.out / "grid.yaml", _HEADING + to_yaml(experiment.resolved))
        for cell in cells if afresh else ():
            discard_run(cell.run_dir, cell.hash)
        if resumable := sum(has_resume_point(cell.run_dir) for cell in cells if not is_done(cell)):
            _log.info("%d unfinished cell%s with a resume point: to be resumed", resumable, "s" * (resumable > 1))
        yield OpenGrid(cells, pool, places)


def checked(cells: Sequence[Cell], check: Callable[[Config], Iterable[str]]) -> list[str]:
    """Apply ``check`` to all cells and return its distinct remarks. Raises UserError, one line per distinct mistake."""
    mistakes: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for cell in cells:
        try:
            remarks |= dict.fromkeys(check(cell.config))
        except UserError as error:
            mistakes[str(error)] = None
    if mistakes:
        raise UserError("\n".join(mistakes))
    return [*remarks]


def prepared(experiment: Experiment) -> Experiment:
    """The experiment with ``wandb.group`` set, and ``wandb.mode`` set to offline if the server does not answer."""
    changes: dict[str, Any] = {"group": group_of([cell.config for cell in experiment.cells])}
    if is_online(experiment) and (problem := server_problem(server_url())):
        _log.info("%s; the runs go on offline, `run.py sync %s` sends them", problem, experiment.out)
        changes["mode"] = "offline"
    cells = []
    for cell in experiment.cells:
        wandb = cell.config.wandb
        given = changes if wandb.group is None else {**changes, "group": wandb.group}
        if wandb.mode == "disabled":
            given = {**given, "mode": "disabled"}
        config = cell.config.model_copy(update={"wandb": wandb.model_copy(update=given)})
        cells.append(replace(cell, config=config))
    return replace(experiment, cells=tuple(cells))


def is_online(experiment: Experiment) -> bool:
    """Whether any cell has ``wandb.mode`` online."""
    return any(cell.config.wandb.mode == "online" for cell in experiment.cells)
