"""Runs for tests: small configs, and what their records say."""

import os
from pathlib import Path
from typing import Any

import analysis
from harness.config.model import Config
from harness.core.choices import CHOICES
from harness.core.events import Event, Finished, Trained
from harness.record.event_log import read_events
from harness.record.rundir import read_config
from harness.run import assemble
from harness.run.verify import compare_records

PRIORITY_R = 0.25  # half as many priority saves of twice the rows
BACKEND = os.environ.get("TEST_BACKEND", "auto")
"""The dense network's backend in runs of tests: `TEST_BACKEND=torch make test` forces the reference."""

BUSY = Path(__file__).resolve().parent.parent / "failure_traces" / "busy.csv"


def small_config(data: Path) -> Config:
    """256 steps of 4 samples, tiny model, 4 PS ranks, busy profile and trace, no wandb."""
    return Config.model_validate(
        {
            "profile": "busy",
            "data": {"path": str(data), "max_train_samples": 1024},
            "model": {"size": "tiny"},
            "trainer": {"batch_size": 4, "learning_rate": 0.01, "backend": BACKEND},
            "trace": {"path": str(BUSY)},
            "store": {"fsync": False},
            "eval": {"points": 0},
            "metrics": {"log_every_steps": 40},
            "wandb": {"mode": "disabled"},
        }
    )


def saving_every(config: Config, samples: int) -> Config:
    """``config`` with a save every so many samples: priority saves come 1/r times as often as their interval says.

    The profile's own interval makes fifty saves in 256 steps, which are most of such a run's time.
    """
    interval = round(samples / getattr(config.strategy, "r", 1))
    return changed(config, strategy__interval_samples=interval)


OF_STRATEGY: dict[str, dict[str, Any]] = {
    "cpr_state": {"trainer__optimizer": "adagrad"},
    "tiers": {
        "strategy__memory_samples": 12,
        "strategy__disk_samples": 28,
        "profile__tier_frac": {"disk": 0.3, "memory": 0.05},
    },
}
"""Other keys that a strategy needs, or that make it differ from another, for :func:`changed`."""


def changed(config: Config, **dotted: Any) -> Config:
    """``config`` with keys set: ``changed(config, strategy__name="full")`` sets ``strategy.name``.

    Options that the strategy or the model does not have are dropped; ``r`` is ``PRIORITY_R`` unless it is given.
    """
    values = config.model_dump()
    for key, value in dotted.items():
        *path, last = key.split("__")
        target = values
        for part in path:
            target = target[part]
        target[last] = value
    values["strategy"] = {"r": PRIORITY_R, **values["strategy"]}
    for group, parts in CHOICES.items():
        options = parts[values[group]["name"]].model_fields
        values[group] = {key: value for key, value in values[group].items() if key in options}
    return Config.model_validate(values)


def run(config: Config, run_dir: Path, parts: assemble.Parts = assemble.DEFAULT) -> tuple[Finished, list[Event]]:
    """Carry out a run, whose record must add up; its last event and all of them."""
    finished = assemble.run(config, run_dir, parts=parts)
    events = read_events(run_dir / "events.jsonl")
    assert analysis.check(events, read_config(run_dir)) == []
    return finished, events


def under(config: Config, folder: Path, trace: str, **dotted: Any) -> Config:
    """``config`` with the failures of a trace, whose text is written into ``folder``, and with keys set."""
    (folder / "trace.csv").write_text(trace)
    return changed(config, trace__path=str(folder / "trace.csv"), **dotted)


def run_on_both(config: Config, folder: Path) -> tuple[Finished, list[Event]]:
    """Carry out runs on both engines, whose records must be equal; the last event and all of that of processes."""
    run(changed(config, engine="local"), folder / "local")
    found = run(changed(config, engine="rpc"), folder / "rpc")
    assert compare_records(folder / "local", folder / "rpc") == []
    return found


def facts(events: list[Event]) -> list[dict[str, Any]]:
    """Events without their machine parts, what a cache moved, and the hash of the config."""
    ignored = ("machine", "cache", "config_hash")
    return [{key: value for key, value in event.to_json().items() if key not in ignored} for event in events]


def losses_of(events: list[Event]) -> list[float]:
    """The loss of every step, those of reruns left out."""
    return [loss for event in events if isinstance(event, Trained) and not event.rerun for loss in event.losses]
