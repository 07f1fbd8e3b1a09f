"""A run directory: what lies where, how a record begins, and whether its run is done.

    config.yaml       resolved; written first
    env.json          versions, git commit, machine
    events.jsonl      the record of truth
    checkpoints/      harness.store
    wandb/            a view of the record
    DONE | error.txt  written last

Who may write into it, and what is removed before a run starts afresh, is harness.record.folder's.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from harness.config.model import Config
from harness.config.yaml_file import read_mapping, to_yaml
from harness.core.errors import ConfigError, StoreError

_NEEDED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "engine", "strategy.name", "profile.name"), (str,)),
    **dict.fromkeys(("metrics.pls_since", "cluster.placement", "model.size"), (str,)),
    "trace.path": (str, NoneType),
    **dict.fromkeys(("seed", "profile.num_ps"), (int,)),
    "cluster.num_ps": (int, NoneType),
    **dict.fromkeys((f"profile.{name}" for name in ("job_h", "o_save_h", "o_load_h", "o_res_h")), (float, int)),
}
"""The keys of a config that records are read by, and what their values may be."""

Status = Literal["absent", "unfinished", "failed", "done"]


@dataclass(frozen=True)
class RunDir:
    """The paths of one run directory. Makes nothing by itself."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def env(self) -> Path:
        """Versions and machine."""
        return self.path / "env.json"

    @property
    def events(self) -> Path:
        """The record, one event a line."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of harness.store."""
        return self.path / "checkpoints"

    @property
    def wandb(self) -> Path:
        """What wandb writes."""
        return self.path / "wandb"

    @property
    def done(self) -> Path:
        """Marker of a run that ended well."""
        return self.path / "DONE"

    @property
    def error(self) -> Path:
        """Why the run failed."""
        return self.path / "error.txt"

    @property
    def status(self) -> Status:
        """``unfinished`` is a run that was killed, or still runs."""
        if not self.config.is_file():
            return "absent"
        if self.done.is_file():
            return "done"
        return "failed" if self.error.is_file() else "unfinished"

    def failure(self) -> str | None:
        """Why the run failed, one line; None if it did not."""
        if self.status != "failed":
            return None
        lines = self.error.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[0] if lines else "unknown"


def prepare(path: Path, config: Config, env: Mapping[str, Any]) -> RunDir:
    """Begin a record at ``path``: the folder, ``config`` and ``env``.

    Raises:
        StoreError: a record lies there already, and nothing was touched; or the disk refused.
    """
    run = RunDir(path)
    for file in (run.config, run.events, run.done):
        if file.exists():
            raise StoreError(f"{path}: holds the record of a run already ({file.name}); choose another `out`")
    try:
        path.mkdir(parents=True, exist_ok=True)
        replace_text(run.config, to_yaml(config.model_dump(mode="json")))
        replace_text(run.env, json.dumps(env, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
    return run


def differing_keys(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Dotted keys, in order, that two configs set differently, but for where a run is written and viewed."""
    lefts, rights = flatten(left), flatten(right)
    missing = object()
    keys = dict.fromkeys([*lefts, *rights])
    shared = lefts.keys() & rights.keys()  # an option that one strategy lacks is told by the strategy's name
    told = (key for key in keys if key != "out" and not key.startswith("wandb."))
    told = (key for key in told if key in shared or not key.startswith("strategy."))
    return [key for key in told if lefts.get(key, missing) != rights.get(key, missing)]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_config(path: Path) -> dict[str, Any]:
    """The resolved config of a run directory, in plain types.

    Raises StoreError if there is none to be read, or one in which a key is missing or wrong that the records of a run
    are read by.
    """
    file = RunDir(path).config
    try:
        values = read_mapping(file.read_text(), str(file))
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{file}: not UTF-8 text (byte {error.start})") from error
    except ConfigError as error:
        raise StoreError(str(error)) from error
    if not isinstance(values, dict):
        raise StoreError(f"{file}: holds no mapping; a run's resolved config would be right")
    flat = flatten(values)
    for key, kinds in _NEEDED.items():
        if type(flat.get(key)) not in kinds or (key == "profile.job_h" and not flat[key] > 0):
            found = repr(flat[key]) if key in flat else "missing"
            raise StoreError(f"{file}: {key}: {found}; the run's resolved config, as it was written, would be right")
    return values


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises StoreError that names the file."""
    try:
        values = json.loads(file.read_text())
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{file}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise StoreError(f"{file}: holds no JSON object")
    return values


def find_runs(path: Path) -> list[Path]:
    """Run directories at or below ``path``, sorted. Does not look inside a run.

    Raises:
        StoreError: ``path`` is no folder, or no run lies below it.
    """
    if not path.is_dir():
        raise StoreError(f"{path}: no such folder")
    found: list[Path] = []
    for folder, names, files in os.walk(path):
        if "config.yaml" in files:
            found.append(Path(folder))
            names.clear()
    if not found:
        raise StoreError(f"{path}: no run lies here; a folder with config.yaml in it, or above such, would be right")
    return sorted(found)


def write_reason(run_dir: Path, reason: str) -> None:
    """Leave in error.txt why a run failed, if the disk takes it: if not, whoever failed has a better error to tell."""
    with suppress(OSError):
        replace_text(RunDir(run_dir).error, reason + "\n")


def write_view(file: Path, text: str) -> None:
    """As :func:`replace_text`. Raises StoreError that names the file."""
    try:
        replace_text(file, text)
    except OSError as error:
        raise StoreError(f"{file}: cannot be written: {error.strerror}") from error


def replace_text(file: Path, text: str) -> None:
    """Write a file so that it appears whole or not at all, durably. Raises OSError."""
    temp = file.with_name(f".{file.name}.tmp")
    with temp.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temp.replace(file)
    handle = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
