"""A run directory: its files, how a record begins, whether its run is done, and its config as plain values.

docs/ARCHITECTURE.md lists the files. ``config.yaml`` is written first; ``DONE``, the seal, or ``error.txt`` last.
Locking, and removal of what an unfinished run left, are in harness.record.folder.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from harness.config.model import Config
from harness.config.words import mistakes_of
from harness.config.yaml_file import Document, to_yaml
from harness.core.errors import ConfigError, RunStopped, StoreError, shown
from harness.files import digest_of, make_folder, new_digest, os_errors, read_file, read_json, store_errors, write_text

_Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _part(**fields: Any) -> type[BaseModel]:
    """A model of the keys that are read from a file. A field is a type or (type, default). Other keys are ignored."""
    given: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    return create_model("part", __config__=ConfigDict(strict=True, allow_inf_nan=False), **given)


_CONFIG = _part(
    **dict.fromkeys(("name", "engine"), str),
    seed=_Whole,
    strategy=_part(name=str),
    trace=_part(
        **dict.fromkeys(("path", "window"), str | None),
        **dict.fromkeys(("clock", "inject"), str),
        law=_part(name=str) | None,
        seed=_Whole | None,
    ),
    wandb=_part(project=str, **dict.fromkeys(("entity", "group"), str | None)),
    metrics=_part(pls_since=str),
    model=_part(name=str, size=str),
    cluster=_part(placement=str, num_ps=_Whole | None, num_trainers=_Whole, spares=_Whole, on_loss=str),
    save=_part(mode=str),
    store=_part(keep_finished=bool),
    profile=_part(
        name=str,
        num_ps=_Whole,
        job_h=Annotated[float, Field(gt=0)],
        **dict.fromkeys(("o_save_h", "o_load_h", "o_res_h", "o_save_fixed_h"), float),
        **dict.fromkeys(("detect_h", "detect_death_h"), float),
        **dict.fromkeys(("spare_o_res_h", "shrink_o_res_h", "network_gbps", "snapshot_gbps"), float | None),
        num_trainers=_Whole | None,
        **dict.fromkeys(("step_frac", "tier_frac"), dict[str, float] | None),
        io_bound=str,
        storage_links=float | None,
        load=str,
        trainer_load=bool,
    ),
)
"""The keys that the analysis computes with, and wandb groups and names runs by."""

_TEXT = (str | None, None)
_ENV = _part(
    git=(_part(commit=_TEXT, dirty=(bool | None, None)) | None, None),
    code=(_part(fingerprint=_TEXT) | None, None),
    data=(_part(digest=_TEXT) | None, None),
    trace=(_part(digest=_TEXT, law=_TEXT) | None, None),
)

_CURE = "restore the file as the run wrote it"
_FILES = frozenset(("config.yaml", "events.jsonl", "DONE"))
"""A folder with any of these files is a run's; the others may be lost."""

Status = Literal["absent", "unfinished", "failed", "done"]


