"""A cell as the grid's runner sees it: its process, the pipe on which it reports, and its outcome."""

import logging
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.config.experiment import Cell
from harness.core.errors import RunFailed, RunStopped, StoreError
from harness.core.events import Finished
from harness.files import read_file
from harness.grid import worker
from harness.grid.worker import RunCell
from harness.processes.forked import ForkedProcess, current, signal_name, start
from harness.processes.spawn import fork_server
from harness.record.code import current_code
from harness.record.folder import State, drop_leftovers, inspect, system_errors
from harness.record.rundir import RunDir, write_reason
from harness.sources import with_place

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_log = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # for a fork server that dies
_ANSWER_S = 30.0  # within which a fork server starts a process
_REAP_S = 10.0  # between SIGKILL, or the end of the pipe, and the end of a process
_STOPPED_S = 60.0  # for which a cell may be stopped


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
    """Whether the cell's run is finished. Removes resume points and checkpoints that a finished run needs no more.

    Raises StoreError if the folder holds files that are not of this run, or cannot be read.
    """
    if inspect(cell.run_dir, cell.hash) is not State.DONE:
        return False
    drop_leftovers(cell.run_dir)
    return True


class CellProcess:
    """The grid's handle on the process of a running cell."""

    def __init__(self, cell: Cell, process: ForkedProcess, pipe: Connection) -> None:
        self.cell = cell
        self.pipe = pipe
        self._process = process
        self._began_s = time.monotonic()
        self._result: Finished | RunStopped | str | None = None
        self._is_asked_to_stop = False
        self._stopped_since_s: float | None = None
        self._why = ""  # this process has killed the cell's

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
        self._process.send(signal.SIGTERM)

    def end_if_stopped(self, now_s: float) -> None:
        """Kill the cell's process if a signal (SIGSTOP) has held it stopped for ``_STOPPED_S``.

        ``now_s``: a clock that stands still while the grid's process is stopped. Ctrl-Z stops both processes, so the
        cell's process survives it.
        """
        if not self._process.is_stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        elif now_s - self._stopped_since_s > _STOPPED_S:
            self._why = f"the cell's process (pid {self._process.pid}) was stopped for {_STOPPED_S:g} s, and was killed"
            self._process.kill()

    def outcome(self) -> Outcome:
        """Wait for the process to end and return the cell's outcome; a crash is written to the cell's error.txt.

        A cell that has sent its result and written DONE is done, whatever its exit code, which is unknown if the fork
        server was killed.
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
            if isinstance(exit_code, str):
                _log.warning("note: %s: %s", self.cell.slug, exit_code)
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
            error = self._why or lost or _crash(self.cell.run_dir, exit_code)
            if not (is_written or lost):
                write_reason(self.cell.run_dir, error)
        return Outcome(cell=self.cell, status="failed", seconds=seconds, error=error)

    def _exit_code(self) -> int | str:
        """The exit code of the process, or a sentence on why it is unknown. Kills a process that does not end."""
        try:
            if not self._process.has_ended(_REAP_S):
                self._process.kill()
            self._process.join(_REAP_S)
            code = self._process.exitcode
        except RunFailed as lost:
            return str(lost)
        return f"it did not end within {_REAP_S:g} s of SIGKILL" if code is None else code


class CellStarter:
    """Forks the processes of cells from one fork server, which has imported torch, and can kill them all."""

    def __init__(self, run_cell: RunCell) -> None:
        self._run_cell = run_cell
        self._context = fork_server()
        self._starting: ForkServerProcess | None = None
        self._processes: list[ForkedProcess] = []

    def start(self, cell: Cell) -> CellProcess:
        """Start ``cell``. Its process ends when this process ends, even by SIGKILL.

        Raises StoreError if its folder cannot be used, RunFailed if its process cannot be started.
        """
        with system_errors(cell.run_dir):
            cell.run_dir.mkdir(exist_ok=True)  # not what is above it: where that is gone, the grid was moved
        ours, theirs = self._context.Pipe(duplex=False)
        assert isinstance(ours, Connection)
        arguments = (self._run_cell, cell, theirs, os.getpid(), current_code())
        process = self._context.Process(target=worker.main, args=arguments, name=cell.slug, daemon=False)
        self._starting = process  # so that end_all finds it after an interrupt below
        _start(process)
        theirs.close()
        return CellProcess(cell, self._note_started(), ours)

    def _note_started(self) -> ForkedProcess:
        process, self._starting = self._starting, None
        assert process is not None, "start() is under way"
        forked = ForkedProcess(process, current())
        self._processes = [*(one for one in self._processes if not one.has_ended()), forked]
        return forked

    def end_all(self) -> None:
        """Kill every running cell and wait for it. Its ranks end with it."""
        if self._starting is not None and self._starting.pid is not None:
            self._note_started()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with suppress(RunFailed):  # it has ended, and how does not matter
                process.join(_REAP_S)


def _start(process: ForkServerProcess) -> None:
    """Start ``process``, and retry with a new fork server if the present one has died or does not answer.

    Raises RunFailed if that takes too long.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        fork_server()  # a new one if the former has died
        try:
            return start(process, _ANSWER_S)
        except (RunFailed, EOFError, ConnectionError, FileNotFoundError) as error:
            if time.monotonic() > deadline_s + _ANSWER_S:
                words = f"the cell's process could not be started: {error}; check memory and limits"
                raise RunFailed(words) from error
            time.sleep(0.01)


def _crash(run_dir: Path, exit_code: int | str) -> str:
    if isinstance(exit_code, str):
        return f"no result came from the cell's process; {exit_code}"
    if exit_code < 0:
        name = signal_name(-exit_code)
        return f"the cell's process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if exit_code == 0:
        return f"the cell's process ended, and there is no {run_dir / 'DONE'}"
    output, text = run_dir / "output.txt", ""
    with suppress(StoreError):
        text = read_file(output).decode(errors="replace").strip()
    if not text:
        return f"the cell's process ended with code {exit_code}, without output"
    return f"the cell's process ended with code {exit_code}: {with_place(text.splitlines()[-1], text)} (see {output})"
