"""Checks that engines and data paths compute the same bits: runs the same config on each, and compares the events."""

import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from harness.config.laws import Law
from harness.config.model import Config, EngineName, TraceConfig
from harness.core.clock import samples_to_hours
from harness.core.errors import ConfigError, RankFailed, RunFailed
from harness.core.plans import CHIEF, is_trainer, ps_rank
from harness.core.strategies import options_of
from harness.planning.simulate import saves_of
from harness.record.event_log import read_events
from harness.run import assemble
from harness.run.assemble import RunStatus
from harness.run.spec import RunSpec
from harness.traces.draw import draw
from harness.traces.job_trace import job_trace, with_profile_of_trace

_LAW = Law(name="fixed10", model="fixed", number=10)
"""The law (``trace.law``) of the failures of a config without a trace."""
_MOST_DIFFERENCES = 5

OnRunStatus = Callable[[int, int, RunStatus], None]
"""A callback that gets the number of a run, how many runs there are, and the run's progress."""


@dataclass(frozen=True)
class Variant:
    """A setting to compare: config keys by group, and the engines to run it on.

    ``is_exact``: its results must equal, to the bit, the results on ``local`` without a cache. If not, only its engines
    are compared with each other. ``moves_saves``: ``save`` events may stand at other places in the record.
    """

    name: str
    keys: Mapping[str, Mapping[str, str | int]]
    engines: tuple[EngineName, ...] = ("local", "rpc")
    is_exact: bool = True
    moves_saves: bool = False

    def of(self, config: Config, engine: EngineName, trace: TraceConfig) -> Config:
        groups = {group: getattr(config, group).model_copy(update=dict(keys)) for group, keys in self.keys.items()}
        return config.model_copy(update={"engine": engine, "trace": trace, **groups})


def variants_of(config: Config) -> tuple[Variant, ...]:
    """The variants to run. The first has no cache, and the first engine of each is ``local``.

    The other ``save.mode`` is left out where the profile prices snapshots, since intervals and charges then depend on
    it, and with ``trace.clock: wall``, which excludes saves in the background. Bounded staleness is left out for a
    strategy with a mirror, which needs exact rows, and where all trainers die, since they lose updates not yet sent.
    """
    run_spec = RunSpec(config)
    staleness = config.cache.staleness or 1
    other_saves = "sync" if config.save.mode == "async" else "async"
    # One engine will do: how a message is carried depends neither on the staleness nor on when a save ends. Several
    # trainers are on engine rpc only.
    engines: tuple[EngineName, ...] = ("local",) if config.cluster.num_trainers == 1 else ("local", "rpc")
    saves = Variant(
        other_saves,
        {"cache": {"mode": "none"}, "save": {"mode": other_saves}},
        engines=engines,
        moves_saves=True,
    )
    stale = (
        Variant("stale0", {"cache": {"mode": "stale", "staleness": 0}}, engines=engines),
        Variant("stale", {"cache": {"mode": "stale", "staleness": staleness}}, is_exact=False),
    )
    return (
        Variant("none", {"cache": {"mode": "none"}}),
        Variant("lookahead", {"cache": {"mode": "lookahead"}}),
        *(() if run_spec.strategy.mirror or run_spec.loses_all_trainers else stale),
        *((saves,) if config.profile.snapshot_gbps is None and config.trace.clock == "samples" else ()),
    )


def verify(
    config: Config,
    folder: Path,
    *,
    on_status: OnRunStatus | None = None,
    run: Callable[..., object] = assemble.run,
) -> list[str]:
    """Run all variants of ``config``, each on its engines, and return the first differences of their records.

    A run of an exact variant is compared with the run on ``local`` without a cache; a run of another variant with that
    variant's run on ``local``. The list is empty if all these pairs have the same bits: losses, parameters, AUC, PLS
    and all events. Left out between variants are statistics of the cache, config hashes, bytes sent to replicas, and,
    for a variant that moves saves, their places. Each difference, and the error of a run that failed, names the
    strategy, the engine and the keys of the variant.

    The trace is the config's own (ten failures if it names none), plus a kill right before and one right after a save.
    With ``trace.clock: wall``, overhead charged before these two makes them strike at earlier steps.

    Args:
        folder: keeps the records of all runs, each in a folder named by engine and variant. Records of an earlier call
            are replaced.
        on_status: follows each run; its number is counted from 1.
        run: carries out one run.

    Raises:
        UserError: the config, the data or the trace cannot be used; or there is no save.
        RunFailed, RankFailed: a run failed.
    """
    config = with_profile_of_trace(config)  # of its own trace, without the kills that are added
    RunSpec(config).validate()  # variants replace keys of which a run would refuse some
    trace_path = folder / "trace.csv"
    folder.mkdir(parents=True, exist_ok=True)
    trace_path.write_text(_trace_around_a_save(config), encoding="utf-8")
    trace = config.trace.model_copy(update={"path": str(trace_path), "law": None, "window": None, "stretch": False})
    differences: list[str] = []
    variants = variants_of(config.model_copy(update={"trace": trace}))
    runs: list[tuple[Variant, EngineName]] = [(variant, engine) for variant in variants for engine in variant.engines]
    for number, (variant, engine) in enumerate(runs, start=1):
        run_dir = folder / f"{engine}-{variant.name}"
        run_config = variant.of(config, engine, trace)
        shutil.rmtree(run_dir, ignore_errors=True)
        try:
            run(run_config, run_dir, on_status=on_status and partial(on_status, number, len(runs)))
        except (RunFailed, RankFailed) as error:
            raise type(error)(f"{_named(run_config)}: {error}") from error
        reference = variants[0] if variant.is_exact else variant
        # Replicas are sent each variant's own messages, so these bytes differ. Without replicas ``wire_bytes`` are of
        # saves and loads, and must be equal.
        spec = RunSpec(run_config)
        has_copies = spec.keeps_replicas or spec.strategy.groups is not None
        bytes_of_replicas = {"replica_bytes", "wire_bytes"} if has_copies else set[str]()
        found = compare_records(
            folder / f"local-{reference.name}",
            run_dir,
            ignored=set() if variant is reference else {"cache", "config_hash", *bytes_of_replicas},
            moves_saves=variant.moves_saves,
        )
        against = _named(reference.of(config, "local", trace))
        differences += [f"{_named(run_config)}, compared with {against}: {difference}" for difference in found]
    return differences


