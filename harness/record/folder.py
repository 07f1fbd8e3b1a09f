"""The folder of a run or a grid: its lock, its state, and which of its files may be removed.

Each such folder contains a ``.lock`` file. It is created before any other file, is locked (flock) by the process that
writes into the folder, and its text says what the folder is for, and which process locked it last:
``cpr-harness run HASH pid PID host HOST`` or ``cpr-harness grid pid PID host HOST``.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path

from harness.core.errors import HarnessError, StoreError, UserError, shown
from harness.files import os_errors, try_lock
from harness.record.event_log import newest_events
from harness.record.rundir import RunDir, write_reason

LOCK = ".lock"
_MARK = "cpr-harness"
_WAIT_S = 5.0  # for the processes of a killed runner to release the lock; a runner that lives is not waited for
_RETRY_S = 0.05
_RECORD = ("config.yaml", "events.jsonl", "env.json", "checkpoints", "resume", "model", "wandb", "error.txt", "DONE")
_RUN_FILES = (*_RECORD, "output.txt")
REMOVABLE = (*_RUN_FILES, *(f".{name}.tmp" for name in _RUN_FILES))
"""Names of all that a run writes into its folder except the lock: its files, and the temporary file of each."""


class OtherRun(StoreError):
    """A folder holds the run of another config, or of this config by other code. ``found``: the hash of that run."""

    found = ""


class State(Enum):
    """State of the folder that a run is to be written to."""

    EMPTY = "empty"  # absent, or an empty folder, but for why a process ended before it began the run
    DONE = "done"  # this run, finished
    UNFINISHED = "unfinished"  # this run, interrupted or still running


def inspect(run_dir: Path, digest: str) -> State:
    """State of ``run_dir`` for the run with hash ``digest``, ``CONFIG-CODE``. Changes nothing.

    Raises OtherRun if the folder holds another run, StoreError if it holds files that are not a run's, cannot be read,
    or is a file.
    """
    with system_errors(run_dir):
        if not run_dir.exists():
            return State.EMPTY
        if not run_dir.is_dir():
            raise StoreError(f"{run_dir}: expected a folder, got a file; set out to another folder")
        if all(path.name in (LOCK, "error.txt") for path in run_dir.iterdir()):  # its process may have died at once
            return State.EMPTY
        mark, kind, found = (*_lock_words(run_dir), "", "", "")[:3]
        if (mark, kind) != (_MARK, "run"):
            raise StoreError(
                f"{run_dir}: expected an empty or a run folder, got other files; set out to another folder"
            )
        if found != digest:
            whose = "this run by other code" if is_same_config(digest, found) else "a run of another config"
            other = OtherRun(
                f"{run_dir}: holds {whose} (expected hash {digest}, got {found}); set out to another folder"
            )
            other.found = found
            raise other
        return State.DONE if (run_dir / "DONE").exists() else State.UNFINISHED


def is_same_config(digest: str, other: str) -> bool:
    """Whether two hashes, ``CONFIG-CODE``, are of the same config."""
    return digest.partition("-")[0] == other.partition("-")[0]


def discard_run(run_dir: Path, digest: str) -> None:
    """Remove the files of the run with hash ``digest``, finished or not.

    A run of the same config by other code is removed too.
    A no-op if the folder is absent or empty. Raises as :func:`inspect` does for any other folder, StoreError if another
    process is writing the run.
    """
    with system_errors(run_dir):
        *_, found = ("", *_lock_words(run_dir)[:3])
        if not is_same_config(digest, found):
            inspect(run_dir, digest)
            return
        with _locked(run_dir, f"run {digest}", wait_s=_WAIT_S):
            _remove(run_dir, REMOVABLE)


@contextmanager
def claim_run(run_dir: Path, digest: str, *, keeps_failed: bool = False) -> Iterator[State]:
    """Lock ``run_dir`` for the run with hash ``digest``, and remove what an unfinished run of it wrote.

    The files are kept if there is a resume point. A missing folder is made. ``keeps_failed``: refuse a run that trained
    to its end and failed there. Yields the state before: EMPTY or UNFINISHED. Removes only files that a run writes, and
    only from a folder that :func:`inspect` accepts.

    Raises as :func:`inspect` does, and StoreError if the run is finished, is refused, or another process is writing it.
    If the process that locked the folder has ended, its children get 5 s to release the lock.
    """
    inspect(run_dir, digest)
    with ExitStack() as lock:
        with system_errors(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            lock.enter_context(_locked(run_dir, f"run {digest}", wait_s=_WAIT_S))
            found = inspect(run_dir, digest)
            if found is State.DONE:
                raise StoreError(
                    f"{run_dir}: expected an unfinished run, got a finished one; set out to another folder"
                )
            if keeps_failed and (reason := failed_at_its_end(run_dir)):
                raise StoreError(
                    f"{run_dir}: this run trained to its end, and failed there ({reason}); --afresh removes its record "
                    "and starts anew"
                )
            if not has_resume_point(run_dir):
                _remove(run_dir, REMOVABLE)
        yield found


def empty_run(run_dir: Path) -> None:
    """Remove the files of an unfinished run from a claimed folder, except its process's output. Raises StoreError."""
    with system_errors(run_dir):
        _remove(run_dir, _RECORD)


