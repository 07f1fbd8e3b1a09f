"""Laws of what a priority save writes. N rows of a request, K rows chosen, M rows of the shard."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.placement import Placement, budget_rows
from harness.core.seeds import derive, words
from harness.core.shard import Shard
from harness.core.trackers import TRACKERS, Tracker, TrackerSpec, distances, top_rows

CARDINALITIES = (400, 3, 160, 1)
TRACKED = (0, 2)
NUM_PS = 2
R = 0.125


def plain_distances(left_ND: Tensor, right_ND: Tensor) -> Tensor:
    """As ``distances``, by whole columns: the twin of the compiled loops."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares_ND = np.square(left_ND.numpy() - right_ND.numpy())
        num_rows, dim = squares_ND.shape
        sums_N4 = np.zeros((num_rows, 4), np.float32)
        fours = dim - dim % 4
        for d in range(dim):
            sums_N4[:, d % 4 if d < fours else 0] += squares_ND[:, d]
        norms_N = np.sqrt((sums_N4[:, 0] + sums_N4[:, 2]) + (sums_N4[:, 1] + sums_N4[:, 3]))
    return torch.from_numpy(np.where(np.isnan(norms_N), np.float32(np.inf), norms_N))


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 16, 37])
def test_distances_are_those_of_plain_operations_to_the_bit(dim: int) -> None:
    """Of rows with other columns beside them too, and with values that are not finite."""
    rng = torch.Generator().manual_seed(dim)
    left_NX, right_NX = torch.randn(2, 300, dim + 1, generator=rng) * 10 ** torch.linspace(-25, 25, 300)[:, None]
    left_NX[5, 0], right_NX[6, 0] = torch.nan, torch.inf
    left_ND, right_ND = left_NX[:, :dim], right_NX[:, :dim]
    assert torch.equal(distances(left_ND, right_ND), plain_distances(left_ND, right_ND))
    assert distances(left_ND[:0], right_ND[:0]).shape == (0,)


EVERY_TRACKER = pytest.mark.parametrize("kind", ["mfu", "ssu", "random", "mass", "scar"])
EVERY_POOL = pytest.mark.parametrize("pool", ["touched", "all"])


class Rank:
    """A shard with its tracker; touches and saves as a PS rank does."""

    def __init__(
        self,
        kind: str,
        *,
        seed: int = 0,
        index: int = 1,
        r: float = R,
        pool: str = "touched",
        eviction: str = "random",
    ) -> None:
        placement = Placement("row", CARDINALITIES, NUM_PS)
        self.shard = Shard(placement, index, 2, seed=seed, count_updates=True)
        self.shard.initialise(applied_step=0)
        options = {"r": r, "pool": pool, "eviction": eviction}
        self.tracker: Tracker = TRACKERS[kind](self.shard, TrackerSpec(kind, TRACKED, options))
        self.tracker.reset()  # as a rank does when its shard is initialised
        self.budgets = {table: budget_rows(placement.local_rows(index, table), r) for table in TRACKED}

    def touch(
        self,
        rows: list[int],
        *,
        counts: list[int] | None = None,
        sampled: list[bool] | None = None,
        grads_ND: Tensor | None = None,
    ) -> int:
        """One more step, on local flat rows; its number."""
        step = self.shard.applied_step + 1
        rows_N = torch.tensor(rows, dtype=torch.int64)
        counts_N = torch.tensor(counts or [1] * len(rows), dtype=torch.int32)
        if grads_ND is None:
            grads_ND = torch.ones(len(rows), 2)
        before_ND = self.shard.gather(rows_N)
        assert self.shard.apply(step, rows_N, grads_ND, counts_N, 0.1)
        self.tracker.moved(step, rows_N, distances(self.shard.gather(rows_N), before_ND))
        self.tracker.sampled(step, rows_N, torch.tensor(sampled or [True] * len(rows), dtype=torch.bool))
        return step

    def choose(self, table: int) -> list[int]:
        """The tracker's choice, which is int64 and ascending."""
        rows_K = self.tracker.choose(table, self.shard.applied_step)
        assert rows_K.dtype == torch.int64
        assert rows_K.tolist() == sorted(set(rows_K.tolist()))
        return rows_K.tolist()

    def save(self, table: int) -> list[int]:
        """Choose, and count it as written."""
        rows = self.choose(table)
        self.shard.take_pending(torch.tensor(rows, dtype=torch.int64))
        self.tracker.saved(table, torch.tensor(rows, dtype=torch.int64))
        return rows

    def rows_of(self, table: int) -> range:
        """Local flat rows of ``table``."""
        span = self.shard.span(table)
        return range(span.start, span.stop)


