"""What wandb gets of a run before its first step, and the marker ``wandb/sent.json`` of a run that a server has."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.config.derived import group_of
from harness.config.model import trace_name
from harness.core.errors import StoreError
from harness.files import digest_of, read_json, store_errors, write_text
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, read_config, read_env, verify


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The arguments of ``wandb.init`` that describe a run."""

    id: str
    name: str
    project: str
    entity: str | None
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]


def facts_of(run: RunDir, config: Mapping[str, Any], config_hash: str) -> RunFacts:
    """The facts of a run; its folder's name is its name in wandb. Raises StoreError if env.json cannot be used.

    ``config``: the resolved one, as nested values, so that no plugin of the run need be loaded.
    """
    env = read_env(run.path)
    git: Mapping[str, Any] = env.get("git") or {}
    code: Mapping[str, Any] = env.get("code") or {}
    wandb, strategy, profile = config["wandb"], config["strategy"]["name"], config["profile"]["name"]
    path, law, window, seed = (config["trace"][key] for key in ("path", "law", "window", "seed"))
    trace = trace_name(path, law and law["name"], window, config["seed"] if seed is None else seed)
    return RunFacts(
        id=run_id(config_hash, config["engine"], code.get("fingerprint")),
        name=run.name,
        project=wandb["project"],
        entity=wandb["entity"],
        group=wandb["group"] or group_of([config]),
        job_type=strategy,
        # A trace and a profile may share a name.
        tags=[config["engine"], f"trace:{trace}" if trace else "no-trace", f"profile:{profile}"],
        config={
            **config,
            "strategy_name": strategy,
            "trace_name": trace or "none",
            "profile_name": profile,
            "config_hash": config_hash,
            "git_commit": git.get("commit"),
            "git_is_dirty": git.get("dirty"),
            "code_fingerprint": code.get("fingerprint"),
        },
    )


def read_facts(run: RunDir, target: Mapping[str, Any]) -> RunFacts | None:
    """The facts of a recorded run; None unless it is done or failed, and its record has begun.

    ``target``: values of the config's group ``wandb`` that replace the run's own. Raises StoreError if the record
    cannot be read or is not what the run wrote.
    """
    if run.status not in ("done", "failed"):
        return None
    verify(run)
    started = EventLog.of(run).started
    config = read_config(run.path)
    return started and facts_of(run, {**config, "wandb": {**config["wandb"], **target}}, started.config_hash)


def run_id(config_hash: str, engine: str, code: str | None = None) -> str:
    """Id of a wandb run (16 hex digits), the same for runs of equal config, engine and code, of which wandb keeps one.

    ``code``: fingerprint of the code that determines the result; None if it is unknown.
    """
    key = " ".join([config_hash, engine, *([code] if code else [])])
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


_TYPES = {"server": str, "digest": str, "id": str, "url": str | None}


def digest_of_export(run: RunDir, facts: RunFacts, end: dict[str, Any]) -> str:
    """Hash (16 hex digits) of all that wandb gets of a run. ``end``: see ``exporter.end_of``. Raises StoreError."""
    text = json.dumps([asdict(facts), digest_of(run.events), end], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def mark_sent(run: RunDir, facts: RunFacts, *, digest: str, server: str, url: str | None) -> None:
    """Write ``sent.json``, the marker that ``server`` has all of the run, on page ``url``. Raises StoreError."""
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
