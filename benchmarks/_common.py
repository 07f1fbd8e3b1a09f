"""What benchmarks share: made-up click logs, the machine beside the figures, medians and their spread."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.core.seeds import generator
from harness.data.records import (
    FORMAT_VERSION,
    NUM_COLUMNS,
    NUM_DENSE,
    RECORDS_NAME,
    Meta,
    write_meta,
)
from harness.record.environment import environment

KAGGLE_CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Rows of the 26 tables of Criteo Kaggle (PAPERS)."""

_CHUNK_ROWS = 1 << 16


def make_data(folder: Path, cardinalities: Sequence[int], num_rows: int, *, seed: int) -> None:
    """A prepared data folder of ``num_rows`` random clicks whose tables have ``cardinalities`` rows.

    Ids are log-uniform, which is Zipf's law with exponent 1; a quarter of the clicks are positive. There is nothing to
    learn in it.
    """
    folder.mkdir(parents=True)
    rng = generator(seed, "clicks")
    num_positives = 0
    with (folder / RECORDS_NAME).open("wb") as file:
        for first in range(0, num_rows, _CHUNK_ROWS):
            words_NC = np.empty((min(_CHUNK_ROWS, num_rows - first), NUM_COLUMNS), dtype="<i4")
            floats_NC = words_NC.view("<f4")
            floats_NC[:, 0] = rng.random(len(words_NC)) < 0.25
            floats_NC[:, 1 : 1 + NUM_DENSE] = rng.exponential(2.0, (len(words_NC), NUM_DENSE))
            for table, cardinality in enumerate(cardinalities):
                words_NC[:, 1 + NUM_DENSE + table] = skewed_ids(rng, cardinality, len(words_NC))
            num_positives += int(floats_NC[:, 0].sum())
            file.write(words_NC.data)
    meta = Meta(
        format_version=FORMAT_VERSION,
        num_rows=num_rows,
        num_positives=num_positives,
        cardinalities=tuple(cardinalities),
        categories="number",
        max_ind_range=None,
        digest=f"{seed}-{num_rows}",
        sources=(),
    )
    write_meta(folder, meta)


def skewed_ids(rng: np.random.Generator, cardinality: int, num_ids: int) -> NDArray[np.int32]:
    """Rows of a table of ``cardinality`` rows, log-uniform: Zipf's law with exponent 1, the low ids most often."""
    ids_N = cardinality ** rng.random(num_ids) - 1
    return np.minimum(ids_N, cardinality - 1).astype(np.int32)


def write_trace(path: Path, kills: Iterable[tuple[float, str]]) -> None:
    """A failure trace of ``kills``: (hour, ``ps3`` or a number of ranks), in order of their hours."""
    lines = [f"{hour!r},{who}" for hour, who in kills]
    path.write_text("\n".join(["# title: made by a benchmark", "hour,rank", *lines, ""]))


@dataclass(frozen=True)
class Spread:
    """Median, least and most of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Of at least one value."""
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[0], ordered[-1])


def machine(num_threads: int = 1) -> dict[str, Any]:
    """What figures hang on: time, commit, versions, CPU, load averages."""
    return environment(num_threads=num_threads)


def heading(facts: dict[str, Any]) -> str:
    """One line of ``machine()``."""
    loads = " ".join(f"{load:.2f}" for load in facts["load_average"])
    git = facts["git"] or {"commit": "unknown", "dirty": False}
    commit = git["commit"][:7] + ("+" if git["dirty"] else "")
    return (
        f"{facts['time']}, {facts['cpu']}, {facts['num_cores']} cores, load average {loads}, "
        f"torch {facts['torch']}, commit {commit}"
    )


def write_json(path: Path | None, values: dict[str, Any]) -> None:
    """Write ``values`` where a path is given."""
    if path is not None:
        path.write_text(json.dumps(values, indent=1) + "\n")
