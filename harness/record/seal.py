"""The seal of a finished run: its DONE file, with the digest of each file that the result follows from.

DONE is a JSON object: when it was written, the number of events, the digests, what the audit of the record found, and
the digest of all this. Older versions wrote the time alone; such a run is accepted, and cannot be verified.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import StoreError
from harness.files import digest_of, new_digest, read_file, store_errors, write_text
from harness.record.rundir import RunDir

SEALED = ("config.yaml", "env.json", "events.jsonl")
"""The files that a seal covers."""

_TIME_ALONE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\n")
_CURE = "restore it from a copy, or remove DONE to run it again"


def write_seal(
    run: RunDir, *, time: str, num_events: int, digests: Mapping[str, str], audit: Sequence[str] | None
) -> None:
    """Write DONE. ``digests``: of the sealed files, computed while the run wrote them. Raises StoreError.

    ``audit``: the findings of ``harness.record.audit``; None if the audit could not be made.
    """
    values = {"time": time, "num_events": num_events, "digests": {name: digests[name] for name in SEALED}}
    values |= {} if audit is None else {"audit": [*audit]}
    write_text(run.done, _text(values))


def is_sealed(run: RunDir) -> bool:
    """Whether DONE has digests. Raises StoreError if DONE is neither a seal nor a file of an older version."""
    return _read(run.done) is not None


def verify(run: RunDir, names: Iterable[str] = SEALED) -> None:
    """Check that the files ``names`` of a run have the digests in DONE. A no-op if it is not done or has no seal.

    Raises StoreError that names a file which is not as it was when the run ended.
    """
    with store_errors(run.done, "read"):
        is_done = run.done.exists()
    if not is_done or (seal := _read(run.done)) is None:
        return
    for name in names:
        if not (run.path / name).exists():
            raise StoreError(f"{run.path / name}: expected what the run wrote, got no file; {_CURE}")
        expected, found = seal["digests"][name], digest_of(run.path / name)
        if found != expected:
            what = f"{seal['num_events']} events, " if name == run.events.name else ""
            raise StoreError(
                f"{run.path / name}: expected what the run wrote ({what}blake2b {expected}), got {found}; {_CURE}"
            )


def kept_audit(run: RunDir) -> list[str] | None:
    """The audit's findings when the run was sealed; None if DONE has none. Raises StoreError as ``is_sealed``."""
    return (_read(run.done) or {}).get("audit") if run.done.exists() else None


def damage_of(run: RunDir) -> str | None:
    """The message of the error that :func:`verify` raises for a run; None if it raises none."""
    try:
        verify(run)
    except StoreError as error:
        return str(error)
    return None


def _read(done: Path) -> dict[str, Any] | None:
    """The values of DONE; None if an older version wrote it without seal. Raises StoreError for anything else."""
    content = read_file(done)
    if _TIME_ALONE.fullmatch(content):
        return None
    try:
        values: dict[str, Any] = json.loads(content)
        del values["digest"]
        if _text(values).encode() == content:
            return values
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise StoreError(f"{done}: expected the digests that the run wrote at its end, got other content; {_CURE}")


def _text(values: dict[str, Any]) -> str:
    own = new_digest(json.dumps(values).encode()).hexdigest()
    return json.dumps(values | {"digest": own}, indent=1) + "\n"
