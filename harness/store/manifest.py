"""The description of a checkpoint: file records, and the manifest that lists them.

These are plain values, which are sent between processes and written as JSON. Other modules read and write the files.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import xxhash

from harness.core.errors import Damaged, StoreError
from harness.core.plans import Tier

FORMAT_VERSION = 3
"""Version of the content files and of the manifest, raised together whenever either changes."""

CHUNK_BYTES = 4 << 20
"""Bytes processed at a time: so many that calls cost little, so few that they are hashed while in the CPU's cache."""

RAW = "raw"
"""Encoding of rows that are kept as in memory (``harness/store/rows.py``)."""

FileKind = Literal["base", "delta", "dense", "state"]

_SEQUENCE = re.compile(r"^[a-z]+-(\d+)(?:-[0-9a-f]{8})?\.(?:bin|json)$")
_WRITER = re.compile(r"(-\d+)-[0-9a-f]{8}(?=\.bin)")
_writer = ""  # of the content files of this process


class WrongFormatVersion(StoreError):
    """A file or manifest of another format version; it is never skipped in favour of an older checkpoint."""


def check_version(found: object, where: str) -> None:
    """Raise WrongFormatVersion, whose message begins with ``where``, unless ``found`` is the version read here."""
    if found != FORMAT_VERSION:
        raise WrongFormatVersion(
            f"{where}: expected format version {FORMAT_VERSION}, got {found}; read it with the version that wrote it"
        )


def name_files_by(writer: str) -> None:
    """Let the names of the content files of this process hold ``writer``, eight hexadecimal digits that are its own.

    A rank on a host that is cut off may run beside its replacement. It then touches none of that one's files.
    """
    global _writer  # noqa: PLW0603 - one for each process
    _writer = f"-{writer}"


def content_name(kind: FileKind, sequence: int) -> str:
    """The name of a content file that this process writes: ``KIND-SEQUENCE.bin``, such as ``base-000012.bin``.

    The number has at least six digits. See :func:`name_files_by`.
    """
    return f"{kind}-{sequence:06d}{_writer}.bin"


def without_writer(text: str) -> str:
    """``text`` with the names that content files have where :func:`name_files_by` was not called."""
    return _WRITER.sub(r"\1", text)


def manifest_name(sequence: int) -> str:
    """The file name of a manifest, such as ``manifest-000012.json``."""
    return f"manifest-{sequence:06d}.json"


def sequence_of(name: str) -> int | None:
    """The number in the name of a content file, manifest or resume point; None for any other file."""
    match = _SEQUENCE.match(name)
    return int(match.group(1)) if match else None


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Description of one content file, made by its writer.

    Attributes:
        path: relative to the checkpoint folder, e.g. ``ps0/base-000010.bin``.
        num_bytes: size of the file.
        payload_bytes: bytes after the header, by which a save is charged: rows, and 4 bytes for the id of a chosen row;
            for ``dense`` and ``state`` the arrays.
        xxh3: 64-bit XXH3 of the whole file, 16 hex digits.
        applied_step: the last step whose gradients the content holds.
        num_rows: rows in the file, with or without ids; 0 for ``dense`` and ``state``.
        encoding: how row values are stored in the file, a key of ``harness.store.rows.ENCODINGS``. JSON omits ``raw``.
    """

    path: str
    kind: FileKind
    num_bytes: int
    payload_bytes: int
    xxh3: str
    applied_step: int
    num_rows: int
    encoding: str = RAW


def wants_compaction(records: Sequence[FileRecord]) -> bool:
    """Whether the deltas together are larger than the base, so that a restore would read more than twice the base."""
    return sum(record.payload_bytes for record in records[1:]) > records[0].payload_bytes


class Described(ABC):
    """Base of descriptions of content files: dataclasses that are written as JSON text with a checksum.

    ``_title``: the name of the description in error messages.
    """

    _title: ClassVar[str]

    def to_text(self) -> str:
        """The JSON text with a checksum, ending in a newline."""
        return sealed(vars(self))

    @classmethod
    def from_text(cls, text: str | bytes, where: str) -> Self:
        """The inverse of :meth:`to_text`. ``where`` begins the error messages about the text.

        Raises:
            WrongFormatVersion: another format version.
            Damaged: not a JSON object with a version, or altered since it was written.
            StoreError: other fields.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Damaged(
                f"{where}: expected the JSON of {cls._title}; it is damaged or incomplete ({error})"
            ) from error
        if not isinstance(fields, dict) or "version" not in fields:
            raise Damaged(f"{where}: expected {cls._title} (a JSON object with a version), got other JSON")
        check_version(fields["version"], where)
        if fields.pop("xxh3", None) != _checksum(fields):
            raise Damaged(f"{where}: damaged: its checksum differs, so it was altered after it was written")
        try:
            return cls._of(fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"{where}: expected the fields of {cls._title}, got others ({error})") from error

    @classmethod
    @abstractmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        """The description with these fields, which are as in JSON. Raises KeyError, TypeError or AttributeError."""


