"""Store ``bucket``: each content is one object with a name and bytes, as an object storage has them.

Here they are files of the run's folder. Nothing is deleted but what was not committed.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.core.plans import Rank
from harness.core.resumable import State
from harness.store.contract import Store
from harness.store.manifest import RAW, FileKind, FileRecord, Manifest
from harness.store.rows import ENCODINGS, Part, RowSource, split_parts
from harness.store.stores import STORES


class Bucket(Store):
    """Contents may be loaded without executing code from them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._folder = root

    def write_base(self, rank: Rank, sequence: int, step: int, rows: RowSource, *, encoding: str = RAW) -> FileRecord:
        parts = [slice(0, len(rows.rows_MD))]
        return self._put("base", rank, sequence, step, **_encoded(rows, parts, encoding))

    def write_delta(
        self, rank: Rank, sequence: int, step: int, rows: RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        return self._put("delta", rank, sequence, step, **_encoded(rows, parts, encoding))

    def write_dense(
        self, rank: Rank, sequence: int, step: int, tensors: Mapping[str, Tensor], extra: State
    ) -> FileRecord:
        num_bytes = sum(each.nbytes for each in tensors.values())
        return self._put("dense", rank, sequence, step, content=dict(tensors), payload_bytes=num_bytes)

    def _put(self, kind: FileKind, rank: Rank, sequence: int, step: int, *, content: Any, **about: Any) -> FileRecord:
        torch.save(content, data := io.BytesIO())
        path = self._folder / f"{rank}.{kind}.{sequence}"
        size = path.write_bytes(data.getvalue())
        about = {"num_rows": 0, "encoding": RAW, **about}
        return FileRecord(path=path.name, kind=kind, num_bytes=size, xxh3="", applied_step=step, **about)

    def _get(self, record: FileRecord) -> Any:
        return torch.load(self._folder / record.path, weights_only=True)

    def read_dense(self, record: FileRecord) -> dict[str, Tensor]:
        return self._get(record)

    def read_rows(self, records: Sequence[FileRecord], rows_MD: Tensor) -> None:
        for record in records:
            rows_MD.index_copy_(0, *self._get(record))

    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        rows_MD = self._get(records[0])[1]  # a base has all rows, in order
        self.read_rows(records, rows_MD)
        return self.write_base(records[0].path.split(".")[0], sequence, records[-1].applied_step, RowSource(rows_MD))

    def discard(self, rank: Rank, sequence: int) -> None:
        for path in self._folder.glob(f"{rank}.*.{sequence}"):
            path.unlink()

    def commit(self, manifest: Manifest) -> None:
        (self._folder / manifest.name).write_text(manifest.to_text())

    def open(self) -> None:
        self._folder.mkdir(exist_ok=True)


def _encoded(rows: RowSource, parts: Iterable[Part], encoding: str) -> dict[str, Any]:
    """The content (ids, and rows as they are read back), and what the record says of it."""
    rows.begin()
    ranges, ids_K = split_parts(parts, len(rows.rows_MD))
    ids_N = torch.cat([*(torch.arange(part.start, part.stop) for part in ranges), ids_K.long()])
    chunks = [chunk.clone() for part in (*ranges, ids_K) for chunk in rows.read(part)]
    rows_ND = torch.cat([rows.rows_MD[:0], *chunks])
    ENCODINGS[encoding].round_into(rows_ND, read_ND := torch.empty_like(rows_ND))
    num_bytes = 4 * len(ids_K) + len(rows_ND) * ENCODINGS[encoding].row_bytes(rows_ND)
    return {"content": (ids_N, read_ND), "payload_bytes": num_bytes, "num_rows": len(rows_ND), "encoding": encoding}


STORES["bucket"] = lambda root, keep, fsync: Bucket(root)
