"""The sidecar of a synthetic log: ``log.tsv.synth.json``, which says how ``log.tsv`` was made.

Criteo's text format has no place for this. A sidecar is valid only for a log with the size and hash in it.
"""

import os
from pathlib import Path

from pydantic import BaseModel, ValidationError

from harness.config.words import mistakes_of
from harness.core.errors import DataError
from harness.data.records import Source, Synthetic
from harness.data.sources import fingerprint

SUFFIX = ".synth.json"


class Sidecar(BaseModel):
    """The content of a sidecar: size and XXH3 (64 bits) of the log, and how it was made."""

    num_bytes: int
    xxh3: str
    synthetic: Synthetic


def write_sidecar(log: Path, made: Synthetic) -> None:
    """Write the sidecar of ``log``, which is complete. Raises DataError if it cannot be written."""
    source = fingerprint(log, lambda _: None)
    content = Sidecar(num_bytes=source.num_bytes, xxh3=source.xxh3, synthetic=made)
    path = log.with_name(log.name + SUFFIX)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(content.model_dump_json(indent=1) + "\n")
        temporary.replace(path)  # whole at any time: another process may make the same log
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_sidecar(log: Path, source: Source) -> Synthetic | None:
    """How the synthetic ``log`` was made; None if no sidecar has the size and hash of ``source``, the log's bytes.

    Raises DataError for a sidecar that cannot be read.
    """
    path = log.with_name(log.name + SUFFIX)
    try:
        found = Sidecar.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        got = error.strerror if isinstance(error, OSError) else mistakes_of(error)[0]
        raise DataError(f"{path}: expected what `run.py data synth` wrote, got {got}; remove it") from error
    return found.synthetic if (found.num_bytes, found.xxh3) == (source.num_bytes, source.xxh3) else None
