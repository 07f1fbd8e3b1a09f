"""Resume points: the state of a run at a boundary, in files, from which the run can go on in another process.

    point-000003.json                                the newest whose parts all verify is the resume point
    ps0/state-000003.bin  trainer0/state-000003.bin …

A resume point exists once its ``point-*.json`` exists, which is written last. It names its own files, and the
checkpoint that was the newest at that boundary. No save was under way.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from harness.core.resumable import EventsPosition, State
from harness.files import fsync_folder, os_errors, read_file
from harness.store.format import content_paths, numbered_paths, remove_unfinished, verify, write_text
from harness.store.manifest import FORMAT_VERSION, Described, FileRecord


@dataclass(frozen=True, kw_only=True)
class ResumePoint(Described):
    """The description of a resume point.

    Attributes:
        number: increases with every point of a folder.
        step: number of finished steps.
        config_hash, code: result hash of the run's config, and fingerprint of the code that wrote the point.
        events: the length of the record at the point.
        checkpoint: sequence number of the newest checkpoint; None if there was none.
        store: name of the store that kept it; ``memory`` has put it into ``files``.
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
    store: str
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
        point = ResumePoint.from_text(read_file(path), str(path))
        verify(self.root, point.files.values())
        return point
