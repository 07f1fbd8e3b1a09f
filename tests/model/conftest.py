"""Tests of the dense network may change how many threads torch has."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
