"""Laws of every store: what is read is what was written, newest version per row; what is not committed counts for
nothing."""

import errno
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.core.resumable import Resumable
from harness.store import (
    FailingSource,
    FileRecord,
    FileStore,
    Manifest,
    MemoryStore,
    Part,
    Store,
    read_state,
    wants_compaction,
    write_state,
)
from harness.store import rows as store_rows
from tests.store.helpers import DIM, NUM_ROWS, OneShard, chosen, manifest, rows_of

ROW_BYTES = DIM * 4
MakeStore = Callable[[], Store]


@pytest.fixture(params=["files", "memory"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Makes a new, empty store of one kind."""
    made: list[int] = []

    def make() -> Store:
        made.append(1)
        store = MemoryStore() if request.param == "memory" else FileStore(tmp_path / str(len(made)), fsync=False)
        store.open()
        return store

    return make


def random_history(shard: OneShard, seed: int) -> tuple[list[FileRecord], Tensor]:
    """A base and six random deltas, and what a dict of row versions says they restore to.

    In any order, a delta has chosen rows of two tables, and up to three small tables whole, two side by side.
    """
    rng = np.random.default_rng(seed)
    records = [shard.base(0, 0, rows_of(0))]
    version_of = dict.fromkeys(range(NUM_ROWS), 0)
    for step in range(1, 7):
        some = [
            torch.from_numpy(rng.choice(np.arange(0, 40), rng.integers(0, 20), replace=False)),
            slice(40, 47),
            slice(47, 50),
            torch.from_numpy(rng.choice(np.arange(50, 95), rng.integers(0, 30), replace=False)).int(),
            slice(95, NUM_ROWS),
        ]
        parts: list[Part] = [some[i] for i in rng.permutation(len(some))[: rng.integers(1, 6)]]
        records.append(shard.delta(step, step, rows_of(step), parts))
        rows = [range(part.start, part.stop) if isinstance(part, slice) else part.tolist() for part in parts]
        version_of |= {row: step for part in rows for row in part}
        num_chosen = sum(len(part) for part in parts if isinstance(part, Tensor))
        assert records[-1].num_rows == sum(map(len, rows))
        assert records[-1].payload_bytes == records[-1].num_rows * ROW_BYTES + 4 * num_chosen, "the price of a save"
    assert len(set(version_of.values())) > 2, "the history must leave rows of several versions"
    return records, torch.stack([rows_of(version_of[row])[row] for row in range(NUM_ROWS)])


def test_what_is_read_has_the_bits_that_were_written(make_store: MakeStore) -> None:
    """Whatever the dtype; and the tensors of the dense network, which may change after the call."""
    shard = OneShard(make_store())
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.int8)):
        rows_ND = rows_of(5).mul(100).to(dtype)
        if dtype == torch.float32:  # bits, not values
            rows_ND[0] = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000], dtype=torch.int32).view(torch.float32)
        expected_ND = rows_ND.clone()
        record = shard.base(number, 5, rows_ND)
        rows_ND.zero_()
        assert record.applied_step == 5
        assert torch.equal(shard.read([record], rows_ND).view(torch.uint8), expected_ND.view(torch.uint8))
    weights = rows_of(1)
    record = shard.store.write_dense("trainer0", 3, 7, {"w": weights, "b": weights[0]}, {"x": 1})
    expected, weights[:] = weights.clone(), 0
    assert (record.applied_step, record.payload_bytes) == (7, expected.nbytes + expected[0].nbytes)
    found = shard.store.read_dense(record)
    assert found.keys() == {"w", "b"}
    assert torch.equal(found["w"], expected)
    assert torch.equal(found["b"], expected[0])


@pytest.mark.parametrize("encoding", ["raw", "uint4"])
def test_empty_shard_and_empty_delta(make_store: MakeStore, encoding: str) -> None:
    """A shard without rows and a delta without rows are saved, compacted and restored like any other."""
    shard, empty_ND = OneShard(make_store()), torch.empty(0, DIM)
    records = [shard.base(0, 0, empty_ND, encoding=encoding), shard.delta(1, 3, empty_ND, [], encoding=encoding)]
    assert [record.payload_bytes for record in records] == [0, 0]
    assert shard.read(records, empty_ND).shape == empty_ND.shape
    compacted = shard.compact(records, 2)
    assert compacted.applied_step == 3
    assert shard.read([compacted], empty_ND).shape == empty_ND.shape


@pytest.mark.parametrize("seed", range(3))
def test_a_restore_and_a_compaction_give_the_newest_version_of_each_row(make_store: MakeStore, seed: int) -> None:
    """Of any part of a chain: what it was compacted to, and the files after it; the old chain reads as before."""
    shard = OneShard(make_store())
    records, expected_ND = random_history(shard, seed)
    assert torch.equal(shard.read(records, expected_ND), expected_ND)
    first = shard.compact(records[:3], 7)
    assert (first.kind, first.payload_bytes, first.num_rows) == ("base", NUM_ROWS * ROW_BYTES, NUM_ROWS)
    assert torch.equal(shard.read([first, *records[3:]], expected_ND), expected_ND)
    assert torch.equal(shard.read(records, expected_ND), expected_ND)
    assert torch.equal(shard.read([shard.compact([first, *records[3:]], 8)], expected_ND), expected_ND)
    assert torch.equal(shard.read([first, *records[3:]], expected_ND), expected_ND)


def test_compaction_is_wanted_when_deltas_outgrow_the_base(make_store: MakeStore) -> None:
    """Deltas may sum up to the base's payload, and not a byte more."""
    shard = OneShard(make_store())
    base = shard.base(0, 0, rows_of(0))
    equal = shard.delta(1, 1, rows_of(1), [slice(0, NUM_ROWS)])
    more = shard.delta(2, 2, rows_of(2), [chosen(4)])
    assert [wants_compaction(chain) for chain in ([base], [base, equal], [base, equal, more])] == [False, False, True]


@pytest.mark.parametrize(
    "parts",
    [
        [chosen(1, 1)],
        [chosen(1), chosen(1)],
        [chosen(NUM_ROWS)],
        [chosen(-1)],
        [slice(0, 5), slice(4, 6)],
        [slice(0, 5), chosen(2)],
        [slice(99, NUM_ROWS + 1)],
    ],
)
def test_a_row_is_in_one_part_and_in_the_shard(make_store: MakeStore, tmp_path: Path, parts: list[Part]) -> None:
    """A row named twice or outside the shard is a bug of the caller, caught before anything is written."""
    with pytest.raises(AssertionError):
        OneShard(make_store()).delta(0, 0, rows_of(0), parts)
    assert not list(tmp_path.rglob("*.*"))


def dense(store: Store, sequence: int) -> FileRecord:
    return store.write_dense("trainer0", sequence, sequence, {"w": rows_of(sequence)}, {})


def committed(shard: OneShard, sequence: int, chain: list[FileRecord]) -> Manifest:
    made = manifest(sequence, sequence, {shard.rank: tuple(chain)}, dense(shard.store, sequence))
    shard.store.commit(made)
    shard.store.close()
    return made


def test_what_is_not_committed_counts_for_nothing(make_store: MakeStore) -> None:
    """A save is given up after any of its writes: the newest checkpoint reads as before, and the number can be used
    again."""
    shard = OneShard(make_store())
    chain = [shard.base(0, 0, rows_of(0))]
    committed(shard, 0, chain)
    chain.append(shard.delta(1, 1, rows_of(1), [slice(0, 60), chosen(70)]))
    newest = committed(shard, 1, chain)
    expected_MD = shard.read(chain, rows_of(0))
    for compacts in (False, True, True):
        with pytest.raises((StoreError, OSError), match="No space left"):
            shard.delta(2, 2, FailingSource(rows_of(2), errno.ENOSPC), [chosen(1)])
        given_up = [shard.delta(2, 2, rows_of(2), [slice(0, 50)]), dense(shard.store, 2)]
        if compacts:
            given_up.append(shard.compact(chain, 2))
        for rank in (shard.rank, "trainer0"):
            shard.store.discard(rank, 2)
        assert torch.equal(shard.read(newest.shards["ps0"], expected_MD), expected_MD)
        assert torch.equal(shard.store.read_dense(newest.trainer)["w"], rows_of(1))
        for record in given_up:
            with pytest.raises(StoreError, match=record.path):
                shard.store.read_dense(record) if record.kind == "dense" else shard.read([record], expected_MD)
    after = [shard.compact(chain, 2), shard.delta(2, 2, rows_of(2), [chosen(3)])]
    committed(shard, 2, after)
    expected_MD[3] = rows_of(2)[3]
    assert torch.equal(shard.read(after, expected_MD), expected_MD)
    shard.store.discard("ps9", 2)  # a rank that has written nothing


def test_memory_holds_one_checkpoint_and_resume_points_have_it(tmp_path: Path) -> None:
    """What a commit does not name is dropped; what is left comes back from the state of each rank, to the bit."""
    shard = OneShard(MemoryStore())
    chain = [shard.base(0, 0, rows_of(0))]
    newest = committed(shard, 0, chain)
    for step in range(1, 6):
        if wants_compaction(chain):
            chain = [shard.compact(chain, step)]
        chain.append(shard.delta(step, step, rows_of(step), [slice(0, 30), chosen(40, 41)]))
        newest = committed(shard, step, chain)
        held = [shard.store.held(rank).state()["contents"]["of"] for rank in ("ps0", "trainer0")]
        assert [len(contents) for contents in held] == [len(chain), 1]
    again = OneShard(MemoryStore())
    for number, rank in enumerate(("ps0", "trainer0")):
        record = write_state(tmp_path, rank, number, 5, shard.store.held(rank).state(), fsync=False)
        again.store.held(rank).load(read_state(tmp_path, record))
    assert torch.equal(again.read(newest.shards["ps0"], rows_of(0)), shard.read(newest.shards["ps0"], rows_of(0)))
    assert torch.equal(again.store.read_dense(newest.trainer)["w"], rows_of(5))


def test_files_are_the_same_in_each_process(tmp_path: Path) -> None:
    """A store of files can be pickled while old files are deleted, and holds nothing in memory alone."""
    shard = OneShard(FileStore(tmp_path, keep=1, fsync=False))
    committed(shard, 0, [shard.base(0, 0, rows_of(0))])
    other = OneShard(pickle.loads(pickle.dumps(shard.store)))
    record = other.base(1, 1, rows_of(1))
    assert torch.equal(shard.read([record], rows_of(1)), rows_of(1))
    assert type(shard.store.held("ps0")) is Resumable


# --- encodings --------------------------------------------------------------------------------------------------------


def test_a_chain_may_mix_encodings(make_store: MakeStore) -> None:
    """A base, an encoded delta, a raw one: each row comes back as its newest file has it."""
    shard = OneShard(make_store())
    first, second, third = (rows_of(seed, 500) for seed in range(3))
    some, others = torch.arange(0, 400, 3), torch.arange(0, 400, 5)
    coarse = shard.read([shard.base(9, 1, second, encoding="uint8")], second)
    assert not torch.equal(coarse, second)
    chain = [
        shard.base(0, 0, first),
        shard.delta(1, 1, second, [some, slice(400, 450)], encoding="uint8"),
        shard.delta(2, 2, third, [others]),
    ]
    expected = first.clone()
    expected[some], expected[400:450], expected[others] = coarse[some], coarse[400:450], third[others]
    assert chain[1].payload_bytes == len(some) * (4 + 8 + DIM) + 50 * (8 + DIM)
    assert torch.equal(shard.read(chain, expected), expected)
    compacted = shard.compact(chain, 2)
    assert compacted.encoding == "raw"
    assert torch.equal(shard.read([compacted], expected), expected)
    both = manifest(2, 2, {"ps0": tuple(chain)}, dense(shard.store, 2))
    assert Manifest.from_text(both.to_text(), "here") == both


@pytest.mark.parametrize(("bits", "dim"), [(8, 3), (4, 16), (4, 1), (2, 3), (2, 16)])
def test_quantised_rows_lie_within_half_a_step(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, bits: int, dim: int
) -> None:
    """Half of the row's own scale, whatever the row's magnitude; least and greatest value and equal values are kept."""
    magnitudes = torch.logspace(-6, 3, 500)[:, None]
    rows = torch.randn(500, dim, generator=torch.Generator().manual_seed(bits)) * magnitudes
    rows[5] = 0.7
    monkeypatch.setattr(store_rows, "CHUNK_BYTES", 1000 if dim > 3 else 4 * dim)  # or one row at a time
    shard = OneShard(make_store())
    base = shard.base(0, 0, rows, encoding=f"uint{bits}")
    assert base.payload_bytes == 500 * (8 + -(-dim * bits // 8))
    read = shard.read([base], rows)
    scales = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    rounding = rows.abs().amax(1) * 3e-7
    assert ((read - rows).abs().amax(1) <= scales / 2 * (1 + 1e-4) + rounding).all()
    assert torch.equal(read.amin(1), rows.amin(1))
    assert ((read.amax(1) - rows.amax(1)).abs() <= rounding).all()
    assert torch.equal(read[5], rows[5])
    if dim == 16:
        assert (read - rows).abs().mean() > scales.mean() / 8, "this test would not notice a raw encoding"
