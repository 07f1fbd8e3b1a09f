"""The record of a run: typed events. ``events.jsonl`` holds one JSON object a line, in order of time.

Each event has a ``machine`` part (wall-clock times, pids, signals, hosts, ports, measured seconds). All other fields
are a function of config, data and trace, and are equal between engines. A missing value is ``null``, never ``0.0``.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal, get_type_hints

from pydantic import TypeAdapter, ValidationError

from harness.core.faults import FAULTS, Detail

Machine = dict[str, Any]

STALLS = ("save", "load", "lost", "reschedule")
"""Parts of the overhead that a save or a failure causes: saving, loading, repeating lost steps, and waiting for
replacements."""
BUCKETS = (*STALLS, "steps")
"""Parts of the overhead: ``STALLS``, and what every step pays: trackers, replicas and mirrors."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. ``step`` counts finished steps, ``samples`` the samples of these steps.

    machine: the first event after a resume has ``resumed``, a list with one entry for each resume since the event
    before. An entry holds the same facts about the processes as ``machine`` of the ``started`` event.
    """

    kind: ClassVar[str]
    step: int
    samples: int
    machine: Machine = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping: ``event`` first, ``machine`` last."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "machine"}
        return {"event": self.kind, **values, "machine": self.machine}


@dataclass(frozen=True, kw_only=True)
class Started(Event):
    """The first event: the constants of a run.

    machine: time (ISO 8601), host, pid, pids by rank, port, env (digest of env.json), network (who can reach the ranks:
    "private" or "open"). With ranks on several hosts: hosts by rank.
    """

    kind: ClassVar[str] = "started"
    name: str  # experiment
    strategy: str
    seed: int
    trace: str | None  # file name
    trace_clock: str = "samples"  # of the trace's hours: "samples" | "wall"
    trace_inject: str = "boundary"  # when kills strike; with "wall" the run cannot be repeated to the bit
    profile: str
    num_ps: int
    total_samples: int  # S_total
    num_steps: int
    interval_samples: int | None
    interval_fallback: bool
    interval_overridden: bool
    tracker: str | None
    step_parts: list[str] = field(default_factory=list)  # what every step pays for (``Strategy.step_parts``)
    tracked_tables: list[int]
    num_rows: int  # of all tables
    num_tracked_rows: int
    rank_rows: list[int]  # of each PS rank; its share of them is its weight in PLS with table-wise placement
    bytes_full: int  # payload of a full save
    restores_exactly: bool = True  # whether repeated steps must have the losses of the first time
    row_bytes: int  # of which one row
    recoveries: dict[str, dict[str, bool]]  # by kind of recovery: rolls_back, loses_updates, reads_rows (``Recovery``)
    config_hash: str


@dataclass(frozen=True, kw_only=True)
class Trained(Event):
    """The steps after ``first_step`` finished steps, up to ``step`` finished steps, ran. machine: seconds."""

    kind: ClassVar[str] = "train"
    first_step: int
    losses: list[float]  # one per step
    rerun: bool  # these steps had run before a rollback


@dataclass(frozen=True, kw_only=True)
class Saved(Event):
    """A checkpoint was committed. ``step``: when its contents were fixed; in the background, training has gone on.

    machine: seconds (that training stood still), compacted (ranks that merged their files into a new base).
    """

    kind: ClassVar[str] = "save"
    sequence: int  # manifest number
    save: str  # kind of save: "full", "priority", ...
    tier: str = "shared"  # where the checkpoint is kept (``plans.Tier``)
    closes_interval: bool
    charged: bool  # the initial save is start-up in every strategy and costs nothing (reconstructed: docs/CPR.md)
    payload_bytes: int  # rows and row ids of all ranks, dense network; a part that was written twice counts twice
    repeated_bytes: int = 0  # of these, the second writes of parts whose first write failed
    slowest_bytes: int = 0  # of these, the bytes of the rank that wrote most
    num_rows: int  # rows written
    persisted_updates: int | None  # updates, over all tables, that this save made durable
    persisted_tracked: int | None  # the same over tracked tables
    save_h: float  # emulated cost, hours


@dataclass(frozen=True, kw_only=True)
class Noticed(Event):
    """PS ranks that were told of their death saved rows or handed their shards over. machine: seconds."""

    kind: ClassVar[str] = "notice"
    notices_h: dict[str, float]  # emulated hours that each rank had
    kinds: dict[str, str]  # of recovery: "notice" or "handover", by rank that then lost nothing
    sequence: int | None  # manifest that names the saved rows; null if none were saved
    num_rows: int  # that were saved
    payload_bytes: dict[str, int]  # by rank: rows and row ids, or the whole shard
    persisted_updates: int | None  # updates, over all tables, that the saved rows made durable
    persisted_tracked: int | None  # the same over tracked tables
    save_h: float  # emulated cost, hours


@dataclass(frozen=True, kw_only=True)
class Interrupted(Event):
    """A failure struck during a save, which is not committed, or during a recovery (``trace.interrupts``).

    After the recovery the save is due again; a recovery begins anew for all ranks that are lost by then. ``step`` and
    ``samples``: as of the event of the save or the recovery.
    """

    kind: ClassVar[str] = "interrupt"
    what: str  # "save" | "recovery"
    tier: str  # of the save, or of the checkpoint that a rollback reads
    hour: float  # of the failure's trace entry
    payload_bytes: int  # that the whole save would have written, the whole recovery read: not charged
    slowest_bytes: int  # of these, the bytes over the link of the rank that moves most
    save_h: float  # emulated cost until the failure, hours
    load_h: float
    reschedule_h: float


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The model's quality on the fixed evaluation set. machine: seconds."""

    kind: ClassVar[str] = "eval"
    auc: float | None  # null if there is only one class
    log_loss: float
    accuracy: float
    num_samples: int
    standard_error: float | None = None  # of the AUC, by the choice of samples; null if there is only one class
    normalised_entropy: float | None = None  # the same
    calibration: float | None = None  # mean prediction / mean label; the same
    group_aucs: list[float] | None = None  # of parts of the set (harness.model.metrics); null unless final
    final: bool