def has_resume_point(run_dir: Path) -> bool:
    """Whether ``run_dir`` has a resume point, usable or not. Raises StoreError if the folder cannot be read."""
    folder = run_dir / "resume"
    names: list[str] = []
    with os_errors(f"{folder}: cannot be read"), suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(folder)
    return any(fnmatch(name, "point-*.json") for name in names)


def failed_at_its_end(run_dir: Path) -> str | None:
    """Why a run failed after the end of its training (its log has the finish event); None for any other run."""
    newest = newest_events(run_dir / "events.jsonl")[-1:]
    return RunDir(run_dir).reason() if newest and newest[0].get("event") == "finish" else None


@contextmanager
def reason_kept(run_dir: Path, *, discards: bool = False) -> Iterator[None]:
    """Write a HarnessError of the block to error.txt of the locked folder, and raise it again.

    ``discards``: after a UserError the files of a run without an event and without a resume point are removed, and the
    folder if it is empty then.
    """
    try:
        yield
    except HarnessError as error:
        write_reason(run_dir, f"{type(error).__name__}: {error}")
        if discards and isinstance(error, UserError):
            _discard_unstarted(run_dir)
        raise


def _discard_unstarted(run_dir: Path) -> None:
    """Remove a run's files, and its folder if that is empty then; a no-op if it has an event or a resume point."""
    events = run_dir / "events.jsonl"
    if (events.exists() and events.stat().st_size > 0) or has_resume_point(run_dir):
        return
    _remove(run_dir, (*REMOVABLE, LOCK))
    with suppress(OSError):  # not empty
        os.rmdir(shown(run_dir))


@contextmanager
def claim_grid(out: Path) -> Iterator[None]:
    """Lock ``out``, which is made if need be, for one grid.

    Raises StoreError, and changes no file, if another grid runs there, or as :func:`refuse_no_grid`.
    """
    refuse_no_grid(out)
    with ExitStack() as lock:
        with system_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(_locked(out, "grid", wait_s=0))
        yield


def refuse_no_grid(out: Path) -> None:
    """Raise StoreError if ``out`` can be no grid's folder.

    That is a file, a run, or a folder with neither grid.yaml nor a grid's lock that contains more than folders of runs.
    """
    with system_errors(out):
        with suppress(FileNotFoundError):
            out.stat()  # not below a file
        if out.exists() and not out.is_dir():
            raise StoreError(f"{out}: expected a folder, got a file; set out to another folder")
        if (words := _lock_words(out))[1:2] == ["run"]:
            raise StoreError(
                f"{out}: expected a folder for a grid, got the single run {words[2]}; set out to another folder"
            )
        if out.exists() and words[:2] != [_MARK, "grid"] and not (out / "grid.yaml").exists():
            _refuse_others(out)


def _refuse_others(out: Path) -> None:
    """Raise StoreError if ``out`` contains anything but folders of runs."""
    for path in sorted(out.iterdir()):
        if path.name != LOCK and _lock_words(path)[:2] != [_MARK, "run"]:
            raise StoreError(
                f"{out}: expected an empty or a grid's folder (with grid.yaml), got other files ({path.name}); "
                "set out to another folder"
            )


@contextmanager
def system_errors(folder: Path) -> Iterator[None]:
    """An OSError of the block becomes a StoreError that names the file and the system's reason."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}; set out to another folder") from error


@contextmanager
def _locked(folder: Path, purpose: str, *, wait_s: float) -> Iterator[None]:
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline_s = time.monotonic() + wait_s
        while not try_lock(file):
            pid, host = _holder(folder)
            if time.monotonic() >= deadline_s or _is_at_work(pid, host):
                raise StoreError(
                    f"{folder}: process {pid} on {host} is writing to it; wait for it to end or set out to another "
                    "folder"
                )
            time.sleep(_RETRY_S)
        mark = f"{_MARK} {purpose} pid {os.getpid()} host {platform.node()}\n".encode()
        os.pwrite(file, mark, 0)  # overwrites the old text, so that the file is never empty
        os.ftruncate(file, len(mark))
        os.fsync(file)
        yield
    finally:
        os.close(file)


def _holder(folder: Path) -> tuple[str, str]:
    """Process id and host of the process that took the lock last; ``?`` if the file does not say."""
    *_, pid, _, host = ["?", "host", "?", *_lock_words(folder)]
    return pid, host


def _is_at_work(pid: str, host: str) -> bool:
    """Whether the process may be alive. A process on another host counts as alive, since it cannot be seen."""
    if host != platform.node():
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _lock_words(folder: Path) -> list[str]:
    try:
        return (folder / LOCK).read_text(errors="replace").split() if (folder / LOCK).is_file() else []
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files and folders of these names; a link is removed, and its target stays."""
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
