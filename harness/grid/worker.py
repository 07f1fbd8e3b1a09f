"""One cell of a grid in a process of its own: what runs inside it, and the handle that the runner keeps of it."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from harness.cluster.leash import hold_leash, ignore_interrupts
from harness.cluster.spawn import fork_server, nest_fork_server
from harness.config.experiment import Cell
from harness.config.model import Config
from harness.core.errors import HarnessError
from harness.core.events import Finished
from harness.record.folder import State, claim_run, inspect
from harness.record.rundir import write_reason

if TYPE_CHECKING:
    from harness.run.assemble import RunStatus

_STATUS_EVERY_S = 0.1


class OnStatus(Protocol):
    """Is told where a run stands."""

    def __call__(self, status: "RunStatus", /) -> None: ...


class RunCell(Protocol):
    """What runs a cell: :func:`run_assembled`, or in tests any function at a module's top level."""

    def __call__(self, config: Config, run_dir: Path, *, on_status: OnStatus | None = None) -> Finished:
        """Write ``run_dir`` and return its last event. Raises UserError or RunFailed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a cell ended. ``kept``: it was finished before and was not touched."""

    cell: Cell
    status: Literal["kept", "done", "failed"]
    seconds: float = 0.0
    finished: Finished | None = None
    error: str | None = None
    """One line; the whole story is in the cell's error.txt or output.txt."""


def is_done(cell: Cell) -> bool:
    """Whether the cell need not run again. Raises StoreError where its folder is not one of ours."""
    return inspect(cell.run_dir, cell.hash) is State.DONE


def run_assembled(config: Config, run_dir: Path, *, on_status: OnStatus | None = None) -> Finished:
    """``harness.run.assemble.run``, imported where the cell runs."""
    from harness.run import assemble  # noqa: PLC0415 - torch takes a second to import

    return assemble.run(config, run_dir, on_status=on_status)


class CellProcess:
    """The runner's end of one cell: its process and the pipe on which it reports."""

    def __init__(self, cell: Cell, process: ForkServerProcess, pipe: Connection) -> None:
        self.cell = cell
        self.pipe = pipe
        self._process = process
        self._began_s = time.monotonic()
        self._result: Finished | str | None = None

    def receive(self) -> "RunStatus | None":
        """The next status, None for anything else. Raises EOFError when the process has closed its end."""
        try:
            message = self.pipe.recv()
        except ConnectionResetError as error:
            raise EOFError from error
        if isinstance(message, Finished | str):
            self._result = message
            return None
        return message

    def outcome(self) -> Outcome:
        """Wait for the end of the process, and say how it ended; a crash is written to the cell's error.txt."""
        self._process.join()
        self.pipe.close()
        seconds = time.monotonic() - self._began_s
        exit_code = self._process.exitcode
        if isinstance(self._result, Finished) and exit_code == 0 and is_done(self.cell):
            return Outcome(cell=self.cell, status="done", seconds=seconds, finished=self._result)
        if isinstance(self._result, str):
            return Outcome(cell=self.cell, status="failed", seconds=seconds, error=self._result)
        error = _crash(self.cell, exit_code)
        write_reason(self.cell.run_dir, error)
        return Outcome(cell=self.cell, status="failed", seconds=seconds, error=error)


class CellStarter:
    """Starts cell processes from one fork server, which has imported what they need, and can end all of them."""

    def __init__(self, run_cell: RunCell) -> None:
        self._run_cell = run_cell
        self._context = fork_server()
        self._processes: list[ForkServerProcess] = []

    def start(self, cell: Cell) -> CellProcess:
        """Start ``cell``. It dies with this process, however that ends."""
        ours, theirs = self._context.Pipe(duplex=False)
        assert isinstance(ours, Connection)
        arguments = (self._run_cell, cell, theirs, os.getpid())
        process = self._context.Process(target=_main, args=arguments, name=cell.slug, daemon=False)
        self._processes = [p for p in self._processes if p.exitcode is None]
        self._processes.append(process)  # before it runs: an interrupt in between must find it
        process.start()
        theirs.close()
        return CellProcess(cell, process, ours)

    def end_all(self) -> None:
        """Kill every cell that still runs, and wait for it. Ranks follow: they hold a leash on their cell."""
        started = [process for process in self._processes if process.pid is not None]
        for process in started:
            process.kill()
        for process in started:
            process.join()


def _main(run_cell: RunCell, cell: Cell, pipe: Connection, owner: int) -> None:
    """Body of a cell's process. Sends statuses, then the last event or one line on an error of ours."""
    ignore_interrupts()
    hold_leash(owner)
    try:
        with claim_run(cell.run_dir, cell.hash), _output_to(cell.run_dir / "output.txt"):
            if cell.config.engine == "rpc":
                nest_fork_server()  # within the redirected output, before anything starts a thread
            result = _run(run_cell, cell, pipe)
    except HarnessError as error:  # the folder is not ours to write in
        result = one_line(error)
    pipe.send(result)
    pipe.close()


def _run(run_cell: RunCell, cell: Cell, pipe: Connection) -> Finished | str:
    try:
        return run_cell(cell.config, cell.run_dir, on_status=_Reports(pipe))
    except HarnessError as error:
        write_reason(cell.run_dir, f"{type(error).__name__}: {error}")
        return one_line(error)


def one_line(error: HarnessError) -> str:
    """The first line of a message and, where it carries a traceback, the last, which names the exception."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def _crash(cell: Cell, exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        name = signal.Signals(-exit_code).name
        return f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if exit_code == 0:
        return "it ended without DONE"
    output = cell.run_dir / "output.txt"
    said = output.read_text(encoding="utf-8", errors="replace").strip() if output.exists() else ""
    last = said.splitlines()[-1] if said else "it said nothing"
    return f"its process ended with code {exit_code}: {last} (see {output})"


class _Reports:
    """Sends a status when the phase changes, else at most ten a second."""

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
    """Send what this process and its children write on stdout and stderr to ``path``; no file where they are silent.

    Never undone: a traceback that ends the process must land there too.
    """
    with path.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    yield
    if path.stat().st_size == 0:
        path.unlink()