class RunDir:
    """The paths of one run directory. The constructor creates nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.env = path / "env.json"
        self.events = path / "events.jsonl"
        self.checkpoints = path / "checkpoints"
        self.resume = path / "resume"
        self.model = path / "model"
        self.wandb = path / "wandb"
        self.done = path / "DONE"
        self.error = path / "error.txt"

    @property
    def name(self) -> str:
        return Path(shown(self.path)).name

    @property
    def status(self) -> Status:
        """State of the run by the files present; ``unfinished`` if it runs, was killed, or was asked to stop.

        Raises StoreError if the folder cannot be read.
        """
        with os_errors(f"{self.path}: cannot be read"):
            if not any((self.path / name).is_file() for name in _FILES):
                return "absent"
            if self.done.exists():
                return "done"
        reason = self.reason()
        return "unfinished" if reason is None or reason.startswith(RunStopped.__name__) else "failed"

    def failure(self) -> str | None:
        """Why the run failed, in one line; None if it did not fail. Raises as :attr:`status`."""
        return self.reason() if self.status == "failed" else None

    def reason(self) -> str | None:
        """First line of error.txt: why the run failed, or that it was asked to stop.

        "unknown" if the file is empty, None if it cannot be read.
        """
        try:
            lines = read_file(self.error).decode(errors="replace").strip().splitlines()
        except StoreError:
            return None
        return lines[0] if lines else "unknown"


def prepare(path: Path, config: Config, env: Mapping[str, Any]) -> tuple[RunDir, dict[str, str]]:
    """Create the run directory ``path`` with config.yaml and env.json. Returns it, and the digests of both by name.

    Raises StoreError if it holds a record already (then nothing is touched) or cannot be written.
    """
    run = RunDir(path)
    for file in (run.config, run.events, run.done):
        if file.exists():
            raise StoreError(f"{path}: already holds the record of a run ({file.name}); set out to another folder")
    make_folder(path)
    config_digest = _write_config(run, config)
    text = json.dumps(env, indent=1, allow_nan=False) + "\n"
    write_text(run.env, text)
    return run, {run.config.name: config_digest, run.env.name: new_digest(text.encode()).hexdigest()}


def reopen(run: RunDir, config: Config) -> str:
    """Make a run directory ready for a resumed run: write config.yaml, remove error.txt and the wandb folder.

    Returns the digest of config.yaml. Raises StoreError if the folder cannot be written.
    """
    with store_errors(run.path, "written"):
        run.error.unlink(missing_ok=True)
        if run.wandb.exists():
            shutil.rmtree(run.wandb)
    return _write_config(run, config)


def _write_config(run: RunDir, config: Config) -> str:
    text = to_yaml(config.model_dump(mode="json"))
    write_text(run.config, text)
    return new_digest(text.encode()).hexdigest()


_BESIDE = ("wandb.", "jobs.")
"""How config keys begin that affect neither what a run computes nor the time that it takes."""


def differing_keys(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Dotted keys, in order, whose values differ between two configs, or that one of them lacks.

    ``out``, ``wandb.*`` and ``jobs.*`` are left out, and options of the strategy that one of them lacks.
    """
    lefts, rights = flatten(left), flatten(right)
    shared = lefts.keys() & rights.keys()
    keys = dict.fromkeys(key for key in (*lefts, *rights) if key != "out" and not key.startswith(_BESIDE))
    return [
        key
        for key in keys
        # Which options a strategy has follows from its name.
        if (key in shared and lefts[key] != rights[key]) or (key not in shared and not key.startswith("strategy."))
    ]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def read_config(path: Path) -> dict[str, Any]:
    """The resolved config of the run directory ``path``, as plain nested values.

    Raises StoreError if config.yaml cannot be read, or a key that analysis needs is missing or has a wrong type.
    """
    file = RunDir(path).config
    try:
        values = Document(read_file(file), str(file)).value
    except ConfigError as error:
        raise StoreError(str(error)) from error
    if not isinstance(values, dict):
        raise StoreError(f"{file}: expected the resolved config of a run (a mapping), got {type(values).__name__}")
    _check(_CONFIG, values, file)
    return values


def _check(part: type[BaseModel], values: Mapping[str, Any], file: Path) -> None:
    """Raise StoreError that names the first key of ``values`` that is invalid in the model ``part``."""
    try:
        part.model_validate(values)
    except ValidationError as error:
        raise StoreError(f"{file}: {mistakes_of(error)[0]}; {_CURE}") from error


def read_whole_config(path: Path, changes: Mapping[str, Any]) -> Config:
    """The config of the run directory ``path``, fully validated. ``changes``: by group, values that replace others.

    Raises StoreError as :func:`read_config`, and for any invalid key, such as a strategy of a plugin that is not
    loaded.
    """
    values = read_config(path)
    groups = {name: {**group, **changes[name]} for name in changes if isinstance(group := values.get(name, {}), dict)}
    try:
        return Config.model_validate(values | groups)
    except ValidationError as error:
        mistakes = mistakes_of(error)
        raise StoreError("\n".join(f"{RunDir(path).config}: {mistake}; {_CURE}" for mistake in mistakes)) from error


