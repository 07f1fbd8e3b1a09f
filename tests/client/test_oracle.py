"""Windows planned ahead: which rows they need, where these are kept, and the least that must move."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harness.client.embedding_client import Batches
from harness.client.oracle import Oracle, Placing, Window, least_rows
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


@pytest.mark.parametrize("max_rows", [None, 150])
def test_every_row_is_in_its_slot_when_its_step_comes(batches: Batches, max_rows: int | None) -> None:
    """A cache that does as the plans say, rows coming late and leaving first, finds the rows of each step."""
    slots: dict[int, int] = {}  # what is in each slot
    windows = plan_all(batches, window_steps=7, max_rows=max_rows)
    assert [window.first for window in windows[1:]] == [window.stop for window in windows[:-1]]
    slots.update(zip(windows[0].after.held.slots.tolist(), windows[0].after.held.keys.tolist(), strict=True))
    for before, window in pairwise(windows):
        for slot in before.after.held[window.is_leaving_H].slots.tolist():
            del slots[slot]
        arriving = dict(zip(window.coming.slots.tolist(), window.coming.keys.tolist(), strict=True))
        assert slots.keys().isdisjoint(arriving)
        for (_, plan), slots_N in zip(before.steps, before.slots, strict=True):
            assert [slots[slot] for slot in slots_N.tolist()] == plan.keys_N.tolist()
        slots |= arriving
        assert {slot: key for key, slot in zip(window.after.held.keys, window.after.held.slots, strict=True)} == slots
        assert set(window.after.held.keys) == {*before.rows.keys, *window.rows.keys}
    assert windows[-1].after.pool.capacity == max(slot for window in windows for slot in window.after.held.slots) + 1


def test_updates_are_counted_by_row(batches: Batches) -> None:
    """The updates of a window are those of its steps."""
    for window in plan_all(batches, window_steps=7):
        counts: dict[int, int] = {}
        for _, plan in window.steps:
            for key, count in zip(plan.keys_N.tolist(), plan.counts_N.tolist(), strict=True):
                counts[key] = counts.get(key, 0) + count
        assert dict(zip(window.rows.keys.tolist(), window.counts_U.tolist(), strict=True)) == counts


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


def test_a_seed_and_a_bound_give_one_plan(batches: Batches) -> None:
    """Slots too, and whatever was cut off a window is planned as it would have been."""
    plans = [plan_all(batches, window_steps=steps, max_rows=150) for steps in (7, 7, 60)]
    assert [w.after.held.slots.tolist() for w in plans[0]] == [w.after.held.slots.tolist() for w in plans[1]]
    for first, second in zip(plans[0], plans[2], strict=False):
        for (_, mine), (_, other) in zip(first.steps, second.steps, strict=False):
            assert np.array_equal(mine.keys_N, other.keys_N)


def brute_force(windows: list[Window]) -> tuple[int, int]:
    """The least traffic, by following every row through all windows with its own two eyes."""
    fetched = written = 0
    for key in {key for window in windows for key in window.rows.keys.tolist()}:
        visits = [number for number, window in enumerate(windows) if key in window.rows.keys]
        runs: list[list[int]] = []
        for number in visits:
            if runs and number - runs[-1][-1] <= 2:
                runs[-1].append(number)
            else:
                runs.append([number])
        fetched += len(runs)
        for run in runs:
            for this, following in zip(run, [*run[1:], None], strict=True):
                must_tell = any(is_flushed(window) for window in windows[this:following])
                written += must_tell or following is None
    return fetched, written


@pytest.mark.parametrize("window_steps", [1, 3, 7, 60])
def test_the_least_traffic_is_what_following_every_row_gives(batches: Batches, window_steps: int) -> None:
    """Added up over windows, from the keys of two before each, it is that of all runs of all rows."""
    windows = plan_all(batches, window_steps=window_steps)
    total = tuple(sum(counts) for counts in zip(*(window.least for window in windows), strict=True))
    assert total == brute_force(windows)


def test_a_run_ends_after_two_windows_without_the_row() -> None:
    """A row that one window leaves out stays; one that two leave out is fetched again, and written once more."""
    row, other = np.array([5]), np.array([7])
    assert least_rows(row, [(row, False), (other, False)]) == (0, 0)
    assert least_rows(row, [(other, False), (other, False)]) == (1, 1)
    assert least_rows(row, [(row, False), (other, True)]) == (0, 1)
