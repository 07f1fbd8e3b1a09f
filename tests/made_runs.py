"""Consistent records without training: the real strategies and ledgers walk a schedule, and the figures are made up."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.derived import job_costs
from harness.config.keys import IRRELEVANT
from harness.config.model import Config
from harness.core.events import (
    Dropped,
    Evaluated,
    Event,
    Finished,
    Injected,
    Lost,
    Recovered,
    Regrouped,
    Saved,
    Started,
    Trained,
)
from harness.core.overhead import FullSave, Moved, OverheadLedger
from harness.core.plans import Progress, RecoveryPlan, SavePlan, ps_rank
from harness.core.pls import PlsLedger
from harness.core.seeds import generator
from harness.core.strategies import make_strategy
from harness.files import digest_of
from harness.record.recorder import Recorder
from harness.record.rundir import SEALED, RunDir, write_seal
from harness.recovery.recoveries import RECOVERIES, reads_checkpoint, rolls_back
from harness.traces.schedule import trace_facts
from harness.wandb.exporter import followed

NUM_STEPS, BATCH_SIZE, LOG_EVERY_STEPS = 400, 32, 10
TOTAL_SAMPLES = NUM_STEPS * BATCH_SIZE
BYTES_FULL = 1_000_000
ROW_BYTES = 64
PLANNED_KILLS: dict[int, tuple[int, ...]] = {53: (1,), 125: (2,), 190: (0, 3), 207: (1,), 344: (2,)}  # step: PS ranks
UPDATES_PER_SAMPLE = 26
CACHE = {"hit_rate": 0.625, "peak_rows": 1234, "bytes": 2e6, "uncached_bytes": 8e6, "minimum_bytes": 1.9e6}


def made_config(strategy: str = "cpr_vanilla", /, *, seed: int = 0, **values: Any) -> Config:
    """A run under the busy profile; wandb disabled unless ``values`` say otherwise."""
    given: dict[str, Any] = {
        "name": "made",
        "profile": "busy",
        "seed": seed,
        "strategy": {"name": strategy},
        "trace": {"path": None if strategy == "none" else "failure_traces/busy.csv"},
        "wandb": {"mode": "disabled"},
        "store": {"fsync": False},
    }
    if "strategy" in values:
        values = values | {"strategy": given["strategy"] | values["strategy"]}
    return Config.model_validate(given | values)


def made_hash(config: Config, *contents: str | None) -> str:
    """A hash that differs where configs or ``contents`` differ, but for keys of no hash."""
    text = config.model_dump_json(exclude=IRRELEVANT) + "".join(filter(None, contents))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_run(
    path: Path,
    config: Config,
    *,
    data: str | None = None,
    trace: str | None = None,
    auc: float = 0.0,
    drop: float | None = None,
    model: str = "00",
) -> list[Event]:
    """A finished run at ``path``, through the real recorder; its events. ``auc`` is added to its AUC.

    ``data``, ``trace``: digests of their content, which are part of the config's hash. ``drop``: of each failure;
    None: not recorded. ``model``: digest of its parameters.
    """
    started, *events, evaluated, finished = made_events(config)
    started = altered(started, config_hash=made_hash(config, data, trace))
    assert isinstance(finished, Finished)
    total = (finished.auc or 0.0) + auc
    digests = finished.digests | {"ps0": model}
    ends = [altered(evaluated, auc=total), altered(finished, auc=total, digests=digests)]
    events = [started, *(events if drop is None else with_drops(events, drop)), *ends]
    about = {"num_samples": 2 * TOTAL_SAMPLES, "table_rows": [10_000], "synthetic": None}
    facts = about | {"digest": data} if data else None
    of_trace = (trace_facts(config) or {}) | ({"digest": trace} if trace else {}) or None
    command = ["run.py", "grid", "made.yaml"]
    with ExitStack() as views, Recorder(path, config, command=command, data=facts, trace=of_trace) as recorder:
        views.enter_context(followed(recorder.run, config, started.config_hash))
        for event in events:
            recorder.record(event)
        recorder.done()
    return events


def reseal(path: Path) -> None:
    """Seal the run at ``path``, as if it had written its files as they are now."""
    digests = {name: digest_of(path / name) if (path / name).exists() else "" for name in SEALED}
    write_seal(RunDir(path), time="2026-01-01T00:00:00+00:00", num_events=0, digests=digests, audit=None)


def made_events(config: Config, *, planned_kills: Mapping[int, tuple[int, ...]] | None = None) -> list[Event]:
    """All events of a run, from Started to Finished."""
    if planned_kills is None:
        planned_kills = {} if config.strategy.name == "none" else PLANNED_KILLS
    return list(_Walk(config, planned_kills).events())


def with_drops(events: Iterable[Event], drop: float) -> Iterator[Event]:
    """``events`` with a drop after each recovery: 0 after a rollback, else ``drop``."""
    for event in events:
        yield event
        if isinstance(event, Recovered):
            before, after = (None, None) if event.rollback else (drop, 0.0)
            lost, num = (0.0, 0) if event.rollback else (drop, 1000)
            yield Dropped(
                step=event.step, samples=event.samples, ranks=event.ranks, auc_before=before,
                auc_after=after, drop=lost, standard_error=1e-5,
                deviations=None if event.rollback else [1e-6, -1e-6],
                num_samples=num, machine={"seconds": 0.1},
            )  # fmt: skip


def altered(event: Event, **values: Any) -> Any:
    """``event`` with other values, whatever its class."""
    return replace(event, **values)


class _Walk:
    def __init__(self, config: Config, planned_kills: Mapping[int, tuple[int, ...]]) -> None:
        self.config = config
        self.planned_kills = dict(planned_kills)
        self.costs = job_costs(config, TOTAL_SAMPLES)
        self.strategy = make_strategy(config.strategy, self.costs)
        self.overhead = OverheadLedger(self.costs, self.strategy.step_parts, FullSave(BYTES_FULL))
        weights = {ps_rank(k): 1 / config.num_ps for k in range(config.num_ps)}
        self.pls = PlsLedger(weights, TOTAL_SAMPLES, config.metrics.pls_since)
        self.saved_step: int | None = None
        self.sequence = self.generation = self.num_lost = self.persisted = self.lost_updates = 0
        self.logged = self.ran = self.step = 0
        self.measured_s = {"save": 0.0, "load": 0.0, "lost": 0.0, "reschedule": 0.0}
        self.rng = generator(config.seed, "made", config.strategy.name)
        noise = generator(config.seed, "losses").normal(0, 0.02, NUM_STEPS)
        self.losses = [0.46 + 0.24 / (1 + i / 32) + float(noise[i]) for i in range(NUM_STEPS)]

    def at(self, step: int | None = None) -> dict[str, Any]:
        step = self.step if step is None else step
        return {"step": step, "samples": step * BATCH_SIZE}

    def progress(self) -> Progress:
        return Progress(
            **self.at(),
            previous_samples=max(0, self.step - 1) * BATCH_SIZE,
            total_samples=TOTAL_SAMPLES,
            saved_step=self.saved_step,
            saved_samples=None if self.saved_step is None else self.saved_step * BATCH_SIZE,
        )

    def events(self) -> Iterator[Event]:
        yield self.started()
        if self.strategy.saves_initially:
            yield self.save(SavePlan(kind="full"), charged=False)
        while self.step < NUM_STEPS:
            self.step += 1
            plan = self.strategy.plan_save(self.progress())
            is_struck = self.step in self.planned_kills
            if plan or is_struck or self.step in {self.ran, NUM_STEPS} or self.step % LOG_EVERY_STEPS == 0:
                yield from self.log()
            if plan:
                yield self.save(plan, charged=True)
            if is_struck:
                yield from self.kill_planned(self.planned_kills.pop(self.step))
        quality: dict[str, Any] = {
            "auc": 0.78 - 0.05 * self.pls.total + float(self.rng.normal(0, 2e-4)) + 1e-3 * self.config.seed,
            "log_loss": 0.47 + 0.03 * self.pls.total,
            "accuracy": 0.76,
        }
        yield Evaluated(**self.at(), **quality, num_samples=1000, final=True, machine={"seconds": 0.2})
        yield self.finished(quality)

    def started(self) -> Started:
        interval = self.strategy.interval
        trace = self.config.trace.path
        return Started(
            **self.at(0),
            recoveries={name: kind.facts() for name, kind in RECOVERIES.items()},
            name=self.config.name,
            strategy=self.config.strategy.name,
            seed=self.config.seed,
            trace=trace and Path(trace).name,
            profile=self.config.profile.name,
            num_ps=self.config.num_ps,
            total_samples=TOTAL_SAMPLES,
            num_steps=NUM_STEPS,
            interval_samples=interval.samples,
            interval_fallback=interval.fallback,
            interval_overridden=interval.overridden,
            tracker=self.strategy.tracker,
            step_parts=[*self.strategy.step_parts],
            tracked_tables=[2, 3],
            num_rows=10_000,
            num_tracked_rows=9_950,
            rank_rows=[10_000 // self.config.num_ps] * self.config.num_ps,
            bytes_full=BYTES_FULL,
            row_bytes=ROW_BYTES,
            config_hash=made_hash(self.config),
            machine={"time": "2026-01-01T00:00:00+00:00", "host": "here", "pid": 1000},
        )

    def log(self) -> Iterator[Event]:
        if self.step > self.logged:
            yield Trained(
                **self.at(),
                first_step=self.logged,
                losses=self.losses[self.logged : self.step],
                rerun=self.logged < self.ran,
                machine={"seconds": 0.004 * (self.step - self.logged)},
            )
            self.logged = self.step
            self.ran = max(self.ran, self.step)

    def save(self, plan: SavePlan, *, charged: bool) -> Saved:
        payload = BYTES_FULL if plan.kind == "full" else BYTES_FULL // 8
        persisted = self.sent() - self.persisted - self.lost_updates
        if plan.closes_interval:
            self.pls.saved(self.at()["samples"])
        self.persisted += persisted
        self.saved_step = self.step
        self.sequence += 1
        if charged:
            self.measured_s["save"] += 0.05
        return Saved(
            **self.at(),
            sequence=self.sequence - 1,
            save=plan.kind,
            closes_interval=plan.closes_interval,
            charged=charged,
            payload_bytes=payload,
            slowest_bytes=payload,
            num_rows=100,
            persisted_updates=persisted,
            persisted_tracked=persisted // 2,
            save_h=self.overhead.charge_save(Moved(payload, payload), self.at()["samples"]) if charged else 0.0,
            machine={"seconds": 0.05},
        )

    def sent(self) -> int:
        return self.step * BATCH_SIZE * UPDATES_PER_SAMPLE

    def kill_planned(self, indices: tuple[int, ...]) -> Iterator[Event]:
        ranks = [ps_rank(k) for k in indices]
        hour = self.step / NUM_STEPS * self.costs.job_h
        for line, rank in enumerate(ranks, start=self.generation + 2):
            machine = {"pid": 2000 + line, "signal": 9, "exitcode": -9}
            place: dict[str, Any] = {"rank": rank, "hour": hour, "line": line}
            yield Injected(**self.at(), **place, fault="kill", phase="boundary", loss="dead", machine=machine)
        yield Lost(**self.at(), ranks=ranks, planned=True, unplanned_ranks=[], machine={"seconds": 0.01})
        self.generation += 1
        yield Regrouped(**self.at(), generation=self.generation, replaced=ranks, machine={"seconds": 0.15})
        plan = self.strategy.plan_recovery(frozenset(ranks), self.progress())
        yield self.recover(plan, ranks)
        if rolls_back(plan):
            assert self.saved_step is not None
            self.step = self.logged = self.saved_step

    def recover(self, plan: RecoveryPlan, ranks: list[str]) -> Recovered:
        now = self.at()["samples"]
        goes_back, reads = rolls_back(plan), reads_checkpoint(plan)
        resume = self.at(self.saved_step if goes_back else None)
        load_bytes = reads * (BYTES_FULL if goes_back else 2500 * len(ranks) * ROW_BYTES)
        cost = self.overhead.charge_failure(now - resume["samples"], read=Moved(load_bytes, load_bytes))
        added: dict[str, float] = {}
        lost = 0
        if goes_back:
            self.measured_s["lost"] += 0.004 * (self.step - resume["step"])
        else:
            for rank in ranks:
                added[rank] = self.pls.lost(rank, now)
            lost = (self.sent() - self.persisted - self.lost_updates) * len(ranks) // self.config.num_ps
        self.lost_updates += lost
        self.num_lost += len(ranks)
        self.measured_s["load"] += 0.03
        self.measured_s["reschedule"] += 0.16
        return Recovered(
            **self.at(),
            ranks=ranks,
            kinds=dict(plan.kinds),
            rollback=goes_back,
            resume_step=resume["step"],
            resume_samples=resume["samples"],
            sequence=self.sequence - 1 if reads else None,
            num_rows=2500 * len(ranks),
            pls=added,
            lost_updates=lost,
            lost_tracked=lost // 2,
            load_h=cost.load_h,
            lost_h=cost.lost_h,
            reschedule_h=cost.reschedule_h,
            load_bytes=load_bytes,
            machine={"seconds": 0.03, "reschedule_seconds": 0.16},
        )

    def finished(self, quality: dict[str, Any]) -> Finished:
        applied = self.sent()
        return Finished(
            **self.at(),
            **quality,
            train_loss=sum(self.losses[-40:]) / 40,
            pls=self.pls.total,
            update_pls=self.lost_updates / applied,
            update_pls_tracked=(self.lost_updates // 2) / (applied // 2),
            applied_updates=applied,
            lost_updates=self.lost_updates,
            applied_tracked=applied // 2,
            lost_tracked=self.lost_updates // 2,
            num_failures=self.overhead.num_failures,
            num_lost_ranks=self.num_lost,
            num_unplanned=0,
            num_saves=self.overhead.num_saves,
            payload_bytes=self.overhead.payload_bytes,
            save_h=self.overhead.save_h,
            load_h=self.overhead.load_h,
            lost_h=self.overhead.lost_h,
            reschedule_h=self.overhead.reschedule_h,
            steps_h=self.overhead.steps_h,
            overhead_frac=self.overhead.overhead_frac,
            node_h=self.overhead.node_h,
            wire_bytes=self.overhead.payload_bytes + self.overhead.load_bytes,
            memory_bytes=None if self.strategy.tracker else 0,
            generation=self.generation,
            cache=None if self.config.cache.mode == "none" else CACHE,
            digests={"ps0": "00", "trainer0": "11"},
            machine={"seconds": 12.5, "overhead_seconds": dict(self.measured_s)},
        )
