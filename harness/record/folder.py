"""The folder of one run, or of one grid: who may write in it, what it holds, what may be removed from it.

A folder of ours is known by its ``.lock``, which is made before anything else in it and also keeps others out.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path

from harness.core.errors import StoreError

_LOCK = ".lock"
_MARK = "cpr-harness"
_WAIT_S = 5.0  # how long the processes of a killed runner may take to let go
_LOOK_AGAIN_S = 0.05
_OURS = ("config.yaml", "events.jsonl", "env.json", "checkpoints", "wandb", "error.txt", "output.txt", "DONE")
_HALVES = tuple(f".{name}.tmp" for name in _OURS)  # of a file that was being replaced


class State(Enum):
    """What stands at a path where a run is to be written."""

    EMPTY = "empty"  # nothing, or an empty folder
    DONE = "done"  # this very run, finished
    UNFINISHED = "unfinished"  # this very run, cut short


def inspect(run_dir: Path, digest: str) -> State:
    """What ``run_dir`` holds of the run whose config has hash ``digest``; touches nothing.

    Raises StoreError where the folder holds another run or something that is no run, or may not be looked at.
    """
    with _refusals(run_dir):
        if not run_dir.exists():
            return State.EMPTY
        if not run_dir.is_dir():
            raise StoreError(f"{run_dir}: is a file; a run needs a folder")
        if all(path.name == _LOCK for path in run_dir.iterdir()):
            return State.EMPTY
        mark, kind, found = (*_words(run_dir), "", "", "")[:3]
        if (mark, kind) != (_MARK, "run"):
            raise StoreError(f"{run_dir}: is not empty and is no run folder; choose another out")
        if found != digest:
            raise StoreError(f"{run_dir}: holds a run of another config ({found}, not {digest}); choose another out")
        return State.DONE if (run_dir / "DONE").exists() else State.UNFINISHED


@contextmanager
def claim_run(run_dir: Path, digest: str) -> Iterator[State]:
    """Own ``run_dir`` for the run whose config has hash ``digest``, emptied of what an unfinished run of it left.

    Gives what it found there: EMPTY or UNFINISHED. Only what a run writes is removed, and only from a folder that
    :func:`inspect` knows. Raises StoreError where another process is at work in it, the run is finished, or the disk
    refuses.
    """
    inspect(run_dir, digest)
    with ExitStack() as lock:
        with _refusals(run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
            lock.enter_context(_locked(run_dir, f"run {digest}", wait_s=_WAIT_S))
            found = inspect(run_dir, digest)
            if found is State.DONE:
                raise StoreError(f"{run_dir}: this run is finished already")
            for name in (*_OURS, *_HALVES):
                _remove(run_dir / name)
        yield found


def take_back(run_dir: Path) -> None:
    """Remove a claimed folder in which no event was recorded: bad input leaves nothing half-written.

    Once a run has recorded an event, its folder stays as it is, for whoever wants to know.
    """
    events = run_dir / "events.jsonl"
    if events.exists() and events.stat().st_size > 0:
        return
    for name in (*_OURS, *_HALVES, _LOCK):
        _remove(run_dir / name)
    with suppress(OSError):  # what others put there stays
        run_dir.rmdir()


@contextmanager
def claim_grid(out: Path) -> Iterator[None]:
    """Own ``out`` for one grid runner. Raises StoreError where another is at work, or it is no place for a grid."""
    with ExitStack() as lock:
        with _refusals(out):
            if out.exists() and not out.is_dir():
                raise StoreError(f"{out}: is a file; a grid needs a folder")
            if (words := _words(out))[1:2] == ["run"]:
                raise StoreError(f"{out}: holds the single run {words[2]}; choose another out")
            out.mkdir(parents=True, exist_ok=True)
            lock.enter_context(_locked(out, "grid", wait_s=0))
        yield


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """What the system refuses in ``folder`` becomes a StoreError that names the file and the system's reason."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}; choose another out") from error


@contextmanager
def _locked(folder: Path, what: str, *, wait_s: float) -> Iterator[None]:
    file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        until = time.monotonic() + wait_s
        while not _try_lock(file):
            if time.monotonic() >= until:
                holder = (_words(folder) or ["?"])[-1]
                raise StoreError(f"{folder}: process {holder} is at work in it; wait for it or choose another out")
            time.sleep(_LOOK_AGAIN_S)
        mark = f"{_MARK} {what} pid {os.getpid()}\n".encode()
        os.pwrite(file, mark, 0)  # over the old mark, which is never missing in between
        os.ftruncate(file, len(mark))
        os.fsync(file)
        yield
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(file).st_nlink > 0  # else its last owner has taken it back


def _words(folder: Path) -> list[str]:
    try:
        return (folder / _LOCK).read_text().split()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
