"""Cells as actors of a Ray: which of them live, what ends them, and what Ray is told to start."""

import json
import math
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from harness.config.jobs import JobsConfig
from harness.core.errors import ConfigError, UserError
from harness.jobs.cell_job import CellJob
from harness.jobs.files import JobRecord
from harness.jobs.ray_link import PROGRAM, RayLink, import_path

_ROOT = Path(__file__).resolve().parents[2]
_ANSWER_S = 30.0
_SILENT_S = 120.0  # Ray's workers end within 60 s of their head


class Ray:
    """See harness.jobs.clusters.Cluster. It holds a connection to each Ray that it was asked about."""

    settle_s = 20.0
    longest_poll_s = 5.0
    is_detached = True

    def __init__(self) -> None:
        self._links: dict[str, RayLink] = {}
        self._answered_s: dict[str, float] = {}

    def check(self, settings: JobsConfig) -> None:
        """See Cluster.check."""
        self._link(settings.ray_address)

    def alive(self, jobs: Collection[JobRecord]) -> Collection[JobRecord] | None:
        """See Cluster.alive. Raises ConfigError if Ray has not answered for two minutes."""
        found: list[JobRecord] = []
        for address in dict.fromkeys(job.address or "auto" for job in jobs):
            try:
                names = self._link(address).alive(_ANSWER_S)
            except UserError:
                self._forget(address)
                return None
            self._answered_s[address] = time.monotonic()
            found += [job for job in jobs if (job.address or "auto") == address and job.job in names]
        return found

    def room(self, settings: JobsConfig, processors: int) -> int | None:
        """See Cluster.room: cells for which Ray has no processors wait there."""
        return settings.max_parallel

    def ending(self, jobs: Sequence[JobRecord]) -> str:
        """See Cluster.ending. Runs write resume points."""
        commands: list[str] = []
        for address in dict.fromkeys(job.address or "auto" for job in jobs):
            names = [job.job for job in jobs if (job.address or "auto") == address]
            words = [sys.executable, "-m", PROGRAM, "end", address, *names]
            commands.append(f"env PYTHONPATH={shlex.quote(import_path())} {shlex.join(words)}")
        return " && ".join(commands)

    def close(self) -> None:
        """See Cluster.close."""
        for address in [*self._links]:
            self._links.pop(address).close()
        self._answered_s.clear()

    def _link(self, address: str) -> RayLink:
        if address not in self._links:
            self._links[address] = RayLink(address)
        self._answered_s.setdefault(address, time.monotonic())
        return self._links[address]

    def _forget(self, address: str) -> None:
        """Connect anew next time. Raises ConfigError after too long a silence."""
        if (link := self._links.pop(address, None)) is not None:
            link.close()
        silent_s = time.monotonic() - self._answered_s.get(address, time.monotonic())
        if silent_s > _SILENT_S:
            raise ConfigError(
                f"jobs.ray_address: expected answers of the Ray at {address}, got none for {silent_s:.0f} s; its cells "
                "end with it, and the same command goes on with them when a Ray runs"
            )


def name_of(record: Path) -> str:
    """The name of the actor of a cell, derived from the file of its record: the grid's folder, and the cell."""
    digest = blake2b(str(record.resolve().parent).encode(), digest_size=4).hexdigest()
    return f"{digest}-{record.stem}"


def order_of(job: CellJob, record: Path, settings: JobsConfig, processors: int) -> dict[str, Any]:
    """What Ray is told about a cell: see harness.jobs.ray_cells."""
    return {
        "name": name_of(record),
        "command": [sys.executable, "-P", "-m", "harness.jobs.ray_job"],
        "request": json.dumps(job.values()),
        "path": str(_ROOT),
        "processors": processors,
        "memory": None if settings.memory_gb is None else math.ceil(2**30 * settings.memory_gb),
        "max_restarts": settings.max_timeouts,
    }


def start_cells(address: str, orders: list[dict[str, Any]]) -> None:
    """Start cells by the Ray at ``address``; returns when its head has all of them. Raises UserError."""
    link = RayLink(address)
    try:
        link.start(orders, _ANSWER_S + len(orders))
    finally:
        link.close()
