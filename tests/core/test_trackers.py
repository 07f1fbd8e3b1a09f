"""Laws of what a priority save writes. N rows of a request, K rows chosen, M rows of the shard."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement, budget_rows
from harness.core.seeds import derive, words
from harness.core.shard import Shard
from harness.core.trackers import TRACKERS, TrackerSpec, distances, top_rows
from harness.store.kinds import NoticeSave

CARDINALITIES = (400, 3, 160, 1)
TRACKED = (0, 2)
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


@pytest.mark.parametrize("dim", [1, 3, 16, 37])
def test_distances_are_those_of_plain_operations_to_the_bit(dim: int) -> None:
    """Of rows with other columns beside them too, and with values that are not finite."""
    rng = torch.Generator().manual_seed(dim)
    left_NX, right_NX = torch.randn(2, 300, dim + 1, generator=rng) * 10 ** torch.linspace(-25, 25, 300)[:, None]
    left_NX[5, 0], right_NX[6, 0] = torch.nan, torch.inf
    left_ND, right_ND = left_NX[:, :dim], right_NX[:, :dim]
    assert torch.equal(distances(left_ND, right_ND), plain_distances(left_ND, right_ND))
    assert distances(left_ND[:0], right_ND[:0]).shape == (0,)


class Rank:
    """A shard with its tracker; touches and saves as a PS rank does."""

    def __init__(self, kind: str, *, seed: int = 0, r: float = R, optimizer: str = "sgd", **options: str) -> None:
        placement = Placement("row", CARDINALITIES, 2)
        self.shard = Shard(placement, 1, 2, seed=seed, counts_updates=True, optimizer=OPTIMIZERS[optimizer])
        self.shard.initialise(applied_step=0)
        self.tracker = TRACKERS[kind](self.shard, TrackerSpec(kind, TRACKED, {"r": r, "pool": "touched", **options}))
        self.tracker.reset()  # as a rank does when its shard is initialised
        self.budgets = {table: budget_rows(placement.num_local_rows(1, table), r) for table in TRACKED}

    def touch(
        self, rows: list[int], counts: list[int] | None = None, sampled: list[bool] | None = None, grads_ND: Any = None
    ) -> int:
        """One more step, on local flat rows; its number."""
        step = self.shard.applied_step + 1
        rows_N = torch.tensor(rows, dtype=torch.int64)
        counts_N = torch.tensor(counts or [1] * len(rows), dtype=torch.int32)
        if grads_ND is None:
            grads_ND = torch.ones(len(rows), 2)
        before_ND = self.shard.gather(rows_N)
        assert self.shard.apply(step, rows_N, grads_ND, counts_N, 0.1)
        self.tracker.touched(step, rows_N, counts_N)
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
        self.shard.reset_pending(torch.tensor(rows, dtype=torch.int64))
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
    num_rows = Placement("row", CARDINALITIES, 2).num_rows(1)
    weights = 1 / (1 + np.arange(num_rows) % 80)
    for _ in range(num_steps):
        rows = np.sort(rng.choice(num_rows, rows_per_step, replace=False, p=weights / weights.sum()))
        yield rows.tolist(), rng.integers(1, 4, rows_per_step).tolist(), (rng.random(rows_per_step) < 0.5).tolist()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "float32", "float64"])
@pytest.mark.parametrize("num_values", [0, 1, 4, 1000, 2**31 - 1])
def test_top_rows_is_a_brute_force_sort(num_values: int, dtype: str) -> None:
    """For every K from 1 to all: the K largest positive scores, ties to the lower index, as sorting all would give."""
    rng = np.random.Generator(np.random.PCG64(num_values))
    for num_rows in (1, 2, 60):
        counts = rng.integers(0, num_values + 1, num_rows).astype(dtype)
        if dtype.startswith("float"):
            counts[1::4] *= 10.0 ** rng.integers(-30, 30, len(counts[1::4]))
            counts[-1:] = np.inf
        elif dtype == "uint32":
            counts *= 2
        order = sorted(np.flatnonzero(counts).tolist(), key=lambda i: (-counts[i].item(), i))
        for k in range(1, num_rows + 1):
            assert top_rows(torch.from_numpy(counts), k).tolist() == sorted(order[:k]), (counts, k)


@pytest.mark.parametrize("kind", ["mfu", "ssu", "random", "mass", "scar", "oldest", "state"])
def test_a_rank_without_rows_of_a_table_chooses_none(kind: str) -> None:
    """Table placement gives a rank none of some tracked tables: there is nothing to save of them."""
    shard = Shard(Placement("table", (8, 5), 2), 1, 2, seed=0, counts_updates=True)
    tracker = TRACKERS[kind](shard, TrackerSpec(kind, (0, 1), {"r": 0.5, "pool": "all"}))
    shard.initialise(applied_step=0)
    tracker.reset()
    tracker.moved(1, torch.tensor([0, 4]), torch.ones(2))
    tracker.sampled(1, torch.tensor([0, 4]), torch.tensor([True, True]))
    assert tracker.choose(0, 1).tolist() == []


@pytest.mark.parametrize("eviction", ["random", "oldest"])
@pytest.mark.parametrize("rows_per_step", [5, 40, 250])  # 250: one step meets more rows than the list holds
def test_ssu_keeps_the_lists_that_plain_code_keeps(eviction: str, rows_per_step: int) -> None:
    """Newcomers, row by row: appended while there is room, then where their words of (seed, rank, step) say.

    Or at the end, and the first of the list goes. A save of a whole table empties its list; one of some rows takes
    these off.
    """
    rank = Rank("ssu", seed=9, eviction=eviction)
    lists: dict[int, list[int]] = {table: [] for table in TRACKED}
    for rows, _, sampled in random_steps(40, seed=8, rows_per_step=rows_per_step):
        step = rank.touch(rows, sampled=sampled)
        key = words(derive(9, "evict", 1), np.array([step], np.uint64))
        before = {row for members in lists.values() for row in members}
        newcomers = [row for row, is_sampled in zip(rows, sampled, strict=True) if is_sampled and row not in before]
        if step == 30:  # a restore
            rank.tracker.reset()
            lists = {table: [] for table in TRACKED}
            continue
        for table, budget in rank.budgets.items():
            members = lists[table]
            for row in (row for row in newcomers if row in rank.rows_of(table)):
                if len(members) < budget or eviction == "oldest":
                    members.append(row)
                else:
                    word = int(words(key, np.array([row], np.uint64))[0])
                    members[(word >> 32) * budget >> 32] = row
            del members[:-budget]
            assert rank.choose(table) == sorted(members), (step, table)
            if step % 9 == 0:
                saved = rank.shard.span(table) if step % 2 else torch.tensor(sorted(members)[::3])
                rank.tracker.saved(table, saved)
                lists[table] = [] if step % 2 else [row for row in members if row not in sorted(members)[::3]]


def test_oldest_saves_every_dirty_row_within_the_next_saves() -> None:
    """Law: a row that was touched is saved by one of the next ceil(T / K) saves, and no save writes a clean row.

    Where all rows are dirty, saves take the rows of the table in turn.
    """
    rank = Rank("oldest")
    most = {table: -(-len(rank.rows_of(table)) // budget) for table, budget in rank.budgets.items()}
    waits: dict[int, int] = {}  # saves since a row became dirty
    for rows, _, _ in random_steps(400, seed=4, rows_per_step=250):
        step = rank.touch(rows)
        waits |= {row: 0 for row in rows if row not in waits}
        if step == 200:  # a restore
            rank.tracker.reset()
            waits = {}
        for table in TRACKED if step % 3 == 0 else ():
            chosen = rank.save(table)
            assert {*chosen} <= waits.keys()
            waits = {row: wait + (row in rank.rows_of(table)) for row, wait in waits.items() if row not in chosen}
            assert max((waits[row] for row in rank.rows_of(table) if row in waits), default=0) < most[table]
    rank.touch([*rank.rows_of(2)])
    rounds = [rank.save(2) for _ in range(most[2])]
    assert sorted(row for each in rounds for row in each) == [*rank.rows_of(2)]


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_state_chooses_the_rows_whose_sums_of_squares_grew_most(optimizer: str) -> None:
    """The choice is a brute-force sort by the growth of the norm of each row's state since its last save."""
    rank = Rank("state", optimizer=optimizer)

    def norms() -> Tensor:
        states = rank.shard.rows_MD[:, rank.shard.dim :].contiguous()
        return distances(states, torch.zeros_like(states))

    saved_M = norms()
    for rows, counts, _ in random_steps(60, seed=3):
        step = rank.touch(rows, counts=counts, grads_ND=gradients(rows, rank.shard.applied_step + 1))
        for table in TRACKED if step % 7 == 0 else ():
            grown_M = norms() - saved_M
            grown = [row for row in rank.rows_of(table) if grown_M[row] > 0]
            expected = sorted(grown, key=lambda row: (-grown_M[row], row))[: rank.budgets[table]]
            assert rank.save(table) == sorted(expected)
            saved_M[expected] = norms()[expected]


