"""The line that `grid` prints before the first run: the time, memory and disk that it all needs here."""

# ruff: noqa: PLC0415 - torch takes a second to import

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.cli import console
from harness.config.experiment import Cell
from harness.core.errors import ConfigError
from harness.files import free_bytes
from harness.grid.process import is_done
from harness.grid.runner import num_at_once

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The memory of a machine, and its free disk space in the folder of the runs."""

    memory_bytes: float
    disk_bytes: int

    @classmethod
    def here(cls, folder: Path) -> "Machine":
        """This machine, with the memory limit of its control group if that is less than its memory."""
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        with suppress(OSError, ValueError):
            memory = min(memory, float(Path("/sys/fs/cgroup/memory.max").read_text()))
        return cls(memory_bytes=memory, disk_bytes=free_bytes(folder))


def say_needs(cells: Sequence[Cell], jobs: int | None, machine: Machine | None = None) -> int | None:
    """Print time, memory and disk that the unfinished ``cells`` need. Returns the number of cells to run at once.

    ``jobs``: the number that the user asked for, which is returned; None: no number. Then the result is None, which
    leaves the number to ``LocalPool``, unless memory is too small for that: then as many cells as memory holds.
    ``machine``: None is this one.

    Raises:
        ConfigError: one cell alone needs more memory than there is, or certainly more disk than is free.
        UserError: a cell's folder, config, data or trace cannot be used.
    """
    from harness.run.needs import needs_of
    from harness.run.spec import RunSpec

    due = [cell for cell in cells if not is_done(cell)]
    if not due:
        return jobs
    needs = {cell.run_dir: needs_of(RunSpec(cell.config)) for cell in due}
    machine = machine or Machine.here(due[0].run_dir)
    memory, disk = machine.memory_bytes, machine.disk_bytes
    for cell in due:
        one = needs[cell.run_dir]
        if one.least_memory_bytes > memory:
            raise ConfigError(
                f"{cell.slug}: expected {_gb(one.least_memory_bytes)} of memory for its model, got "
                f"{_gb(memory)}; use smaller tables (run.py data prepare --table-rows) or model.embedding_dim"
            )
        if one.least_disk_bytes > disk:
            raise ConfigError(
                f"{cell.slug}: expected {_gb(one.least_disk_bytes)} of free disk for its checkpoints, got {_gb(disk)} "
                "in the folder of key out; name another, or keep fewer by store.keep=1"
            )
    most_memory = max(one.memory_bytes for one in needs.values())
    fits = max(1, int(memory / most_memory))
    at_once = max(num_at_once(cell, jobs) for cell in due)
    if jobs is None and fits < at_once:
        jobs = at_once = fits
    seconds = sum(needs[cell.run_dir].seconds / min(at_once, num_at_once(cell, jobs)) for cell in due)
    kept = sum(one.kept_bytes for one in needs.values())
    disk_needed = kept + sum(sorted(one.disk_bytes for one in needs.values())[-at_once:])
    console.note(
        f"needs: {len(due):,} cell{'s' * (len(due) != 1)}, {at_once} at once, {_duration(seconds)}; at most "
        f"{_gb(at_once * most_memory)} of memory ({_gb(memory)} here) and {_gb(disk_needed)} of disk "
        f"({_gb(disk)} free), of which {_gb(kept)} stay"
    )
    if at_once * most_memory > memory:
        console.note(f"note: --parallel {at_once}: the memory may not do; {fits} at once fit")
    if disk_needed > disk:
        hint = "; store.keep_finished=false removes the checkpoints of finished cells" if kept else ""
        console.note(f"note: the disk may not do{hint}")
    return jobs


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / _GB:.1f} GB" if num_bytes >= _GB / 10 else f"{num_bytes / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "less than a second on idle cores"
    time = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    time = f"{seconds:.0f} s" if seconds < 90 else time
    return f"roughly {time} on idle cores (half to twice that; longer beside other work)"
