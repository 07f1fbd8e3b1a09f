"""Sends recorded runs to the wandb server, except those that were sent before and have not changed."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from harness.core.errors import RunFailed
from harness.record.rundir import RunDir
from harness.wandb.exporter import Exporter, end_of, export_of
from harness.wandb.facts import read_facts
from harness.wandb.sent import digest_of_export, mark_sent, sent_marker
from harness.wandb.server import WandbError, server_url

Outcome = Literal["sent", "sent before", "not ended"]


class Uploader:
    """Sends runs to one server. ``target``: values of the config's group ``wandb`` that replace the runs' own.

    Raises ConfigError without an API key.
    """

    def __init__(self, target: Mapping[str, Any]) -> None:
        self._server = server_url()
        self._target = target
        self._url: str | None = None
        self._exporter: Exporter | None = None

    @property
    def project_url(self) -> str | None:
        """Address of the wandb project of the run that was sent last, now or before; None if there is none."""
        return None if self._url is None else self._url.partition("/runs/")[0]

    def send(self, path: Path, figures: Mapping[str, Any]) -> Outcome:
        """Send the run in ``path``, unless the server has it already; ``figures`` are added to its summary.

        Raises StoreError if the record cannot be read, RunFailed if not all of it could be sent.
        """
        run = RunDir(path)
        facts = read_facts(run, self._target)
        if facts is None:
            return "not ended"
        end = end_of(run, is_ok=run.status == "done", figures=figures)
        marker, digest = sent_marker(run), digest_of_export(run, facts, end)
        if (marker.get("server"), marker.get("digest")) == (self._server, digest):
            self._url = marker.get("url")
            return "sent before"
        self._exporter = self._exporter or Exporter()
        with tempfile.TemporaryDirectory() as folder:
            self._exporter.send(export_of(run, facts, "online", folder=Path(folder)), end)
            try:
                self._url = self._exporter.await_sent()
            except WandbError as error:
                self._exporter.kill()
                raise RunFailed(f"{path}: wandb: {error}; the same command sends the rest") from error
        mark_sent(run, facts, digest=digest, server=self._server, url=self._url)
        return "sent"

    def close(self) -> None:
        """End the export process."""
        if self._exporter is not None:
            self._exporter.close()
