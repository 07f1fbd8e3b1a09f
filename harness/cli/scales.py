"""The scales of `run.py reproduce`: `small` with generated data, `paper` with a real click log; and their needs."""

# ruff: noqa: PLC0415 - numpy and numba are imported when data is made

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.config.experiment import Cell
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_ROWS
from harness.core.errors import ConfigError
from harness.data.records import META_NAME, RECORD_BYTES, read_meta

Scale = Literal["small", "paper"]

STEP_MS = 1.3
"""A step of Kaggle's DLRM on engine `local`, batch 128, one core of an AMD EPYC (Zen 5): docs/PERFORMANCE.md."""
MEMORY_FACTOR = 2.3
"""Memory of a run over that of its tables, at most: `buddy`, `cpr_scar` (docs/PERFORMANCE.md)."""


@dataclass(frozen=True)
class Log:
    """A synthetic click log, as `run.py data synth` makes it."""

    source: str
    rows: int = 250_000
    scale: float | None = None
    taper: float | None = None


LOGS: Mapping[str, Log] = {
    "demo/data": Log("demo/criteo.tsv"),
    "demo/flat": Log("demo/flat.tsv", taper=0.0),
    "demo/small": Log("demo/small.tsv", scale=0.0005),
    "demo/long": Log("demo/long.tsv", rows=2_000_000),
}
"""Data folders that are made where an experiment names them, of seed 0."""


def missing(folders: Iterable[str]) -> list[str]:
    """The members of ``folders`` that are in ``LOGS`` and hold no prepared data yet."""
    return [folder for folder in folders if folder in LOGS and not (Path(folder) / META_NAME).exists()]


def make(folders: Iterable[str]) -> None:
    """Write and prepare the synthetic data of ``folders``, which are in ``LOGS``. Raises DataError."""
    from harness.data.prepare import prepare
    from harness.data.synth import synth

    for folder in folders:
        log = LOGS[folder]
        source = Path(log.source)
        source.parent.mkdir(parents=True, exist_ok=True)
        given = {name: value for name in ("scale", "taper") if (value := getattr(log, name)) is not None}
        if not source.exists():
            console.note(f"{source}: {log.rows:,} rows are made")
            with amount_progress("synth") as progress:
                synth(log.rows, source, seed=0, progress=progress, **given)
        with amount_progress("prepare") as progress:
            prepare([source], Path(folder), progress=progress)


def paper_overrides(overrides: Sequence[str]) -> list[str]:
    """``overrides`` for scale `paper`: adds the model size `kaggle` and whole epochs unless they are given."""
    given = {override.partition("=")[0] for override in overrides}
    own = {"model.size": "kaggle", "data.max_train_samples": "null"}
    return [*overrides, *(f"{key}={value}" for key, value in own.items() if key not in given)]


def samples_factor(overrides: Sequence[str], small: str) -> float:
    """Rows of ``data.path`` (default: Kaggle's) per row of ``small``; 1 if ``small`` is not in ``LOGS``."""
    if small not in LOGS:
        return 1.0
    folder = value(overrides, "data.path")
    return (KAGGLE_ROWS if folder is None else read_meta(Path(folder)).num_rows) / LOGS[small].rows


def say_needs(cells: Sequence[Cell], jobs: int | None, folder: str | None) -> int | None:
    """Print what the cells will need at scale `paper`: data, memory, disk, hours. Returns how many can run at once.

    Raises ConfigError, after printing, if ``folder`` (of the data) is None; DataError if it is no prepared folder.
    """
    meta = None if folder is None else read_meta(Path(folder))
    num_rows, cardinalities = (
        (KAGGLE_ROWS, KAGGLE_CARDINALITIES) if meta is None else (meta.num_rows, meta.cardinalities)
    )
    part = f"; Kaggle's has {KAGGLE_ROWS:,}" if num_rows < KAGGLE_ROWS else ""
    lines = {"data": f"{num_rows:,} rows, {num_rows * RECORD_BYTES / 1e9:.1f} GB{part}"}
    if cells:
        own, jobs = _needs_of_cells(cells, jobs, num_rows, sum(cardinalities))
        lines |= own
    for name, text in lines.items():
        console.note(f"{name:<7} {text}")
    if meta is None:
        raise ConfigError(
            "data.path: expected a folder of real data, got none; make it by `run.py data prepare train.txt --out "
            "FOLDER` from Kaggle's train.txt (or Terabyte's days), then name it: data.path=FOLDER"
        )
    return jobs


def _needs_of_cells(
    cells: Sequence[Cell], jobs: int | None, num_rows: int, table_rows: int
) -> tuple[dict[str, str], int]:
    """The need of each resource as text, by name, and how many cells fit at once, at most ``jobs``."""
    from harness.model.sizes import model_size

    tables_gb = 4e-9 * table_rows * model_size(cells[0].config.model).embedding_dim
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    fits = max(1, int(memory_gb / (MEMORY_FACTOR * tables_gb)))
    jobs = min(jobs or len(os.sched_getaffinity(0)), fits)
    steps = sum(6 / 7 * num_rows / cell.config.trainer.batch_size for cell in cells)
    free_gb = shutil.disk_usage(".").free / 1e9
    lines = {
        "tables": f"{table_rows:,} rows, {tables_gb:.2f} GB",
        "memory": f"{MEMORY_FACTOR * tables_gb:.1f} GB a run at most, {memory_gb:.0f} GB here: {jobs} at once",
        "disk": f"{3 * tables_gb * jobs:.1f} GB for checkpoints of the runs at work, {free_gb:.0f} GB free here",
        "time": f"{steps * STEP_MS / 3.6e6 / jobs:,.1f} h for {len(cells):,} runs, at {STEP_MS} ms a step of batch 128",
    }
    return lines, jobs


def value(overrides: Sequence[str], key: str) -> str | None:
    """The value in the last override of ``key``; None if there is none."""
    given = [override.removeprefix(f"{key}=") for override in overrides if override.startswith(f"{key}=")]
    return given[-1] if given else None
