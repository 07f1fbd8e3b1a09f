"""The scales of `run.py reproduce`: `small` with generated data, `paper` with a real click log."""

# ruff: noqa: PLC0415 - numpy and numba are imported when data is made

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.core.criteo_sizes import KAGGLE_ROWS, scaled_cardinalities
from harness.core.errors import ConfigError
from harness.data.records import META_NAME, RECORD_BYTES, read_meta

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Log:
    """A synthetic click log, as `run.py data synth` makes it, and how it is prepared.

    ``hashed``: the size of the tables to which categories are hashed, relative to Kaggle's; None: they are numbered.
    """

    source: str = "demo/criteo.tsv"
    rows: int = 250_000
    taper: float = 0.0
    flat: bool = False
    hashed: float | None = None


LOGS: Mapping[str, Log] = {
    "demo/data": Log(),
    "demo/flat": Log("demo/flat.tsv", flat=True),
    "demo/tapered": Log("demo/tapered.tsv", taper=0.5),
    "demo/small": Log(hashed=0.0005),
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
        if not source.exists():
            console.note(f"{source}: {log.rows:,} rows are made")
            with amount_progress("synth") as progress:
                synth(log.rows, source, seed=0, taper=log.taper, flat=log.flat, progress=progress)
        with amount_progress("prepare") as progress:
            if log.hashed is None:
                prepare([source], Path(folder), progress=progress)
            else:
                sizes = scaled_cardinalities(log.hashed)
                prepare([source], Path(folder), categories="hash", table_sizes=sizes, progress=progress)


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


def say_data(folder: str | None) -> None:
    """Print the size of the data of scale `paper`.

    Raises ConfigError, after printing, if ``folder`` (of the data) is None; DataError if it is no prepared folder.
    """
    num_rows = KAGGLE_ROWS if folder is None else read_meta(Path(folder)).num_rows
    part = f"; Kaggle's has {KAGGLE_ROWS:,}" if num_rows < KAGGLE_ROWS else ""
    console.note(f"data: {num_rows:,} rows, {num_rows * RECORD_BYTES / 1e9:.1f} GB{part}")
    if folder is None:
        raise ConfigError(
            "data.path: expected a folder of real data, got none; make it by `run.py data prepare train.txt --out "
            "FOLDER` from Kaggle's train.txt (or Terabyte's days), then name it: data.path=FOLDER"
        )


def value(overrides: Sequence[str], key: str) -> str | None:
    """The value in the last override of ``key``; None if there is none."""
    given = [override.removeprefix(f"{key}=") for override in overrides if override.startswith(f"{key}=")]
    return given[-1] if given else None