def _named(cell: Config) -> str:
    """The strategy, the engine and the keys of the variant, in words."""
    keys = {"cache.mode": cell.cache.mode}
    if cell.cache.mode == "stale":
        keys["cache.staleness"] = str(cell.cache.staleness)
    shown = " ".join(f"{key}={value}" for key, value in {**keys, "save.mode": cell.save.mode}.items())
    return f"{cell.strategy.name} on {cell.engine} ({shown})"


def compare_records(
    run_dir: Path, other_dir: Path, *, ignored: Set[str] = frozenset(), moves_saves: bool = False
) -> list[str]:
    """The first differences between the events of two runs, at most five, one line each.

    ``machine`` parts are ignored. Floats are compared with all their digits, so one flipped bit is a difference.
    ``ignored``: keys that are not compared, such as the statistics of a cache. ``moves_saves``: the places of ``save``
    events among the others are not compared.
    """
    events = [_facts(run_dir), _facts(other_dir)]
    if moves_saves:
        events = [sorted(each, key=lambda event: event["event"] == "save") for each in events]
    differences = []
    for number, (mine, other) in enumerate(zip_longest(*events, fillvalue={}), start=1):
        for key in sorted((mine.keys() | other.keys()) - ignored):
            if mine.get(key) != other.get(key):
                what = mine.get("event") or other.get("event")
                at = mine.get("step", other.get("step"))
                values = f"expected {_short(mine, key)}, got {_short(other, key)}"
                differences.append(f"event {number} ({what}, step {at}): {key}: {values}")
    return differences[:_MOST_DIFFERENCES]


def _facts(run_dir: Path) -> list[dict[str, Any]]:
    events = [event.to_json() for event in read_events(run_dir / "events.jsonl")]
    for event in events:
        del event["machine"]
        if "digests" in event:  # how many replicas there were is no result
            event["digests"] = {
                rank: digest for rank, digest in event["digests"].items() if rank == CHIEF or not is_trainer(rank)
            }
    return events


def _short(event: dict[str, Any], key: str) -> str:
    text = repr(event.get(key, "missing"))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _trace_around_a_save(config: Config) -> str:
    """The config's trace as CSV, with a kill at the boundary before a save and one at the save's own boundary.

    A kill follows the save of its boundary, so the second one hits a shard without unsaved updates. All kills are at
    boundaries, since the messages of a phase depend on the variant.
    """
    trace = job_trace(config, goes_on=config.trace.clock == "wall")
    trace = trace or draw(_LAW, config.profile, config.num_ps, config.trace_seed)
    step, batch_size = _save_in_the_middle(config), config.trainer.batch_size
    hour_of = partial(samples_to_hours, job_h=config.profile.job_h, total_samples=RunSpec(config).total_samples)
    last = ps_rank(config.num_ps - 1)
    # A kill at an hour half a step before a boundary happens there.
    kills = [(hour_of((step - 1.5) * batch_size), last, ""), (hour_of((step - 0.5) * batch_size), "ps0", "")]
    own = [(each.hour, each.who, "" if each.repair_h is None else repr(each.repair_h)) for each in trace.failures]
    lines = (f"{hour!r},{who},{repair_h}" for hour, who, repair_h in sorted([*own, *kills], key=lambda line: line[0]))
    return "\n".join(["# provenance: run.py verify", "hour,rank,repair_h", *lines]) + "\n"


def _save_in_the_middle(config: Config) -> int:
    """The boundary of a save in the middle of the run; for a strategy that never saves, of one that ``partial`` makes.

    Raises ConfigError if there is no save after step 1.
    """
    if RunSpec(config).strategy.interval.samples is None:
        config = config.model_copy(update={"strategy": options_of("partial")})
    run_spec = RunSpec(config)
    saves = saves_of(
        run_spec.strategy,
        batch_size=config.trainer.batch_size,
        num_steps=run_spec.num_steps,
        total_samples=run_spec.total_samples,
    )
    steps = [step for step, _ in saves if step > 1]
    if not steps:
        raise ConfigError("expected a save after step 1 of this run, got none; use more data or a shorter interval")
    return steps[len(steps) // 2]
