"""Small prepared folders for tests that are about batches, not about parsing."""

from pathlib import Path

import numpy as np
import xxhash

from harness.data.records import (
    NUM_DENSE,
    NUM_TABLES,
    RECORDS_NAME,
    Meta,
    Words,
    digest_of,
    write_meta,
)


def write_folder(folder: Path, num_rows: int, num_dense: int = NUM_DENSE, num_tables: int = NUM_TABLES) -> Words:
    """A prepared folder whose rows can be told apart: row i has dense features i + 0.5 and row ids F * i + table."""
    folder.mkdir(parents=True)
    words = np.zeros((num_rows, 1 + num_dense + num_tables), dtype=np.int32)
    rows = np.arange(num_rows)
    floats = words[:, : 1 + num_dense].view(np.float32)
    floats[:, 0] = rows % 4 == 0
    floats[:, 1:] = rows[:, None] + 0.5
    words[:, 1 + num_dense :] = num_tables * rows[:, None] + np.arange(num_tables)
    seal(folder, words, num_dense)
    return words


def seal(folder: Path, words: Words, num_dense: int = NUM_DENSE) -> None:
    """Write these records, and a meta that is true of them."""
    words.tofile(folder / RECORDS_NAME)
    num_tables = words.shape[1] - 1 - num_dense
    cardinalities = (num_tables * len(words),) * num_tables
    write_meta(
        folder,
        Meta(
            num_rows=len(words),
            num_positives=int(words[:, 0].view(np.float32).sum()),
            cardinalities=cardinalities,
            num_dense=num_dense,
            categories="number",
            max_ind_range=None,
            digest=digest_of(xxhash.xxh3_128(words.tobytes()), num_dense, cardinalities),
            sources=(),
        ),
    )
