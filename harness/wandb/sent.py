"""The file ``wandb/sent.json`` of a run: to which wandb server the run was sent, and a digest of what was sent."""

import hashlib
import json
from typing import Any

from harness.core.errors import StoreError
from harness.files import digest_of, read_json, store_errors, write_text
from harness.record.rundir import RunDir
from harness.wandb.facts import RunFacts

_TYPES = {"server": str, "digest": str, "id": str, "url": str | None}


def digest_of_export(run: RunDir, facts: RunFacts, end: dict[str, Any]) -> str:
    """Hash (16 hex digits) of all that wandb gets of a run. ``end``: see ``exporter.end_of``. Raises StoreError."""
    text = json.dumps([facts.to_json(), digest_of(run.events), end], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def mark_sent(run: RunDir, facts: RunFacts, *, digest: str, server: str, url: str | None) -> None:
    """Write the marker: ``server`` has all of the run, on the page ``url``. Raises StoreError."""
    with store_errors(run.wandb, "written"):
        run.wandb.mkdir(exist_ok=True)
    marker = {"server": server, "digest": digest, "id": facts.id, "url": url}
    write_text(run.wandb / "sent.json", json.dumps(marker, indent=1) + "\n")


def sent_marker(run: RunDir) -> dict[str, Any]:
    """The marker that ``mark_sent`` wrote last; empty if nothing was sent or the file cannot be used."""
    try:
        marker = read_json(run.wandb / "sent.json")
    except StoreError:
        return {}
    return marker if all(isinstance(marker.get(name), kind) for name, kind in _TYPES.items()) else {}
