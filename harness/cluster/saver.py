"""The save side of a PS rank: what a save holds is decided at its step; it is written at once, or while steps go on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.cluster.protocol import Collect, Save, Written
from harness.core.shard import Shard
from harness.core.trackers import Tracker
from harness.store import (
    Background,
    ChosenRows,
    FileRecord,
    FrozenRows,
    Part,
    RowRange,
    RowSource,
    ShardStore,
    Snapshot,
    StillRows,
    wants_compaction,
)


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What a save holds: ``parts`` of the shard (None: all of it), and how many updates that makes safe."""

    parts: tuple[Part, ...] | None
    persisted: int
    persisted_tracked: int


@dataclass(frozen=True)
class _UnderWay:
    """A save that is being written."""

    sequence: int
    rows: FrozenRows
    writing: Background[Written]


class Saver:
    """Saves one shard; at most one save is under way.

    Args:
        tracked: tables of which a priority save writes the tracker's choice; the others are written whole.
        buffer_bytes: memory that a save in the background may take, besides one byte a row.
    """

    def __init__(
        self, shard: Shard, tracker: Tracker, tracked: Sequence[int], store: ShardStore, *, buffer_bytes: int
    ) -> None:
        self._shard = shard
        self._tracker = tracker
        self._tracked = tracked
        self._store = store
        self._buffer_bytes = buffer_bytes
        self._under_way: _UnderWay | None = None
        self._change_freely = shard.before_change

    def save(self, request: Save) -> Written | None:
        """Write the shard as it is, or begin to."""
        step = self._shard.applied_step
        assert request.step == step, f"save of step {request.step} at step {step}"
        return self._begin(request) if request.in_background else self._write_now(request)

    def collect(self, request: Collect) -> Written:
        """Wait for a save that was begun. Raises what went wrong with it."""
        under_way = self._under_way
        if under_way is None:
            return self._write_now(request.save)
        assert under_way.sequence == request.save.sequence, "one save at a time"
        try:
            return replace(under_way.writing.result(), waited_s=under_way.rows.waited_s)
        finally:
            self._forget()

    def abandon(self) -> None:
        """Give up the save under way, if there is one: no thread and no file of it is left."""
        under_way = self._under_way
        if under_way is not None:
            under_way.rows.give_up()
            under_way.writing.wait()
            self._forget()
            self._store.discard(under_way.sequence)

    def _forget(self) -> None:
        self._under_way = None
        self._shard.before_change = self._change_freely

    def _begin(self, request: Save) -> None:
        contents = self._prepare(request)
        rows = FrozenRows(Snapshot(self._shard.rows_MD, contents.parts, buffer_bytes=self._buffer_bytes))
        self._shard.before_change = rows.before_change

        def write() -> Written:
            try:
                return self._write(request, contents, rows)
            finally:
                rows.release()  # steps wait for the writer: whatever befell it, they must go on

        self._under_way = _UnderWay(request.sequence, rows, Background("save", write))

    def _write_now(self, request: Save) -> Written:
        contents = self._prepare(request)
        return self._write(request, contents, StillRows(self._shard.rows_MD))

    def _prepare(self, request: Save) -> _Contents:
        self.abandon()
        # Asked for again, after a death in the middle of it: no manifest names the files of the first attempt.
        self._store.discard(request.sequence)
        return self._take_all() if request.plan.kind == "full" else self._take_chosen(request.step)

    def _take_all(self) -> _Contents:
        tracked = sum(self._shard.take_pending(self._shard.span(table)) for table in self._tracked)
        persisted = tracked + self._shard.take_pending(slice(None))
        self._tracker.reset()
        return _Contents(parts=None, persisted=persisted, persisted_tracked=tracked)

    def _take_chosen(self, step: int) -> _Contents:
        chosen = {table: self._tracker.choose(table, step) for table in self._tracked}
        tables = range(len(self._shard.placement.cardinalities))
        whole = [self._shard.span(table) for table in tables if table not in chosen]
        tracked = 0
        for table, rows_K in chosen.items():
            tracked += self._shard.take_pending(rows_K)
            self._tracker.saved(table)
        persisted = tracked + sum(self._shard.take_pending(span) for span in whole)
        parts = (*(ChosenRows(rows_K) for rows_K in chosen.values()), *(RowRange(s.start, s.stop) for s in whole))
        return _Contents(parts=parts, persisted=persisted, persisted_tracked=tracked)

    def _write(self, request: Save, contents: _Contents, rows: RowSource) -> Written:
        sequence, step, chain = request.sequence, request.step, request.records
        compacted = False
        if contents.parts is None:
            newest = self._store.write_base(sequence, step, rows)
            records: tuple[FileRecord, ...] = (newest,)
        else:
            newest = self._store.write_delta(sequence, step, rows, contents.parts)
            rows.release()
            if compacted := wants_compaction(chain):
                chain = (self._store.compact(chain, sequence),)
            records = (*chain, newest)
        counts = self._shard.pending_M is not None
        return Written(
            records=records,
            payload_bytes=newest.payload_bytes,
            num_rows=newest.num_rows,
            persisted_updates=contents.persisted if counts else None,
            persisted_tracked=contents.persisted_tracked if counts else None,
            compacted=compacted,
        )