def random_steps(
    num_steps: int, seed: int, rows_per_step: int = 40
) -> Iterator[tuple[list[int], list[int], list[bool]]]:
    """Rows (ascending, distinct, the low ones of each table more often), counts and sampled flags."""
    rng = np.random.Generator(np.random.PCG64(seed))
    num_rows = Placement("row", CARDINALITIES, NUM_PS).num_rows(1)
    weights = 1 / (1 + np.arange(num_rows) % 80)
    for _ in range(num_steps):
        rows = np.sort(rng.choice(num_rows, rows_per_step, replace=False, p=weights / weights.sum()))
        yield rows.tolist(), rng.integers(1, 4, rows_per_step).tolist(), (rng.random(rows_per_step) < 0.5).tolist()


@pytest.mark.parametrize("num_values", [1, 2, 4, 1000])
def test_top_rows_is_a_brute_force_sort(num_values: int) -> None:
    """For every K from 1 to all: the K largest positive counts, ties to the lower index, as sorting all would give."""
    rng = np.random.Generator(np.random.PCG64(num_values))
    for num_rows in (1, 2, 60):
        counts = rng.integers(0, num_values + 1, num_rows)
        order = sorted((i for i in range(num_rows) if counts[i]), key=lambda i: (-counts[i], i))
        for k in range(1, num_rows + 1):
            chosen_K = top_rows(torch.from_numpy(counts.astype(np.int32)), k)
            assert chosen_K.tolist() == sorted(order[:k]), (counts, k)


@EVERY_TRACKER
@EVERY_POOL
def test_no_tracker_saves_more_than_its_budget_nor_an_untouched_row(kind: str, pool: str) -> None:
    """At every save at most K rows of the table, each touched since it was last saved."""
    rank = Rank(kind, pool=pool)
    unsaved: set[int] = set()
    num_saved = 0
    for rows, counts, sampled in random_steps(60, seed=1):
        step = rank.touch(rows, counts=counts, sampled=sampled)
        unsaved |= set(rows)
        if step % 5 == 0:
            for table in TRACKED:
                chosen = rank.save(table)
                assert len(chosen) <= rank.budgets[table]
                assert set(chosen) <= unsaved & set(rank.rows_of(table))
                unsaved -= set(chosen)
                num_saved += len(chosen)
    assert num_saved > 60


@EVERY_TRACKER
@EVERY_POOL
def test_what_was_saved_is_forgotten_until_it_is_touched_again(kind: str, pool: str) -> None:
    """A save right after one that took everything has nothing to write; of new touches it knows."""
    rank = Rank(kind, r=1.0, pool=pool)
    rows = [*rank.rows_of(0)][:9]
    rank.touch(rows)
    assert rank.save(0) == rows
    assert rank.save(0) == []
    rank.touch(rows[3:5])
    assert rank.save(0) == rows[3:5]


@EVERY_TRACKER
def test_saving_one_table_leaves_the_others(kind: str) -> None:
    """A tracker's tables are independent of each other, and rows of untracked tables are never chosen."""
    rank = Rank(kind, r=1.0)
    rank.touch([0, 5, *rank.rows_of(1), *rank.rows_of(2)[:3]])
    assert rank.save(2) == [*rank.rows_of(2)][:3]
    assert rank.save(0) == [0, 5]


@EVERY_TRACKER
def test_a_reset_forgets_everything(kind: str) -> None:
    """After a restore, which resets counters and tracker, no row counts as touched."""
    rank = Rank(kind)
    for rows, counts, sampled in random_steps(10, seed=2):
        rank.touch(rows, counts=counts, sampled=sampled)
    assert rank.choose(0)
    rank.shard.reset_counts(applied_step=10)
    rank.tracker.reset()
    assert [rank.choose(table) for table in TRACKED] == [[], []]


