"""The split of a file into training, test and validation rows, as in DLRM."""

from dataclasses import dataclass

NUM_PARTS = 7  # DLRM cuts the file into as many parts as Kaggle's log has days
MIN_ROWS = 2 * NUM_PARTS  # below that the test or the validation set can be empty


@dataclass(frozen=True)
class SplitRows:
    """Row ranges of the sets: train [0, num_train), test [num_train, first_validation), validation the rest."""

    num_train: int
    first_validation: int
    num_rows: int


def split_rows(num_rows: int) -> SplitRows:
    """Split into seven near-equal parts, longer ones first: 1-6 train; 7 is halved into test (longer) and validation.

    As DLRM does (facebookresearch/dlrm, data_utils.py); Kaggle's 45,840,617 rows give 39,291,958 / 3,274,330.
    """
    size, num_longer = divmod(num_rows, NUM_PARTS)
    num_train = (NUM_PARTS - 1) * size + min(num_longer, NUM_PARTS - 1)
    return SplitRows(num_train, num_train + -(-(num_rows - num_train) // 2), num_rows)