@dataclass(frozen=True, kw_only=True)
class Injected(Event):
    """A planned fault struck a rank, after ``step`` finished steps. For a failed write it precedes the save's event.

    machine: of a killed rank pid, signal, exitcode (minus the signal, -9) and, with several hosts, host; of a rank that
    hangs pid and signal; of a failed write the seconds until it failed.
    """

    kind: ClassVar[str] = "fault"
    fault: str  # a key of ``core.faults.FAULTS``, or a plug-in's
    rank: str
    hour: float  # of the trace entry
    line: int  # of the trace file
    phase: str  # what the run was doing: one of ``core.faults.PHASES``; "wall": struck at a second
    loss: str | None  # "dead" | "mute": the rank is lost; a mute one must first be killed
    repair_h: float | None = None  # rescheduling time by the trace, the longest of the ranks that are lost together
    lost_host: str | None = None  # "host1": the rank died with its host
    details: dict[str, Detail] = field(default_factory=dict)  # facts of this kind of fault alone (``Fault.details``)


@dataclass(frozen=True, kw_only=True)
class Lost(Event):
    """PS or compute ranks were found dead, by a request to them that failed.

    ``planned``: whether the trace planned the deaths of all ``ranks``. ``unplanned_ranks``: the ranks whose death the
    trace did not plan.

    machine: detail (by rank how it ended, or the transport's error), seconds (from request to failure).
    """

    kind: ClassVar[str] = "lost"
    ranks: list[str]
    planned: bool
    unplanned_ranks: list[str]


@dataclass(frozen=True, kw_only=True)
class Regrouped(Event):
    """Dead ranks were replaced: by new processes in a new RPC world, or by spares of the present one.

    machine: pids, spares {rank: spare that took over}, seconds, mute {rank that was alive
    and was killed: pid, action}. For a rank that missed a deadline, mute also has why, and seconds since the generation
    began or, for a trainer, since its last message. With ranks on several hosts: hosts by rank, and lost_hosts {host:
    why}, the hosts lost since the last such event.
    """

    kind: ClassVar[str] = "regroup"
    generation: int
    replaced: list[str]


