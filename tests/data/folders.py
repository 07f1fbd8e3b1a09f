"""Small prepared folders for tests that are about batches, not about parsing."""

import json
from pathlib import Path

import numpy as np
import xxhash

from harness.data.records import (
    NUM_COLUMNS,
    NUM_DENSE,
    NUM_TABLES,
    RECORDS_NAME,
    Meta,
    Words,
    write_meta,
)


def write_folder(folder: Path, num_rows: int) -> Words:
    """A prepared folder whose rows can be told apart: row i has dense features i + 0.5 and row ids 26 * i + table."""
    folder.mkdir(parents=True)
    words = np.zeros((num_rows, NUM_COLUMNS), dtype=np.int32)
    rows = np.arange(num_rows)
    floats = words[:, : 1 + NUM_DENSE].view(np.float32)
    floats[:, 0] = rows % 4 == 0
    floats[:, 1:] = rows[:, None] + 0.5
    words[:, 1 + NUM_DENSE :] = NUM_TABLES * rows[:, None] + np.arange(NUM_TABLES)
    seal(folder, words)
    return words


def seal(folder: Path, words: Words) -> None:
    """Write these records, and a meta that is true of them."""
    words.tofile(folder / RECORDS_NAME)
    cardinalities = (NUM_TABLES * len(words),) * NUM_TABLES
    digest = xxhash.xxh3_128(words.tobytes())
    digest.update(json.dumps(cardinalities).encode())
    write_meta(
        folder,
        Meta(
            num_rows=len(words),
            num_positives=int(words[:, 0].view(np.float32).sum()),
            cardinalities=cardinalities,
            categories="number",
            max_ind_range=None,
            digest=digest.hexdigest(),
            sources=(),
        ),
    )
