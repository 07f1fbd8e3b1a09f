"""A run in wandb. The only module that imports wandb, and only when a session starts.

Offline, a session writes nothing to the console and makes no network connection. Online, no call blocks longer than
``INIT_S`` or ``FINISH_S`` on a server that does not answer. Where wandb-core itself does not answer, calls may block
for good: they are made by ``harness.record.wandb_worker``. Verified for wandb 0.31: ``WANDB_ERROR_REPORTING=false``
disables the reports of wandb-core itself, and wandb-core ends within 0.1 s of a SIGKILL of its owner.
"""

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import ModuleType
from typing import Any, Literal

from pydantic import ValidationError

from harness.core.errors import ConfigError
from harness.record.wandb_facts import RunFacts
from harness.record.wandb_history import AXES

PROBE_S, INIT_S, FINISH_S = 6.0, 8.0, 12.0
"""Deadlines in seconds: a server's first answer, the start of a session, the upload of what is left at its end."""

_OPEN: set["Session"] = set()  # all share one wandb-core process, which ends with the last of them

_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("silent", "disable_git", "disable_code", "disable_job_creation"), True),
    **{f"x_disable_{name}": True for name in ("stats", "meta", "machine_info", "viewer")},
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
    "console": "off",
    "x_transaction_log_flush_interval": 1.0,  # seconds
    "program": "run.py",
    "init_timeout": INIT_S,
    "finish_timeout": FINISH_S,
    "finish_timeout_raises": True,
}


class WandbError(Exception):
    """wandb could not do what was asked; the message is one line."""


class Session:
    """One run in wandb, from ``wandb.init`` to ``finish``. Any failure of wandb is a WandbError.

    ``folder`` gets wandb's files, in a folder ``wandb``.
    """

    def __init__(self, facts: RunFacts, *, mode: Literal["online", "offline"], folder: Path) -> None:
        self._wandb = _import_wandb()
        try:
            with one_line_errors():
                self._run = self._wandb.init(
                    mode=mode,
                    **facts.to_json(),
                    dir=str(folder),
                    settings=self._wandb.Settings(root_dir=str(folder), **_SETTINGS),
                    reinit="create_new",
                )
                for axis in AXES:
                    self._run.define_metric(axis, hidden=True)
                self._run.define_metric("*", step_metric=AXES[0])
        except WandbError:
            self._end_wandb()
            raise
        _OPEN.add(self)

    @property
    def url(self) -> str | None:
        """Address of the run's page; None offline."""
        return self._run.url

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the run's history; unknown values are left out."""
        with one_line_errors():
            self._run.log({key: value for key, value in row.items() if value is not None})

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Set values of the run's summary."""
        with one_line_errors():
            self._run.summary.update(dict(values))

    def finish(self, *, ok: bool) -> None:
        """Flush, and end the wandb run, and wandb-core with the last session of this process."""
        try:
            with one_line_errors():
                self._run.finish(exit_code=0 if ok else 1)
        finally:
            _OPEN.discard(self)
            self._end_wandb()

    def _end_wandb(self) -> None:
        if _OPEN:
            return
        process: Any = None
        with suppress(Exception):  # wandb-core has not been started
            process = self._wandb.sdk.wandb_setup.singleton().assert_service()._proc
        with suppress(Exception, SystemExit):  # SystemExit: wandb-core was killed. Nothing is left to lose
            self._wandb.teardown()
        if process is not None:
            process.join()  # if wandb-core is dead, teardown has not waited for it


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors in the block become a WandbError."""
    try:
        yield
    except Exception as error:  # a dead wandb-core raises errors of wandb's, and others of no common base
        raise WandbError(" ".join(str(error).split()) or type(error).__name__) from error


def default_entity() -> str:
    """The user or team that the API key stands for. Raises WandbError."""
    with one_line_errors():
        return _import_wandb().Api().default_entity


def server_url() -> str:
    """Address of the wandb server: WANDB_BASE_URL, else that of `wandb login`, else wandb's own.

    Raises ConfigError if wandb's settings cannot be used.
    """
    wandb = _import_wandb()
    try:
        return wandb.sdk.wandb_setup.singleton().settings.base_url
    except (ValidationError, wandb.Error) as error:
        wandb.teardown()  # wandb 0.31 would go on with the settings read so far, and so with another server
        raise ConfigError(
            f"wandb: {_mistakes(error)}; its settings are WANDB_* of the environment, and its settings files"
        ) from error


def _mistakes(error: Exception) -> str:
    """What is wrong with wandb's settings, without their values: some are secret."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())


def require_key() -> None:
    """Raise ConfigError if there is no API key for the server, or none that can be one."""
    wandb = _import_wandb()
    url = server_url()
    try:
        auth = wandb.sdk.lib.wbauth.authenticate_session(host=url, source="", prompt=False, update_session=False)
    except wandb.Error as error:
        raise ConfigError(f"wandb: {' '.join(str(error).split())}") from error
    if auth is None:
        raise ConfigError(
            f"wandb: expected an API key for {url}, got none; set WANDB_API_KEY or run `wandb login`; "
            "wandb.mode=offline needs no account and no network"
        )


def server_problem() -> str | None:
    """One line if the server does not answer within ``PROBE_S`` seconds; else None."""
    url = server_url()
    answers: Queue[str | None] = Queue()
    # In a thread, since no deadline holds for the lookup of a name. It ends with the process.
    Thread(target=lambda: answers.put(_probe(url)), daemon=True).start()
    try:
        return answers.get(timeout=PROBE_S + 1)
    except Empty:
        return f"wandb: {url}: expected an answer, got none within {PROBE_S:g} s"


def _probe(url: str) -> str | None:
    query = json.dumps({"query": "query Viewer { viewer { entity } }", "operationName": "Viewer"}).encode()
    request = urllib.request.Request(f"{url}/graphql", query, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PROBE_S) as reply:
            reply.read(1)
    except urllib.error.HTTPError as error:
        return f"wandb: {url}: expected an answer, got HTTP status {error.code}" if error.code >= 500 else None
    except TimeoutError:
        return f"wandb: {url}: expected an answer, got none within {PROBE_S:g} s"
    except (OSError, HTTPException, ValueError) as error:
        return f"wandb: {url}: expected an answer, got: {getattr(error, 'reason', error)}"
    return None


def _import_wandb() -> ModuleType:
    """wandb, silent and without reports of errors. Its import takes 0.3 s."""
    # Read by wandb-core and by wandb when they start; there are no settings for them.
    os.environ.update(WANDB_ERROR_REPORTING="false", WANDB_SILENT="true")
    # The import makes two temporary folders, which a forked process would leave behind.
    with tempfile.TemporaryDirectory() as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            import wandb  # noqa: PLC0415
            import wandb.sdk.lib.wbauth  # noqa: PLC0415
            import wandb.sdk.wandb_setup  # noqa: PLC0415
        finally:
            tempfile.tempdir = before
    return wandb
