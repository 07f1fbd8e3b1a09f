"""One run on the console: its config, a timeline of saves, kills and recoveries, and its results."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from analysis.load import drop_results, identity, lost_dense_samples
from analysis.tables.builder import UNKNOWN, Heading, Shown, rich_table
from analysis.tables.notes import MORE_THAN_THE_JOB
from harness.core.errors import StoreError
from harness.core.events import (
    BUCKETS,
    Dropped,
    Evaluated,
    Event,
    Finished,
    Grown,
    Injected,
    Interrupted,
    Lost,
    Noticed,
    Recovered,
    Regrouped,
    Saved,
    Started,
)
from harness.core.faults import FAULTS
from harness.core.plans import is_trainer
from harness.record.audit import check
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, find_runs, flatten, read_config, verify

_HEADINGS = (
    *(Heading(name) for name in ("event", "step", "samples")),
    Heading("what", is_text=True),
    *(Heading(name) for name in ("emulated, h", "measured, s")),
)


def show(path: Path | str) -> Shown:
    """The run in the directory ``path``, for the console: config, timeline, results, contradictions, newest checkpoint.

    Raises StoreError if it is no run directory (the message has commands for one below), or its record cannot be read
    or is not what the run wrote.
    """
    run = RunDir(Path(path))
    if run.status == "absent":
        one = find_runs(run.path)[0]
        raise StoreError(
            f"{path}: expected one run, got a folder of runs; `run.py table {path}` shows all, `run.py show {one}` one"
        )
    verify(run)
    config = read_config(run.path)
    record = EventLog.of(run)
    parts: list[RenderableType] = [Text(_headline(run, config), style="bold")]
    if record.is_torn:
        parts.append(Text("The last line of the record is incomplete, as after a kill of the writer."))
    if failure := run.failure():
        parts.append(Text(failure, style="red"))
    if record.events:
        parts.append(rich_table(_HEADINGS, _timeline(record.events)))
        parts += [Text(line) for line in _results(record.events)]
        parts += [Text(f"disagrees: {problem}", style="red") for problem in check(record.events, config)]
    parts.append(Text(_checkpoint(run.checkpoints)))
    return Shown(*parts)


def is_sound(path: Path | str) -> bool:
    """Whether the record of the run at ``path`` has no contradiction; an empty record has none.

    The digests in DONE are not checked, as they are by :func:`show`. Raises StoreError if the record cannot be read.
    """
    run = RunDir(Path(path))
    events = EventLog.of(run).events
    return not (events and check(events, read_config(run.path)))


def _headline(run: RunDir, config: Mapping[str, Any]) -> str:
    what, flat = identity(config), flatten(config)
    wall = " on the wall clock" if what["trace"] and flat["trace.clock"] == "wall" else ""
    wall += " by the second" if what["trace"] and flat["trace.inject"] == "wall" else ""
    return (
        f"{run.name}: {what['strategy']} on {what['engine']}, seed {what['seed']}, "
        f"{_ranks(flat, what['num_ps'])}, profile {what['profile']}, trace {what['trace'] or 'none'}{wall}, "
        f"model {flat['model.name']} {flat['model.size']}, backend {flat.get('trainer.backend')}: " + run.status
    )


def _ranks(flat: Mapping[str, Any], num_ps: int) -> str:
    trainers, spares = flat["cluster.num_trainers"], flat["cluster.spares"]
    parts = [f"{num_ps} PS ranks" + (f" and {spares} spare" * bool(spares))]
    if trainers > 1:
        parts.append(f"{trainers} trainers")
    return ", ".join(parts)


def _timeline(events: Sequence[Event]) -> Iterator[Sequence[str]]:
    """A row for each event of a type in ``_WORDS``. Consecutive saves are one row, since a run may have hundreds."""
    shown = [event for event in events if type(event) in _WORDS]
    for kind, group in itertools.groupby(shown, key=type):
        if kind is Saved:
            yield _saves_row([event for event in group if isinstance(event, Saved)])
            continue
        for event in group:
            hours = getattr(event, "save_h", None)
            if isinstance(event, Interrupted):
                hours = event.save_h + event.load_h + event.reschedule_h
            if isinstance(event, Recovered | Grown):
                hours = event.load_h + event.reschedule_h + getattr(event, "lost_h", 0.0)
            yield _row(event, _WORDS[kind](event), hours, event.machine.get("seconds"))


def _row(event: Event, what: str, hours: float | None, seconds: float | None) -> Sequence[str]:
    costs = (UNKNOWN if value is None else f"{value:.3f}" for value in (hours, seconds))
    return _title(event), str(event.step), f"{event.samples:,}", what, *costs


def _title(event: Event) -> str:
    if not isinstance(event, Injected):
        return event.kind
    return (event.fault in FAULTS and FAULTS[event.fault].title) or event.fault


def _saves_row(saves: Sequence[Saved]) -> Sequence[str]:
    last = saves[-1]
    count = f"{last.save} save" if len(saves) == 1 else f"{len(saves)} saves, the last {last.save}"
    megabytes = sum(save.payload_bytes for save in saves) / 1e6
    count += "" if last.tier == "shared" else f" ({last.tier})"
    what = f"{count}: checkpoint {last.sequence}, {sum(save.num_rows for save in saves):,} rows, {megabytes:,.1f} MB"
    hours = sum(save.save_h for save in saves) if any(save.charged for save in saves) else None
    seconds = [save.machine["seconds"] for save in saves if "seconds" in save.machine]
    return _row(last, what, hours, sum(seconds) if seconds else None)


def _start(event: Started) -> str:
    interval = "never saves" if event.interval_samples is None else f"interval {event.interval_samples:,} samples"
    if event.interval_fallback:
        interval += " (fallback to full)"
    if event.interval_overridden:
        interval += " (set by the config)"
    return f"{event.num_steps:,} steps, {interval}, {event.num_rows:,} rows"


def _notice(event: Noticed) -> str:
    """What each rank did that was told of its death."""
    words = {"handover": "handed its shard over", "notice": "saved all updated rows", "": "saved some updated rows"}
    did = ", ".join(f"{rank} {words[event.kinds.get(rank, '')]}" for rank in event.notices_h)
    return f"{did}, {sum(event.payload_bytes.values()) / 1e6:,.3g} MB"


def _fault(event: Injected) -> str:
    """The text of an injected fault. The fault of a plugin that is not loaded is shown by the event's details."""
    kind, details = FAULTS.get(event.fault), event.details
    said = ", ".join(f"{name} {value}" for name, value in details.items())
    what = kind.words.format(fault=event.fault, **details) if kind else said
    pid = f", pid {event.machine['pid']}" if "pid" in event.machine else ""
    if "host" in event.machine:
        pid += f" on {event.machine['host']}"
    usual = kind.phases[0] if kind else "boundary"
    phase = "" if event.phase == usual else f", in phase {event.phase}"
    fault = f" ({event.fault})" if event.loss and event.fault != "kill" else ""
    if event.lost_host is not None:
        fault += f", with {event.lost_host}"
    what += "; " if what else ""
    return f"{event.rank}{pid}: {what}hour {event.hour:g} of the trace, line {event.line}{phase}{fault}"


