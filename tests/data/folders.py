"""Small prepared folders for tests that are about batches, not about parsing."""

from pathlib import Path

import numpy as np

from harness.data.records import (
    FORMAT_VERSION,
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
    words.tofile(folder / RECORDS_NAME)
    write_meta(
        folder,
        Meta(
            format_version=FORMAT_VERSION,
            num_rows=num_rows,
            num_positives=int(floats[:, 0].sum()),
            cardinalities=(NUM_TABLES * num_rows,) * NUM_TABLES,
            categories="number",
            max_ind_range=None,
            digest="d",
            sources=(),
        ),
    )
    return words
