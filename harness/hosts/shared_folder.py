"""Whether all hosts see the same folder: each writes a file there that the others read."""

import secrets
from contextlib import suppress
from pathlib import Path


def write_probe(folder: Path, text: str) -> str:
    """Write ``text`` into a new file of ``folder``; its name. Raises OSError.

    A file that is left behind looks like a temporary file of a checkpoint, which the next run removes.
    """
    name = f".probe-{secrets.token_hex(8)}.tmp"
    (folder / name).write_text(text)
    return name


def has_probe(folder: Path, name: str, text: str) -> bool:
    """Whether ``folder`` has the file with the text."""
    with suppress(OSError):
        return (folder / name).read_text() == text
    return False


def remove_probe(folder: Path, name: str) -> None:
    """Remove the file; a no-op if it is not there."""
    with suppress(OSError):
        (folder / name).unlink(missing_ok=True)
