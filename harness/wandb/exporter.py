"""The export of runs to wandb by a separate process, which reads a run's events while the run trains, or afterwards.

No training step waits for wandb. The end of a run, and an upload, wait at most ``DEADLINE_S`` for an answer; then the
process and wandb-core, its child, are killed.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from harness.config.model import Config
from harness.core.errors import RunFailed, StoreError, shown
from harness.processes.child import Child, search_path
from harness.processes.parent_death import INTERRUPTS
from harness.record.rundir import RunDir
from harness.wandb.export_process import Export
from harness.wandb.facts import RunFacts, digest_of_export, facts_of, mark_sent, read_facts, sent_marker
from harness.wandb.server import LIMITS_S, WandbError, server_url

_log = logging.getLogger(__name__)

DEADLINE_S = 15.0
"""Longest wait for an answer of the export process."""

_SAID_AFTER_S = 3.0  # of waiting for the end, before it is logged
_GRACE_S = 5.0  # for the process to end, when all is sent


class Exporter:
    """A process that exports runs (``harness.wandb.export_process``)."""

    def __init__(self) -> None:
        self._why = "its process has ended"
        self._child = Child(
            [sys.executable, "-P", "-m", "harness.wandb.export_process"],
            errors=subprocess.DEVNULL,
            ignored=INTERRUPTS,
            environment=os.environ | {"PYTHONPATH": search_path()},
        )
        self.send = self._child.send

    def answer(self, within_s: float | None = None) -> tuple[str, str | None]:
        """The next message of the export process: its kind and its text (see ``export_process``).

        Raises WandbError if the export has failed, the process has ended, or no message comes ``within_s``; in the
        last case the process is killed.
        """
        try:
            kind, text = self._child.answer(within_s) or ("failed", self._why)
        except TimeoutError as error:
            self.kill(str(error))
            kind, text = "failed", str(error)
        text = text and shown(text)
        if kind == "failed":
            raise WandbError(text)
        return kind, text

    def await_sent(self) -> str | None:
        """Wait until all of a finished run is sent; returns the address of its page, or None offline.

        Raises WandbError as :meth:`answer`, also if the next message takes longer than ``DEADLINE_S``.
        """
        while (answer := self.answer(DEADLINE_S))[0] != "sent":
            pass
        return answer[1]

    def kill(self, why: str = "") -> None:
        """Kill the process and wandb-core; a no-op if the process has ended. ``why``: the reason that errors name."""
        if self._child.wait(0.0) is None:
            self._why = why
        self._child.end()

    def close(self) -> None:
        """End the idle export process, by SIGKILL after ``_GRACE_S``, and remove its temporary folders."""
        self._child.close(_GRACE_S)
        for folder in Path(tempfile.gettempdir()).glob(f"wandb-{self._child.pid}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def export_of(run: RunDir, facts: RunFacts, *modes: str, folder: Path) -> dict[str, Any]:
    """The request that begins the export of a run. ``modes``, ``folder``: see ``export_process.Export``."""
    here = "/proc/self", f"/proc/{os.getpid()}"  # a folder that this process holds, as its child reaches it
    export = Export(
        facts=asdict(facts),
        events=str(run.events).replace(*here),
        modes=modes,
        folder=str(folder).replace(*here),
        limits_s=LIMITS_S,
    )
    return asdict(export)


def end_of(run: RunDir, *, is_ok: bool, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The request that ends the export of a run. ``figures``, and a failed run's reason, are added to its summary."""
    reason = run.reason()
    return {"is_ok": is_ok, "summary": {**({} if reason is None else {"failure": reason}), **figures}}


@contextmanager
def followed(run: RunDir, config: Config, config_hash: str) -> Iterator[None]:
    """Export a run to wandb, as ``config.wandb.mode`` says, while the block trains it. env.json must exist already.

    At its end the block waits at most ``DEADLINE_S`` for the export. A failure of wandb never stops the run: one line
    is logged. If the server does not answer, the export goes on offline, and ``run.py sync`` sends the run later.

    Raises ConfigError for mode ``online`` with invalid wandb settings or without an API key, StoreError if env.json
    cannot be used.
    """
    if config.wandb.mode == "disabled":
        yield
        return
    server = server_url() if config.wandb.mode == "online" else None
    follower, is_ok = None, False
    try:
        follower = _Follower(run, facts_of(run, config.model_dump(mode="json"), config_hash), server)
    except OSError as error:  # the export process cannot be started
        path = shown(run.path)
        _log.warning("note: wandb: %s; the run goes on; send it later by `run.py sync %s`", error.strerror, path)
    try:
        yield
        is_ok = True
    finally:
        if follower is not None:
            follower.finish(is_ok=is_ok)


