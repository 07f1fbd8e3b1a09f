"""A cell as the grid's runner sees it: its process, the pipe on which it reports, and its outcome."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.config.experiment import Cell
from harness.core.errors import RunFailed, RunStopped, StoreError
from harness.core.events import Finished
from harness.files import read_file
from harness.grid import worker
from harness.grid.worker import RunCell
from harness.processes.forked import ForkedProcess, HostLost
from harness.processes.spawn import fork_server
from harness.record.code import current_code
from harness.record.folder import State, inspect, system_errors
from harness.record.rundir import RunDir, write_reason
from harness.sources import with_place

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_PATIENCE_S = 40.0  # for fork servers that die
_REAP_S = 10.0  # between SIGKILL, or the end of the pipe, and the end of a process


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a cell. ``seconds``: between its start, or the submission of its job, and its end.

    ``skipped``: the cell was already done and was not run again. ``stopped``: it ended unfinished because it was asked
    to stop. ``damaged``: the files of the finished run were changed afterwards.
    """

    cell: Cell
    status: Literal["skipped", "done", "failed", "stopped", "damaged"]
    seconds: float = 0.0
    finished: Finished | None = None
    error: str | None = None
    """One line; the details are in the cell's error.txt or output.txt."""


def is_done(cell: Cell) -> bool:
    """Whether the cell's run is finished.

    Raises StoreError if the folder holds files that are not of this run, or cannot be read.
    """
    return inspect(cell.run_dir, cell.hash) is State.DONE


class CellProcess:
    """The grid's handle on the process of a running cell."""

    def __init__(self, cell: Cell, process: ForkedProcess, pipe: Connection) -> None:
        self.cell = cell
        self.pipe = pipe
        self.process = process
        self._began_s = time.monotonic()
        self._result: Finished | RunStopped | str | None = None
        self._is_asked_to_stop = False

    def receive(self) -> "RunStatus | None":
        """The next status that the cell sent; None for its result, which is kept. Raises EOFError at the pipe's end."""
        try:
            message = self.pipe.recv()
        except OSError as error:  # it was killed in the middle of a message
            raise EOFError from error
        if isinstance(message, Finished | RunStopped | str):
            self._result = message
            return None
        return message

    def ask_to_stop(self) -> None:
        """Ask the cell to leave a resume point at its next boundary between two steps, and to end."""
        self._is_asked_to_stop = True
        self.process.send(signal.SIGTERM)

    def outcome(self) -> Outcome:
        """Wait for the process to end and return the cell's outcome; a crash is written to the cell's error.txt.

        A cell that has sent its result and written DONE is done, whatever its exit code.
        """
        exit_code = self._exit_code()
        self.pipe.close()
        seconds = time.monotonic() - self._began_s
        is_written, lost = False, ""
        try:
            is_written = inspect(self.cell.run_dir, self.cell.hash) is State.DONE
        except StoreError as foreign:
            lost = str(foreign)
        if isinstance(self._result, Finished) and is_written:
            try:
                with system_errors(self.cell.run_dir):
                    RunDir(self.cell.run_dir).error.unlink(missing_ok=True)
            except StoreError as error:
                return Outcome(cell=self.cell, status="failed", seconds=seconds, error=str(error))
            return Outcome(cell=self.cell, status="done", seconds=seconds, finished=self._result)
        error = self._result
        if isinstance(error, RunStopped) or (self._is_asked_to_stop and exit_code == -signal.SIGTERM):
            words = str(error or "asked to stop before it began")
            return Outcome(cell=self.cell, status="stopped", seconds=seconds, error=words)
        if not isinstance(error, str):
            error = lost or _crash(self.cell.run_dir, exit_code)
            if not (is_written or lost):
                write_reason(self.cell.run_dir, error)
        return Outcome(cell=self.cell, status="failed", seconds=seconds, error=error)

    def _exit_code(self) -> int | str:
        """The exit code of the process, or a sentence on why there is none. Kills a process that does not end."""
        self.process.join(_REAP_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join(_REAP_S)
        code = self.process.exitcode
        if code == -signal.SIGKILL and self.process.server.lost:
            return self.process.server.lost
        return f"it did not end within {_REAP_S:g} s of SIGKILL" if code is None else code


def start(run_cell: RunCell, cell: Cell) -> CellProcess:
    """Start ``cell``, by the fork server. Its process ends when this process or the fork server ends, even by SIGKILL.

    Raises StoreError if its folder cannot be used, RunFailed if its process cannot be started.
    """
    with system_errors(cell.run_dir):
        cell.run_dir.mkdir(exist_ok=True)  # not what is above it: where that is gone, the grid was moved
    ours, theirs = Pipe(duplex=False)
    assert isinstance(ours, Connection)
    with theirs:
        return CellProcess(cell, _forked(worker.main, run_cell, cell, theirs, current_code()), ours)


def end_all(running: Sequence[CellProcess]) -> None:
    """Kill running cells, and wait at most 10 s for each to end. The ranks of a cell end with it."""
    for one in running:
        one.process.kill()
    for one in running:
        one.process.join(_REAP_S)


def _forked(main: Callable[..., None], *args: Any) -> ForkedProcess:
    """Start a process, with a new fork server if the present one has died or does not answer.

    Raises RunFailed if that takes too long.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return fork_server().fork(main, *args)
        except (HostLost, RunFailed, OSError) as error:
            if time.monotonic() > deadline_s:
                words = f"the cell's process could not be started: {error}; check memory and limits"
                raise RunFailed(words) from error
            time.sleep(0.01)


def _crash(run_dir: Path, exit_code: int | str) -> str:
    if isinstance(exit_code, str):
        return f"no result came from the cell's process; {exit_code}"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name if -exit_code in {*signal.Signals} else f"signal {-exit_code}"
        return f"the cell's process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if exit_code == 0:
        return f"the cell's process ended, and there is no {run_dir / 'DONE'}"
    output, text = run_dir / "output.txt", ""
    with suppress(StoreError):
        text = read_file(output).decode(errors="replace").strip()
    if not text:
        return f"the cell's process ended with code {exit_code}, without output"
    return f"the cell's process ended with code {exit_code}: {with_place(text.splitlines()[-1], text)} (see {output})"