@pytest.mark.parametrize("pool", ["touched", "all"])
def test_random_is_keyed_by_seed_rank_table_and_step(pool: str) -> None:
    """Asking again gives the same rows, another of the four gives others, all else being equal."""

    def draw(*, seed: int = 0, index: int = 0, table: int = 0, step: int = 1) -> list[int]:
        shard = Shard(Placement("row", (320, 320), 2), index, 2, seed=seed, counts_updates=True)
        assert shard.pending_M is not None
        shard.pending_M += 1
        tracker = TRACKERS["random"](shard, TrackerSpec("random", (0, 1), {"r": R, "pool": pool}))
        return (tracker.choose(table, step) - shard.span(table).start).tolist()

    assert len(draw()) == 20
    assert draw() == draw()
    assert draw() not in [draw(seed=1), draw(index=1), draw(table=1), draw(step=2)]


def test_random_draws_every_row_of_its_pool_equally_often() -> None:
    """Of 50 touched rows: by chi-square. Pool ``all`` loses what it draws among the untouched."""
    for pool in ("touched", "all"):
        rank = Rank("random", pool=pool)
        rank.touch(touched := [*rank.rows_of(2)][:50])
        drawn = np.zeros(50, dtype=int)
        for step in range(500):
            drawn[[row - touched[0] for row in rank.tracker.choose(2, step).tolist()]] += 1
        num_pool, budget = (50 if pool == "touched" else 80), rank.budgets[2]
        p = budget / num_pool
        assert pool == "all" or drawn.sum() == 500 * budget
        assert ((drawn - 500 * p) ** 2 / (500 * p * (1 - p))).sum() < 50 + 4 * np.sqrt(2 * 50)


