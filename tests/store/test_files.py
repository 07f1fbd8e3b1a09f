"""Laws of the store of files: damage is found, other files are refused, memory is bounded by the shard."""

from pathlib import Path

import pytest
import torch

from harness.core.errors import StoreError
from harness.store import ENCODINGS, name_files_by, rows, without_writer
from harness.store.manifest import sequence_of
from tests.store.helpers import DIM, NUM_ROWS, chosen, files, rows_of
from tests.store.test_stores import ROW_BYTES, random_history


def test_the_size_of_chunks_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever chunk size wrote or reads it; a compacted base is the base that a save of those rows writes."""
    contents = set[bytes]()
    for chunk_bytes in (1, ROW_BYTES, 7 * ROW_BYTES, 1 << 20):
        monkeypatch.setattr(rows, "CHUNK_BYTES", chunk_bytes)
        shard = files(tmp_path / str(chunk_bytes))
        records, expected_MD = random_history(shard, 3)
        assert torch.equal(shard.read(records, expected_MD), expected_MD)
        whole = files(tmp_path / f"{chunk_bytes}-other").base(9, 6, expected_MD)
        assert shard.compact(records, 9) == whole
        contents.add(b"".join((tmp_path / str(chunk_bytes) / record.path).read_bytes() for record in records))
        assert all((tmp_path / str(chunk_bytes) / record.path).exists() for record in records)
    assert len(contents) == 1


def test_other_files_than_expected_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another shape, dtype or encoding, or of an encoding that is not known; a line names the file and both.

    A content file is never rewritten: a number that was used is refused.
    """
    shard, rows_ND = files(tmp_path), rows_of(0)
    record = shard.base(0, 0, rows_ND)
    encoded = shard.base(3, 0, rows_ND, encoding="uint8")
    for found, into, words in (
        (record, torch.empty(100, DIM), "rows of a shard of 100 x 3 float32, got 101 x 3 float32"),
        (record, torch.empty(NUM_ROWS, DIM, dtype=torch.float64), "rows of a shard of 101 x 3 float64, got"),
    ):
        with pytest.raises(StoreError, match=rf"base-00000\d\.bin: expected {words}"):
            shard.read([found], into)
    with pytest.raises(StoreError, match=r"base-000003\.bin: expected a new file"):
        shard.base(3, 1, rows_of(1))
    monkeypatch.delitem(ENCODINGS, "uint8")
    with pytest.raises(StoreError, match="expected rows in encoding raw or uint2 or uint4, got 'uint8'"):
        shard.read([encoded], rows_ND)


@pytest.mark.parametrize("chunk_bytes", [ROW_BYTES, 1 << 20])
def test_every_flipped_bit_of_a_delta_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """A flipped bit of header, row ids or rows ends in an error that names the file: no crash, no wrong rows."""
    monkeypatch.setattr(rows, "CHUNK_BYTES", chunk_bytes)
    shard = files(tmp_path)
    old_N1, new_N1 = (rows_of(step)[:, :1].contiguous() for step in (0, 1))  # one value a row: each bit costs a test
    base = shard.base(0, 0, old_N1)
    delta = shard.delta(1, 1, new_N1, [chosen(2, 30), slice(50, 52), chosen(98)])
    path = tmp_path / delta.path
    whole = path.read_bytes()
    header_bits = 8 * (delta.num_bytes - delta.payload_bytes)
    for bit in [*range(0, header_bits, 1997), *range(header_bits, 8 * delta.num_bytes)]:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            shard.read([base, delta], old_N1)
        with pytest.raises(StoreError, match=r"delta-000001\.bin: damaged"):
            shard.compact([base, delta], 2)


def test_two_writers_of_one_save_touch_no_file_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a rank on a host that was cut off and its replacement; messages have the names without the writer."""
    monkeypatch.setattr("harness.store.manifest._writer", "")
    shard, written = files(tmp_path), [rows_of(0), rows_of(1)]
    records = []
    for writer, rows_ND in zip(("00000000", "ffffffff"), written, strict=True):
        name_files_by(writer)
        shard.store.discard("ps0", 7)
        records.append(shard.base(7, 70, rows_ND))
    shard.store.discard("ps0", 7)
    assert torch.equal(shard.read([records[0]], torch.empty(NUM_ROWS, DIM)), written[0])
    assert not (tmp_path / records[1].path).exists()
    assert without_writer(records[0].path) == "ps0/base-000007.bin"
    assert sequence_of("base-000007-00000000.bin") == 7
