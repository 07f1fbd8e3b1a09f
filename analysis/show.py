"""The story of one run: what it was, what died and how it was mended, what came out."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from analysis.audit import BUCKETS, check
from analysis.cells import damage_of, record_of
from analysis.style import UNKNOWN
from analysis.table import MORE_THAN_THE_JOB
from harness.core.errors import StoreError
from harness.core.events import Evaluated, Event, Finished, Killed, Lost, Recovered, Regrouped, Saved, Started
from harness.record.rundir import RunDir, flatten, read_config


def show(path: Path | str) -> RenderableType:
    """Config, timeline, final figures and newest checkpoint of the run directory ``path``.

    Raises StoreError if it is none, or its record cannot be read.
    """
    run = RunDir(Path(path))
    if run.status == "absent":
        raise StoreError(f"{path}: no run; a folder with config.yaml in it would be right")
    config = read_config(run.path)
    record = record_of(run)
    damage = damage_of(run, record.events)
    parts: list[RenderableType] = [Text(_headline(run, config, is_damaged=bool(damage)), style="bold")]
    if damage:
        parts.append(Text(damage, style="red"))
    if record.is_torn:
        parts.append(Text("The record's last line is torn, as a writer that is killed leaves it."))
    if failure := run.failure():
        parts.append(Text(failure, style="red"))
    if record.events:
        parts.append(_timeline(record.events))
        parts += [Text(line) for line in _figures(record.events)]
        parts += [Text(f"disagrees: {problem}", style="red") for problem in check(record.events, config)]
    parts.append(Text(_checkpoint(run.checkpoints)))
    return Group(*parts)


def is_damaged(path: Path | str) -> bool:
    """Whether the run at ``path`` says that it is done, but has no result on record. Raises StoreError as ``show``."""
    run = RunDir(Path(path))
    return damage_of(run, record_of(run).events) is not None


def _headline(run: RunDir, config: dict[str, Any], *, is_damaged: bool) -> str:
    flat = flatten(config)
    trace = flat.get("trace.path")
    ranks = flat.get("cluster.num_ps") or flat.get("profile.num_ps")
    what = f"{flat.get('strategy.name')} on {flat.get('engine')}, seed {flat.get('seed')}, {ranks} PS ranks"
    model = f"model {flat.get('model.size')}, backend {flat.get('trainer.backend')}"
    return (
        f"{run.path.name}: {what}, profile {flat.get('profile.name')}, trace {Path(trace).stem if trace else 'none'}, "
        f"{model}: {'damaged' if is_damaged else run.status}"
    )


def _timeline(events: Sequence[Event]) -> Table:
    columns = [Column(name, justify="right") for name in ("event", "step", "samples")]
    costs = [Column(name, justify="right") for name in ("emulated, h", "measured, s")]
    table = Table(*columns, Column("what"), *costs, box=SIMPLE_HEAD, pad_edge=False)
    told = [event for event in events if type(event) in _WORDS]
    for kind, group in itertools.groupby(told, key=type):
        if issubclass(kind, Saved):
            _add_saves(table, [event for event in group if isinstance(event, Saved)])
            continue
        for event in group:
            _add(table, event, _WORDS[kind](event), _hours(event), event.machine.get("seconds"))
    return table


def _add(table: Table, event: Event, what: str, hours: float | None, seconds: float | None) -> None:
    costs = (UNKNOWN if value is None else f"{value:.3f}" for value in (hours, seconds))
    table.add_row(event.kind, str(event.step), f"{event.samples:,}", what, *costs)


def _add_saves(table: Table, saves: Sequence[Saved]) -> None:
    """One line for the saves between two other events: there may be hundreds."""
    last = saves[-1]
    count = f"{last.save} save" if len(saves) == 1 else f"{len(saves)} saves, the last {last.save}"
    megabytes = sum(save.payload_bytes for save in saves) / 1e6
    what = f"{count}: checkpoint {last.sequence}, {sum(save.num_rows for save in saves):,} rows, {megabytes:,.1f} MB"
    hours = sum(save.save_h for save in saves) if any(save.charged for save in saves) else None
    seconds = [save.machine["seconds"] for save in saves if "seconds" in save.machine]
    _add(table, last, what, hours, sum(seconds) if seconds else None)


def _hours(event: Event) -> float | None:
    return event.load_h + event.lost_h + event.reschedule_h if isinstance(event, Recovered) else None


def _start(event: Any) -> str:
    interval = "never saves" if event.interval_samples is None else f"interval {event.interval_samples:,} samples"
    if event.interval_fallback:
        interval += " (fallback to full)"
    if event.interval_overridden:
        interval += " (set by the config)"
    return f"{event.num_steps:,} steps, {interval}, {event.num_rows:,} rows"


def _kill(event: Any) -> str:
    pid = f", pid {event.machine['pid']}" if "pid" in event.machine else ""
    return f"{event.rank}{pid}: hour {event.hour:g} of the trace, line {event.line}"


def _lose(event: Any) -> str:
    return ", ".join(event.ranks) + ("" if event.planned else f"; not planned: {', '.join(event.unplanned_ranks)}")


def _recovery(event: Any) -> str:
    source = "initial values" if event.source == "initial" else f"checkpoint {event.sequence}"
    if event.rollback:
        num_rerun = event.step - event.resume_step
        return f"all ranks from {source}, back to step {event.resume_step}, steps run again: {num_rerun}"
    lost = "" if event.lost_updates is None else f", {event.lost_updates:,} updates lost"
    if event.recovered_rows:
        updates = "" if event.recovered_updates is None else f" with {event.recovered_updates:,} updates"
        lost += f", {event.recovered_rows:,} rows{updates} kept from the cache"
    return f"{', '.join(event.ranks)} from {source}: {event.num_rows:,} rows, PLS +{sum(event.pls.values()):.4%}{lost}"


_WORDS: dict[type[Event], Callable[[Any], str]] = {
    Started: _start,
    Saved: lambda event: f"{event.save} save",
    Killed: _kill,
    Lost: _lose,
    Regrouped: lambda event: f"generation {event.generation}, {', '.join(event.replaced)} replaced",
    Recovered: _recovery,
    Evaluated: lambda event: f"AUC {_number(event.auc)}, log loss {event.log_loss:.5f}",
}
"""What the timeline says of an event; others are left out."""


def _figures(events: Sequence[Event]) -> Iterator[str]:
    finished = events[-1]
    if not isinstance(finished, Finished):
        yield f"No result: the record ends at step {events[-1].step}."
        return
    yield (
        f"AUC {_number(finished.auc)}, log loss {finished.log_loss:.5f}, accuracy {finished.accuracy:.4f}, "
        f"train loss {finished.train_loss:.5f}"
    )
    updates = " and ".join(
        UNKNOWN if value is None else f"{value:.4%}{what}"
        for value, what in ((finished.update_pls, ""), (finished.update_pls_tracked, " of tracked tables"))
    )
    yield f"PLS {finished.pls:.4%}; updates lost {updates}"
    hours = ", ".join(f"{bucket} {getattr(finished, f'{bucket}_h'):.3f} h" for bucket in BUCKETS)
    yield f"emulated overhead {finished.overhead_frac:.3%} of the job: {hours}; {finished.num_saves} saves"
    if finished.overhead_frac > 1:
        yield MORE_THAN_THE_JOB
    if finished.recovered_updates:
        yield f"updates recovered from the cache: {finished.recovered_updates:,}, which would have been lost without"
    if finished.cache is not None:
        yield _cache(finished.cache)
    stalls: dict[str, float] = finished.machine.get("overhead_seconds") or {}
    if stalls:
        measured = ", ".join(f"{bucket} {seconds:.3f} s" for bucket, seconds in stalls.items())
        yield f"measured stall {sum(stalls.values()):.3f} s: {measured}"


def _cache(cache: Mapping[str, float]) -> str:
    """What a cache did, as far as its path knows."""
    megabytes = {key: value / 1e6 for key, value in cache.items() if key.endswith("bytes")}
    told = [f"{megabytes[key]:,.1f} MB {what}" for key, what in _CACHE_BYTES.items() if key in megabytes]
    hits = f"{cache['hit_rate']:.1%} of accessed rows" if "hit_rate" in cache else UNKNOWN
    peak = f"{cache['peak_rows']:,.0f}" if "peak_rows" in cache else UNKNOWN
    return f"cache: hits {hits}, at most {peak} rows; {', '.join(told)}"


_CACHE_BYTES = {
    "bytes": "both ways",
    "minimum_bytes": "the least with its sight",
    "uncached_bytes": "without a cache",
}


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.5f}"


def _checkpoint(path: Path) -> str:
    if not path.is_dir():
        return "No checkpoints."
    from harness.store import newest_checkpoint  # noqa: PLC0415  torch takes a second to import

    manifest, skipped = newest_checkpoint(path)
    told = "".join(f"; {reason}" for reason in skipped)
    if manifest is None:
        return f"No checkpoint that can be read{told}."
    size = sum(record.num_bytes for record in manifest.files)
    what = f"{manifest.kind} save at step {manifest.step} ({manifest.samples:,} samples)"
    files = f"{len(manifest.files)} files, {size / 1e6:,.1f} MB, all verified"
    return f"newest checkpoint: {manifest.name}, {what}, {files}{told}"
