"""Files whose rows are encoded: what they hold, what they cost, and chains that mix encodings."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from harness.core.errors import StoreError
from harness.store import ENCODINGS, Manifest, ShardStore
from tests.store.helpers import manifest, write_dense

NUM_ROWS, DIM = 500, 6


class Halves:
    """Rows as float16: half of the bytes."""

    def row_bytes(self, like_MD: Tensor) -> int:
        """Two bytes a value."""
        return 2 * like_MD.shape[1]

    def encode(self, rows_WD: Tensor) -> Tensor:
        """Round."""
        return rows_WD.half()

    def read_into(self, fill: Callable[[Tensor], None], rows_WD: Tensor) -> None:
        """Widen."""
        halves_WD = torch.empty(rows_WD.shape, dtype=torch.float16)
        fill(halves_WD)
        rows_WD.copy_(halves_WD)


@pytest.fixture(autouse=True)
def _halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODINGS, "halves", Halves())


def versions() -> list[Tensor]:
    """Four versions of a shard's rows."""
    return list(torch.randn(4, NUM_ROWS, DIM, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("chunk_bytes", [DIM * 4, 1000, 1 << 20])
def test_a_chain_may_mix_encodings(tmp_path: Path, chunk_bytes: int) -> None:
    """A base, an encoded delta, a raw one, an encoded base: each row comes back as its newest file has it."""
    store = ShardStore(tmp_path, "ps0", fsync=False, chunk_bytes=chunk_bytes)
    first, second, third, fourth = versions()
    some, others = torch.arange(0, 400, 3), torch.arange(0, 400, 5)
    chain = [
        store.write_base(0, 0, first),
        store.write_delta(1, 1, second, [some, slice(400, 450)], encoding="halves"),
        store.write_delta(2, 2, third, [others]),
    ]
    expected = first.clone()
    expected[some], expected[400:450] = second[some].half().float(), second[400:450].half().float()
    expected[others] = third[others]
    assert [record.payload_bytes for record in chain[1:]] == [
        len(some) * (4 + 2 * DIM) + 50 * 2 * DIM,
        len(others) * (4 + 4 * DIM),
    ]
    read = torch.full((NUM_ROWS, DIM), torch.nan)
    assert store.read_into(chain, read) == 2
    assert torch.equal(read, expected)
    compacted = store.compact(chain, 2)
    assert compacted.encoding == "raw"
    assert store.read_into([compacted], read.fill_(torch.nan)) == 2
    assert torch.equal(read, expected)
    base = store.write_base(3, 3, fourth, encoding="halves")
    assert base.payload_bytes == NUM_ROWS * 2 * DIM
    store.read_into([base], read)
    assert torch.equal(read, fourth.half().float())


def test_a_record_names_an_encoding_that_is_not_raw(tmp_path: Path) -> None:
    """In JSON and back; a record of raw rows is what it was before there were encodings."""
    store, rows = ShardStore(tmp_path, "ps0", fsync=False), versions()[0]
    raw, halves = store.write_base(0, 0, rows), store.write_base(1, 0, rows, encoding="halves")
    dense = write_dense(tmp_path, 0, 0, tensors={}, extra={})
    both = manifest(1, 0, {"ps0": (raw,), "ps1": (halves,)}, dense)
    shards = json.loads(both.to_text())["shards"]
    assert "encoding" not in shards["ps0"][0]
    assert shards["ps1"][0]["encoding"] == "halves"
    assert Manifest.from_text(both.to_text(), "here") == both


def test_another_encoding_than_the_manifests_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose header disagrees with its record, and an encoding that this program does not have."""
    store, rows = ShardStore(tmp_path, "ps0", fsync=False), versions()[0]
    halves = store.write_base(0, 0, rows, encoding="halves")
    claimed = replace(halves, encoding="raw")
    with pytest.raises(
        StoreError, match=r"base-000000\.bin: expected rows in encoding 'raw', as its manifest states, got 'halves'"
    ):
        store.read_into([claimed], rows)
    monkeypatch.delitem(ENCODINGS, "halves")
    with pytest.raises(StoreError, match="expected rows in encoding raw or uint2 or uint4 or uint8, got 'halves'"):
        store.read_into([halves], rows)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_quantised_rows_lie_within_half_a_step(tmp_path: Path, bits: int, dim: int) -> None:
    """Half of the row's own scale, whatever the row's magnitude; least and greatest value and equal values are kept."""
    magnitudes = torch.logspace(-6, 3, NUM_ROWS)[:, None]
    rows = torch.randn(NUM_ROWS, dim, generator=torch.Generator().manual_seed(bits)) * magnitudes
    rows[5] = 0.7
    store = ShardStore(tmp_path, "ps0", fsync=False, chunk_bytes=1000 if dim > 3 else 4 * dim)  # or one row at a time
    read = torch.full((NUM_ROWS, dim), torch.nan)
    base = store.write_base(0, 0, rows, encoding=f"uint{bits}")
    assert base.payload_bytes == NUM_ROWS * (8 + -(-dim * bits // 8))
    store.read_into([base], read)
    scales = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    rounding = rows.abs().amax(1) * 3e-7
    assert ((read - rows).abs().amax(1) <= scales / 2 * (1 + 1e-4) + rounding).all()
    assert torch.equal(read.amin(1), rows.amin(1))
    assert ((read.amax(1) - rows.amax(1)).abs() <= rounding).all()
    assert torch.equal(read[5], rows[5])
    if dim == 16:
        assert (read - rows).abs().mean() > scales.mean() / 8, "this test would not notice a raw encoding"
