"""Sizes of the Criteo click logs as DLRM's preprocessing leaves them [read: facebookresearch/dlrm]."""

KAGGLE_CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
"""Number of rows of each table C1..C26 of Criteo Kaggle, 33,762,577 in total."""

TERABYTE_CARDINALITIES = (
    *(9980333, 36084, 17217, 7378, 20134, 3, 7112, 1442, 61, 9758201, 1333352, 313829, 10),
    *(2208, 11156, 122, 4, 970, 14, 9994222, 7267859, 9946608, 415421, 12420, 101, 36),
)
"""Number of rows of each table of Criteo Terabyte at ``--max-ind-range 10000000``, 49,126,297 in total."""

KAGGLE_ROWS = 45_840_617
"""Samples of Criteo Kaggle, seven days."""

KAGGLE_TRAIN_SAMPLES = 39_291_958
"""Training samples of Criteo Kaggle: six of its seven days."""

MIN_TABLE_ROWS = 4
MAX_TABLE_ROWS = 1 << 27


def scaled_cardinalities(scale: float) -> tuple[int, ...]:
    """Kaggle's 26 table sizes times ``scale``, at most 2**27 rows.

    A table has at least 4 rows, or as many as in Kaggle if these are fewer.
    """
    return tuple(
        round(min(max(size * scale, min(size, MIN_TABLE_ROWS)), MAX_TABLE_ROWS)) for size in KAGGLE_CARDINALITIES
    )
