"""The process of one cell of a grid. The runner's side is in harness.grid.process."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.config.experiment import Cell
from harness.config.model import Config
from harness.core.errors import HarnessError, RunStopped
from harness.core.events import Finished
from harness.files import held
from harness.processes.spawn import fork_own_server
from harness.processes.stop import StopRequest
from harness.record.code import Code, refuse_other_code
from harness.record.folder import claim_run, has_resume_point, reason_kept, system_errors
from harness.sources import with_place

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_STATUS_EVERY_S = 0.1


OnStatus = Callable[["RunStatus"], None]


class RunCell(Protocol):
    """A function that runs one cell: :func:`run_assembled`, or any function at a module's top level."""

    def __call__(
        self, config: Config, run_dir: Path, *, on_status: OnStatus | None = None, stop: StopRequest | None = None
    ) -> Finished:
        """Write ``run_dir`` and return the last event. Raises UserError, RunFailed; RunStopped once ``stop`` is set."""
        ...


def run_assembled(
    config: Config, run_dir: Path, *, on_status: OnStatus | None = None, stop: StopRequest | None = None
) -> Finished:
    """Run a cell by ``harness.run.assemble.run``, which is imported only now; from its resume point if it has one."""
    from harness.run import assemble  # noqa: PLC0415 - torch takes a second to import

    return assemble.run(config, run_dir, on_status=on_status, resumes=has_resume_point(run_dir), stop=stop)


def main(run_cell: RunCell, cell: Cell, pipe: Connection, code: Code) -> None:
    """Main function of a cell's process: sends statuses, then the run's last event, or why there is none.

    The latter is a RunStopped, or one line for any other HarnessError. The process ignores SIGINT, which the runner
    handles. SIGTERM asks the cell to stop. ``code``: the runner's, by which the cell is named; a process of other code
    refuses it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop = _stopped_by_sigterm()
    try:
        refuse_other_code(code, cell.slug)
        with (
            held(cell.run_dir) as run_dir,
            claim_run(run_dir, cell.hash),
            _output_to(run_dir / "output.txt"),
        ):
            if cell.config.engine == "rpc":
                fork_own_server()  # after the redirection of output, before any thread starts
            result = _run(run_cell, replace(cell, run_dir=run_dir), pipe, stop)
    except HarnessError as error:  # the folder could not be claimed
        result = one_line(error)
    pipe.send(result)
    pipe.close()


def _stopped_by_sigterm() -> StopRequest:
    """Let SIGTERM set a request to stop, which is returned; also one that has come already, while it was blocked."""
    stop = StopRequest()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # a fork server has it blocked
    return stop


def one_line(error: HarnessError) -> str:
    """The first and last line of the message of ``error``, with the place of the error if it has a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return with_place(lines[0] if lines[-1] in lines[0] else f"{lines[0]} ... {lines[-1]}", str(error))


def _run(run_cell: RunCell, cell: Cell, pipe: Connection, stop: StopRequest) -> Finished | RunStopped | str:
    try:
        with reason_kept(cell.run_dir):
            return run_cell(cell.config, cell.run_dir, on_status=_StatusSender(pipe), stop=stop)
    except RunStopped as stopped:
        return stopped
    except HarnessError as error:
        return one_line(error)


class _StatusSender:
    """Sends each status whose phase is new, and of the others at most ten a second."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._phase = ""
        self._next_s = 0.0

    def __call__(self, status: "RunStatus", /) -> None:
        now_s = time.monotonic()
        if status.phase != self._phase or now_s >= self._next_s:
            self._phase, self._next_s = status.phase, now_s + _STATUS_EVERY_S
            self._pipe.send(status)


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr of this process and its children to ``path``; an empty file is removed.

    The redirection outlasts the block, so that a traceback that ends the process is written there too.
    """
    with system_errors(path), path.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    yield
    if os.fstat(1).st_size == 0:
        path.unlink(missing_ok=True)