def read_env(path: Path) -> dict[str, Any]:
    """The content of env.json of the run directory ``path``; empty if there is no such file.

    Raises StoreError if it cannot be read, or a key that is used has a wrong type.
    """
    file = RunDir(path).env
    if not file.exists():
        return {}
    values = read_json(file)
    _check(_ENV, values, file)
    return values


def find_runs(path: Path) -> list[Path]:
    """Run directories at or below ``path``, sorted; folders inside a run and hidden folders are not searched.

    A folder that cannot be read is included, so that the caller reports it.
    Raises StoreError if ``path`` is not a folder, or contains no run.
    """
    if not path.is_dir():
        raise StoreError(f"{path}: {'expected a folder, got a file' if path.exists() else 'no such folder'}")
    found: list[Path] = []
    errors: list[OSError] = []
    for folder, names, files in os.walk(path, onerror=errors.append):
        names[:] = [name for name in names if not name.startswith(".")]
        if not _FILES.isdisjoint(files):
            found.append(Path(folder))
            names.clear()
    found += [Path(error.filename) for error in errors if not isinstance(error, FileNotFoundError)]
    if not found:
        raise StoreError(f"{path}: no run found; expected a run folder (one with config.yaml) or a folder above runs")
    return sorted(found)


def write_reason(run_dir: Path, reason: str) -> None:
    """Write why a run failed to error.txt. Write errors are ignored, since the caller reports the failure anyway."""
    with suppress(StoreError):
        write_text(RunDir(run_dir).error, reason + "\n")


SEALED = ("config.yaml", "env.json", "events.jsonl")
"""The files that a seal covers."""

_SEAL_CURE = "restore it from a copy, or remove DONE to run it again"


def write_seal(
    run: RunDir, *, time: str, num_events: int, digests: Mapping[str, str], audit: Sequence[str] | None
) -> None:
    """Write DONE, a JSON object of the arguments and its own digest. Raises StoreError if it cannot be written.

    ``time``: ISO 8601. ``digests``: of the sealed files, computed while the run wrote them. ``audit``: the findings of
    ``harness.record.audit``; None if the audit could not be made.
    """
    values = {"time": time, "num_events": num_events, "digests": {name: digests[name] for name in SEALED}}
    values |= {} if audit is None else {"audit": [*audit]}
    write_text(run.done, _text(values))


def verify(run: RunDir, names: Iterable[str] = SEALED) -> None:
    """Check that the files ``names`` of a run have the digests in DONE. A no-op if the run is not done.

    Raises StoreError that names the first file, DONE included, which is not as it was when the run ended.
    """
    with store_errors(run.done, "read"):
        if not run.done.exists():
            return
    seal = _read(run.done)
    for name in names:
        if not (run.path / name).exists():
            raise StoreError(f"{run.path / name}: expected what the run wrote, got no file; {_SEAL_CURE}")
        expected, found = seal["digests"][name], digest_of(run.path / name)
        if found != expected:
            what = f"{seal['num_events']} events, " if name == run.events.name else ""
            raise StoreError(
                f"{run.path / name}: expected what the run wrote ({what}blake2b {expected}), got {found}; {_SEAL_CURE}"
            )


def kept_audit(run: RunDir) -> list[str] | None:
    """The audit's findings when the run was sealed; None without DONE or an audit. Raises StoreError."""
    return _read(run.done).get("audit") if run.done.exists() else None


def _read(done: Path) -> dict[str, Any]:
    """The values of DONE. Raises StoreError for anything else."""
    content = read_file(done)
    try:
        values: dict[str, Any] = json.loads(content)
        del values["digest"]
        if _text(values).encode() == content:
            return values
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise StoreError(f"{done}: expected the digests that the run wrote at its end, got other content; {_SEAL_CURE}")


def _text(values: dict[str, Any]) -> str:
    own = new_digest(json.dumps(values).encode()).hexdigest()
    return json.dumps(values | {"digest": own}, indent=1) + "\n"
