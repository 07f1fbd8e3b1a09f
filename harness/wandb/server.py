"""The wandb server and its API key, and whether the server answers. Only this module imports wandb."""

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.client import HTTPException
from threading import Thread
from types import ModuleType
from typing import TypeVar

from pydantic import ValidationError

from harness.core.errors import ConfigError

LIMITS_S = {"probe": 6.0, "init": 8.0, "finish": 12.0}
"""Longest waits in seconds: for the server's first answer, the start of a wandb run, and the last upload at its end."""

_T = TypeVar("_T")


class WandbError(Exception):
    """wandb could not do what was asked; the message is one line."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Any exception in the block becomes a WandbError with a message of one line."""
    try:
        yield
    except Exception as error:  # a dead wandb-core raises errors of wandb's, and others of no common base
        raise WandbError(" ".join(str(error).split()) or type(error).__name__) from error


def within(limit_s: float, call: Callable[[], _T]) -> _T:
    """The result of ``call``, run in a thread. Raises WandbError if it fails, or takes longer than ``limit_s``.

    A call that takes longer is not stopped.
    """
    future: Future[_T] = Future()

    def work() -> None:
        try:
            with one_line_errors():
                future.set_result(call())
        except WandbError as error:
            future.set_exception(error)

    Thread(target=work, name="wandb", daemon=True).start()
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        raise WandbError(f"no answer within {limit_s:g} s") from error


def import_wandb() -> ModuleType:
    """The module wandb, with console output and error reports switched off. Its import takes 0.3 s."""
    # Read by wandb-core and by wandb when they start; there are no settings for them.
    os.environ.update(WANDB_ERROR_REPORTING="false", WANDB_SILENT="true")
    # The import makes two temporary folders, which a process that is killed would leave behind.
    with tempfile.TemporaryDirectory() as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            import wandb  # noqa: PLC0415
            import wandb.sdk.lib.wbauth  # noqa: PLC0415
            import wandb.sdk.wandb_setup  # noqa: PLC0415
        finally:
            tempfile.tempdir = before
    return wandb


def default_entity() -> str:
    """The wandb entity (user or team) of the API key, asked from the server. Raises errors of wandb."""
    return import_wandb().Api().default_entity


def server_url() -> str:
    """Address of the wandb server: WANDB_BASE_URL, else the one of `wandb login`, else wandb's own.

    Raises ConfigError if wandb's settings are invalid, or the API key for the server is missing or malformed.
    """
    wandb = import_wandb()
    try:
        url = wandb.sdk.wandb_setup.singleton().settings.base_url
    except (ValidationError, wandb.Error) as error:
        wandb.teardown()  # wandb 0.31 would go on with the settings read so far, and so with another server
        raise ConfigError(
            f"wandb: {_mistakes(error)}; its settings are WANDB_* of the environment, and its settings files"
        ) from error
    try:
        auth = wandb.sdk.lib.wbauth.authenticate_session(host=url, source="", prompt=False, update_session=False)
    except wandb.Error as error:
        raise ConfigError(f"wandb: {_mistakes(error)}") from error
    if auth is None:
        raise ConfigError(
            f"wandb: expected an API key for {url}, got none; set WANDB_API_KEY or run `wandb login`; "
            "wandb.mode=offline and `run.py dashboard --offline FILE.json` need no account and no network"
        )
    return url


def _mistakes(error: Exception) -> str:
    """The mistakes in wandb's settings, in one line, without values, since some are secret."""
    if not isinstance(error, ValidationError):
        return " ".join(str(error).split())
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())


def server_problem(url: str) -> str | None:
    """Why the wandb server at ``url`` cannot be used, in one line; None if it answers in time."""
    limit_s = LIMITS_S["probe"]
    query = json.dumps({"query": "query Viewer { viewer { entity } }", "operationName": "Viewer"}).encode()
    request = urllib.request.Request(f"{url}/graphql", query, {"Content-Type": "application/json"})

    def ask() -> str | None:
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as reply:
                reply.read(1)
        except urllib.error.HTTPError as error:
            return f"got HTTP status {error.code}" if error.code >= 500 else None
        except TimeoutError:
            return f"got none within {limit_s:g} s"
        except (OSError, HTTPException, ValueError) as error:
            return f"got: {getattr(error, 'reason', error)}"
        return None

    try:
        problem = within(limit_s + 1, ask)  # no deadline of urllib's holds for the lookup of a name
    except WandbError as error:
        problem = f"got {error}"
    return problem and f"wandb: {url}: expected an answer, {problem}"