def _regroup(event: Regrouped) -> str:
    lost = event.machine.get("lost_hosts", {})
    hosts = f"; lost: {', '.join(f'host {host} ({why})' for host, why in lost.items())}" if lost else ""
    spares = event.machine.get("spares", {})
    replaced = ", ".join(rank + (f" by {spares[rank]}" if rank in spares else "") for rank in event.replaced)
    return f"generation {event.generation}, {replaced} replaced{hosts}"


def _source(event: Recovered) -> str:
    """The source of the dead ranks' rows (``checkpoint 3``); if there are several, each with its ranks."""
    words = {"initial": "initial values", "mean": "means of the survivors' rows", "replica": "replicas"}
    words |= {"handover": "what they handed over"}
    words |= dict.fromkeys(("checkpoint", "rollback", "mirror", "notice"), f"checkpoint {event.sequence}")
    ranks: dict[str, list[str]] = {}
    for rank, kind in event.kinds.items():
        ranks.setdefault(words.get(kind, kind), []).append(rank)
    if len(ranks) == 1:
        return next(iter(ranks))
    return ", ".join(f"{source} ({', '.join(of)})" for source, of in ranks.items())


def _recovery(event: Recovered) -> str:
    source = _source(event)
    if event.rollback:
        num_rerun = event.step - event.resume_step
        source = source or f"checkpoint {event.sequence}"
        return f"all ranks from {source}, back to step {event.resume_step}, steps run again: {num_rerun}"
    return "; ".join(filter(None, (_shards(event, source), _trainers(event))))


