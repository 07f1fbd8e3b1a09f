"""What a run claims, derived again from its events alone: PLS, the four overhead buckets, kills, updates.

Independent of the ledgers in harness.core, whose formulas it repeats on purpose (docs/CPR.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.core.events import Event, Finished, Killed, Lost, Recovered, Regrouped, Saved, Started, Trained

BUCKETS = ("save", "load", "lost", "reschedule")
_TOLERANCE = 1e-9  # sums are taken in another order


@dataclass
class Fold:
    """Totals over a record. ``pls`` by PS rank; ``hours`` by bucket, emulated; ``problems`` in order of the events."""

    pls: dict[str, float] = field(default_factory=dict)
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0.0))
    num_saves: int = 0
    payload_bytes: int = 0
    num_kills: int = 0
    num_failures: int = 0
    num_lost_ranks: int = 0
    num_unplanned: int = 0
    generation: int = 0
    persisted: dict[str, int] = field(default_factory=lambda: {"updates": 0, "tracked": 0})
    lost: dict[str, int] = field(default_factory=lambda: {"updates": 0, "tracked": 0})
    recovered: dict[str, int] = field(default_factory=lambda: {"updates": 0, "tracked": 0})
    problems: list[str] = field(default_factory=list)

    @property
    def total_pls(self) -> float:
        """Over all ranks."""
        return sum(self.pls.values())


def check(events: Sequence[Event], config: Mapping[str, Any]) -> list[str]:
    """Where the record contradicts itself, one line each; empty if all it claims can be derived again."""
    return fold(events, config).problems


def fold(events: Sequence[Event], config: Mapping[str, Any]) -> Fold:
    """Walk the events of one run. ``config`` is the resolved config in plain types, as in config.yaml.

    A record without its end is held to what its events say; only a Finished event claims totals.
    """
    if not events or not isinstance(events[0], Started):
        return Fold(problems=["the first event is not `started`"])
    started = events[0]
    least = min(started.num_ps, started.num_steps, started.total_samples, started.num_rows, started.bytes_full)
    if least < 1 or len(started.rank_rows) != started.num_ps:
        return Fold(
            problems=["event 1: a count that is at least 1 is less, or rank_rows are not those of num_ps ranks"]
        )
    walk = _Walk(started, config)
    for number, event in enumerate(events, start=1):
        walk.number = number
        walk.take(event)
    return walk.fold


class _Walk:
    """The state that a run's events imply, one event at a time."""

    def __init__(self, started: Started, config: Mapping[str, Any]) -> None:
        self.fold = Fold()
        self.number = 0  # line of the current event
        self._started = started
        self._profile: Mapping[str, Any] = config["profile"]
        self._engine: str = config["engine"]
        self._counts_restores = config["metrics"]["pls_since"] == "save_or_restore"
        ranks = [f"ps{k}" for k in range(started.num_ps)]
        is_row_wise = config["cluster"]["placement"] == "row"
        shares = [1 / started.num_ps if is_row_wise else rows / started.num_rows for rows in started.rank_rows]
        self._weights = dict(zip(ranks, shares, strict=True))
        self._since = dict.fromkeys(ranks, 0)
        self._saved: Saved | None = None
        self._losses: list[float] = []
        self._step = 0
        self._killed: Counter[str] = Counter()
        self._dead: list[str] = []
        self._repair_h: float | None = None  # that the trace says of the kills since the last recovery

    def take(self, event: Event) -> None:
        match event:
            case Trained():
                self._trained(event)
            case Saved():
                self._save(event)
            case Killed():
                self._kill(event)
            case Lost():
                self._lose(event)
            case Regrouped():
                self._equal("generation", event.generation, self.fold.generation + 1)
                self.fold.generation = event.generation
            case Recovered():
                self._recover(event)
            case Finished():
                self._finish(event)
            case _:
                pass

    def _problem(self, text: str) -> None:
        self.fold.problems.append(f"event {self.number}: {text}")

    def _equal(self, what: str, claimed: float | None, derived: float | None) -> None:
        if claimed is None or derived is None:
            is_equal = claimed is derived
        else:
            is_equal = math.isclose(claimed, derived, rel_tol=_TOLERANCE, abs_tol=1e-15)
        if not is_equal:
            self._problem(f"{what} is {claimed}, the events give {derived}")

    def _trained(self, event: Trained) -> None:
        self._equal("first_step", event.first_step, self._step)
        self._equal("number of losses", len(event.losses), event.step - event.first_step)
        before = self._losses[event.first_step : event.step]
        if event.rerun != bool(before):
            self._problem(f"rerun is {event.rerun}, {len(before)} of its steps had run before")
        elif before and event.losses[: len(before)] != before:
            self._problem(f"steps {event.first_step + 1} to {event.step} lost something else when run again")
        self._losses[event.first_step : event.step] = event.losses
        self._step = event.step

    def _save(self, event: Saved) -> None:
        fraction = event.payload_bytes / self._started.bytes_full
        self._equal("save_h", event.save_h, self._profile["o_save_h"] * fraction if event.charged else 0.0)
        if event.charged:
            self.fold.num_saves += 1
            self.fold.payload_bytes += event.payload_bytes
            self.fold.hours["save"] += event.save_h
        self.fold.persisted["updates"] += event.persisted_updates or 0
        self.fold.persisted["tracked"] += event.persisted_tracked or 0
        self._saved = event
        if event.closes_interval:
            # Committed late, if it was written in the background: a shard restored meanwhile counts from there.
            self._since = {rank: max(since, event.samples) for rank, since in self._since.items()}

    def _kill(self, event: Killed) -> None:
        self.fold.num_kills += 1
        self._killed[event.rank] += 1
        self._repair_h = event.repair_h
        if self._engine == "rpc":
            self._equal(f"wait status of {event.rank}", event.machine.get("exitcode"), -9)

    def _lose(self, event: Lost) -> None:
        for rank in event.ranks:
            is_planned = rank not in event.unplanned_ranks
            if is_planned and self._killed[rank] == 0:
                self._problem(f"{rank} was lost as planned, but nobody killed it")
            self._killed[rank] -= is_planned
        self._equal("planned", event.planned, not event.unplanned_ranks)
        self.fold.num_unplanned += len(event.unplanned_ranks)
        self._dead += [rank for rank in event.ranks if rank not in self._dead]

    def _recover(self, event: Recovered) -> None:
        if sorted(event.ranks) != sorted(self._dead):
            self._problem(f"recovered {', '.join(event.ranks)}, but {', '.join(self._dead) or 'nobody'} was lost")
        self._dead = []
        self.fold.num_failures += 1
        self.fold.num_lost_ranks += len(event.ranks)
        self.fold.lost["updates"] += event.lost_updates or 0
        self.fold.lost["tracked"] += event.lost_tracked or 0
        self.fold.recovered["updates"] += event.recovered_updates or 0
        self.fold.recovered["tracked"] += event.recovered_tracked or 0
        rerun = 0
        if event.rollback:
            self._rollback(event)
            rerun = event.samples - event.resume_samples
        else:
            self._equal("number of ranks with PLS", len(event.pls), len(event.ranks))
            for rank in event.ranks:
                self._lose_samples(rank, event)
        profile = self._profile
        self._equal("load_h", event.load_h, profile["o_load_h"])
        self._equal("lost_h", event.lost_h, rerun / self._started.total_samples * profile["job_h"])
        self._equal(
            "reschedule_h", event.reschedule_h, self._repair_h if self._repair_h is not None else profile["o_res_h"]
        )
        self._repair_h = None
        for bucket in ("load", "lost", "reschedule"):
            self.fold.hours[bucket] += getattr(event, f"{bucket}_h")

    def _rollback(self, event: Recovered) -> None:
        if self._saved is None:
            self._problem("rolled_back, but no checkpoint was saved")
            return
        self._equal("resume_samples", event.resume_samples, self._saved.samples)
        self._equal("checkpoint", event.sequence, self._saved.sequence)
        self._equal("PLS of a rollback", sum(event.pls.values()), 0.0)
        self._equal("rows recovered from the cache of a rollback", event.recovered_rows, 0)
        self._step = event.resume_step
        self._since = dict.fromkeys(self._since, event.resume_samples)

    def _lose_samples(self, rank: str, event: Recovered) -> None:
        if rank not in self._weights:
            self._problem(f"{rank} was lost, but is none of the {len(self._weights)} PS ranks")
            return
        portion = (event.samples - self._since[rank]) / self._started.total_samples
        derived = self._weights[rank] * portion
        self._equal(f"PLS of {rank}", event.pls.get(rank), derived)
        self.fold.pls[rank] = self.fold.pls.get(rank, 0.0) + derived
        if self._counts_restores:
            self._since[rank] = event.samples

    def _finish(self, event: Finished) -> None:
        total = self.fold
        self._equal("samples", event.samples, self._started.total_samples)
        self._equal("pls", event.pls, total.total_pls)
        for bucket, hours in total.hours.items():
            self._equal(f"{bucket}_h", getattr(event, f"{bucket}_h"), hours)
        self._equal("overhead_frac", event.overhead_frac, sum(total.hours.values()) / self._profile["job_h"])
        for name in ("num_saves", "payload_bytes", "num_failures", "num_lost_ranks", "num_unplanned", "generation"):
            self._equal(name, getattr(event, name), getattr(total, name))
        if unseen := sorted((+self._killed).elements()):
            self._problem(f"{', '.join(unseen)} was killed, but nobody lost it")
        self._finish_updates("updates", event.applied_updates, event.lost_updates, event.update_pls)
        self._finish_updates("tracked", event.applied_tracked, event.lost_tracked, event.update_pls_tracked)
        for which, claimed in (("updates", event.recovered_updates), ("tracked", event.recovered_tracked)):
            if claimed is not None:
                self._equal(f"recovered {which}", claimed, total.recovered[which])

    def _finish_updates(self, which: str, applied: int | None, lost: int | None, claimed: float | None) -> None:
        if applied is None or lost is None:
            self._equal(f"update PLS ({which})", claimed, None)
            return
        self._equal(f"lost {which}", lost, self.fold.lost[which])
        self._equal(f"update PLS ({which})", claimed, lost / applied if applied else None)
        if self.fold.persisted[which] + lost > applied:
            self._problem(f"{which}: {self.fold.persisted[which]} saved and {lost} lost of {applied} applied")
