"""Laws of a shard's files: what is read is what was written, newest version per row, in bounded memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.store import FileRecord, Part, ShardStore, shard_files, wants_compaction
from tests.store.helpers import DIM, NUM_ROWS, chosen, manifest, rows_of, write_dense

ROW_BYTES = DIM * 4
CHUNKS_BYTES = [ROW_BYTES, 7 * ROW_BYTES, 1 << 20]


@pytest.mark.parametrize("chunk_bytes", [1, *CHUNKS_BYTES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_base_round_trip_is_exact(tmp_path: Path, dtype: torch.dtype, chunk_bytes: int) -> None:
    """A base restores the very bits that were written, whatever the dtype and the chunk size."""
    rows_ND = rows_of(5).mul(100).to(dtype)
    if dtype == torch.float32:  # bits, not values
        rows_ND[0] = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000], dtype=torch.int32).view(torch.float32)
    store = ShardStore(tmp_path, "ps0", chunk_bytes=chunk_bytes)
    record = store.write_base(1, 5, rows_ND)
    read_ND = torch.empty_like(rows_ND)
    assert store.read_into([record], read_ND) == 5
    assert torch.equal(read_ND.view(torch.uint8), rows_ND.view(torch.uint8))


@pytest.mark.parametrize("encoding", ["raw", "uint4"])
def test_empty_shard_and_empty_delta(tmp_path: Path, encoding: str) -> None:
    """A shard without rows and a delta without rows are saved, compacted and restored like any other."""
    store, empty_ND = ShardStore(tmp_path, "ps0"), torch.empty(0, DIM)
    records = [
        store.write_base(0, 0, empty_ND, encoding=encoding),
        store.write_delta(1, 3, empty_ND, [], encoding=encoding),
    ]
    assert [record.payload_bytes for record in records] == [0, 0]
    assert store.read_into(records, empty_ND) == 3
    assert store.read_into([store.compact(records, 2)], empty_ND) == 3


def test_payload_is_rows_and_ids_of_chosen_rows_only(tmp_path: Path) -> None:
    """A save is charged its rows, plus 4 bytes per chosen row; a table written whole needs no ids."""
    store = ShardStore(tmp_path, "ps0")
    base = store.write_base(0, 0, rows_of(0))
    assert (base.payload_bytes, base.num_rows) == (NUM_ROWS * ROW_BYTES, NUM_ROWS)
    delta = store.write_delta(1, 1, rows_of(1), [chosen(3, 50), slice(90, 101)])
    assert (delta.payload_bytes, delta.num_rows) == (13 * ROW_BYTES + 2 * 4, 13)
    assert delta.num_bytes == (tmp_path / delta.path).stat().st_size


def random_parts(rng: np.random.Generator) -> list[Part]:
    """Chosen rows of two tables in any order, and up to two small tables whole, in any order."""
    parts: list[Part] = [
        torch.from_numpy(rng.choice(np.arange(0, 40), rng.integers(0, 20), replace=False)),
        slice(40, 47),
        torch.from_numpy(rng.choice(np.arange(47, 95), rng.integers(0, 30), replace=False)).int(),
        slice(95, NUM_ROWS),
    ]
    return [parts[i] for i in rng.permutation(len(parts))[: rng.integers(1, 5)]]


def random_history(store: ShardStore, seed: int) -> tuple[list[FileRecord], Tensor]:
    """A base and six random deltas, and what a dict of row versions says they restore to."""
    rng = np.random.default_rng(seed)
    records = [store.write_base(0, 0, rows_of(0))]
    version_of = dict.fromkeys(range(NUM_ROWS), 0)
    for step in range(1, 7):
        parts = random_parts(rng)
        records.append(store.write_delta(step, step, rows_of(step), parts))
        for part in parts:
            rows = range(part.start, part.stop) if isinstance(part, slice) else part.tolist()
            version_of |= dict.fromkeys(rows, step)
    assert len(set(version_of.values())) > 2, "the history must leave rows of several versions"
    return records, torch.stack([rows_of(version_of[row])[row] for row in range(NUM_ROWS)])


@pytest.mark.parametrize("chunk_bytes", CHUNKS_BYTES)
@pytest.mark.parametrize("seed", range(3))
def test_a_restore_and_a_compaction_give_the_newest_version_of_each_row(
    tmp_path: Path, seed: int, chunk_bytes: int
) -> None:
    """Whatever chunk size wrote or reads it; a compacted base is the base that a save of those rows writes."""
    records, expected_ND = random_history(ShardStore(tmp_path, "ps0", chunk_bytes=chunk_bytes, fsync=False), seed)
    whole = ShardStore(tmp_path / "other", "ps0", fsync=False).write_base(9, 6, expected_ND)
    for number, reader_bytes in enumerate(CHUNKS_BYTES):
        read_ND = torch.full((NUM_ROWS, DIM), float("nan"))
        store = ShardStore(tmp_path, "ps0", chunk_bytes=reader_bytes, fsync=False)
        assert store.read_into(records, read_ND) == 6
        assert torch.equal(read_ND, expected_ND)
        compacted = store.compact(records, 9 + number)
        assert replace(compacted, path=whole.path, xxh3=whole.xxh3) == whole
    assert all((tmp_path / record.path).exists() for record in records)


def test_no_operation_holds_more_than_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore and compaction allocate at most two chunks of rows, whatever the size of the shard."""
    records, _ = random_history(ShardStore(tmp_path, "ps0", fsync=False), 0)
    allocated_rows: list[int] = []
    empty_rows = shard_files.empty_rows

    def counting(num_rows: int, like_MD: Tensor) -> Tensor:
        allocated_rows.append(num_rows)
        return empty_rows(num_rows, like_MD)

    monkeypatch.setattr(shard_files, "empty_rows", counting)
    store = ShardStore(tmp_path, "ps0", chunk_bytes=7 * ROW_BYTES, fsync=False)
    store.read_into(records, torch.empty(NUM_ROWS, DIM))
    store.compact(records, 9)
    assert allocated_rows == [7, 7, 7]


