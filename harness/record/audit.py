"""The audit of a run: quality, PLS, overhead, kills and updates, computed from the events and compared with its result.

The audit computes the formulas of docs/CPR.md without the ledgers in harness.core, so that an error in either shows.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core.errors import StoreError
from harness.core.events import (
    STALLS,
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
    Trained,
)
from harness.core.faults import RETURN
from harness.core.plans import CHIEF, ParityGroups, is_trainer
from harness.core.repeats import Repeats
from harness.record.event_log import read_events
from harness.record.rundir import RunDir, read_config

_TOLERANCE = 1e-9  # relative; sums are taken in another order


def check(events: Sequence[Event], config: Mapping[str, Any]) -> list[str]:
    """The contradictions in a record, one line each, in order; empty if all its figures follow from its events.

    ``config``: resolved, in plain values, as :func:`read_config` returns it. The record of an unfinished run is audited
    up to its last event, without totals, since only the Finished event has any.
    """
    if not events or not isinstance(started := events[0], Started):
        return ["the first event is not `started`"]
    least = min(started.num_ps, started.num_steps, started.total_samples, started.num_rows, started.bytes_full)
    if least < 1 or len(started.rank_rows) != started.num_ps:
        return ["event 1: expected counts >= 1 and rank_rows of num_ps ranks"]
    auditor = _Auditor(started, config)
    for number, event in enumerate(events, start=1):
        auditor.take(number, event)
    return auditor.problems


def outcome_of(run: RunDir) -> list[str] | None:
    """The contradictions (:func:`check`) in the record of a run; None if its events or config cannot be read."""
    try:
        return check(read_events(run.events), read_config(run.path))
    except StoreError:
        return None


_PERSISTED = ("persisted_updates", "persisted_tracked")
_OF_UPDATES = ("lost_updates", "lost_tracked", "recovered_updates", "recovered_tracked")


class _Auditor:
    """The state of a run that its events imply, updated event by event."""

    def __init__(self, started: Started, config: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._totals: Counter[str] = Counter()  # by the field of the Finished event, or of the events summed
        self._undoable: list[tuple[int, dict[str, float]]] = []  # figures that a rollback to this step or before undoes
        self._hours: dict[str, float] = dict.fromkeys(STALLS, 0.0)  # emulated
        self._number = 0  # line of the current event
        self._config = config
        self._started = started
        self._profile: Mapping[str, Any] = config["profile"]
        prices: Mapping[str, float] | None = self._profile["step_frac"]
        self._step_frac: float | None = None  # what every step pays, of its own time; None: not all of it has a price
        if prices is not None and prices.keys() >= {*started.step_parts}:
            self._step_frac = sum(prices[part] for part in started.step_parts)
        self._written_h = 0.0  # hour at which the last save in the background is on disk
        self._has_processes = "pids" in started.machine  # until the run goes on elsewhere
        ranks = [f"ps{k}" for k in range(started.num_ps)]
        is_row_wise = config["cluster"]["placement"] == "row"
        shares = [1 / started.num_ps if is_row_wise else rows / started.num_rows for rows in started.rank_rows]
        self._weights = dict(zip(ranks, shares, strict=True))
        self._shard_bytes = {k: rows * started.row_bytes for k, rows in zip(ranks, started.rank_rows, strict=True)}
        self._dense_bytes = started.bytes_full - started.row_bytes * started.num_rows
        self._since_samples = dict.fromkeys(ranks, 0)  # position from which a death of the rank loses samples
        self._checkpoints: dict[str, Saved] = {}  # the newest of each tier that no failure has lost
        self._losses: list[float] = []
        self._kept: dict[str, str] = {}  # kinds of recovery of ranks that lose nothing, until they are recovered
        self._repeats = Repeats()
        self._evaluated: Evaluated | None = None  # the final evaluation
        self._step = 0
        self._num_kills: Counter[str] = Counter()  # by rank, not yet matched by a Lost event
        self._dead: list[str] = []
        self._undropped: list[Recovered] = []  # whose drop of AUC may follow
        self._kills: list[Injected] = []  # since the last recovery
        self._returning: set[str] = set()  # nodes that have returned since the last Grown event
        self._failed_writes: list[str] = []  # ranks, of writes whose save is not on record yet
        self._spares_h = [0.0] * config["cluster"]["spares"]  # hour from which each spare is ready
        self._interrupted_h: list[float] = []  # hours of failures that interrupted something and are not on record yet
        self._checked_step = -1  # the last boundary that is known to be over, and the clock of failures there
        self._checked_h = -math.inf
        self._recovered = -1, 0.0  # the boundary of the first recovery there, and the clock before it

    def take(self, number: int, event: Event) -> None:
        """Audit the event of line ``number``, by the method ``on_`` and its kind."""
        self._number = number
        match event.machine:
            case {"resumed": [*_, dict(machine)]}:
                self._has_processes = "pids" in machine
        getattr(self, f"on_{event.kind}")(event)

    def _problem(self, text: str) -> None:
        self.problems.append(f"event {self._number}: {text}")

    def _expect(self, name: str, claimed: float | None, computed: float | None) -> None:
        if claimed is None or computed is None:
            is_equal = claimed is computed
        else:
            is_equal = math.isclose(claimed, computed, rel_tol=_TOLERANCE, abs_tol=1e-15)
        if not is_equal:
            self._problem(f"{name} is {claimed}, the events give {computed}")

    def _count(self, event: Event, names: Sequence[str], step: int) -> None:
        """Count the figures ``names`` of ``event``, until a rollback to ``step`` or before undoes them."""
        self._undoable.append((step, {name: getattr(event, name) or 0 for name in names}))

    def _counted(self, name: str) -> float:
        return sum(figures.get(name, 0) for _, figures in self._undoable)

    def _charge(self, event: Event, **hours: float | None) -> None:
        """Compare the hours of these buckets in ``event`` with ``hours``, and add up the former."""
        for bucket, computed in hours.items():
            claimed = getattr(event, f"{bucket}_h")
            self._expect(f"{bucket}_h", claimed, computed)
            self._hours[bucket] += claimed

    def on_started(self, event: Started) -> None:
        """Compare the settings in the first event with the config.

        The run's name and the path of its trace are left out: a resumed run may have others.
        """
        config, cluster, trace = self._config, self._config["cluster"], self._config["trace"]
        configured: dict[str, object] = {
            "strategy": config["strategy"]["name"],
            "seed": config["seed"],
            "profile": self._profile["name"],
            "num_ps": cluster["num_ps"] or self._profile["num_ps"],
            "trace_clock": trace["clock"],
            "trace_inject": trace["inject"],
        }
        for name, value in configured.items():
            if (claimed := getattr(event, name)) != value:
                self._problem(f"{name} is {claimed}, the config says {value}")
        if event.tracker is not None and event.tracker not in event.step_parts:
            self._problem(f"step_parts is {', '.join(event.step_parts) or 'empty'}, but the tracker is {event.tracker}")

    def on_train(self, event: Trained) -> None:
        self._expect("first_step", event.first_step, self._step)
        self._expect("number of losses", len(event.losses), event.step - event.first_step)
        before = self._losses[event.first_step : event.step]
        if event.rerun != bool(before):
            self._problem(f"rerun is {event.rerun}, but {len(before)} of its steps had run before")
        alike = before[: self._repeats.num_alike(event.first_step, event.step)]
        if self._started.restores_exactly and event.losses[: len(alike)] != alike:
            self._problem(f"steps {event.first_step + 1} to {event.step}: losses differ from those of the first run")
        self._losses[event.first_step : event.step] = event.losses
        self._step = event.step

    def on_eval(self, event: Evaluated) -> None:
        if event.final:
            self._evaluated = event

    def _clock_h(self, step: int) -> float:
        """Hour of the failure clock at a boundary; with ``trace.clock: wall`` the overhead so far is included.

        The boundary before the last step is the last one at which a failure can strike, so training counts as over.
        """
        num_steps, total_samples = self._started.num_steps, self._started.total_samples
        samples = step / num_steps * total_samples if step < num_steps - 1 else total_samples
        if self._config["trace"]["clock"] == "wall":
            return self._now_h(samples)
        return samples / total_samples * self._profile["job_h"]

    def _now_h(self, samples: float) -> float:
        """Wall hour of the emulated job at ``samples``: computation, what steps pay, and all overhead before it.

        Of steps that run again the first run paid too.
        """
        trained_h = samples / self._started.total_samples * self._profile["job_h"] + self._hours["lost"]
        return trained_h * (1 + (self._step_frac or 0.0)) + sum(self._hours[each] for each in STALLS if each != "lost")

    def _pass(self, step: int) -> None:
        """Note that the boundaries before ``step`` are over, and what the failure clock read at the last of them.

        A recovery there may have come after it was over, from a death in the next step.
        """
        if step - 1 > self._checked_step:
            at, before_h = self._recovered
            self._checked_step, self._checked_h = step - 1, before_h if at == step - 1 else self._clock_h(step - 1)

    def on_save(self, event: Saved) -> None:
        self._pass(event.step)
        self._check_repeated(event)
        if not event.payload_bytes / (self._started.num_ps + 1) <= event.slowest_bytes <= event.payload_bytes:
            self._problem(f"the rank that wrote most wrote {event.slowest_bytes} of {event.payload_bytes} bytes")
        self._charge(event, save=self._save_h(event) if event.charged else 0.0)
        if event.charged:
            self._totals.update(num_saves=1, payload_bytes=event.payload_bytes)
            self._forbid_before_now(event.samples)
        self._count(event, _PERSISTED, event.step - 1)
        self._checkpoints[event.tier] = event
        if event.closes_interval:
            # A save in the background is committed late: a shard restored after its step counts from the restore.
            self._since_samples = {rank: max(since, event.samples) for rank, since in self._since_samples.items()}

    def _forbid_before_now(self, samples: int) -> None:
        """Note that no failure may follow of an hour before now: it would have interrupted what is over."""
        if self._config["trace"]["interrupts"]:
            self._checked_h = max(self._checked_h, self._now_h(samples))

    def on_interrupt(self, event: Interrupted) -> None:
        """A save or a recovery is charged until the hour of the failure, which must lie within its own hours."""
        self._pass(event.step)
        if event.what == "save":
            moved = self._full_saves(event.payload_bytes, event.slowest_bytes)
            bytes_h = self._profile["o_save_h"] * moved * self._tier_frac(event.tier)
            prices_h = {"save": bytes_h + self._profile["o_save_fixed_h"]}
        else:
            loads = event.payload_bytes or not all(map(is_trainer, self._dead)) or self._profile["trainer_load"]
            load_h = self._load_price_h(event.payload_bytes, event.slowest_bytes) if loads else 0.0
            load_h *= self._tier_frac(event.tier)
            prices_h = {"reschedule": self._wait_h + self._detect_h, "load": load_h}
        spent_h = max(0.0, event.hour - self._now_h(event.samples))
        if not self._config["trace"]["interrupts"] or spent_h > sum(prices_h.values()) * (1 + _TOLERANCE):
            self._problem(f"a failure at hour {event.hour} did not interrupt a {event.what} of {prices_h}")
        for bucket in ("save", "reschedule", "load"):
            part_h = min(spent_h, prices_h.get(bucket, 0.0))
            spent_h -= part_h
            self._charge(event, **{bucket: part_h})
        self._interrupted_h.append(event.hour)

    def on_notice(self, event: Noticed) -> None:
        """What ranks wrote on notice takes the time of the largest part at an N-th of the bandwidth of a full save.

        No rank writes for longer than its notice. A rank is among ``kinds`` if it had time to write more.
        """
        self._pass(event.step)
        rate_h = self._profile["o_save_h"] * self._started.num_ps / self._started.bytes_full
        fixed_h = self._profile["o_save_fixed_h"]
        hours = {rank: num_bytes * rate_h + fixed_h for rank, num_bytes in event.payload_bytes.items()}
        for rank, took_h in hours.items():
            if took_h > event.notices_h.get(rank, 0.0) * (1 + _TOLERANCE):
                self._problem(f"{rank} wrote for {took_h} h, with a notice of {event.notices_h.get(rank, 0.0)} h")
        self._charge(event, save=max(hours.values(), default=None))
        self._totals["payload_bytes"] += sum(event.payload_bytes.values())
        self._count(event, _PERSISTED, event.step)
        if event.sequence is not None and self._saved is not None:  # the same checkpoint under a new number
            self._checkpoints[self._saved.tier] = replace(self._saved, sequence=event.sequence)
        self._kept |= event.kinds

    def _check_repeated(self, event: Saved) -> None:
        """Bytes written again need a failed write since the previous save; a rank has at most one of them.

        ``payload_bytes`` includes both writes, so at most half of it was written again.
        """
        ranks, self._failed_writes = self._failed_writes, []
        if len(set(ranks)) < len(ranks):
            self._problem(f"a write failed twice of one save: {', '.join(ranks)}")
        elif event.repeated_bytes and not ranks:
            self._problem(f"{event.repeated_bytes} bytes were written again, but no write that failed is on record")
        elif not 0 <= 2 * event.repeated_bytes <= event.payload_bytes:
            self._problem(f"{event.repeated_bytes} of {event.payload_bytes} bytes were written again: more than half")

    def _full_saves(self, num_bytes: int, slowest_bytes: int) -> float:
        """The time in which these bytes move, by ``profile.io_bound``, in that of a full save of even shards.

        ``slowest_bytes``: those of the rank that moves most. The trainer is such a rank, with the dense network.
        """
        started, links = self._started, self._profile["storage_links"]
        even_bytes = max(started.row_bytes * started.num_rows / started.num_ps, self._dense_bytes)
        if self._profile["io_bound"] == "storage":
            return num_bytes / started.bytes_full
        if self._profile["io_bound"] == "link":
            return slowest_bytes / even_bytes
        return max(slowest_bytes, num_bytes / links) / max(even_bytes, started.bytes_full / links)

    def _save_h(self, event: Saved) -> float:
        """Emulated hours charged for a save: proportional to its bytes, plus a fixed part.

        A save in the background is charged only its copy, and the wait until the previous save is on disk. Training
        waits for the whole write if the profile has no bandwidths.
        """
        bytes_h = self._profile["o_save_h"] * self._full_saves(event.payload_bytes, event.slowest_bytes)
        write_h = bytes_h * self._tier_frac(event.tier) + self._profile["o_save_fixed_h"]
        network_gbps, snapshot_gbps = self._profile["network_gbps"], self._profile["snapshot_gbps"]
        if self._config["save"]["mode"] != "async" or not (network_gbps and snapshot_gbps):
            return write_h
        now_h = self._now_h(event.samples)
        wait_h = max(0.0, self._written_h - now_h)
        self._written_h = now_h + wait_h + write_h
        return wait_h + min(bytes_h * network_gbps / snapshot_gbps, write_h)

    def on_fault(self, event: Injected) -> None:
        """The clock must have reached the hour of a fault, and must not have passed it where a rank is killed."""
        is_at_boundary = event.phase == "boundary" and event.loss is not None
        if event.loss:
            self._pass(event.step)
        # What waits for a phase may strike in steps that run again.
        clock_h = self._clock_h(event.step if is_at_boundary else max(event.step, len(self._losses)))
        slack_h = _TOLERANCE * max(1.0, event.hour)
        if event.hour > clock_h + slack_h and event.phase != "wall":  # at a second of the machine
            what = f"{event.rank} was killed" if event.loss else f"{event.fault} of {event.rank}"
            self._problem(f"{what} when the clock read {clock_h} h, before its hour")
        elif is_at_boundary and event.hour < self._checked_h - slack_h:
            self._problem(f"{event.rank} was killed late: at the boundary before, the clock read {self._checked_h} h")
        if event.loss:
            self._kills.append(event)
            self._num_kills[event.rank] += 1
            self._interrupted_h = [hour for hour in self._interrupted_h if hour != event.hour]
        elif event.phase == "save":
            self._failed_writes.append(event.rank)
        if event.fault == RETURN.name:
            self._returning.add(event.rank)
        if self._has_processes and event.loss == "dead":
            self._expect(f"wait status of {event.rank}", event.machine.get("exitcode"), -9)

    @property
    def _killed_at_boundary(self) -> dict[str, int]:
        """The ranks that were killed between two steps since the last recovery, and after how many steps."""
        return {event.rank: event.step for event in self._kills if event.phase == "boundary"}

    def on_lost(self, event: Lost) -> None:
        if self._interrupted_h:
            self._problem(f"an interruption at hour {self._interrupted_h[0]}, but no failure of that hour")
        self._interrupted_h = []
        for rank in (each for each in event.ranks if each not in event.unplanned_ranks):
            if not self._num_kills.pop(rank, 0):  # one that is dead already may be killed again
                self._problem(f"{rank} was lost as planned, but no kill of it is on record")
        self._expect("planned", event.planned, not event.unplanned_ranks)
        self._totals["num_unplanned"] += len(event.unplanned_ranks)
        self._dead += [rank for rank in event.ranks if rank not in self._dead]

    def on_regroup(self, event: Regrouped) -> None:
        self._expect("generation", event.generation, self._totals["generation"] + 1)
        self._totals["generation"] = event.generation

    def on_recover(self, event: Recovered) -> None:
        if sorted(event.ranks) != sorted(self._dead):
            self._problem(f"recovered {', '.join(event.ranks)}, but lost {', '.join(self._dead) or 'no rank'}")
        self._dead = []
        if event.restores:
            self._undropped.append(event)
        self._check_kinds(event)
        self._pass(max([event.step, *(step + 1 for step in self._killed_at_boundary.values())]))
        self._checked_step = event.resume_step - 1 if event.rollback else self._checked_step
        if self._recovered[0] != event.step:
            self._recovered = event.step, self._clock_h(event.step)
        self._totals.update(num_failures=1, num_lost_ranks=len(event.ranks))
        for tier in self._lost_tiers(event):
            self._checkpoints.pop(tier, None)
        self._check_dense(event)
        if event.rollback:
            self._roll_back(event)
        else:
            self._recover_partially(event)
        self._count(event, _OF_UPDATES, self._step)
        resume_samples = event.resume_samples if event.rollback else event.samples
        self._charge(
            event,
            load=self._recovery_load_h(event),
            lost=(event.samples - resume_samples) / self._started.total_samples * self._profile["job_h"],
            reschedule=self._reschedule_h(event) + self._detect_h,
        )
        self._forbid_before_now(resume_samples)
        self._kills = []

    @property
    def _detect_h(self) -> float:
        """Hours until the failure was noticed."""
        hangs = any(event.loss == "mute" for event in self._kills)
        return max(self._profile["detect_death_h"], self._profile["detect_h"] if hangs else 0.0)

    @property
    def _saved(self) -> Saved | None:
        """The newest checkpoint that no failure has lost."""
        return max(self._checkpoints.values(), key=lambda event: event.sequence, default=None)

    def _tier_frac(self, tier: str) -> float:
        return 1.0 if tier == "shared" else self._profile["tier_frac"][tier]

    def _lost_tiers(self, event: Recovered) -> list[str]:
        """The tiers that are lost: memory with a rank and the next one, local disks with a node (strategy ``tiers``).

        The dense network's copy in memory is at ``ps0``, and is needed if all trainers died.
        """
        numbers, has_trainers = {int(rank.removeprefix("ps")) for rank in _ps_of(event)}, event.dense == "kept"
        is_pair = any((number + 1) % self._started.num_ps in numbers for number in numbers)
        loses_host = any(event.lost_host is not None for event in self._kills)
        loses_node = loses_host or self._config["strategy"].get("kill_loses") == "node"
        lost = ["memory"] if is_pair or (0 in numbers and not has_trainers) else []
        return lost + (["disk"] if loses_node and (numbers or not has_trainers) else [])

    def on_drop(self, event: Dropped) -> None:
        """A drop belongs to the last ``num_failures`` recoveries and names all their ranks; a rollback has no drop."""
        recoveries, self._undropped = self._undropped[-event.num_failures :], []
        if event.ranks != [rank for each in recoveries for rank in each.ranks] or len(recoveries) < event.num_failures:
            self._problem(f"a drop of AUC at a failure of {', '.join(event.ranks)}, but no recovery without one before")
            return
        known = [auc for auc in (event.auc_before, event.auc_after) if auc is not None]
        is_rollback = any(each.rollback for each in recoveries)
        if is_rollback:
            self._expect("evaluations of a drop after a rollback", len(known) + event.num_samples, 0)
        exact = 0.0 if is_rollback and self._started.restores_exactly else None
        self._expect("drop", event.drop, known[0] - known[1] if len(known) == 2 else exact)
        is_measured = self._config["eval"]["movement"]
        if not event.num_samples or not is_measured:
            self._expect("movement without a measurement", event.movement, exact if is_measured else None)

    def _check_dense(self, event: Recovered) -> None:
        """The dense network is kept unless all trainers died between two steps. Where it goes on says what it has lost.

        From a checkpoint: the samples since that; from initial values: all; with a rollback of all ranks: none.
        """
        trainers = {*filter(is_trainer, self._killed_at_boundary)}
        has_died = CHIEF in trainers and len(trainers) == self._config["cluster"]["num_trainers"]
        if has_died == (event.dense == "kept"):
            self._problem(f"dense is {event.dense}, but {'all' if has_died else 'not all'} trainers died")
        saved = 0 if self._saved is None else self._saved.samples
        since = {"checkpoint": saved, "initial": 0}.get(event.dense, event.samples)
        self._expect("lost_dense_samples", event.lost_dense_samples, event.samples - since)

    def _check_kinds(self, event: Recovered) -> None:
        """Each dead PS rank must have a kind of recovery that the run declares.

        ``rollback`` must be true exactly if one of these kinds, or the dense network, is rolled back.
        """
        if event.kinds.keys() != {*_ps_of(event)}:
            self._problem(f"kinds of recovery of {', '.join(event.kinds)}, but recovered {', '.join(event.ranks)}")
        if undeclared := {*event.kinds.values()} - self._started.recoveries.keys():
            self._problem(f"recovered by {', '.join(sorted(undeclared))}, which the run does not declare")
        for rank, kind in event.kinds.items():
            if kind in ("notice", "handover") and self._kept.get(rank) != kind:
                self._problem(f"{rank} was recovered by {kind}, but had no notice for it")
        rolls_back = event.dense == "rollback" or bool(self._ranks_that("rolls_back", event))
        self._expect("rollback", event.rollback, rolls_back)
        self._kept = {} if rolls_back else {k: kind for k, kind in self._kept.items() if k not in event.kinds}

    def _ranks_that(self, fact: str, event: Recovered) -> list[str]:
        """The dead ranks whose kind of recovery has the property ``fact``, as the first event declares it."""
        facts = self._started.recoveries
        return [rank for rank in event.ranks if facts.get(event.kinds.get(rank, ""), {}).get(fact)]

    def _reschedule_h(self, event: Recovered) -> float:
        """Hours of rescheduling: the trace's repair or O_res; ``spare_o_res_h`` if each dead rank has a spare ready.

        These spares are then not ready until the dead ranks have been rescheduled. If ``trainer0`` is dead, no spare
        takes over.
        """
        profile, now_h, wait_h = self._profile, self._now_h(event.samples), self._wait_h
        ready = [index for index, ready_h in enumerate(self._spares_h) if ready_h <= now_h]
        are_ready = CHIEF not in event.ranks and len(event.ranks) <= len(ready)
        if profile["spare_o_res_h"] is None or not are_ready:
            return wait_h
        for index in ready[: len(event.ranks)]:
            self._spares_h[index] = now_h + wait_h
        return profile["spare_o_res_h"]

    def _recovery_load_h(self, event: Recovered) -> float:
        """Hours of the load of a recovery, at the price of the tier that a rollback reads.

        0 if only trainers died, unless the dense network was read or the profile has ``trainer_load``.
        """
        shards = {rank: self._shard_bytes.get(rank, 0) for rank in self._ranks_that("reads_rows", event)}
        for rank in self._ranks_that("reads_group", event):
            shards[rank] *= ParityGroups(self._config["strategy"]["group_size"], len(self._weights)).size_of(rank)
        by_trainer = event.upload_bytes + (self._dense_bytes if event.dense == "checkpoint" else 0)
        moved = [*shards.values(), by_trainer]
        if event.rollback:
            moved = [*self._shard_bytes.values(), self._dense_bytes]
        load_h = self._load_h(event, sum(moved), max(moved))
        if not (_ps_of(event) or event.dense in ("checkpoint", "rollback") or self._profile["trainer_load"]):
            return 0.0
        return load_h * (self._tier_frac(self._saved.tier) if event.rollback and self._saved else 1.0)

    def _load_h(self, event: Recovered | Grown, load_bytes: int, slowest: int) -> float:
        """Hours of a load of the bytes that ``event`` has, which must be ``load_bytes``; ``slowest``: of one rank."""
        self._expect("load_bytes", event.load_bytes, load_bytes)
        self._totals["load_bytes"] += event.load_bytes
        return self._load_price_h(event.load_bytes, slowest)

    def _load_price_h(self, load_bytes: int, slowest: int) -> float:
        """O_load, with ``profile.load: by_bytes`` times the bytes read, divided by a full save's."""
        is_by_bytes = self._profile["load"] == "by_bytes"
        return self._profile["o_load_h"] * (self._full_saves(load_bytes, slowest) if is_by_bytes else 1)

    @property
    def _wait_h(self) -> float:
        """The longest repair of the trace for the ranks killed since the last recovery; without any the price."""
        return max((event.repair_h for event in self._kills if event.repair_h is not None), default=self._regroup_h)

    @property
    def _regroup_h(self) -> float:
        """O_res or, with ``cluster.on_loss: shrink``, its price of forming a group, if there is one."""
        shrinks, shrink_h = self._config["cluster"]["on_loss"] == "shrink", self._profile["shrink_o_res_h"]
        return shrink_h if shrinks and shrink_h is not None else self._profile["o_res_h"]

    def on_grow(self, event: Grown) -> None:
        """The nodes must have been injected as returning; their shards' bytes count as loaded."""
        if {*event.ranks} != self._returning:
            self._problem(f"{', '.join(event.ranks)} took shards over, but {sorted(self._returning)} returned")
        self._returning = set()
        moved = [self._shard_bytes.get(rank, 0) for rank in event.ranks]
        self._charge(event, load=self._load_h(event, sum(moved), max(moved)), reschedule=self._regroup_h)

    def _roll_back(self, event: Recovered) -> None:
        if self._saved is None:
            self._problem("a rollback, but no checkpoint was saved")
            return
        self._expect("resume_samples", event.resume_samples, self._saved.samples)
        self._expect("checkpoint", event.sequence, self._saved.sequence)
        self._expect("PLS of a rollback", sum(event.pls.values()), 0.0)
        self._expect("rows sent by the trainer in a rollback", event.recovered_rows, 0)
        self._repeats.roll_back(event.resume_step, self._step, len(self._losses))
        self._undoable = [each for each in self._undoable if each[0] < event.resume_step]
        self._step = event.resume_step
        self._since_samples = dict.fromkeys(self._since_samples, event.resume_samples)

    def _recover_partially(self, event: Recovered) -> None:
        """The durable state of a rank that loses no updates is still its last save, so it adds no PLS."""
        self._repeats.recover_partially(self._step, len(self._losses))
        ranks, losing = _ps_of(event), self._ranks_that("loses_updates", event)
        self._expect("number of ranks with PLS", len(event.pls), len(ranks))
        for rank in ranks:
            if rank not in self._weights:
                self._problem(f"{rank} was lost, but is none of the {len(self._weights)} PS ranks")
                continue
            num_lost = event.samples - self._since_samples[rank] if rank in losing else 0
            pls = self._weights[rank] * num_lost / self._started.total_samples
            self._expect(f"PLS of {rank}", event.pls.get(rank), pls)
            self._undoable.append((event.step, {"pls": pls}))
            if rank in losing and self._config["metrics"]["pls_since"] == "save_or_restore":
                self._since_samples[rank] = event.samples

    def on_finish(self, event: Finished) -> None:
        self._expect("samples", event.samples, self._started.total_samples)
        self._finish_quality(event)
        self._expect("pls", event.pls, self._counted("pls"))
        self._finish_hours(event)
        sent = self._totals["payload_bytes"] + self._totals["load_bytes"] + (event.replica_bytes or 0)
        self._expect("wire_bytes", event.wire_bytes, sent)
        for name in ("num_saves", "payload_bytes", "num_failures", "num_lost_ranks", "num_unplanned", "generation"):
            self._expect(name, getattr(event, name), self._totals[name])
        is_by_second = self._started.trace_inject == "wall"  # the last kill may come when all is done
        if not is_by_second and (unmatched := sorted(self._num_kills.elements())):
            self._problem(f"{', '.join(unmatched)} was killed, but no `lost` event names it")
        if self._failed_writes:
            self._problem(f"a write of {', '.join(self._failed_writes)} failed, but no save follows it")
        self._finish_updates(event, "updates", "update_pls")
        self._finish_updates(event, "tracked", "update_pls_tracked")

    def _finish_hours(self, event: Finished) -> None:
        """Check the hours of all buckets, and node-hours if the result has any or the profile a number of trainers.

        Repeated steps pay like all others. The total is unknown if only some of the steps' parts have a price.
        """
        profile, job_h = self._profile, self._profile["job_h"]
        steps_h = None if self._step_frac is None else self._step_frac * (job_h + self._hours["lost"])
        for bucket, hours in {**self._hours, "steps": steps_h}.items():
            self._expect(f"{bucket}_h", getattr(event, f"{bucket}_h"), hours)
        is_known = profile["step_frac"] is None or steps_h is not None
        total_h = sum(self._hours.values()) + (steps_h or 0.0)
        self._expect("overhead_frac", event.overhead_frac, total_h / job_h if is_known else None)
        num_trainers = None if self._config["cluster"]["on_loss"] == "shrink" else profile["num_trainers"]
        if event.node_h is not None or num_trainers is not None:
            num_spares = len(self._spares_h)
            num_nodes = self._started.num_ps + (num_trainers or 0) + num_spares
            self._expect("node_h", event.node_h, total_h * num_nodes + job_h * num_spares if is_known else None)

    def _finish_quality(self, event: Finished) -> None:
        """Check AUC, log loss and accuracy by the final evaluation, and the mean loss of the steps' last tenth."""
        evaluated = self._evaluated
        if evaluated is None or evaluated.step != event.step:
            self._problem("a result, but no final evaluation of its model is on record")
        else:
            for name in ("auc", "log_loss", "accuracy"):
                self._expect(name, getattr(event, name), getattr(evaluated, name))
        self._expect("number of steps", len(self._losses), self._started.num_steps)
        last = self._losses[-max(1, self._started.num_steps // 10) :]
        self._expect("train_loss", event.train_loss, sum(last) / len(last) if last else None)

    def _finish_updates(self, event: Finished, which: str, pls_name: str) -> None:
        applied, lost, recovered = (getattr(event, f"{kind}_{which}") for kind in ("applied", "lost", "recovered"))
        if recovered is not None:
            self._expect(f"recovered_{which}", recovered, self._counted(f"recovered_{which}"))
        if applied is None or lost is None:
            self._expect(pls_name, getattr(event, pls_name), None)
            return
        self._expect(f"lost_{which}", lost, self._counted(f"lost_{which}"))
        self._expect(pls_name, getattr(event, pls_name), lost / applied if applied else None)
        if (saved := self._counted(f"persisted_{which}")) + lost > applied:
            self._problem(f"{which}: {saved} saved and {lost} lost, but only {applied} applied")


def _ps_of(event: Recovered) -> list[str]:
    return [rank for rank in event.ranks if not is_trainer(rank)]
