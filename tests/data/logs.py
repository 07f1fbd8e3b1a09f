"""Raw click logs for tests and the plainest possible reading of them; small prepared folders."""

import random
from pathlib import Path

import numpy as np
import xxhash

from harness.data.records import FORMAT_VERSION, NUM_DENSE, NUM_TABLES, RECORDS_NAME, Meta, digest_of, write_meta

Row = list[str]  # 40 columns


def random_rows(num_rows: int, seed: int, num_values: int = 200) -> list[Row]:
    """Rows with everything the format allows: missing values, signs, short and upper-case hex, long integers."""
    chance = random.Random(seed)

    def integer() -> str:
        if chance.random() < 0.2:
            return ""
        digits = chance.choice([1, 2, 3, 5, 7, 8, 9, 12, 15, 16])
        return ("-" if chance.random() < 0.1 else "") + str(chance.randrange(10**digits)).zfill(chance.choice([1, 3]))

    def category(column: int) -> str:
        if chance.random() < 0.1:
            return ""
        value = chance.randrange(num_values) * 2654435761 * (column + 1) % 2**32 >> chance.choice([0, 0, 0, 9, 20, 28])
        return format(value, chance.choice(["08x", "08x", "x", "X"]))

    return [
        [str(chance.randrange(2)), *(integer()[:17] for _ in range(13)), *(category(column) for column in range(26))]
        for _ in range(num_rows)
    ]


def to_text(rows: list[Row], newline: str = "\n") -> bytes:
    """The rows as a file holds them."""
    return "".join("\t".join(row) + newline for row in rows).encode()


def naive_values(rows: list[Row]) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Labels, integers and categories by int(), missing 0."""
    labels = [int(row[0]) for row in rows]
    integers = [[int(value or "0") for value in row[1:14]] for row in rows]
    categories = [[int(value or "0", 16) for value in row[14:]] for row in rows]
    return labels, integers, categories


def naive_ids(columns: list[list[int]], max_ind_range: int | None) -> tuple[list[list[int]], list[int]]:
    """Row ids in order of first appearance, one dict a table, and how many each table has."""
    numberings: list[dict[int, int]] = [{} for _ in range(26)]
    ids = [
        [
            numbering.setdefault(value % max_ind_range if max_ind_range else value, len(numbering))
            for numbering, value in zip(numberings, row, strict=True)
        ]
        for row in columns
    ]
    return ids, [len(numbering) for numbering in numberings]


def write_folder(folder: Path, num_rows: int, num_dense: int = NUM_DENSE, num_tables: int = NUM_TABLES) -> None:
    """A prepared folder whose rows can be told apart: row i has dense features i + 0.5 and row ids F * i + table."""
    folder.mkdir(parents=True)
    words = np.zeros((num_rows, 1 + num_dense + num_tables), dtype=np.int32)
    rows = np.arange(num_rows)
    floats = words[:, : 1 + num_dense].view(np.float32)
    floats[:, 0] = rows % 4 == 0
    floats[:, 1:] = rows[:, None] + 0.5
    words[:, 1 + num_dense :] = num_tables * rows[:, None] + np.arange(num_tables)
    words.tofile(folder / RECORDS_NAME)
    cardinalities = (num_tables * len(words),) * num_tables
    write_meta(
        folder,
        Meta(
            format_version=FORMAT_VERSION,
            num_rows=len(words),
            num_positives=int(words[:, 0].view(np.float32).sum()),
            cardinalities=cardinalities,
            num_dense=num_dense,
            columns=None,
            categories="number",
            max_ind_range=None,
            table_rows=None,
            digest=digest_of(xxhash.xxh3_128(words.tobytes()), num_dense, cardinalities),
            sources=(),
            synthetic=None,
        ),
    )
