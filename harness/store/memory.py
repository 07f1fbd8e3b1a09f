"""The store that keeps the newest checkpoint in the memory of its process, for engine ``local``.

It takes the memory of a base and of deltas of each shard, whose payload is at most that of the base and one delta more
(``wants_compaction``). It ends with the process: resume points hold what it held (:meth:`MemoryStore.held`).

Shapes: M rows of the shard, K rows chosen.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from harness.core.errors import StoreError
from harness.core.plans import Rank
from harness.core.resumable import Resumable, State
from harness.store.contract import Store
from harness.store.manifest import RAW, FileKind, FileRecord, Manifest, content_name, sequence_of
from harness.store.rows import ENCODINGS, ROW_ID_BYTES, Part, RowSource, empty_rows, split_parts


class _Held(Resumable):
    """The contents of one rank, by the path in their records.

    Those of a base are its rows (M, X); those of a delta a list of pairs: the first row of a range, or the ids of
    chosen rows, and the rows.
    """

    _state = ("contents",)

    def __init__(self) -> None:
        self.contents: dict[str, Any] = {}


class MemoryStore(Store):
    """The newest checkpoint, and the save under way, in memory. Nothing is checked for damage, or can be damaged."""

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[Rank, _Held] = defaultdict(_Held)

    def write_base(self, rank: Rank, sequence: int, step: int, rows: RowSource, *, encoding: str = RAW) -> FileRecord:
        rows.begin()
        rows_MD = _copy(rows, slice(0, len(rows.rows_MD)), encoding)
        num_bytes = len(rows_MD) * ENCODINGS[encoding].row_bytes(rows_MD)
        return self._keep(
            rank, "base", sequence, step, rows_MD, num_bytes=num_bytes, num_rows=len(rows_MD), encoding=encoding
        )

    def write_delta(
        self, rank: Rank, sequence: int, step: int, rows: RowSource, parts: Iterable[Part], *, encoding: str = RAW
    ) -> FileRecord:
        rows.begin()
        ranges, ids_K = split_parts(parts, len(rows.rows_MD))
        pairs: list[tuple[Any, Tensor]] = [(part.start, _copy(rows, part, encoding)) for part in ranges]
        pairs.append((ids_K.long(), _copy(rows, ids_K, encoding)))
        num_rows = sum(len(rows_KD) for _, rows_KD in pairs)
        num_bytes = len(ids_K) * ROW_ID_BYTES + num_rows * ENCODINGS[encoding].row_bytes(rows.rows_MD)
        return self._keep(
            rank, "delta", sequence, step, pairs, num_bytes=num_bytes, num_rows=num_rows, encoding=encoding
        )

    def write_dense(
        self, rank: Rank, sequence: int, step: int, tensors: Mapping[str, Tensor], extra: State
    ) -> FileRecord:
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return self._keep(rank, "dense", sequence, step, copies, num_bytes=sum(each.nbytes for each in copies.values()))

    def read_rows(self, records: Sequence[FileRecord], rows_MD: Tensor) -> None:
        base, *deltas = records
        rows_MD.copy_(self._content(base))
        for delta in deltas:
            _lay_over(rows_MD, self._content(delta))

    def read_dense(self, record: FileRecord) -> dict[str, Tensor]:
        return dict(self._content(record))

    def compact(self, records: Sequence[FileRecord], sequence: int) -> FileRecord:
        """See Store. The old base changes, and has a second name.

        That changes no checkpoint: a row of the old base that differs has a newer version in the deltas after it, which
        are laid over it again when the newest checkpoint is read.
        """
        base, *deltas = records
        rows_MD, rank = self._content(base), _rank_of(base)
        for delta in deltas:
            _lay_over(rows_MD, self._content(delta))
        num_bytes, step = rows_MD.nbytes, records[-1].applied_step
        return self._keep(rank, "base", sequence, step, rows_MD, num_bytes=num_bytes, num_rows=len(rows_MD))

    def discard(self, rank: Rank, sequence: int) -> None:
        contents = self._ranks[rank].contents
        for path in [path for path in contents if sequence_of(path.rpartition("/")[2]) == sequence]:
            del contents[path]

    def commit(self, manifest: Manifest) -> None:
        """Keep what ``manifest`` names, and nothing else."""
        named = {record.path for record in manifest.files}
        for held in self._ranks.values():
            held.contents = {path: content for path, content in held.contents.items() if path in named}

    def held(self, rank: Rank) -> Resumable:
        return self._ranks[rank]

    def _content(self, record: FileRecord) -> Any:
        contents = self._ranks[_rank_of(record)].contents
        if record.path not in contents:
            raise StoreError(f"{record.path}: expected it in memory, where it is not")
        return contents[record.path]

    def _keep(
        self,
        rank: Rank,
        kind: FileKind,
        sequence: int,
        step: int,
        content: Any,
        *,
        num_bytes: int,
        num_rows: int = 0,
        encoding: str = RAW,
    ) -> FileRecord:
        path = f"{rank}/{content_name(kind, sequence)}"
        self._ranks[rank].contents[path] = content
        return FileRecord(
            path=path,
            kind=kind,
            num_bytes=num_bytes,
            payload_bytes=num_bytes,
            xxh3="",
            applied_step=step,
            num_rows=num_rows,
            encoding=encoding,
        )


def _rank_of(record: FileRecord) -> Rank:
    return record.path.partition("/")[0]


def _copy(rows: RowSource, part: Part, encoding: str) -> Tensor:
    """The rows of ``part`` as they are after they were encoded and decoded."""
    num_rows = part.stop - part.start if isinstance(part, slice) else len(part)
    rows_KD, first = empty_rows(num_rows, rows.rows_MD), 0
    for chunk_WD in rows.read(part):
        ENCODINGS[encoding].round_into(chunk_WD, rows_KD[first : first + len(chunk_WD)])
        first += len(chunk_WD)
    return rows_KD


def _lay_over(rows_MD: Tensor, pairs: list[tuple[Any, Tensor]]) -> None:
    """Overwrite the rows of ``rows_MD`` that a delta has."""
    for where, rows_KD in pairs:
        if isinstance(where, Tensor):
            rows_MD.index_copy_(0, where, rows_KD)
        else:
            rows_MD[where : where + len(rows_KD)] = rows_KD