def _trainers(event: Recovered) -> str:
    """Text on the trainers that died, and on the dense network if all of them died; empty if none died."""
    names = ", ".join(filter(is_trainer, event.ranks))
    if event.dense == "kept":
        return names and f"{names} replaced"
    source = f"checkpoint {event.sequence}" if event.dense == "checkpoint" else "initial values"
    return f"{names} replaced, dense network from {source}, which lacks {event.lost_dense_samples:,} samples"


def _shards(event: Recovered, source: str) -> str:
    """Text on the shards of the PS ranks that died, and on their updates; empty if none died."""
    if not event.kinds:
        return ""
    lost = "" if event.lost_updates is None else f", {event.lost_updates:,} updates lost"
    if event.recovered_rows:
        updates = "" if event.recovered_updates is None else f" with {event.recovered_updates:,} updates"
        lost += f", {event.recovered_rows:,} rows{updates} recovered from the trainer's mirror"
    return f"{', '.join(event.kinds)} from {source}: {event.num_rows:,} rows, PLS +{sum(event.pls.values()):.4%}{lost}"


def _drop(event: Dropped) -> str:
    names = ", ".join(event.ranks)
    if not event.num_samples:
        return f"{names}: {'not measured' if event.drop is None else 'none, by the rollback'}"
    error = "" if event.standard_error is None else f" ± {1e3 * event.standard_error:.3f} (standard error)"
    drop = UNKNOWN if event.drop is None else f"{1e3 * event.drop:+.3f}".replace("-", "−")
    aucs = f"AUC {_number(event.auc_before)} before, {_number(event.auc_after)} after"
    moved = "" if event.movement is None else f"; rows moved by {event.movement:.4g}"
    return f"{names}: {drop}{error}·10⁻³ of AUC, on {event.num_samples:,} samples ({aucs}){moved}"


_WORDS: dict[type[Event], Callable[[Any], str]] = {
    Started: _start,
    Saved: lambda event: f"{event.save} save",
    Noticed: _notice,
    Interrupted: lambda event: f"a {event.what}, by the failure of hour {event.hour:g}",
    Injected: _fault,
    Lost: lambda event: (
        ", ".join(event.ranks) + ("" if event.planned else f"; not planned: {', '.join(event.unplanned_ranks)}")
    ),
    Regrouped: _regroup,
    Recovered: _recovery,
    Grown: lambda event: f"{', '.join(event.ranks)} returned, with all updates of their shards",
    Dropped: _drop,
    Evaluated: lambda event: (
        f"AUC {_number(event.auc)} (standard error {_number(event.standard_error)}), log loss {event.log_loss:.5f}; "
        f"{'final' if event.final else 'curve'}, on {event.num_samples:,} samples"
    ),
}
"""The text of an event in the timeline, by the event's type; events of other types are left out."""


