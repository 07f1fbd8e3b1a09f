"""Saves of a PS rank: the contents are fixed at the save's step and written at once or in the background."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.cluster.protocol import Save, Written
from harness.core.errors import StoreError
from harness.core.plans import Rank
from harness.core.shard import SavedCounts, Shard
from harness.core.trackers import Tracker
from harness.store import (
    FailingSource,
    FileRecord,
    Part,
    RowSource,
    Snapshot,
    Store,
    in_background,
    save_kind,
    wants_compaction,
)
from harness.store.kinds import NoticeSave, SaveKind


class _Contents(NamedTuple):
    """The contents of a save.

    ``parts``: of the shard; None for all of it. ``builds_on``: older files, which a restore reads before the new one.
    ``saved_counts``: the updates that the save persists.
    """

    request: Save
    parts: tuple[Part, ...] | None
    builds_on: tuple[FileRecord, ...]
    saved_counts: SavedCounts


@dataclass(kw_only=True, eq=False)
class Saver:
    """Saves the shard of ``rank``; at most one save is pending in the background.

    Args:
        tracker: chooses rows of the ``tracked`` tables, for kinds of save that ask it.
        buffer_bytes: memory that a save in the background may take, besides one byte a row.
        write_faults: by the number of a planned fault of this rank, the system's error (errno) that a write fails with.

    A save raises StoreError if its files cannot be written: a save in the background, when it is finished.
    """

    rank: Rank
    shard: Shard
    tracker: Tracker
    tracked: Sequence[int]
    store: Store
    buffer_bytes: int
    write_faults: Mapping[int, int]
    _pending: tuple[Save, Snapshot, Future[Written]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._no_op = self.shard.before_change

    def save(self, request: Save) -> Written | None:
        """Carry out ``request`` as its mode says; returns None for ``begin``."""
        if request.mode == "finish":
            return self._finish(request)
        step = self.shard.applied_step
        assert request.step == step, f"save of step {request.step} at step {step}"
        return self._write_now(request) if request.mode == "now" else self._begin(request)

    def abandon(self) -> None:
        """Abandon the pending save, if there is one: wait for the end of its thread, and remove its files."""
        if self._pending is not None:
            request, rows, writing = self._pending
            rows.release()
            wait([writing])
            self._forget()
            self.store.discard(self.rank, request.sequence)

    def _forget(self) -> None:
        self._pending = None
        self.shard.before_change = self._no_op

    def _begin(self, request: Save) -> None:
        """Fix the contents, and write them in a thread while rows change."""
        contents = self._fix_contents(request)
        rows = Snapshot(self.shard.rows_MD, contents.parts, buffer_bytes=self.buffer_bytes)
        self.shard.before_change = rows.before_change

        def write() -> Written:
            try:
                return self._write(contents, rows)
            finally:
                rows.release()  # steps that wait for room must go on, also where writing failed

        self._pending = request, rows, in_background("save", write)

    def _finish(self, request: Save) -> Written:
        """Wait until the files of the pending save are written; a replacement, which has none, writes its rows now."""
        if self._pending is None:
            return replace(self._write_now(request), is_late=True)
        begun, rows, writing = self._pending
        assert begun.sequence == request.sequence, "one save at a time"
        try:
            return replace(writing.result(), waited_s=rows.waited_s)
        finally:
            self._forget()

    def _write_now(self, request: Save) -> Written:
        return self._write(self._fix_contents(request), RowSource(self.shard.rows_MD))

    def _fix_contents(self, request: Save) -> _Contents:
        """Fix the contents of the save, and count its updates as saved. A pending save is abandoned before."""
        self.abandon()
        # Asked for again, after a death in the middle of it: no manifest names the files of the first attempt.
        self.store.discard(self.rank, request.sequence)
        self.shard.mirrored_N = request.mirrored_N
        kind = self._kind_of(request)
        rows = kind.rows(self.shard, self.tracker, self.tracked, request.step)
        builds_on = tuple(kind.builds_on(self.shard, self.tracker, request.records))
        self.shard.mark_saved(request.sequence, rows, self.tracked)
        for table, chosen in rows.items():
            self.tracker.saved(table, chosen)
        return _Contents(request, tuple(rows.values()) if builds_on else None, builds_on, self.shard.saved_counts)

    def _kind_of(self, request: Save) -> SaveKind:
        if request.most_rows is None:
            return save_kind(request.plan.kind)
        return NoticeSave(request.most_rows, has_choice=type(self.tracker) is not Tracker)

    def _write(self, contents: _Contents, rows: RowSource) -> Written:
        """Write the files. A planned disk fault makes the first attempt fail; the same contents are then written again.

        The first attempt fails before it has read a row. Raises StoreError if the disk fails in another way.
        """
        request = contents.request
        faults = tuple(number for number in request.faults if number in self.write_faults)
        if not faults:
            return self._write_files(contents, rows)
        began_s = time.monotonic()
        with suppress(StoreError, OSError):
            self._write_files(contents, FailingSource(rows.rows_MD, self.write_faults[faults[0]]))
            raise AssertionError("a write that is to fail fails")
        failed_s = time.monotonic() - began_s
        self.store.discard(self.rank, request.sequence)
        return replace(self._write_files(contents, rows), faults=faults, failed_s=failed_s)

    def _write_files(self, contents: _Contents, rows: RowSource) -> Written:
        request, parts, builds_on, saved_counts = contents
        sequence, step, encoding = request.sequence, request.step, self._kind_of(request).encoding
        compacted = False
        if parts is None:
            newest = self.store.write_base(self.rank, sequence, step, rows, encoding=encoding)
        else:
            newest = self.store.write_delta(self.rank, sequence, step, rows, parts, encoding=encoding)
            rows.release()
            if compacted := wants_compaction(builds_on):
                builds_on = (self.store.compact(builds_on, sequence),)
        counts = self.shard.pending_M is not None
        return Written(
            records=(*builds_on, newest),
            payload_bytes=newest.payload_bytes,
            num_rows=newest.num_rows,
            persisted_updates=saved_counts.updates if counts else None,
            persisted_tracked=saved_counts.tracked if counts else None,
            compacted=compacted,
        )