@dataclass(frozen=True, kw_only=True)
class Recovered(Event):
    """A recovery plan was carried out. ``step`` and ``samples``: where the failure was detected.

    machine: seconds (of the load), reschedule_seconds (of detection, replacement, and forming the generation).
    """

    kind: ClassVar[str] = "recover"
    ranks: list[str]  # that died: PS ranks, then trainers
    kinds: dict[str, str]  # of recovery, by PS rank that died
    rollback: bool  # every rank returned to the checkpoint
    resume_step: int
    resume_samples: int
    sequence: int | None  # manifest that was read
    num_rows: int  # restored rows, summed over ranks
    pls: dict[str, float]  # increase of the PLS, by dead PS rank
    lost_updates: int | None  # increase
    lost_tracked: int | None  # the same over tracked tables
    recovered_rows: int = 0  # dead ranks' rows that the trainer's mirror had newer than the checkpoint
    recovered_updates: int | None = None  # unsaved updates of those rows: not lost
    recovered_tracked: int | None = None  # the same over tracked tables
    upload_bytes: int = 0  # of those rows and their ids
    load_h: float
    lost_h: float
    reschedule_h: float
    load_bytes: int  # payload read: a full save for a rollback; else shards, dense network, uploaded rows
    dense: str = "kept"  # where the dense network restarts from (DenseSource): "kept" unless all trainers died
    lost_dense_samples: int = 0  # samples that the dense network has lost, without a rollback

    @property
    def restores(self) -> bool:
        """Whether any state was restored. If only trainers died and one lives, it has all that they had."""
        return bool(self.kinds) or self.rollback or self.dense != "kept"


@dataclass(frozen=True, kw_only=True)
class Grown(Event):
    """Nodes that had died have returned, and taken their shards over, with all their updates, from the survivors.

    machine: seconds (of starting processes, forming the generation, and copying).
    """

    kind: ClassVar[str] = "grow"
    ranks: list[str]
    load_h: float
    reschedule_h: float
    load_bytes: int  # of the shards


