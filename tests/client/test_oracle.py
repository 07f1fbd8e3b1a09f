"""Windows planned ahead: which rows they need, where these are kept, and the least that must move."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.client.embedding_client import Batches
from harness.client.oracle import Oracle, Placing, Window
from harness.core.placement import Placement
from harness.data.dataset import Dataset

NUM_STEPS = 60


@pytest.fixture
def batches(click_data: Path) -> Batches:
    """Batches of 4 samples, rows on 3 ranks."""
    dataset = Dataset.open(click_data, split="dlrm", seed=0)
    return Batches(dataset, Placement("row", dataset.cardinalities, 3), batch_size=4, sample_period=2)


def plan_all(batches: Batches, *, window_steps: int, max_rows: int | None = None, boundary: int = 13) -> list[Window]:
    """All windows of the first steps; every ``boundary`` steps all updates are told."""
    oracle = Oracle(batches, max_window_rows=max_rows)
    windows: list[Window] = []
    before, first = Placing(), 0
    while first < NUM_STEPS:
        stop = min(first + window_steps, NUM_STEPS, (first // boundary + 1) * boundary)
        windows.append(oracle.plan(before, first, stop, is_flushed=stop % boundary == 0 or stop == NUM_STEPS))
        before, first = windows[-1].after, windows[-1].stop
    return windows


def is_flushed(window: Window, boundary: int = 13) -> bool:
    """Whether all updates are told when it is over."""
    return window.stop % boundary == 0 or window.stop == NUM_STEPS


def test_a_window_is_as_long_as_its_bound_allows(batches: Batches) -> None:
    """Cut windows touch no more rows than they may, one step more would; a single step may need more."""
    free = plan_all(batches, window_steps=7)
    bound = plan_all(batches, window_steps=7, max_rows=200)
    assert len(bound) > len(free)
    for window, following in pairwise(bound):
        assert len(window.rows) <= 200
        if len(window.steps) < 7 and not is_flushed(window):
            assert len(np.union1d(window.rows.keys, following.steps[0][1].keys_N)) > 200
    assert all(len(window.steps) == 1 for window in plan_all(batches, window_steps=7, max_rows=1))


def brute_force(windows: list[Window]) -> tuple[int, int]:
    """The least traffic, by following every row through all windows with its own two eyes.

    A stay of a row ends after two windows without it; it costs a fetch, a write at its end, and one at each flush
    before a later use.
    """
    fetched = written = 0
    keys_of = [set(window.rows.keys.tolist()) for window in windows]
    for key in set().union(*keys_of):
        visits = [number for number, keys in enumerate(keys_of) if key in keys]
        for this, following in zip(visits, [*visits[1:], len(windows) + 2], strict=True):
            ends = following - this > 2
            fetched += ends
            written += ends or any(is_flushed(window) for window in windows[this:following])
    return fetched, written


@pytest.mark.parametrize("window_steps", [3, 7])
def test_the_least_traffic_is_what_following_every_row_gives(batches: Batches, window_steps: int) -> None:
    """Added up over windows, from the keys of two before each, it is that of all runs of all rows."""
    windows = plan_all(batches, window_steps=window_steps)
    total = tuple(sum(counts) for counts in zip(*(window.least for window in windows), strict=True))
    assert total == brute_force(windows)