def _results(events: Sequence[Event]) -> Iterator[str]:
    finished = events[-1]
    if not isinstance(finished, Finished):
        yield f"No result: the record ends at step {events[-1].step}."
        return
    yield (
        f"AUC {_number(finished.auc)}, log loss {finished.log_loss:.5f}, accuracy {finished.accuracy:.4f}, "
        f"train loss {finished.train_loss:.5f}"
    )
    last = next((event for event in reversed(events) if isinstance(event, Evaluated)), None)
    if last is not None and last.normalised_entropy is not None:
        yield f"normalised entropy {_number(last.normalised_entropy)}, calibration {_number(last.calibration)}"
    updates = " and ".join(
        UNKNOWN if value is None else f"{value:.4%}{what}"
        for value, what in ((finished.update_pls, ""), (finished.update_pls_tracked, " of tracked tables"))
    )
    dense = lost_dense_samples(events)
    lacks = "" if dense is None else f"; the dense network lacks {dense:,} samples"
    yield f"PLS {finished.pls:.4%}; updates lost {updates}{lacks}"
    if finished.num_failures and (drops := drop_results(events)):
        total, mean, last = (
            f"{1e3 * (drops[name] or 0.0):+.3f}".replace("-", "−") for name in ("drop", "drop_mean", "drop_last")
        )
        yield f"drop of AUC at failures, 10⁻³: {total} in all, {mean} a failure, {last} at the last"
    known = {bucket: hours for bucket in BUCKETS if (hours := getattr(finished, f"{bucket}_h")) is not None}
    hours = ", ".join(f"{bucket} {value:.3f} h" for bucket, value in known.items())
    total = UNKNOWN if finished.overhead_frac is None else f"{finished.overhead_frac:.3%} of the job"
    yield f"emulated overhead {total}: {hours}; {finished.num_saves} saves"
    if finished.node_h is not None:
        sent_mb = (finished.wire_bytes or 0) / 1e6
        yield f"resources: {finished.node_h:.3f} node-hours; {sent_mb:,.1f} MB sent by saves and loads"
    if (finished.overhead_frac or 0.0) > 1:
        yield MORE_THAN_THE_JOB
    if finished.recovered_updates:
        yield f"updates recovered from the trainer's mirror, lost without it: {finished.recovered_updates:,}"
    if finished.mirror is not None:
        rows, num_bytes = finished.mirror["rows"], finished.mirror["bytes"]
        yield f"mirror: {rows:,.0f} rows, {num_bytes / 1e6:,.1f} MB at the trainer"
    if finished.cache is not None:
        yield _cache(finished.cache)
    stalls: dict[str, float] = finished.machine.get("overhead_seconds") or {}
    if stalls:
        measured = ", ".join(f"{bucket} {stalls[bucket]:.3f} s" for bucket in sorted(stalls, key=BUCKETS.index))
        yield f"measured stall {sum(stalls.values()):.3f} s: {measured}"


_CACHE_BYTES = {
    "bytes": "both ways",
    "minimum_bytes": "at least needed with its lookahead",
    "uncached_bytes": "without a cache",
}


def _cache(cache: Mapping[str, float]) -> str:
    """The statistics of a cache; each kind of cache reports some of them."""
    sizes = [f"{cache[key] / 1e6:,.1f} MB {what}" for key, what in _CACHE_BYTES.items() if key in cache]
    hits = f"{cache['hit_rate']:.1%} of accessed rows" if "hit_rate" in cache else UNKNOWN
    peak = f"{cache['peak_rows']:,.0f}" if "peak_rows" in cache else UNKNOWN
    return f"cache: hits {hits}, at most {peak} rows; {', '.join(sizes)}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.5f}"


def _checkpoint(path: Path) -> str:
    if not os.path.lexists(path):
        return "No checkpoints."
    from harness.store import newest_checkpoint  # noqa: PLC0415 - torch takes a second to import

    try:
        manifest, skipped = newest_checkpoint(path)
    except StoreError as error:
        return f"No checkpoint can be read; {error}."
    reasons = "".join(f"; skipped {reason}" for reason in skipped)
    if manifest is None:
        return f"No checkpoint can be read{reasons}." if reasons else "No checkpoints."
    size = sum(record.num_bytes for record in manifest.files)
    what = f"{manifest.kind} save at step {manifest.step} ({manifest.samples:,} samples)"
    files = f"{len(manifest.files)} files, {size / 1e6:,.1f} MB, all verified"
    return f"newest checkpoint: {manifest.name}, {what}, {files}{reasons}"