@EVERY_TRACKER
def test_a_rank_without_rows_of_a_table_chooses_none(kind: str) -> None:
    """Table placement gives a rank none of some tracked tables: there is nothing to save of them."""
    shard = Shard(Placement("table", (8, 5), 2), 1, 2, seed=0, count_updates=True)
    tracker = TRACKERS[kind](shard, TrackerSpec(kind, (0, 1), {"r": 0.5, "pool": "all"}))
    shard.initialise(applied_step=0)
    tracker.reset()
    tracker.moved(1, torch.tensor([0, 4]), torch.ones(2))
    tracker.sampled(1, torch.tensor([0, 4]), torch.tensor([True, True]))
    assert tracker.choose(0, 1).tolist() == []


def test_ssu_keeps_rows_that_a_save_left_out() -> None:
    """A save of some listed rows takes these off the list; a save of a whole table empties it."""
    rank = Rank("ssu", r=1.0)
    rank.touch([0, 3, 5, 8, *rank.rows_of(2)[:2]])
    rank.tracker.saved(0, torch.tensor([1, 3, 8]))
    assert rank.choose(0) == [0, 5]
    rank.touch([3, 5])
    assert rank.choose(0) == [0, 3, 5]
    rank.tracker.saved(0, rank.shard.span(0))
    assert rank.choose(0) == []
    assert rank.choose(2) == [*rank.rows_of(2)][:2]


@pytest.mark.parametrize("rows_per_step", [40, 250])
def test_ssu_can_evict_the_row_that_joined_first(rows_per_step: int) -> None:
    """The list is the last K newcomers, in order of step and row, also after a save of some of them."""
    rank = Rank("ssu", eviction="oldest")
    lists: dict[int, list[int]] = {table: [] for table in TRACKED}
    for rows, _, sampled in random_steps(40, seed=8, rows_per_step=rows_per_step):
        step = rank.touch(rows, sampled=sampled)
        for table, budget in rank.budgets.items():
            before = set(lists[table])
            own = [row for row, is_sampled in zip(rows, sampled, strict=True) if is_sampled and row not in before]
            lists[table] = [*lists[table], *(row for row in own if row in rank.rows_of(table))][-budget:]
            assert rank.choose(table) == sorted(lists[table]), (step, table)
            if step % 9 == 0:
                saved = sorted(lists[table])[::3]
                rank.tracker.saved(table, torch.tensor(saved))
                lists[table] = [row for row in lists[table] if row not in saved]


@pytest.mark.parametrize("rows_per_step", [5, 40, 250])  # 250: one step meets more rows than the list holds
def test_ssu_keeps_the_lists_that_plain_code_keeps(rows_per_step: int) -> None:
    """Newcomers, row by row: appended while there is room, then where their words of (seed, rank, step) say."""
    rank = Rank("ssu", seed=9)
    lists: dict[int, list[int]] = {table: [] for table in TRACKED}
    for rows, _, sampled in random_steps(40, seed=8, rows_per_step=rows_per_step):
        step = rank.touch(rows, sampled=sampled)
        key = words(derive(9, "evict", 1), np.array([step], np.uint64))
        before = {table: set(members) for table, members in lists.items()}
        for row, is_sampled in zip(rows, sampled, strict=True):
            for table in TRACKED if is_sampled else ():
                members, budget = lists[table], rank.budgets[table]
                if row not in rank.rows_of(table) or row in before[table]:
                    continue
                if len(members) < budget:
                    members.append(row)
                else:
                    word = int(words(key, np.array([row], np.uint64))[0])
                    members[(word >> 32) * budget >> 32] = row
        for table in TRACKED:
            assert rank.choose(table) == sorted(lists[table]), (step, table)
            if step % 10 == 0:
                rank.save(table)
                lists[table] = []


