"""The command's side of a submission: it starts harness.jobs.submission and waits for it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.config.experiment import Cell
from harness.config.jobs import ClusterName
from harness.core.errors import StoreError, UserError
from harness.jobs.files import JobFiles, folder_of
from harness.jobs.plan import submissions, write_configs
from harness.jobs.submission import Request
from harness.processes.stop import StopRequest
from harness.record.files import make_folder, store_errors, try_lock
from harness.record.rundir import RunDir

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE_S = 60.0  # for the submitter of a command that was killed
_RETRY_S = 0.1


def wait_for_submitter(out: Path) -> None:
    """Return when no process submits jobs of the grid in ``out``: that of a killed command may. Raises StoreError."""
    with _lock(out):
        pass


def submit(
    out: Path,
    name: str,
    cells: Sequence[Cell],
    *,
    cluster: ClusterName,
    is_detached: bool,
    stop: StopRequest | None,
) -> None:
    """Submit ``cells``; each then has the record of its job. Jobs that are not detached have ended.

    Raises UserError, StoreError.
    """
    make_folder(folder_of(out))
    for cell in cells:
        _forget(cell)
    write_configs(cells)
    reply_r, reply_w = os.pipe()
    with _lock(out) as lock, os.fdopen(reply_r, "rb") as reply:
        folder = folder_of(out).absolute() / "submitit"
        request = Request(str(folder), lock, reply_w, tuple(submissions(name, cells, cluster)))
        process = _start(request, folder_of(out) / "submission.log")
        os.close(reply_w)
        _wait(process, None if is_detached else stop)
        words = reply.read().decode()
    if process.returncode and not (stop is not None and stop.is_set):
        log = folder_of(out) / "submission.log"
        words = words or f"ended with exit code {process.returncode}"
        raise UserError(f"jobs of {out} were not submitted: {words} (see {log})")


def _forget(cell: Cell) -> None:
    """Remove what former jobs of the cell have left: their record, their log, the reason of their failure."""
    files = JobFiles(cell.run_dir)
    for path in (files.record, files.log, RunDir(cell.run_dir).error):
        with store_errors(path, "written"):
            path.unlink(missing_ok=True)


def _start(request: Request, log: Path) -> "subprocess.Popen[bytes]":
    """Start the submitter, in a session of its own: a Ctrl-C or the end of a terminal reaches neither it nor jobs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.getenv("PYTHONPATH")]))}
    with store_errors(log, "written"), log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.jobs.submission"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=(request.lock, request.reply),
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(request.to_json().encode() + b"\n")
    process.stdin.close()
    return process


def _wait(process: "subprocess.Popen[bytes]", stop: StopRequest | None) -> None:
    """Wait for the end of ``process``. Once ``stop`` is set, it is interrupted: its job writes a resume point."""
    handle = os.pidfd_open(process.pid)
    try:
        select.select([handle] if stop is None else [handle, stop.fileno()], [], [])
        if stop is not None and stop.is_set and process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait()
    finally:
        os.close(handle)


@contextmanager
def _lock(out: Path) -> Generator[int, None, None]:
    """The lock of submissions to the grid in ``out``. A process that gets its descriptor holds it too."""
    folder = folder_of(out)
    make_folder(folder)
    path = folder / ".lock"
    with store_errors(path, "written"):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not try_lock(file):
            if time.monotonic() > deadline_s:
                raise StoreError(f"{path}: another process submits jobs; run the same command again when it has ended")
            time.sleep(_RETRY_S)
        yield file
    finally:
        os.close(file)
