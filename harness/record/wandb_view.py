"""All that wandb shows of a run, and a marker in the run's folder of what the server has of it."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from harness.core.errors import StoreError
from harness.record.files import read_json, store_errors, write_text
from harness.record.rundir import RunDir
from harness.record.wandb_facts import RunFacts
from harness.record.wandb_history import Row


@dataclass(kw_only=True)
class RunView:
    """What wandb has got of a run. ``is_ok``: the run succeeded."""

    facts: RunFacts
    rows: list[Row] = field(default_factory=list)
    summary: Row = field(default_factory=dict)
    is_ok: bool = True

    @property
    def digest(self) -> str:
        """Hash (16 hex digits): equal views have equal ones."""
        text = json.dumps([self.facts.to_json(), self.rows, self.summary, self.is_ok], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def mark_sent(run: RunDir, view: RunView, *, server: str, url: str | None) -> None:
    """Record that ``server`` has all of ``view``, at ``url``. Raises StoreError."""
    with store_errors(run.wandb, "written"):
        run.wandb.mkdir(exist_ok=True)
    marker = {"server": server, "digest": view.digest, "id": view.facts.id, "url": url}
    write_text(run.wandb / "sent.json", json.dumps(marker, indent=1) + "\n")


def sent_marker(run: RunDir) -> dict[str, Any]:
    """What ``mark_sent`` wrote last; empty if nothing was sent, or the file cannot be used."""
    try:
        marker = read_json(run.wandb / "sent.json")
    except StoreError:
        return {}
    return marker if all(isinstance(marker.get(name), kind) for name, kind in _MARKER.items()) else {}


_MARKER = {"server": str, "digest": str, "id": str, "url": str | None}
"""Types of the marker's values."""