def gradients(rows: list[int], step: int) -> Tensor:
    """Gradients of a step, of many magnitudes; every fifth step reverses the one before it on the rows they share."""
    rng = torch.Generator().manual_seed(step - step % 5 // 4)
    grads_MD = torch.randn((1000, 2), generator=rng) * torch.logspace(-3, 1, 1000)[:, None]
    return grads_MD[rows] * (-1 if step % 5 == 4 else 1)


@pytest.mark.parametrize("kind", ["scar", "mass", "mfu"])
def test_the_choice_is_a_brute_force_sort(kind: str) -> None:
    """Over many steps and saves, some of them whole: the K rows of the largest measure, ties to the lower row.

    Rows that a step moves and the next one moves back have mass, and no distance but for rounding.
    """
    rank = Rank(kind)
    saved_MD = rank.shard.rows_MD.clone()
    mass_M, accesses_M = torch.zeros(len(saved_MD)), torch.zeros(len(saved_MD))
    num_differing = 0
    for rows, counts, _ in random_steps(60, seed=0):
        if rank.shard.applied_step == 24:  # a restore
            rank.shard.rows_MD += 1.0
            rank.shard.reset_counts(applied_step=24)
            rank.tracker.reset()
            saved_MD[:], mass_M[:], accesses_M[:] = rank.shard.rows_MD, 0, 0
        before_MD = rank.shard.rows_MD.clone()
        step = rank.touch(rows, counts=counts, grads_ND=gradients(rows, rank.shard.applied_step + 1))
        mass_M += distances(rank.shard.rows_MD, before_MD)
        accesses_M[rows] += torch.tensor(counts)
        if step % 7:
            continue
        far_M = distances(rank.shard.rows_MD, saved_MD)
        measures = {"scar": far_M, "mass": mass_M, "mfu": accesses_M}
        measure_M = measures.pop(kind)
        for table in TRACKED:
            moved = [row for row in rank.rows_of(table) if measure_M[row] > 0]
            expected = sorted(moved, key=lambda row: (-measure_M[row], row))[: rank.budgets[table]]
            for other_M in measures.values():
                other = sorted(moved, key=lambda row: (-other_M[row], row))[: rank.budgets[table]]
                num_differing += set(expected) != set(other)
            assert rank.save(table) == sorted(expected)
            if step == 35:
                rank.shard.reset_pending(rank.shard.span(table))
                rank.tracker.saved(table, rank.shard.span(table))
                expected = [*rank.rows_of(table)]
            saved_MD[expected], mass_M[expected], accesses_M[expected] = rank.shard.rows_MD[expected], 0, 0
    assert num_differing > 8, "the measures would not be told apart"


@pytest.mark.parametrize("kind", [None, "mfu"])
def test_a_save_on_notice_takes_the_trackers_rows_first(kind: str | None) -> None:
    """Then rows with lower ids, of any table; never a row without unsaved updates, and all of them if there is time."""
    rank = Rank("mfu", r=0.01)  # one row of each tracked table
    rank.touch([1, 5, 7, 200, 201, 210], counts=[1, 1, 9, 1, 1, 9])
    assert [rank.shard.span(table) for table in range(3)] == [slice(0, 200), slice(200, 201), slice(201, 281)]

    def saved(most_rows: int) -> list[int]:
        kind_of_save = NoticeSave(most_rows, has_choice=kind is not None)
        rows: dict[int, Any] = kind_of_save.rows(rank.shard, rank.tracker, TRACKED, step=1)
        assert all((rows[table] >= rank.shard.span(table).start).all() for table in rows)
        return [row for table in sorted(rows) for row in rows[table].tolist()]

    assert saved(3) == ([1, 7, 210] if kind else [1, 5, 7])
    assert saved(6) == saved(99) == [1, 5, 7, 200, 201, 210]