def sealed(fields: Mapping[str, Any]) -> str:
    """The JSON text of ``fields`` and of their checksum, key ``xxh3``, ending in a newline."""
    return json.dumps({**fields, "xxh3": _checksum(fields)}, sort_keys=True, default=_plain) + "\n"


@dataclass(frozen=True, kw_only=True)
class Manifest(Described):
    """The files of a checkpoint, which exists once its manifest is on disk.

    Attributes:
        sequence: increases with every commit in a folder, also after a rollback.
        step: the last applied step, equal in the newest file of every shard and in the trainer's file.
        samples: number of samples that the model has trained on at that step.
        kind: the kind of the save, a key of ``harness.store.kinds.SAVE_KINDS``.
        config_hash: result hash of the config of the run that wrote it.
        shards: by PS rank its files in restore order: the base, then deltas, oldest first.
        noticed: by PS rank the deltas, oldest first, that it saved after ``step``, when it was told of its death. They
            are newer than the other ranks' files, so a rollback does not read them.
        trainer: the dense network's file: parameters, state of their optimizer, and position. Random streams follow
            from seed and position.
        tier: where the checkpoint is kept (``harness.core.plans.Tier``). All tiers are emulated in one store.
        others: the newest checkpoint in each other tier, newest first, whose files are kept too.
    """

    _title = "a manifest"

    sequence: int
    step: int
    samples: int
    kind: str
    config_hash: str
    shards: Mapping[str, tuple[FileRecord, ...]]
    trainer: FileRecord
    noticed: Mapping[str, tuple[FileRecord, ...]] = field(default_factory=dict)
    tier: Tier = "shared"
    others: tuple[Self, ...] = ()
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        for records in self.shards.values():
            kinds, steps = [record.kind for record in records], [record.applied_step for record in records]
            assert kinds == ["base", *["delta"] * (len(records) - 1)], "a shard has a base, then deltas"
            assert steps == sorted(steps), "deltas are in order"
            assert steps[-1] == self.step, "the newest file of a shard is of the checkpoint's step"
        assert self.trainer.applied_step == self.step, "the trainer's file is of the checkpoint's step"

    @property
    def name(self) -> str:
        return manifest_name(self.sequence)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        noticed = (record for records in self.noticed.values() for record in records)
        others = (record for other in self.others for record in other.files)
        return (*(record for records in self.shards.values() for record in records), *noticed, self.trainer, *others)

    def newest_of(self, rank: str) -> tuple[FileRecord, ...]:
        """The files with the newest saved version of each row of ``rank``, in restore order."""
        return (*self.shards[rank], *self.noticed.get(rank, ()))

    def to_text(self) -> str:
        """See Described. The JSON leaves ``noticed`` and ``others`` out if they are empty, and the tier ``shared``."""
        left_out = {name for name in ("noticed", "others") if not getattr(self, name)}
        left_out |= {"tier"} if self.tier == "shared" else set()
        return sealed({name: value for name, value in vars(self).items() if name not in left_out})

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        shards, noticed = (
            {rank: tuple(FileRecord(**each) for each in records) for rank, records in fields.get(name, {}).items()}
            for name in ("shards", "noticed")
        )
        trainer = FileRecord(**fields["trainer"])
        others = tuple(cls._of(other) for other in fields.get("others", ()))
        return cls(**{**fields, "shards": shards, "noticed": noticed, "trainer": trainer, "others": others})


def _plain(record: object) -> dict[str, Any]:
    """The fields of a dataclass as written in JSON, which leaves out the encoding ``raw``."""
    return {name: value for name, value in vars(record).items() if (name, value) != ("encoding", RAW)}


def _checksum(fields: Mapping[str, Any]) -> str:
    """The 64-bit XXH3, 16 hex digits, of the JSON text of ``fields`` without spaces and with sorted keys."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=_plain)
    return xxhash.xxh3_64_hexdigest(canonical.encode())
