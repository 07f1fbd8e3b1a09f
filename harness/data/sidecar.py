"""The sidecar of a synthetic log: ``log.tsv.synth.json``, which says how ``log.tsv`` was made.

Criteo's text format has no place for this. A sidecar is valid only for a log with the size and hash in it.
"""

import dataclasses
import json
import os
from pathlib import Path

from harness.core.errors import DataError
from harness.data.records import Source, Synthetic
from harness.data.sources import fingerprint

SUFFIX = ".synth.json"


def write_sidecar(log: Path, made: Synthetic) -> None:
    """Write the sidecar of ``log``, which is complete. Raises DataError if it cannot be written."""
    source = fingerprint(log, lambda _: None)
    values = {"num_bytes": source.num_bytes, "xxh3": source.xxh3, "synthetic": dataclasses.asdict(made)}
    path = log.with_name(log.name + SUFFIX)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(values, indent=1) + "\n")
        temporary.replace(path)  # whole at any time: another process may make the same log
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_sidecar(log: Path, source: Source) -> Synthetic | None:
    """How ``log``, whose size and hash are those of ``source``, was made; None without a sidecar of these bytes.

    Raises DataError for a sidecar that cannot be read.
    """
    path = log.with_name(log.name + SUFFIX)
    try:
        values = json.loads(path.read_bytes())
        if (values["num_bytes"], values["xxh3"]) != (source.num_bytes, source.xxh3):
            return None
        return Synthetic(**values["synthetic"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: expected what `run.py data synth` wrote, got {error}; remove it") from error
