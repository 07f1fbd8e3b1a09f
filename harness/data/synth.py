"""A synthetic click log in Criteo's raw format, so that everything can be tried without a download.

It imitates Kaggle's log: its tables scaled down, its skew, its missing values, labels that depend on embeddings, a best
possible AUC like that of real clicks, and a drift over seven days.
"""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from harness.core.errors import DataError
from harness.core.seeds import generator
from harness.data.leftovers import sweep, temporary_beside
from harness.data.records import Synthetic
from harness.data.sidecar import write_sidecar
from harness.data.sources import Progress
from harness.data.split import split_rows
from harness.data.teacher import DEFAULT_TAPER, Samples, Teacher, World, category_values
from harness.data.text import format_rows
from harness.data.zipf import Floats

DEFAULT_SCALE = 0.005
POSITIVE_FRAC = 0.25
BAYES_AUC = 0.80

_CHUNK_ROWS = 1 << 15  # part of the format: each chunk has a stream of its own
_FIT_ROWS = 1 << 16
_NUM_BINS = 1 << 16
_LOGIT_RANGE = 20.0
_GZIP_LEVEL = 3
_MAX_TAPER = 10.0


@dataclass(frozen=True, kw_only=True)
class SynthReport:
    """Facts about a written log. ``bayes_auc``: the AUC of the true probabilities, an upper bound for any model."""

    num_rows: int
    taper: float
    num_positives: int
    cardinalities: tuple[int, ...]  # nominal; not every row occurs
    large_tables: tuple[int, ...]
    exponents: tuple[float, ...]  # of the Zipf law of each table
    bayes_auc: float | None  # None if the labels are all alike
    bayes_auc_test: float | None  # over the rows that the dlrm split makes the test set
    num_bytes: int


def synth(
    rows: int,
    out: Path,
    *,
    seed: int,
    scale: float = DEFAULT_SCALE,
    taper: float = DEFAULT_TAPER,
    progress: Progress | None = None,
) -> SynthReport:
    """Write ``rows`` rows to the new file ``out``, gzipped if its name ends in ``.gz``, and its sidecar beside it.

    The bytes (before gzip) are a function of (rows, scale, seed, taper). The effect of a row of popularity rank r on
    the log-odds shrinks as ``(1 + r / 100) ** -taper``. ``progress`` is called with (rows done, rows).
    Memory: about 30 bytes per row of the tables, and a chunk.

    Raises:
        DataError: ``out`` exists, ``rows``, ``scale`` or ``taper`` is out of range, or the disk failed; ``out`` is left
            as it was.
    """
    if rows < 1:
        raise DataError(f"--rows: expected at least 1 row to write, got {rows}")
    if not 0 < scale <= 1:
        raise DataError(f"--table-rows: expected more than 0 and at most 1, got {scale}")
    if not 0 <= taper <= _MAX_TAPER:
        raise DataError(f"--taper: expected 0 to {_MAX_TAPER:g}, got {taper}")
    out = Path(out)
    if out.exists():
        raise DataError(f"{out}: exists; remove it or choose another name")
    world = World(scale, rows, seed)
    teacher = Teacher(world, seed, taper=taper)
    random = generator(seed, "synth", "fit")
    teacher.fit(world.draw(random, random.random(_FIT_ROWS)), positive_frac=POSITIVE_FRAC, auc=BAYES_AUC)
    whole, test = _Quality(), _Quality()
    split = split_rows(rows)
    with _creating(out) as file:
        for start in range(0, rows, _CHUNK_ROWS):
            end = min(start + _CHUNK_ROWS, rows)
            random = generator(seed, "synth", "rows", start)
            samples = world.draw(random, np.arange(start, end) / rows)
            logits = teacher.logits(samples)
            labels = random.random(end - start) < 1 / (1 + np.exp(-logits))
            file.write(_text(samples, labels))
            whole.add(logits, labels)
            bounds = split.num_train, split.first_validation
            first, last = (min(max(bound - start, 0), end - start) for bound in bounds)
            test.add(logits[first:last], labels[first:last])
            if progress is not None:
                progress(end, rows)
    write_sidecar(out, Synthetic(rows=rows, seed=seed, scale=scale, taper=taper))
    return SynthReport(
        num_rows=rows,
        taper=taper,
        num_positives=whole.num_positives,
        cardinalities=world.cardinalities,
        large_tables=world.large,
        exponents=world.exponents,
        bayes_auc=whole.auc(),
        bayes_auc_test=test.auc(),
        num_bytes=out.stat().st_size,
    )


def _text(samples: Samples, labels: np.ndarray) -> bytes:
    return format_rows(
        labels,
        samples.integers_MI,
        samples.integers_missing_MI,
        category_values(samples.rows_MF),
        samples.rows_missing_MF,
    )


class _Quality:
    """AUC of logits against labels in bounded memory, by a histogram fine enough that ties are negligible."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _NUM_BINS), dtype=np.int64)

    def add(self, logits: Floats, labels: np.ndarray) -> None:
        places = np.clip((logits / _LOGIT_RANGE + 1) / 2 * _NUM_BINS, 0, _NUM_BINS - 1).astype(np.int64)
        for label in (0, 1):
            self._counts[label] += np.bincount(places[labels == label], minlength=_NUM_BINS)

    @property
    def num_positives(self) -> int:
        return int(self._counts[1].sum())

    def auc(self) -> float | None:
        negatives, positives = self._counts.astype(np.float64)
        pairs = negatives.sum() * positives.sum()
        return float(positives @ (np.cumsum(negatives) - negatives / 2) / pairs) if pairs else None


@contextmanager
def _creating(out: Path) -> Iterator[IO[bytes]]:
    """A temporary file that is renamed to ``out`` if the block succeeds and removed if it fails."""
    sweep(out)
    try:
        with temporary_beside(out, "file") as temporary:
            with temporary.open("wb") as file:
                if out.suffix == ".gz":
                    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                        yield cast(IO[bytes], packed)
                else:
                    yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(out)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error})") from error
