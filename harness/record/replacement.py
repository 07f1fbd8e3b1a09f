"""The replacement of a finished run, whose result stands until the new one is finished.

    NAME         the result
    .new/NAME    the run that is to replace it, from its start until it takes the place
    .old/NAME    the former result, from when it has given way until it is removed

A command may end between any two steps. The next one that asks for the state of the run carries out the rest.
"""

import logging
from contextlib import suppress
from pathlib import Path

from harness.core.errors import StoreError
from harness.record import seal
from harness.record.code import difference_of
from harness.record.files import fsync_folder
from harness.record.folder import LOCK, NEW, REMOVABLE, AtWork, State, inspect, lock_finished, remove
from harness.record.rundir import OLD, RunDir

_log = logging.getLogger(__name__)


def replacement_of(run_dir: Path) -> Path:
    """The folder beside ``run_dir`` in which its run is computed anew while the old result stands."""
    return run_dir.parent / NEW / run_dir.name


def current_state(run_dir: Path, digest: str) -> State:
    """As :func:`inspect`, once a finished replacement has taken its place. Raises StoreError as that does."""
    finish_replacement(run_dir, digest)
    return inspect(run_dir, digest)


def finish_replacement(run_dir: Path, digest: str) -> None:
    """Put a finished replacement in the place of ``run_dir``; complete a :func:`replace_run` that was cut short.

    If that one's replacement is of no use, or is gone, the former result is put back. Otherwise a no-op if the
    replacement is not finished, is damaged, is of another config or other code, or is at work.
    Raises StoreError if the system refuses.
    """
    is_cut_short = _replaced(run_dir).exists()
    with suppress(AtWork):
        if is_cut_short and not run_dir.exists() and not _is_usable(replacement_of(run_dir), digest):
            _put_back(run_dir)
        elif is_cut_short:
            with lock_finished(run_dir if run_dir.exists() else replacement_of(run_dir)):
                _take_place(run_dir)
        elif _is_usable(replacement_of(run_dir), digest) and _holds_run(run_dir, digest):
            replace_run(run_dir)


def replace_run(run_dir: Path) -> None:
    """Put the finished run of :func:`replacement_of` in the place of ``run_dir``; files that are not a run's stay.

    A no-op if another process has done so. Raises StoreError if the run is damaged, or the system refuses.
    """
    new, old = replacement_of(run_dir), _replaced(run_dir)
    if not new.exists():
        return
    with lock_finished(new):
        seal.verify(RunDir(new))
        if run_dir.exists():
            old.parent.mkdir(exist_ok=True)
            run_dir.rename(old)
        _take_place(run_dir)


def prepare_replacement(run_dir: Path, digest: str) -> Path:
    """The folder in which the run is computed anew. A finished run there that is of no use is named and removed.

    Raises StoreError if another process is writing it, or it holds the run of another config.
    """
    new = replacement_of(run_dir)
    if inspect(new, digest) is State.DONE and (why := _why_unusable(new)):
        with lock_finished(new):
            for name in REMOVABLE:
                remove(new / name)
        _log.warning("note: a replacement that was not put in its place is computed anew: %s", why)
    return new


def _is_usable(new: Path, digest: str) -> bool:
    return _holds_run(new, digest) and RunDir(new).done.exists() and _why_unusable(new) is None


def _why_unusable(new: Path) -> str | None:
    """Why a finished run cannot be a replacement: it is damaged, or other code computed it. None if it can."""
    if damage := seal.damage_of(RunDir(new)):
        return damage
    difference = difference_of(new)
    return None if difference is None else f"{new}: computed by other code ({difference})"


def _holds_run(folder: Path, digest: str) -> bool:
    """Whether a folder holds the run whose config has hash ``digest``, or nothing."""
    try:
        inspect(folder, digest)
    except StoreError:
        return False
    return True


def _put_back(run_dir: Path) -> None:
    """Move the former result to its place again. Raises AtWork, StoreError."""
    old = _replaced(run_dir)
    with lock_finished(old):
        old.rename(run_dir)
    with suppress(OSError):  # not empty
        old.parent.rmdir()
    _log.warning("note: %s: its replacement cannot be used; the former result is put back", run_dir)


def _take_place(run_dir: Path) -> None:
    """Move the replacement to ``run_dir``, if it is not there, and remove the old result."""
    new, old = replacement_of(run_dir), _replaced(run_dir)
    if not run_dir.exists():
        fsync_folder(new)  # it may have been killed before DONE's name was on disk
        new.rename(run_dir)
    if old.exists():
        fsync_folder(run_dir.parent)  # the old result goes once the new one would survive a loss of power
        for path in old.iterdir():
            if path.name not in (*REMOVABLE, LOCK):
                path.rename(run_dir / path.name)
        remove(old)
    for folder in (old.parent, new.parent):
        with suppress(OSError):  # not empty, or not there
            folder.rmdir()


def _replaced(run_dir: Path) -> Path:
    """The name of a run's folder from when it gives way to its replacement until it is removed."""
    return run_dir.parent / OLD / run_dir.name
