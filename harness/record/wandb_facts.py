"""What wandb knows of a run before its first step: id, name, group, tags, config."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.config.derived import group_of
from harness.config.model import Config
from harness.core.events import Started


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

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return asdict(self)


def facts_of(config: Config, started: Started, env: Mapping[str, Any], name: str) -> RunFacts:
    """The facts of a run. ``env``: the contents of its env.json; ``name``: its folder's."""
    git: Mapping[str, Any] = env.get("git") or {}
    code: Mapping[str, Any] = env.get("code") or {}
    return RunFacts(
        id=run_id(started.config_hash, config.engine, code.get("fingerprint")),
        name=name,
        project=config.wandb.project,
        entity=config.wandb.entity,
        group=config.wandb.group or group_of([config]),
        job_type=config.strategy.name,
        tags=tags_of(config),
        config={
            **config.model_dump(mode="json"),
            "strategy_name": config.strategy.name,
            "trace_name": config.trace_name or "none",
            "profile_name": config.emulated.name,
            "config_hash": started.config_hash,
            "git_commit": git.get("commit"),
            "git_is_dirty": git.get("dirty"),
            "code_fingerprint": code.get("fingerprint"),
        },
    )


def run_id(config_hash: str, engine: str, code: str | None = None) -> str:
    """Id of a wandb run (16 hex digits): a run repeated with the same config, engine and code replaces the former one.

    ``code``: fingerprint of the code that decides the result; None if it is unknown.
    """
    key = " ".join([config_hash, engine, *([code] if code else [])])
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def tags_of(config: Config) -> list[str]:
    """Engine, ``trace:NAME`` or ``no-trace``, and ``profile:NAME``; a trace and a profile may share a name."""
    trace = "no-trace" if config.trace_name is None else f"trace:{config.trace_name}"
    return [config.engine, trace, f"profile:{config.emulated.name}"]