@pytest.mark.parametrize("num_rows", [400, 20_000])
def test_ssu_lists_do_not_hang_on_how_steps_are_told(num_rows: int) -> None:
    """A rank that is told of no step without sampled rows, as by a lookahead cache, ends with the same lists."""
    shard = Shard(Placement("row", (num_rows, num_rows), 1), 0, 2, seed=0, count_updates=False)
    every, some = (TRACKERS["ssu"](shard, TrackerSpec("ssu", (0, 1), {"r": R})) for _ in range(2))
    rng = np.random.Generator(np.random.PCG64(6))
    for step in range(1, 301):
        rows_N = torch.from_numpy(np.unique(rng.integers(0, 2 * num_rows, num_rows // 80)))
        sampled_N = torch.from_numpy((rng.random(len(rows_N)) < 0.5) & (step % 3 > 0))
        every.sampled(step, rows_N, sampled_N)
        if sampled_N.any():
            some.sampled(step, rows_N[sampled_N], torch.ones(int(sampled_N.sum()), dtype=torch.bool))
    for table in (0, 1):
        assert len(every.choose(table, 300)) == num_rows // 8
        assert every.choose(table, 300).equal(some.choose(table, 300))


@EVERY_POOL
def test_random_is_keyed_by_seed_rank_table_and_step(pool: str) -> None:
    """Asking again gives the same rows, another of the four gives others, all else being equal."""

    def draw(*, seed: int = 0, index: int = 0, table: int = 0, step: int = 1) -> list[int]:
        shard = Shard(Placement("row", (320, 320), 2), index, 2, seed=seed, count_updates=True)
        assert shard.pending_M is not None
        shard.pending_M += 1
        tracker = TRACKERS["random"](shard, TrackerSpec("random", (0, 1), {"r": R, "pool": pool}))
        return (tracker.choose(table, step) - shard.span(table).start).tolist()

    assert len(draw()) == 20
    assert draw() == draw()
    assert draw() not in [draw(seed=1), draw(index=1), draw(table=1), draw(step=2)]


def test_random_pools_differ_in_what_they_draw_among() -> None:
    """Pool ``touched`` fills its budget from touched rows; pool ``all`` loses what it draws among the untouched."""
    sizes: dict[str, list[int]] = {"touched": [], "all": []}
    budget = 25
    for pool, seed in product(sizes, range(40)):
        rank = Rank("random", seed=seed, pool=pool)
        assert rank.budgets[0] == budget
        rank.touch([*rank.rows_of(0)][::4])
        sizes[pool].append(len(rank.choose(0)))
    assert set(sizes["touched"]) == {budget}
    assert abs(np.mean(sizes["all"]) - budget / 4) < 1.5


def test_random_draws_every_touched_row_equally_often() -> None:
    """Over many steps the 50 touched rows are drawn evenly: chi-square."""
    rank = Rank("random")
    touched = [*rank.rows_of(2)][:50]
    rank.touch(touched)
    drawn = np.zeros(50, dtype=int)
    for step in range(500):
        drawn[[row - touched[0] for row in rank.tracker.choose(2, step).tolist()]] += 1
    budget = rank.budgets[2]
    assert drawn.sum() == 500 * budget
    p = budget / 50
    assert ((drawn - 500 * p) ** 2 / (500 * p * (1 - p))).sum() < 49 + 4 * np.sqrt(2 * 49)


def test_without_a_tracker_a_priority_save_is_a_bug() -> None:
    """The null tracker takes every touch and refuses to choose; only counting trackers need the shard's counter."""
    shard = Shard(Placement("row", CARDINALITIES, 1), 0, 2, seed=0, count_updates=False)
    tracker = TRACKERS[None](shard, TrackerSpec(None, TRACKED))
    tracker.moved(1, torch.tensor([0]), torch.tensor([0.5]))
    tracker.touched(1, torch.tensor([0]), torch.tensor([1], dtype=torch.int32))
    tracker.sampled(1, torch.tensor([0]), torch.tensor([True]))
    tracker.saved(0, slice(0, 400))
    tracker.reset()
    with pytest.raises(AssertionError, match="needs a tracker"):
        tracker.choose(0, 1)
    assert {kind for kind, tracker in TRACKERS.items() if tracker.needs_counts} == {"mfu", "random", "changed"}
    assert {kind for kind, tracker in TRACKERS.items() if tracker.needs_norms} == {"mass"}
    assert {kind for kind, tracker in TRACKERS.items() if tracker.needs_samples} == {"ssu"}
