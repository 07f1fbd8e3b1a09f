"""The description of a checkpoint: file records, and the manifest that lists them.

Plain values that are sent between processes and written as JSON; other modules read and write the files.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, ClassVar, Literal, Self

import xxhash

from harness.core.errors import Damaged, StoreError
from harness.store.rows import RAW

FORMAT_VERSION = 2
"""Version of the content files and of the manifest, raised together whenever either changes."""

FileKind = Literal["base", "delta", "dense", "state"]

_SEQUENCE = re.compile(r"^[a-z]+-(\d+)\.(?:bin|json)$")


class WrongFormatVersion(StoreError):
    """A file or manifest of another format version; it is never skipped in favour of an older checkpoint."""


def check_version(found: object, where: str) -> None:
    """Raise ``WrongFormatVersion`` unless ``found`` is the version this program reads."""
    if found != FORMAT_VERSION:
        raise WrongFormatVersion(
            f"{where}: expected format version {FORMAT_VERSION}, got {found}; read it with the version that wrote it"
        )


def content_name(kind: FileKind, sequence: int) -> str:
    """File name ``base-000012.bin``: at least six digits, so that names sort in order."""
    return f"{kind}-{sequence:06d}.bin"


def manifest_name(sequence: int) -> str:
    """File name ``manifest-000012.json`` of a manifest."""
    return f"manifest-{sequence:06d}.json"


def sequence_of(name: str) -> int | None:
    """The sequence number in the name of a content file or manifest; None for any other file."""
    match = _SEQUENCE.match(name)
    return int(match.group(1)) if match else None


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Description of one content file, made by its writer.

    Attributes:
        path: relative to the checkpoint folder, e.g. ``ps0/base-000010.bin``.
        num_bytes: size of the file.
        payload_bytes: bytes that the cost model counts: rows, 4 bytes per id of a chosen row; tensors for ``dense``.
        xxh3: 64-bit XXH3 of the whole file, 16 hex digits.
        applied_step: the last step whose gradients the content holds.
        num_rows: rows in the file, chosen and whole together; 0 for ``dense``.
        encoding: how row values are stored in the file, a key of ``encoding.ENCODINGS``. JSON omits ``raw``.
    """

    path: str
    kind: FileKind
    num_bytes: int
    payload_bytes: int
    xxh3: str
    applied_step: int
    num_rows: int
    encoding: str = RAW


def _chain_problem(records: Sequence[FileRecord]) -> str | None:
    """Why the files of one shard are not a base and its deltas, oldest first; None if they are."""
    if not records or records[0].kind != "base":
        return f"expected a base as the first file of a shard, got {records[0].kind if records else 'no file'}"
    if any(record.kind != "delta" for record in records[1:]):
        return "expected only deltas after the base, got another kind of file"
    steps = [record.applied_step for record in records]
    if steps != sorted(steps):
        return f"expected deltas in order of their applied step, got steps {steps}"
    return None


def wants_compaction(records: Sequence[FileRecord]) -> bool:
    """Whether the deltas since the base are larger than it, so that a restore would read more than twice the shard."""
    return sum(record.payload_bytes for record in records[1:]) > records[0].payload_bytes


class Described(ABC):
    """A description of content files, written as JSON text with a checksum. ``_title``: its name in error messages."""

    _title: ClassVar[str]

    def to_text(self) -> str:
        """The JSON text, ending in a newline."""
        assert is_dataclass(self)
        return sealed(asdict(self, dict_factory=_plain))

    @classmethod
    def from_text(cls, text: str, where: str) -> Self:
        """The inverse of ``to_text``; ``where`` begins every error message.

        Raises:
            WrongFormatVersion: another format version.
            Damaged: not JSON, or altered since it was written.
            StoreError: other fields, or parts that disagree.
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
        """Make the description from its fields in JSON."""


def sealed(fields: Mapping[str, Any]) -> str:
    """The JSON text of ``fields`` with a checksum of them, ending in a newline."""
    return json.dumps({**fields, "xxh3": _checksum(fields)}, indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True, kw_only=True)
class Manifest(Described):
    """The files of a checkpoint, which exists once this is on disk. Raises ``StoreError`` if parts disagree.

    Attributes:
        sequence: increases with every commit in a folder, also after a rollback.
        step: the last applied step, equal in every shard and in the trainer's file.
        samples: rows of training data behind the model at that step.
        kind: of the save, a key of ``kinds.SAVE_KINDS``.
        config_hash: result hash of the run that wrote it.
        shards: PS rank to its files in restore order: base first, then deltas, oldest first.
        trainer: dense network, optimizer, RNG and position.
    """

    _title = "a manifest"

    sequence: int
    step: int
    samples: int
    kind: str
    config_hash: str
    shards: Mapping[str, tuple[FileRecord, ...]]
    trainer: FileRecord
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        where = manifest_name(self.sequence)
        for rank, records in self.shards.items():
            if problem := _chain_problem(records):
                raise StoreError(f"{where}: {rank}: {problem}")
        newest = {rank: records[-1] for rank, records in self.shards.items()} | {"trainer": self.trainer}
        for rank, record in newest.items():
            if record.applied_step != self.step:
                raise StoreError(
                    f"{where}: {rank} is at step {record.applied_step} ({record.path}), "
                    f"the checkpoint at step {self.step}: all of them must agree"
                )

    @property
    def name(self) -> str:
        return manifest_name(self.sequence)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return (*(record for records in self.shards.values() for record in records), self.trainer)

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Self:
        shards = {rank: tuple(FileRecord(**record) for record in records) for rank, records in fields["shards"].items()}
        return cls(**{**fields, "shards": shards, "trainer": FileRecord(**fields["trainer"])})


def _plain(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a dataclass as written in JSON, which leaves out the encoding of raw rows."""
    return {name: value for name, value in fields if (name, value) != ("encoding", RAW)}


def _checksum(fields: Mapping[str, Any]) -> str:
    """64-bit XXH3 of a JSON object, 16 hex digits, over its text without spaces and with sorted keys."""
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(canonical.encode())