def test_compaction_is_wanted_when_deltas_outgrow_the_base(tmp_path: Path) -> None:
    """Deltas may sum up to the base's payload, and not a byte more."""
    store = ShardStore(tmp_path, "ps0")
    base = store.write_base(0, 0, rows_of(0))
    equal = store.write_delta(1, 1, rows_of(1), [slice(0, NUM_ROWS)])
    more = store.write_delta(2, 2, rows_of(2), [chosen(4)])
    assert not wants_compaction([base])
    assert not wants_compaction([base, equal])
    assert wants_compaction([base, equal, more])


def test_files_of_another_shape_are_refused(tmp_path: Path) -> None:
    """A shard is never filled from rows of another shape or dtype; the line names the file and both shapes."""
    store = ShardStore(tmp_path, "ps0")
    record = store.write_base(0, 0, rows_of(0))
    with pytest.raises(
        StoreError, match=r"base-000000\.bin: expected rows of a shard of 100 x 3 float32, got 101 x 3 float32"
    ):
        store.read_into([record], torch.empty(100, DIM))
    with pytest.raises(StoreError, match="float64"):
        store.read_into([record], torch.empty(NUM_ROWS, DIM, dtype=torch.float64))


def test_a_chain_must_be_a_base_and_ordered_deltas(tmp_path: Path) -> None:
    """Deltas without their base, or older deltas after newer ones, are in no manifest."""
    store = ShardStore(tmp_path, "ps0")
    base = store.write_base(0, 0, rows_of(0))
    first, second = (store.write_delta(s, s, rows_of(s), [chosen(1)]) for s in (1, 2))
    dense = write_dense(tmp_path, 2, 2, tensors={}, extra={})
    for records, why in [
        ((), "a base as the first file of a shard, got no file"),
        ((first,), "a base as the first file"),
        ((base, second, first), "order"),
        ((base, base), "only deltas"),
    ]:
        with pytest.raises(StoreError, match=why):
            manifest(2, 2, {"ps0": records}, dense)


def test_a_content_file_is_never_rewritten(tmp_path: Path) -> None:
    """A sequence number that was used is refused, and the file of its first use stays."""
    store = ShardStore(tmp_path, "ps0")
    record = store.write_base(3, 0, rows_of(0))
    with pytest.raises(StoreError, match=r"base-000003\.bin: expected a new file"):
        store.write_base(3, 1, rows_of(1))
    assert store.read_into([record], torch.empty(NUM_ROWS, DIM)) == 0


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
def test_a_row_is_in_one_part_and_in_the_shard(tmp_path: Path, parts: list[Part]) -> None:
    """A row named twice or outside the shard is a bug of the caller, caught before anything is written."""
    with pytest.raises(AssertionError):
        ShardStore(tmp_path, "ps0").write_delta(0, 0, rows_of(0), parts)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("chunk_bytes", [ROW_BYTES, 1 << 20])
def test_every_flipped_bit_of_a_delta_is_noticed(tmp_path: Path, chunk_bytes: int) -> None:
    """A flipped bit of header, row ids or rows ends in an error that names the file: no crash, no wrong rows."""
    store = ShardStore(tmp_path, "ps0", chunk_bytes=chunk_bytes, fsync=False)
    old_N1, new_N1 = (rows_of(step)[:, :1].contiguous() for step in (0, 1))  # one value a row: each bit costs a test
    base = store.write_base(0, 0, old_N1)
    delta = store.write_delta(1, 1, new_N1, [chosen(2, 30), slice(50, 52), chosen(98, 100)])
    path = tmp_path / delta.path
    whole = path.read_bytes()
    header_bits = 8 * (delta.num_bytes - delta.payload_bytes)
    for bit in [*range(0, header_bits, 997), *range(header_bits, 8 * delta.num_bytes)]:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            store.read_into([base, delta], torch.empty(NUM_ROWS, 1))
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            store.compact([base, delta], 2)
