"""The checkpoints in a folder, for readers. Nothing is written here, and torch is not imported."""

from pathlib import Path

from harness.core.errors import StoreError
from harness.files import read_file
from harness.store.format import numbered_paths, verify
from harness.store.manifest import FileRecord, Manifest, WrongFormatVersion, manifest_name


def newest_checkpoint(root: Path) -> tuple[Manifest | None, list[str]]:
    """The newest manifest whose files all pass their checksums, and why each newer one was skipped, in words.

    Writes nothing. The manifest is None if there is no valid one.

    Raises:
        StoreError: the folder cannot be read, or a checkpoint at least as new has another format version. Falling back
            to an older one would hide the mistake.
    """
    skipped: list[str] = []
    whole: set[FileRecord] = set()
    for _, path in numbered_paths(root, "manifest"):
        try:
            manifest = load_manifest(path)
            for record in manifest.files:
                if record not in whole:
                    verify(root, [record])
                    whole.add(record)
        except WrongFormatVersion:
            raise
        except StoreError as error:
            skipped.append(f"{path.name}: {error}")
        else:
            return manifest, skipped
    return None, skipped


def read_checkpoint(root: Path, sequence: int) -> Manifest:
    """The manifest of checkpoint ``sequence``, with all its files verified. Raises StoreError."""
    manifest = load_manifest(root / manifest_name(sequence))
    verify(root, manifest.files)
    return manifest


def load_manifest(path: Path) -> Manifest:
    """The manifest in a file. Raises StoreError."""
    return Manifest.from_text(read_file(path), str(path))
