"""The checkpoint folder, as the supervisor uses it, and the folder of resume points.

The folder of checkpoints:

    manifest-000012.json                             the newest whose files all verify is the checkpoint
    ps0/base-000010.bin  ps0/delta-000012.bin …      written by the PS ranks themselves
    trainer0/dense-000012.bin

The folder of resume points:

    point-000003.json                                the newest whose parts all verify is the resume point
    ps0/state-000003.bin  trainer0/state-000003.bin …

A checkpoint exists once its manifest exists, a resume point once its ``point-*.json`` exists; both are written last. A
resume point is the state of a run at a boundary, from which the run can go on in another process. It names its own
files, and the checkpoint that was the newest at that boundary. No save was under way.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from harness.core.errors import StoreError
from harness.core.plans import Rank
from harness.core.resumable import EventsPosition, State
from harness.files import fsync_folder, os_errors
from harness.store.format import (
    content_paths,
    numbered_paths,
    read_text,
    reading,
    remove_unfinished,
    verify,
    write_text,
)
from harness.store.manifest import FORMAT_VERSION, Described, FileRecord, Manifest, WrongFormatVersion, manifest_name

T = TypeVar("T")


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Run ``work`` in a daemon thread called ``name``; returns the future of its result or exception."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by result()
            future.set_exception(error)

    # A daemon: a process that ends without waiting for it needs no result.
    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class CheckpointStore:
    """Commits the checkpoints of one folder, and deletes old ones. Only one process at a time may use it.

    Its construction removes incomplete files of killed writers and, with ``fsync``, makes their commits survive a loss
    of power. It raises StoreError if the folder cannot be used. Readers use ``newest_checkpoint`` instead.

    Old files are deleted in a thread, so that training does not wait: deletion takes 0.1 s per gigabyte. The thread
    ends before the next commit begins, and before :meth:`wait` returns.

    Args:
        root: the folder, created if need be.
        keep: how many of the newest manifests a commit keeps, with their files; at least 1. A kill may leave more.
        fsync: whether a commit survives a power failure, and not only a kill.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        fsync: bool = True,
    ) -> None:
        assert keep >= 1, "a commit keeps at least itself"
        self._dropping: Future[None] | None = None
        self._pinned: set[int] = set()  # sequences of manifests
        self._known: dict[str, Manifest] = {}  # by name, those that a commit has written or read
        self.root = root
        self._keep = keep
        self._fsync = fsync
        with os_errors(f"{root}: cannot be used as a checkpoint folder"):
            root.mkdir(parents=True, exist_ok=True)
            self.remove_unfinished()
            if fsync:
                fsync_folder(root)  # a writer may have been killed between a manifest's rename and this

    def remove_unfinished(self) -> None:
        """Remove the temporary files of killed writers. To be called while no process writes. Raises OSError."""
        remove_unfinished(self.root)

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the newest checkpoint, then begin to delete older ones.

        The newest ``keep`` manifests, those of :meth:`pin`, and all their files are kept. Raises StoreError if a file
        that ``manifest`` names and the one before it does not is missing, truncated or has a damaged header, if its
        sequence number is not the highest, if an older manifest has another format version, or if the disk failed. The
        previous checkpoint then remains valid.
        """
        self.wait()
        older = dict(numbered_paths(self.root, "manifest"))
        if older and manifest.sequence <= max(older):
            raise StoreError(f"{self.root / manifest.name}: expected a sequence number above {max(older)}")
        kept = [manifest]
        for path in older.values():
            try:
                kept.append(self._known.get(path.name) or _load(path))
            except WrongFormatVersion:
                raise
            except StoreError:
                continue  # unreadable, so nothing can need its files
        self._known = {each.name: each for each in kept}
        before = {record for each in kept[1:2] for record in each.files}
        for record in manifest.files:
            if record not in before:
                with reading(self.root, record):
                    pass
        write_text(self.root / manifest.name, manifest.to_text(), fsync=self._fsync)
        kept = [*kept[: self._keep], *(each for each in kept[self._keep :] if each.sequence in self._pinned)]
        self._dropping = in_background("drop", partial(self._collect, kept, manifest.sequence))

    def pin(self, sequences: Iterable[int]) -> None:
        """Have later commits keep the checkpoints ``sequences``, and none of a former call, besides the newest ones."""
        self.wait()
        self._pinned = set(sequences)

    def rewind(self, sequence: int | None) -> None:
        """Make checkpoint ``sequence`` the newest one again by removing all later ones; None: remove all checkpoints.

        Raises StoreError.
        """
        last = -1 if sequence is None else sequence
        with os_errors(f"{self.root}: later checkpoints cannot be removed"):
            for number, path in [*numbered_paths(self.root, "manifest"), *content_paths(self.root)]:  # newest first
                if number > last:
                    path.unlink(missing_ok=True)

    def newest_file(self, rank: Rank) -> FileRecord | None:
        """The record of the newest file with rows of ``rank``; None if there is no checkpoint.

        The file must hold rows: ``rank`` is a PS rank, and its shard is not empty. Raises StoreError if the newest
        manifest cannot be read.
        """
        newest = next((path for _, path in numbered_paths(self.root, "manifest")), None)
        records = _load(newest).shards[rank] if newest else ()
        return next((record for record in reversed(records) if record.payload_bytes), None)

    def edit(self, rank: Rank, change: Callable[[bytes], bytes]) -> str | None:
        """Replace the content of :meth:`newest_file` by ``change(content)``, for failure injection.

        Returns the file's path below the root; None if there is no checkpoint. Raises StoreError.
        """
        if (record := self.newest_file(rank)) is None:
            return None
        path = self.root / record.path
        try:
            path.write_bytes(change(path.read_bytes()))
        except (OSError, IndexError) as error:
            raise StoreError(f"{path}: cannot be changed: {error}") from error
        return record.path

    def flip_bit(self, rank: Rank, number: int) -> tuple[str, int] | None:
        """Flip bit ``number``, modulo the number of bits, of rows and row ids in :meth:`newest_file`, as a fault.

        Returns the file's path below the root and the bit's number in the file; None if there is no checkpoint. Raises
        StoreError.
        """
        if (record := self.newest_file(rank)) is None:
            return None
        place = (record.num_bytes - record.payload_bytes) * 8 + number % (record.payload_bytes * 8)
        flip = 1 << place % 8
        self.edit(
            rank,
            lambda content: content[: place // 8] + bytes([content[place // 8] ^ flip]) + content[place // 8 + 1 :],
        )
        return record.path, place

    def wait(self) -> None:
        dropping, self._dropping = self._dropping, None
        if dropping is not None:
            dropping.result()

    def _collect(self, kept: list[Manifest], newest_sequence: int) -> None:
        names = {manifest.name for manifest in kept}
        named = {record.path for manifest in kept for record in manifest.files}
        # The commit stands whether or not the old files go; the next one tries again.
        with suppress(StoreError, FileNotFoundError):
            stale = [path for _, path in numbered_paths(self.root, "manifest") if path.name not in names]
            for number, path in content_paths(self.root):
                # A file above the newest sequence belongs to a save that is still to be committed.
                if number <= newest_sequence and f"{path.parent.name}/{path.name}" not in named:
                    stale.append(path)
            for path in stale:
                with suppress(OSError):
                    path.unlink(missing_ok=True)


def newest_checkpoint(root: Path) -> tuple[Manifest | None, list[str]]:
    """The newest manifest whose files all pass their checksums, and a sentence for each newer one skipped.

    Writes nothing. The manifest is None if there is no valid one.

    Raises:
        StoreError: the folder cannot be read, or a checkpoint at least as new has another format version. Falling back
            to an older one would hide the mistake.
    """
    skipped: list[str] = []
    whole: set[FileRecord] = set()
    for _, path in numbered_paths(root, "manifest"):
        try:
            manifest = _load(path)
            for record in manifest.files:
                if record not in whole:
                    verify(root, [record])
                    whole.add(record)
        except WrongFormatVersion:
            raise
        except StoreError as error:
            skipped.append(f"skipped {path.name}: {error}")
        else:
            return manifest, skipped
    return None, skipped


def read_checkpoint(root: Path, sequence: int) -> Manifest:
    """The manifest of checkpoint ``sequence``, with all its files verified. Raises StoreError."""
    manifest = _load(root / manifest_name(sequence))
    verify(root, manifest.files)
    return manifest


def _load(path: Path) -> Manifest:
    return Manifest.from_text(read_text(path), str(path))


@dataclass(frozen=True, kw_only=True)
class ResumePoint(Described):
    """The description of a resume point.

    Attributes:
        number: increases with every point of a folder.
        step: number of finished steps.
        config_hash, code: result hash of the run's config, and fingerprint of the code that wrote the point.
        events: the length of the record at the point.
        checkpoint: sequence number of the newest checkpoint; None if there was none.
        files: by rank, the file with its state.
        supervisor: the supervisor's state.
    """

    _title = "a resume point"

    number: int
    step: int
    config_hash: str
    code: str
    events: EventsPosition
    checkpoint: int | None
    files: Mapping[str, FileRecord]
    supervisor: State
    version: int = FORMAT_VERSION

    @property
    def name(self) -> str:
        return f"point-{self.number:06d}.json"

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        files = {rank: FileRecord(**record) for rank, record in fields["files"].items()}
        return cls(**{**fields, "events": EventsPosition(**fields["events"]), "files": files})


class ResumeFolder:
    """The folder of a run's resume points. Only one process at a time may change it.

    ``fsync``: whether a point survives a power failure, and not only a kill.
    """

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self.root = root
        self._fsync = fsync

    def next_number(self) -> int:
        """A number above all numbers in the folder, including those of points that were never committed.

        Raises StoreError if the folder cannot be read.
        """
        numbers = [number for number, _ in (*numbered_paths(self.root, "point"), *content_paths(self.root))]
        return 1 + max(numbers, default=-1)

    def prepare(self) -> None:
        """Create the folder if need be, and remove incomplete files of killed writers. Raises StoreError."""
        with os_errors(f"{self.root}: cannot be used for resume points"):
            if not self.root.is_dir():
                self.root.mkdir(parents=True)
                if self._fsync:
                    fsync_folder(self.root.parent)
            remove_unfinished(self.root)

    def commit(self, point: ResumePoint) -> None:
        """Make ``point`` the newest one. Raises StoreError if the disk failed; the previous point is then untouched."""
        write_text(self.root / point.name, point.to_text(), fsync=self._fsync)

    def keep_only(self, point: ResumePoint) -> None:
        """Remove the files of all other numbers than that of ``point``, descriptions first.

        Files that cannot be removed are left. Raises StoreError if the folder cannot be read.
        """
        for number, path in [*numbered_paths(self.root, "point"), *content_paths(self.root)]:
            if number != point.number:
                with suppress(OSError):  # the point stands whether or not the old files go
                    path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """The paths of the descriptions of all points, newest first. Raises StoreError if the folder cannot be read."""
        return [path for _, path in numbered_paths(self.root, "point")]

    def read(self, path: Path) -> ResumePoint:
        """The point described in ``path``, once all its files are verified. Raises StoreError that names the file."""
        point = ResumePoint.from_text(read_text(path), str(path))
        verify(self.root, point.files.values())
        return point
