"""The writer of a run's record: typed events in ``events.jsonl``, and the files beside it.

Only the last line of ``events.jsonl`` can be incomplete. With ``store.fsync`` all events so far are on disk when
``record`` returns from a Saved or Finished event.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.config.model import Config
from harness.core.errors import RunFailed, StoreError
from harness.core.events import Event, Finished, Saved
from harness.core.resumable import EventsPosition
from harness.files import digest_of, fsync_folder, new_digest, store_errors
from harness.record.audit import outcome_of
from harness.record.code import environment, utc_now
from harness.record.event_log import not_finite
from harness.record.rundir import RunDir, prepare, reopen, write_reason, write_seal


class Recorder:
    """Writes the record of one run, from config.yaml to DONE or error.txt (``harness.record.rundir``).

    ``facts``: ``data``, ``trace`` and ``command`` of env.json (``harness.record.code.environment``).
    ``since``: the position in ``events.jsonl`` from which a resumed run goes on; later events are cut off. A context
    manager: the run has failed unless :meth:`done` was called in the block, and an exception that leaves it is recorded
    as the reason.

    Raises StoreError if the folder holds a record already, or, with ``since``, not the one that the resumed run wrote;
    and if the folder cannot be written.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        *,
        since: EventsPosition | None = None,
        **facts: Any,
    ) -> None:
        self._fsync = config.store.fsync
        self.finished: Finished | None = None
        if since is None:
            trainer = config.trainer
            env = environment(num_threads=trainer.num_threads, backend=trainer.backend, **facts)
            self.run, self._digests = prepare(run_dir, config, env)
            self._num_events, self._digest = 0, new_digest()
            with store_errors(self.run.events, "written"):
                self._stream = self.run.events.open("xb")
                if self._fsync:
                    fsync_folder(self.run.path)
        else:
            self.run = RunDir(run_dir)
            kept = check_position(self.run.events, since)
            env_digest = check_environment(self.run, kept)
            self._digests = {self.run.env.name: env_digest, self.run.config.name: reopen(self.run, config)}
            self._num_events, self._digest = since.num_events, new_digest(kept)
            with store_errors(self.run.events, "written"):
                os.truncate(self.run.events, since.num_bytes)
                self._stream = self.run.events.open("ab")

    @property
    def env_digest(self) -> str:
        """Digest of env.json as the run wrote it, for its first event."""
        return self._digests[self.run.env.name]

    def position(self) -> EventsPosition:
        """The end of the record so far, which is forced to disk if ``store.fsync`` is set.

        Raises StoreError if the file cannot be written.
        """
        with store_errors(self.run.events, "written"):
            self._stream.flush()
            if self._fsync:
                os.fsync(self._stream.fileno())
            num_bytes = self._stream.tell()
        return EventsPosition(num_bytes=num_bytes, num_events=self._num_events, digest=self._digest.hexdigest())

    def record(self, event: Event) -> None:
        """Append ``event`` to the file. With ``store.fsync`` a Saved or Finished event also forces the file to disk.

        Raises RunFailed if a number in ``event`` is not finite, StoreError if the file cannot be written.
        """
        line = to_line(event).encode()
        with store_errors(self.run.events, "written"):
            self._stream.write(line)
            self._stream.flush()
            if self._fsync and isinstance(event, Saved | Finished):
                os.fsync(self._stream.fileno())
        self._num_events += 1
        self._digest.update(line)
        self.finished = event if isinstance(event, Finished) else self.finished

    def done(self) -> None:
        """Force the events to disk, then write DONE. Raises StoreError if a file cannot be written."""
        assert self.finished is not None, "a run that succeeded has a Finished event"
        self._end()
        time = utc_now().isoformat(timespec="seconds")
        digests = {**self._digests, self.run.events.name: self._digest.hexdigest()}
        audit = outcome_of(self.run)
        write_seal(self.run, time=time, num_events=self._num_events, digests=digests, audit=audit)

    def fail(self, reason: str = "the run ended before it was done") -> None:
        """Force the events to disk, and write ``reason`` to error.txt, as far as the disk allows.

        A no-op after :meth:`done`, or if called again.
        """
        if not self._stream.closed:
            with suppress(StoreError):
                self._end()
            write_reason(self.run.path, reason)

    def _end(self) -> None:
        with store_errors(self.run.events, "written"), self._stream:
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fail(*(() if error is None else (f"{type(error).__name__}: {error}",)))


def check_position(events: Path, position: EventsPosition) -> bytes:
    """The bytes of the file ``events`` up to ``position``. Raises StoreError unless they have the position's digest."""
    with store_errors(events, "read"), events.open("rb") as stream:
        kept = stream.read(position.num_bytes)
    found = new_digest(kept).hexdigest()
    if found != position.digest:
        raise StoreError(
            f"{events}: expected the {position.num_bytes} bytes that were recorded before the resume point "
            f"(blake2b {position.digest}), got {len(kept)} bytes ({found})"
        )
    return kept


def check_environment(run: RunDir, kept: bytes) -> str:
    """Digest of env.json. Raises StoreError if it cannot be read, or the first event of ``kept`` names another digest.

    ``kept``: the content of the event log.
    """
    first = kept.partition(b"\n")[0]
    expected = json.loads(first)["machine"].get("env") if first else None
    found = digest_of(run.env)
    if expected not in (None, found):
        raise StoreError(f"{run.env}: expected what the run wrote (blake2b {expected}), got {found}")
    return found


def to_line(event: Event) -> str:
    """``event`` as one line of strict JSON. Raises RunFailed that names the field if a number is not finite."""
    values = event.to_json()
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError as error:
        if (field := next(not_finite(values), None)) is None:
            raise
        raise RunFailed(
            f"step {event.step}: {field} of event {event.kind} is not finite; if training has diverged, lower "
            "trainer.learning_rate"
        ) from error