@dataclass(frozen=True, kw_only=True)
class Dropped(Event):
    """What a failure cost the model at once: its AUC right before the failure, and right after the recovery from it.

    Both are of the same test samples, the first of the set. ``step``: when the second was measured, after the rows of
    the next batch were pulled. The drop of a failure inside a step includes the updates of up to two steps. After a
    rollback it is 0, as the lost steps run again; neither AUC is measured. All of this holds for the movement too, the
    distance of the lost shards' rows between both evaluations. machine: seconds (of both evaluations).
    """

    kind: ClassVar[str] = "drop"
    ranks: list[str]  # that died
    num_failures: int = 1  # more than one if the model could not be evaluated between their recoveries
    auc_before: float | None
    auc_after: float | None
    drop: float | None  # auc_before - auc_after; null if unknown (harness.run.drops)
    deviations: list[float] | None  # of parts of the samples from the drop (harness.model.metrics.auc_deviations)
    standard_error: float | None  # of the drop, by the choice of test samples: from these deviations
    movement: float | None = None  # L2 distance over all embedding values of the shards; null: unknown or not measured
    num_samples: int  # of each evaluation; 0 without one


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The last event of a successful run: its results.

    machine: seconds (whole run), overhead_seconds {save, load, lost, reschedule} (measured on this machine).
    """

    kind: ClassVar[str] = "finish"
    auc: float | None
    log_loss: float
    accuracy: float
    train_loss: float  # mean over the last tenth of the steps
    pls: float
    update_pls: float | None  # updates lost / updates applied
    update_pls_tracked: float | None
    applied_updates: int | None
    lost_updates: int | None
    applied_tracked: int | None
    lost_tracked: int | None
    recovered_updates: int | None = None  # updates that would be lost without the trainer's mirror
    recovered_tracked: int | None = None
    num_failures: int  # ranks lost together, at one boundary or in one step, are one failure
    num_lost_ranks: int
    num_unplanned: int
    num_saves: int  # charged saves only
    payload_bytes: int  # of charged saves
    save_h: float
    load_h: float
    lost_h: float
    reschedule_h: float
    steps_h: float | None = None  # what every step pays; null if the profile does not price it, or not all of its parts
    overhead_frac: float | None  # sum of the priced buckets / job_h; null if the profile lacks the price of a step part
    node_h: float | None = None  # overhead in node-hours; null if that, or the number of trainers, is unknown
    wire_bytes: int  # of charged saves, loads and replicas
    memory_bytes: int | None = None  # tracker, replica or mirror, in the rank that needs most; null if not known
    generation: int
    replica_bytes: int | None = None  # for replicas or parities: pushes, changes, copies; null without either
    cache: dict[str, float] | None = None  # rows and bytes moved, hit rate, peak; null without a cache
    mirror: dict[str, float] | None = None  # rows, bytes at the trainer, fetched rows; null without a mirror
    digests: dict[str, str]  # xxh3 of every parameter, by rank ("ps0", ..., "trainer0", ...)


EVENTS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        *(Started, Trained, Saved, Noticed, Interrupted, Evaluated),
        *(Injected, Lost, Regrouped, Recovered, Grown, Dropped, Finished),
    )
}


def error_of(deviations: Sequence[float]) -> float:
    """The standard error, by the choice of samples, of a quantity with these deviations by part of the samples.

    The deviations add up to 0 (``harness.model.metrics.auc_deviations``; random groups: Wolter 2007, chapter 2).
    """
    return math.sqrt(sum(value**2 for value in deviations) * len(deviations) / (len(deviations) - 1))


def drops_of(events: Iterable[Event], name: Literal["drop", "movement"] = "drop") -> list[float] | None:
    """The drop in AUC at each recovery, in order, or the rows' movement there (``name``); None if one is unknown."""
    kept = [event for event in events if isinstance(event, Recovered | Dropped)]
    known = [event for event in kept if isinstance(event, Dropped) and getattr(event, name) is not None]
    num_recovered = sum(isinstance(event, Recovered) and event.restores for event in kept)
    return [getattr(event, name) for event in known] if sum(e.num_failures for e in known) == num_recovered else None


def from_json(values: dict[str, Any]) -> Event:
    """The inverse of :meth:`Event.to_json`. Raises KeyError for another event, TypeError for other fields or types.

    Every field must be there: a record of another version is refused.
    """
    fields = dict(values)
    cls = EVENTS[fields.pop("event")]
    if missing := sorted(cls.__dataclass_fields__.keys() - fields.keys() - {"kind"}):
        raise TypeError(f"{cls.kind}: no field {missing[0]}")
    event = cls(**fields)
    kinds = _kinds_of(cls)
    for name, value in fields.items():
        _refuse_other(name, value, kinds[name])
    for name in _MACHINE.keys() & event.machine.keys():
        _refuse_other(f"machine.{name}", event.machine[name], _MACHINE[name])
    if isinstance(event, Injected) and event.fault in FAULTS:
        for name, kind in FAULTS[event.fault].details.items():
            _refuse_other(f"details.{name}", event.details.get(name), kind)
    return event


_MACHINE: dict[str, Any] = {
    "seconds": float | None,
    "reschedule_seconds": float | None,
    "overhead_seconds": dict[str, float] | None,
    "exitcode": int | None,
}
"""Types of the ``machine`` entries that the analysis computes with."""


_MAX_SHOWN = 40  # characters of a value
_kinds_of = cache(get_type_hints)
_adapter_of = cache(TypeAdapter)


def _refuse_other(name: str, value: Any, kind: Any) -> None:
    """Raise TypeError unless ``value`` has type ``kind`` by JSON's types, where a whole number is a valid float."""
    try:
        _adapter_of(kind).validate_python(value, strict=True)
    except ValidationError as error:
        text = repr(value)
        shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
        raise TypeError(f"{name}: {shown} is not {kind.__name__ if isinstance(kind, type) else kind}") from error
