"""Laws of a shard's files: what is read is what was written, newest version per row, in bounded memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.store import ENCODINGS, FileRecord, Manifest, Part, ShardStore, shard_files, wants_compaction
from tests.store.helpers import DIM, NUM_ROWS, chosen, manifest, rows_of, write_dense

ROW_BYTES = DIM * 4
CHUNKS_BYTES = [1, ROW_BYTES, 7 * ROW_BYTES, 1 << 20]


def test_base_round_trip_is_exact(tmp_path: Path) -> None:
    """A base restores the very bits that were written, whatever the dtype and the chunk size."""
    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.int8)):
        rows_ND = rows_of(5).mul(100).to(dtype)
        if dtype == torch.float32:  # bits, not values
            rows_ND[0] = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000], dtype=torch.int32).view(torch.float32)
        store = ShardStore(tmp_path, "ps0", chunk_bytes=CHUNKS_BYTES[number])
        record = store.write_base(number, 5, rows_ND)
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


def random_history(store: ShardStore, seed: int) -> tuple[list[FileRecord], Tensor]:
    """A base and six random deltas, and what a dict of row versions says they restore to.

    In any order, a delta has chosen rows of two tables, and up to three small tables whole, two side by side.
    """
    rng = np.random.default_rng(seed)
    records = [store.write_base(0, 0, rows_of(0))]
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
        records.append(store.write_delta(step, step, rows_of(step), parts))
        rows = [range(part.start, part.stop) if isinstance(part, slice) else part.tolist() for part in parts]
        version_of |= {row: step for part in rows for row in part}
        num_chosen = sum(len(part) for part in parts if isinstance(part, Tensor))
        assert records[-1].num_rows == sum(map(len, rows))
        assert records[-1].payload_bytes == records[-1].num_rows * ROW_BYTES + 4 * num_chosen, "the price of a save"
    assert len(set(version_of.values())) > 2, "the history must leave rows of several versions"
    return records, torch.stack([rows_of(version_of[row])[row] for row in range(NUM_ROWS)])


def test_a_restore_and_a_compaction_give_the_newest_version_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever chunk size wrote or reads it; a compacted base is the base that a save of those rows writes.

    Both allocate at most two chunks of rows, whatever the size of the shard.
    """
    allocated_rows: list[int] = []
    empty_rows = shard_files.empty_rows

    def counting(num_rows: int, like_MD: Tensor) -> Tensor:
        allocated_rows.append(num_rows)
        return empty_rows(num_rows, like_MD)

    monkeypatch.setattr(shard_files, "empty_rows", counting)
    for seed, chunk_bytes in enumerate(CHUNKS_BYTES[1:]):
        root = tmp_path / str(seed)
        records, expected_ND = random_history(ShardStore(root, "ps0", chunk_bytes=chunk_bytes, fsync=False), seed)
        whole = ShardStore(root / "other", "ps0", fsync=False).write_base(9, 6, expected_ND)
        for number, reader_bytes in enumerate(CHUNKS_BYTES[1:]):
            allocated_rows.clear()
            read_ND = torch.full((NUM_ROWS, DIM), float("nan"))
            store = ShardStore(root, "ps0", chunk_bytes=reader_bytes, fsync=False)
            assert store.read_into(records, read_ND) == 6
            assert torch.equal(read_ND, expected_ND)
            compacted = store.compact(records, 9 + number)
            assert replace(compacted, path=whole.path, xxh3=whole.xxh3) == whole
            assert allocated_rows == 3 * [reader_bytes // ROW_BYTES]
        assert all((root / record.path).exists() for record in records)


def test_compaction_is_wanted_when_deltas_outgrow_the_base(tmp_path: Path) -> None:
    """Deltas may sum up to the base's payload, and not a byte more."""
    store = ShardStore(tmp_path, "ps0")
    base = store.write_base(0, 0, rows_of(0))
    equal = store.write_delta(1, 1, rows_of(1), [slice(0, NUM_ROWS)])
    more = store.write_delta(2, 2, rows_of(2), [chosen(4)])
    assert [wants_compaction(chain) for chain in ([base], [base, equal], [base, equal, more])] == [False, False, True]


def test_other_files_than_expected_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another shape, dtype or encoding, or of an encoding that is not known; a line names the file and both.

    A content file is never rewritten: a number that was used is refused.
    """
    store, rows_ND = ShardStore(tmp_path, "ps0"), rows_of(0)
    record = store.write_base(0, 0, rows_ND)
    encoded = store.write_base(3, 0, rows_ND, encoding="uint8")
    for found, into, words in (
        (record, torch.empty(100, DIM), "rows of a shard of 100 x 3 float32, got 101 x 3 float32"),
        (record, torch.empty(NUM_ROWS, DIM, dtype=torch.float64), "rows of a shard of 101 x 3 float64, got"),
        (replace(encoded, encoding="raw"), rows_ND, "rows in encoding 'raw', as its manifest states, got 'uint8'"),
    ):
        with pytest.raises(StoreError, match=rf"base-00000\d\.bin: expected {words}"):
            store.read_into([found], into)
    with pytest.raises(StoreError, match=r"base-000003\.bin: expected a new file"):
        store.write_base(3, 1, rows_of(1))
    monkeypatch.delitem(ENCODINGS, "uint8")
    with pytest.raises(StoreError, match="expected rows in encoding raw or uint2 or uint4, got 'uint8'"):
        store.read_into([encoded], rows_ND)


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
    delta = store.write_delta(1, 1, new_N1, [chosen(2, 30), slice(50, 52), chosen(98)])
    path = tmp_path / delta.path
    whole = path.read_bytes()
    header_bits = 8 * (delta.num_bytes - delta.payload_bytes)
    for bit in [*range(0, header_bits, 1997), *range(header_bits, 8 * delta.num_bytes)]:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            store.read_into([base, delta], torch.empty(NUM_ROWS, 1))
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            store.compact([base, delta], 2)


# --- encodings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", CHUNKS_BYTES[1:])
def test_a_chain_may_mix_encodings(tmp_path: Path, chunk_bytes: int) -> None:
    """A base, an encoded delta, a raw one: each row comes back as its newest file has it."""
    store = ShardStore(tmp_path, "ps0", fsync=False, chunk_bytes=chunk_bytes)
    first, second, third = (rows_of(seed, 500) for seed in range(3))
    some, others = torch.arange(0, 400, 3), torch.arange(0, 400, 5)
    coarse, read = torch.empty_like(second), torch.full_like(first, torch.nan)
    store.read_into([store.write_base(9, 1, second, encoding="uint8")], coarse)
    assert not torch.equal(coarse, second)
    chain = [
        store.write_base(0, 0, first),
        store.write_delta(1, 1, second, [some, slice(400, 450)], encoding="uint8"),
        store.write_delta(2, 2, third, [others]),
    ]
    expected = first.clone()
    expected[some], expected[400:450], expected[others] = coarse[some], coarse[400:450], third[others]
    assert chain[1].payload_bytes == len(some) * (4 + 8 + DIM) + 50 * (8 + DIM)
    assert store.read_into(chain, read) == 2
    assert torch.equal(read, expected)
    compacted = store.compact(chain, 2)
    assert compacted.encoding == "raw"
    assert store.read_into([compacted], read.fill_(torch.nan)) == 2
    assert torch.equal(read, expected)
    both = manifest(2, 2, {"ps0": tuple(chain)}, write_dense(tmp_path, 2, 2))
    assert Manifest.from_text(both.to_text(), "here") == both


@pytest.mark.parametrize(("bits", "dim"), [(8, 3), (4, 16), (4, 1), (2, 3), (2, 16)])
def test_quantised_rows_lie_within_half_a_step(tmp_path: Path, bits: int, dim: int) -> None:
    """Half of the row's own scale, whatever the row's magnitude; least and greatest value and equal values are kept."""
    magnitudes = torch.logspace(-6, 3, 500)[:, None]
    rows = torch.randn(500, dim, generator=torch.Generator().manual_seed(bits)) * magnitudes
    rows[5] = 0.7
    store = ShardStore(tmp_path, "ps0", fsync=False, chunk_bytes=1000 if dim > 3 else 4 * dim)  # or one row at a time
    read = torch.full((500, dim), torch.nan)
    base = store.write_base(0, 0, rows, encoding=f"uint{bits}")
    assert base.payload_bytes == 500 * (8 + -(-dim * bits // 8))
    store.read_into([base], read)
    scales = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    rounding = rows.abs().amax(1) * 3e-7
    assert ((read - rows).abs().amax(1) <= scales / 2 * (1 + 1e-4) + rounding).all()
    assert torch.equal(read.amin(1), rows.amin(1))
    assert ((read.amax(1) - rows.amax(1)).abs() <= rounding).all()
    assert torch.equal(read[5], rows[5])
    if dim == 16:
        assert (read - rows).abs().mean() > scales.mean() / 8, "this test would not notice a raw encoding"
