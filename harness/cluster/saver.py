"""Saves of a PS rank: the contents are fixed at the save's step and written at once or in the background."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from harness.cluster.protocol import Collect, Save, Written
from harness.cluster.replica import Taken, take
from harness.core.errors import StoreError
from harness.core.resumable import State
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
    save_kind,
    wants_compaction,
)


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """What a save holds.

    Attributes:
        parts: of the shard; None for all of it.
        builds_on: older files that a restore reads first; none if ``parts`` is None.
        persisted, persisted_tracked: updates that the save makes safe, of all tables and of the tracked ones.
    """

    parts: tuple[Part, ...] | None
    builds_on: tuple[FileRecord, ...]
    encoding: str
    persisted: int
    persisted_tracked: int


@dataclass(frozen=True)
class _PendingSave:
    """A save that is being written in the background; ``rows`` is None for one that a run before this one wrote."""

    sequence: int
    rows: FrozenRows | None
    writing: Background[Written]

    def result(self) -> Written:
        """Wait for the files. Raises what writing them raised."""
        written = self.writing.result()
        return written if self.rows is None else replace(written, waited_s=self.rows.waited_s)


class Saver:
    """Saves one shard; at most one save is pending in the background.

    Args:
        tracker: chooses rows of the ``tracked`` tables, for kinds of save that ask it.
        buffer_bytes: memory that a save in the background may take, besides one byte a row.
        write_faults: by the number of a planned fault of this rank, the system's error (errno) that a write fails with.

    Attributes:
        taken: what the last save took from the shard's counts. Whoever sets the shard's rows sets it, too.
    """

    def __init__(
        self,
        shard: Shard,
        tracker: Tracker,
        tracked: Sequence[int],
        store: ShardStore,
        *,
        buffer_bytes: int,
        write_faults: Mapping[int, int],
    ) -> None:
        self._shard = shard
        self._tracker = tracker
        self._tracked = tracked
        self._store = store
        self._buffer_bytes = buffer_bytes
        self._write_faults = write_faults
        self.taken = Taken()
        self._pending: _PendingSave | None = None
        self._kept: int | None = None  # sequence of the pending save whose files a resume point names
        self._no_op = shard.before_change

    def save(self, request: Save) -> Written | None:
        """Write the shard as of now; in the background if the request says so, and then the result is None."""
        step = self._shard.applied_step
        assert request.step == step, f"save of step {request.step} at step {step}"
        return self._begin(request) if request.in_background else self._write_now(request)

    def collect(self, request: Collect) -> Written:
        """Wait for the pending save. Raises what writing it raised.

        Without one this rank is a replacement: it writes its shard as of now, under the step of that save.
        """
        pending = self._pending
        if pending is None:
            return replace(self._write_now(request.save), is_late=True)
        assert pending.sequence == request.save.sequence, "one save at a time"
        try:
            return pending.result()
        finally:
            self._forget()

    def abandon(self) -> None:
        """Abandon the pending save, if there is one: its thread is ended and its files are removed."""
        pending = self._pending
        if pending is not None:
            if pending.rows is not None:
                pending.rows.give_up()
            pending.writing.wait()
            self._forget()
            self._store.discard(pending.sequence)

    def close(self) -> None:
        """End the thread of the pending save. Its files are removed unless a resume point names them."""
        if self._pending is not None and self._pending.sequence == self._kept:
            self._pending.writing.wait()
            self._forget()
        self.abandon()

    def state(self) -> State:
        """See :class:`harness.core.resumable.Stateful`. Waits for the pending save, which stays pending."""
        pending = self._pending
        self._kept = pending and pending.sequence
        return {
            "taken": vars(self.taken),
            "pending": pending and {"sequence": pending.sequence, "written": _to_plain(pending.result())},
        }

    def load(self, state: State) -> None:
        """See :class:`harness.core.resumable.Stateful`."""
        self.taken = Taken(**state["taken"])
        pending = state["pending"]
        if pending is not None:
            written = _from_plain(pending["written"])
            self._pending = _PendingSave(pending["sequence"], None, Background("save", lambda: written))
            self._kept = pending["sequence"]

    @property
    def written_files(self) -> tuple[FileRecord, ...]:
        """Files of the pending save, older ones on which it builds included. Waits for it."""
        return () if self._pending is None else self._pending.result().records

    def _forget(self) -> None:
        self._pending = None
        self._shard.before_change = self._no_op

    def _begin(self, request: Save) -> None:
        contents = self._take(request)
        rows = FrozenRows(Snapshot(self._shard.rows_MD, contents.parts, buffer_bytes=self._buffer_bytes))
        self._shard.before_change = rows.before_change

        def write() -> Written:
            try:
                return self._write(request, contents, rows)
            finally:
                rows.release()  # steps that wait for room must go on, also where writing failed

        self._pending = _PendingSave(request.sequence, rows, Background("save", write))

    def _write_now(self, request: Save) -> Written:
        contents = self._take(request)
        return self._write(request, contents, StillRows(self._shard.rows_MD))

    def _take(self, request: Save) -> _Contents:
        """Fix the contents of the save, and count its updates as saved."""
        self.abandon()
        # Asked for again, after a death in the middle of it: no manifest names the files of the first attempt.
        self._store.discard(request.sequence)
        self._shard.mirrored_N = request.mirrored_N
        kind = save_kind(request.plan.kind)
        rows = kind.rows(self._shard, self._tracker, self._tracked, request.step)
        builds_on = tuple(kind.builds_on(self._shard, self._tracker, request.records))
        self.taken = self.taken.plus(request.sequence, *take(self._shard, rows, tuple(self._tracked)))
        for table, chosen in rows.items():
            self._tracker.saved(table, chosen)
        return _Contents(
            parts=tuple(_part(chosen) for chosen in rows.values()) if builds_on else None,
            builds_on=builds_on,
            encoding=kind.encoding,
            persisted=self.taken.updates,
            persisted_tracked=self.taken.tracked,
        )

    def _write(self, request: Save, contents: _Contents, rows: RowSource) -> Written:
        """Write the files. If the trace has a fault of the disk for this save, the same contents are written twice.

        The first attempt fails before it has read a row. Raises StoreError if the disk fails besides.
        """
        struck = tuple(number for number in request.faults if number in self._write_faults)
        if not struck:
            return self._write_files(request, contents, rows)
        self._store.fail_next_write(self._write_faults[struck[0]])
        began_s = time.monotonic()
        try:
            self._write_files(request, contents, rows)
        except StoreError:
            failed_s = time.monotonic() - began_s
        else:
            raise AssertionError("a write that is to fail fails")
        self._store.discard(request.sequence)
        return replace(self._write_files(request, contents, rows), struck=struck, failed_s=failed_s)

    def _write_files(self, request: Save, contents: _Contents, rows: RowSource) -> Written:
        sequence, step, chain, encoding = request.sequence, request.step, contents.builds_on, contents.encoding
        compacted = False
        if contents.parts is None:
            newest = self._store.write_base(sequence, step, rows, encoding=encoding)
        else:
            newest = self._store.write_delta(sequence, step, rows, contents.parts, encoding=encoding)
            rows.release()
            if compacted := wants_compaction(chain):
                chain = (self._store.compact(chain, sequence),)
        counts = self._shard.pending_M is not None
        return Written(
            records=(*chain, newest),
            payload_bytes=newest.payload_bytes,
            num_rows=newest.num_rows,
            persisted_updates=contents.persisted if counts else None,
            persisted_tracked=contents.persisted_tracked if counts else None,
            compacted=compacted,
        )


def _to_plain(written: Written) -> State:
    records = [record.to_json() for record in written.records]
    return {**vars(written), "records": records, "struck": list(written.struck)}


def _from_plain(state: State) -> Written:
    records = tuple(FileRecord.from_json(record) for record in state["records"])
    return Written(**{**state, "records": records, "struck": tuple(state["struck"])})


def _part(rows: Tensor | slice) -> Part:
    return RowRange(rows.start, rows.stop) if isinstance(rows, slice) else ChosenRows(rows)