class _Follower(Thread):
    """A thread that reads the export process's messages on a running run, logs them, and marks the run as sent."""

    def __init__(self, run: RunDir, facts: RunFacts, server: str | None) -> None:
        super().__init__(name="wandb", daemon=True)
        self._run_dir, self._facts, self._server = run, facts, server
        self._end: dict[str, Any] = {}
        self._state = "the run goes on"
        self._exporter = Exporter()
        modes = ("online", "offline") if server else ("offline",)
        self._exporter.send(export_of(run, facts, *modes, folder=run.path))
        self.start()

    def run(self) -> None:
        """Log the export process's messages until all is sent; then write the marker and end the process."""
        path = shown(self._run_dir.path)
        try:
            while (answer := self._exporter.answer())[0] != "sent":
                match answer:
                    case "offline", problem:
                        _log.warning("wandb: %s; the run goes on offline, `run.py sync %s` sends it", problem, path)
                    case "opened", str(url):
                        _log.info("wandb: %s", url)
                    case _:
                        pass
        except WandbError as error:
            self._exporter.kill()
            _log.warning("note: wandb: %s; %s; send it later by `run.py sync %s`", error, self._state, path)
        else:
            self._mark(answer[1])
        self._exporter.close()

    def _mark(self, url: str | None) -> None:
        """Write the marker ``sent.json``; a no-op for an offline run (``url`` None)."""
        if self._server and url:
            with suppress(StoreError):  # it is sent again, to the same place
                digest = digest_of_export(self._run_dir, self._facts, self._end)
                mark_sent(self._run_dir, self._facts, digest=digest, server=self._server, url=url)

    def finish(self, *, is_ok: bool) -> None:
        """Tell the export process that the run has ended. Waits until all is sent; kills it after ``DEADLINE_S``."""
        self._state = "the run is complete" if is_ok else "the record is kept"
        self._end = end_of(self._run_dir, is_ok=is_ok, figures={})
        self._exporter.send(self._end)
        try:
            self.join(min(_SAID_AFTER_S, DEADLINE_S))
            if self.is_alive():
                _log.info("wandb: waiting for its end, at most %g s", DEADLINE_S)
                self.join(max(0.0, DEADLINE_S - _SAID_AFTER_S))
        finally:
            self._exporter.kill(f"no answer within {DEADLINE_S:g} s")
            self.join()


class Refused(RunFailed):
    """The server has answered, and does not take this run; it may take others."""


_REFUSED = re.compile(r"HTTP (400|409|410|413|422)\b.*?(?= Consider increasing|$)")
"""In wandb's message: an answer of the server that is about one run, such as one that was deleted there."""

Outcome = Literal["sent", "sent before", "not ended"]


class Uploader:
    """Sends runs to one server. ``target``: values of the config's group ``wandb`` that replace the runs' own.

    Raises ConfigError for invalid wandb settings or without an API key.
    """

    def __init__(self, target: Mapping[str, Any]) -> None:
        self._server = server_url()
        self._target = target
        self._url: str | None = None
        self._exporter: Exporter | None = None

    @property
    def project_url(self) -> str | None:
        """Address of the wandb project of the run that :meth:`send` sent last, or found sent; None without one."""
        return None if self._url is None else self._url.partition("/runs/")[0]

    def send(self, path: Path, figures: Mapping[str, Any]) -> Outcome:
        """Send the run in ``path``, unless it has not ended or the server has it already, and mark it as sent.

        ``figures`` are added to its summary. Raises StoreError if the record cannot be read or the marker cannot be
        written, Refused if the server does not take the run, RunFailed if not all of it could be sent.
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
                self.close()  # the next run gets a new one
                if refused := _REFUSED.search(str(error)):
                    raise Refused(f"{path}: wandb: {refused[0]}; --project sends runs to another project") from error
                raise RunFailed(f"{path}: wandb: {error}; the same command sends the rest") from error
        mark_sent(run, facts, digest=digest, server=self._server, url=self._url)
        return "sent"

    def close(self) -> None:
        """End the export process; a no-op if there is none."""
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
