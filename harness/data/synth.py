"""A synthetic click log in Criteo's raw format, so that everything can be tried without a download.

It is a sample of a law (``harness.data.law``) that was fitted to aggregates of a real log. What it has of Criteo's logs
and what it lacks: docs/DATA.md.
"""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.data.criteo import format_rows
from harness.data.law import Floats, Law, Samples, World, category_values, expected_auc, intercept, read_law
from harness.data.outputs import replacing
from harness.data.records import Synthetic
from harness.data.sources import Progress, write_sidecar
from harness.files import free_bytes

_CHUNK_ROWS = 1 << 15
_FIT_ROWS = 1 << 16
_MAX_STRENGTH = 4.0
_GZIP_LEVEL = 3
_MAX_TAPER = 10.0
_LEAST_ROW_BYTES = 200  # of 240 or so


def synth(
    rows: int,
    out: Path,
    *,
    seed: int,
    like: str = "kaggle",
    taper: float = 0.0,
    flat: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write ``rows`` rows to the new file ``out``, gzipped if its name ends in ``.gz``, and its sidecar beside it.

    Returns the number of positive rows. The bytes (before gzip) are a function of (rows, seed, law, taper, flat).
    Memory: a chunk of rows, and about 300 kB a table.

    Args:
        like: the name of a law, or the path of its file.
        taper: 0 to 10; the effect of an id of popularity rank r on the log-odds shrinks as ``(1 + r / 100) ** -taper``.
        flat: each table is drawn on its own, without ties to others.
        progress: called with (rows done, rows).

    Raises:
        DataError: ``out`` exists, an argument is out of range, ``like`` is no law, or the disk is full or fails.
            ``out`` is then as it was.
        StoreError: the sidecar cannot be written.
    """
    if rows < 1:
        raise DataError(f"--rows: expected at least 1 row to write, got {rows}")
    if not 0 <= taper <= _MAX_TAPER:
        raise DataError(f"--taper: expected 0 to {_MAX_TAPER:g}, got {taper}")
    law = read_law(like)
    try:
        made = Synthetic(rows=rows, seed=seed, like=like, law=law.digest, taper=taper, flat=flat)
    except ValidationError as error:
        raise DataError(f"--{mistakes_of(error)[0]}") from error
    out = Path(out)
    if out.exists():
        raise DataError(f"{out}: exists; remove it or choose another name")
    world = World(law, rows, seed, taper=taper, tied=not flat)
    sample = World(law, _FIT_ROWS, seed, taper=taper, tied=not flat).draw(0, _FIT_ROWS)
    num_positives = 0
    with replacing(out, "file") as temporary:
        _refuse_full_disk(out, rows)
        with _opened(temporary, out.suffix == ".gz") as file:
            for start, samples, labels_M in _labelled(world, rows, sample, law):
                categories_MF = category_values(samples.ids_MF)
                integers = samples.integers_MI, samples.integers_missing_MI
                file.write(format_rows(labels_M, *integers, categories_MF, samples.ids_missing_MF))
                num_positives += int(labels_M.sum())
                if progress is not None:
                    progress(start + len(labels_M), rows)
        write_sidecar(temporary, out, made)  # before the log has its name: the same command can be given again
    return num_positives


def _labelled(world: World, rows: int, sample: Samples, law: Law) -> Iterator[tuple[int, Samples, NDArray[np.bool_]]]:
    """Yields the rows in chunks: the number of the first row, the samples and their labels.

    In ``sample`` the true probabilities have the law's AUC and, on each day, its click rate.
    """
    strength = _strength(sample.score_M, float(np.mean(law.positives_frac)), law.bayes_auc)
    intercepts = np.array([intercept(strength * sample.score_M, frac) for frac in law.positives_frac])
    for start in range(0, rows, _CHUNK_ROWS):
        num_samples = min(_CHUNK_ROWS, rows - start)
        samples = world.draw(start, num_samples)
        day_M = (samples.time_M * len(intercepts)).astype(np.int64)
        logits_M = strength * samples.score_M + intercepts[day_M]
        yield start, samples, world.label_uniforms(start, num_samples) < 1 / (1 + np.exp(-logits_M))


def _refuse_full_disk(out: Path, rows: int) -> None:
    """Raise DataError if the disk has less free space than the least size of the file."""
    least, free = rows * (_LEAST_ROW_BYTES // (2 if out.suffix == ".gz" else 1)), free_bytes(out)
    if least > free:
        raise DataError(f"--rows: {rows:,} rows take at least {least / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free")


def _strength(score_M: Floats, positives_frac: float, auc: float) -> float:
    """The factor of the scores for which the true probabilities have the expected AUC ``auc``, by bisection."""
    low, high = 0.0, _MAX_STRENGTH
    for _ in range(20):
        middle = (low + high) / 2
        if expected_auc(middle * score_M + intercept(middle * score_M, positives_frac)) < auc:
            low = middle
        else:
            high = middle
    return high


@contextmanager
def _opened(path: Path, is_packed: bool) -> Iterator[IO[bytes]]:
    """Yields the stream of a new file, which is gzipped if ``is_packed``, and synced to disk after the block."""
    with path.open("wb") as file:
        if is_packed:
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                yield cast(IO[bytes], packed)
        else:
            yield file
        file.flush()
        os.fsync(file.fileno())
