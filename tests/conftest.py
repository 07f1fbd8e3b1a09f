"""Small prepared click logs that every test of a run shares."""

from pathlib import Path

import pytest

from harness.config.model import Config
from harness.data.prepare import prepare
from tests.data.logs import random_rows, to_text
from tests.runs import small_config


@pytest.fixture(scope="session")
def click_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 prepared samples: 1,029 to train on."""
    folder = tmp_path_factory.mktemp("clicks")
    rows = random_rows(1200, seed=1, num_values=120)
    (folder / "log.tsv").write_bytes(to_text(rows))
    prepare([folder / "log.tsv"], folder / "data", categories="number", max_ind_range=None, progress=None)
    return folder / "data"


@pytest.fixture
def config(click_data: Path) -> Config:
    """A run of 256 steps on 4 PS ranks under the busy profile and trace; override with ``tests.runs.changed``."""
    return small_config(click_data)
