"""Text files that appear whole or not at all, and system errors converted to errors that name the file."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import StoreError


@contextmanager
def store_errors(file: Path, action: Literal["read", "written"]) -> Iterator[None]:
    """An OSError of the block becomes a StoreError ``FILE: cannot be ACTION: REASON``."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{file}: cannot be {action}: {error.strerror}") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises StoreError that names the file."""
    with store_errors(file, "read"):
        content = file.read_bytes()
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise StoreError(f"{file}: expected a JSON object, got {type(values).__name__}")
    return values


def write_text(file: Path, text: str) -> None:
    """Write ``file`` durably and atomically: temporary file, fsync, rename, fsync of the folder.

    Raises StoreError that names the file.
    """
    with store_errors(file, "written"):
        temporary = file.with_name(f".{file.name}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
