"""The event log of a run: typed events to ``events.jsonl``, and to whoever wants to view them.

The file is the record of truth: a line is whole or the last, and what stands before a Saved or Finished event is on
disk when ``record`` returns. Views (wandb) see each event after it was written.
"""

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.config.model import Config
from harness.core.errors import RunFailed, StoreError
from harness.core.events import Event, Finished, Saved, from_json
from harness.record.environment import environment, utc_now
from harness.record.rundir import RunDir, prepare, write_reason, write_view
from harness.record.sink import EventSink
from harness.record.wandb_sink import wandb_sink

_COMMITS = (Saved, Finished)


class Recorder:
    """Owns the record in a run directory (``harness.record.rundir``), from config.yaml to DONE or error.txt.

    ``view`` makes who watches the events after they are written: wandb, by the config's ``wandb.mode``, with the
    folder's name for the run's. A context manager: an exception that passes becomes the reason of the failure.

    Raises StoreError if the folder holds a record already or cannot be written, ConfigError if the view cannot start.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        *,
        view: Callable[[RunDir, Config], EventSink] = wandb_sink,
        command: Sequence[str] | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        env = environment(
            num_threads=config.trainer.num_threads, backend=config.trainer.backend, command=command, now=now
        )
        self.run = prepare(run_dir, config, env)
        self._fsync = config.store.fsync
        self._now = now
        self._is_finished = False
        self._view = view(self.run, config)
        self._stream = self.run.events.open("x", encoding="utf-8")

    def record(self, event: Event) -> None:
        """Append ``event``; after a Saved or Finished event the record so far is on disk.

        Raises:
            RunFailed: a number of it is not finite.
            StoreError: the disk refused.
        """
        line = to_line(event)
        try:
            self._stream.write(line)
            self._stream.flush()
            if self._fsync and isinstance(event, _COMMITS):
                os.fsync(self._stream.fileno())
        except OSError as error:
            raise StoreError(f"{self.run.events}: cannot be written: {error.strerror}") from error
        self._is_finished |= isinstance(event, Finished)
        self._view.record(event)

    def done(self) -> None:
        """The run ended well, and nothing is left to do."""
        self.close(ok=True)

    def close(self, ok: bool, reason: str | None = None) -> None:
        """Force the record to disk, close the view, write DONE, or error.txt with the reason. The first call counts.

        Raises StoreError if the disk refuses what a run that ended well must leave; a failure has its own error.
        """
        if self._stream.closed:
            return
        assert not ok or self._is_finished, "a run that ended well has a Finished event"
        try:
            with self._stream:
                self._stream.flush()
                os.fsync(self._stream.fileno())
        except OSError as error:
            if ok:
                raise StoreError(f"{self.run.events}: cannot be written: {error.strerror}") from error
        finally:
            self._view.close(ok, reason)
        if ok:
            write_view(self.run.done, self._now().isoformat(timespec="seconds") + "\n")
        else:
            write_reason(self.run.path, reason or "ended before it was done")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        reason = None if error is None else f"{type(error).__name__}: {error}"
        self.close(ok=False, reason=reason)  # after done() this changes nothing


def to_line(event: Event) -> str:
    """One line of strict JSON. Raises RunFailed, which names the field, for a number that is not finite."""
    values = event.to_json()
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")) + "\n"
    except ValueError as error:
        field = _not_finite(values, "")
        if field is None:
            raise
        raise RunFailed(
            f"step {event.step}: {field} of a {event.kind} event is not finite; has the training diverged "
            "(trainer.learning_rate)?"
        ) from error


def _not_finite(value: Any, where: str) -> str | None:
    """Where the first number lies that JSON has no word for."""
    if isinstance(value, float):
        return None if math.isfinite(value) else where
    if isinstance(value, dict):
        parts = [(f"{where}.{key}" if where else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{where}[{i}]", part) for i, part in enumerate(value)]
    else:
        return None
    return next((found for name, part in parts if (found := _not_finite(part, name))), None)


@dataclass(frozen=True)
class Record:
    """What a file of events holds. ``is_torn``: its last line was cut off, as a killed writer leaves it."""

    events: list[Event]
    is_torn: bool


def read_record(path: Path) -> Record:
    """Read ``events.jsonl``; a last line without its end is left out.

    Raises:
        StoreError: the file cannot be read, or a line of it (named) is no event.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    *whole, rest = lines
    events: list[Event] = []
    for number, line in enumerate(whole, start=1):
        try:
            events.append(from_json(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path}:{number}: not an event of harness/core/events.py: {error}") from error
    return Record(events, is_torn=bool(rest))


def read_events(path: Path) -> list[Event]:
    """The events of ``read_record``."""
    return read_record(path).events
