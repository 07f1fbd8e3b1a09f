"""The click log of the golden runs."""

from pathlib import Path

from harness.data.prepare import prepare
from tests.data.logs import random_rows, to_text


def golden_clicks(folder: Path) -> Path:
    """400 prepared samples in ``folder``: 343 to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.tsv").write_bytes(to_text(random_rows(400, seed=1, num_values=120)))
    prepare([folder / "log.tsv"], folder / "data", categories="number", max_ind_range=None, progress=None)
    return folder / "data"
