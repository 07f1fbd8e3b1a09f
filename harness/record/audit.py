"""The audit of a run: quality, PLS, overhead, kills and updates, computed from the events and compared with its result.

The audit computes the formulas of docs/CPR.md without the ledgers in harness.core, so that an error in either shows.
"""

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

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
        self._pls: list[tuple[int, float]] = []  # samples and PLS of each loss that no rollback has undone
        self._hours = dict.fromkeys(STALLS, 0.0)  # emulated
        self._number = 0  # line of the current event
        self._config = config
        self._started = started
        self._profile: Mapping[str, Any] = config["profile"]
        self._copy_frac = _copy_frac(config)
        self._step_frac = _step_frac(self._profile, started)
        self._written_h = 0.0  # hour at which the last save in the background is on disk
        self._has_processes = "pids" in started.machine  # until the run goes on elsewhere
        self._num_trainers: int = config["cluster"]["num_trainers"]
        self._counts_restores = config["metrics"]["pls_since"] == "save_or_restore"
        ranks = [f"ps{k}" for k in range(started.num_ps)]
        is_row_wise = config["cluster"]["placement"] == "row"
        shares = [1 / started.num_ps if is_row_wise else rows / started.num_rows for rows in started.rank_rows]
        self._weights = dict(zip(ranks, shares, strict=True))
        self._since_samples = dict.fromkeys(ranks, 0)  # position from which a death of the rank loses samples
        self._checkpoints: dict[str, Saved] = {}  # the newest of each tier that no failure has lost
        self._saves: list[Saved] = []  # that no rollback has undone
        self._losses: list[float] = []
        self._noticed: list[Noticed] = []  # that no rollback has undone
        self._kept: dict[str, str] = {}  # kinds of recovery of ranks that lose nothing, until they are recovered
        self._losing: list[tuple[int, Recovered]] = []  # that are not undone, after so many finished steps
        self._repeats = Repeats()
        self._evaluated: Evaluated | None = None  # the final evaluation
        self._step = 0
        self._num_kills: Counter[str] = Counter()  # by rank, not yet matched by a Lost event
        self._dead: list[str] = []
        self._with_chief: set[str] = set()  # trainers killed between two steps since the last recovery
        self._measures_movement: bool = config["eval"]["movement"]
        self._undropped: list[Recovered] = []  # whose drop of AUC may follow
        self._repair_h: float | None = None  # in the trace, for the kills since the last recovery
        self._hangs = False  # whether one of these kills stopped a rank
        self._loses_host = False  # whether one of these kills took a whole host
        self._returning: set[str] = set()  # nodes that have returned since the last Grown event
        self._failed_writes: list[str] = []  # ranks, of writes whose save is not on record yet
        self._spares_h = [0.0] * config["cluster"]["spares"]  # hour from which each spare is ready
        self._over_step = 0  # the boundary before it is over, as ranks were killed there since the last recovery
        self._shrinks = config["cluster"]["on_loss"] == "shrink"
        self._is_wall = config["trace"]["clock"] == "wall"
        self._has_interrupts = config["trace"]["interrupts"]
        self._interrupted_h: list[float] = []  # hours of failures that interrupted something and are not on record yet
        self._checked_step = -1  # the last boundary that is known to be over, and the clock of failures there
        self._checked_h = -math.inf

    def take(self, number: int, event: Event) -> None:
        """Audit the event of line ``number``."""
        self._number = number
        match event.machine:
            case {"resumed": [*_, dict(machine)]}:
                self._has_processes = "pids" in machine
        if handle := self._HANDLERS.get(type(event)):
            handle(self, event)

    def _problem(self, text: str) -> None:
        self.problems.append(f"event {self._number}: {text}")

    def _expect(self, name: str, claimed: float | None, computed: float | None) -> None:
        if claimed is None or computed is None:
            is_equal = claimed is computed
        else:
            is_equal = math.isclose(claimed, computed, rel_tol=_TOLERANCE, abs_tol=1e-15)
        if not is_equal:
            self._problem(f"{name} is {claimed}, the events give {computed}")

    def _add(self, event: Event, *names: str) -> None:
        self._totals.update({name: getattr(event, name) or 0 for name in names})

    def _start(self, event: Started) -> None:
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

    def _trained(self, event: Trained) -> None:
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

    def _evaluate(self, event: Evaluated) -> None:
        if event.final:
            self._evaluated = event

    def _clock_h(self, step: int) -> float:
        """Hour of the failure clock at a boundary; with ``trace.clock: wall`` the overhead so far is included.

        The boundary before the last step is the last one at which a failure can strike, so training counts as over.
        """
        started = self._started
        samples = step / started.num_steps if step < started.num_steps - 1 else 1.0
        return samples * self._steps_job_h() + self._delay_h() if self._is_wall else samples * self._profile["job_h"]

    def _steps_job_h(self) -> float:
        """Hours in which the job makes its steps, what they pay for fault tolerance included."""
        return self._profile["job_h"] * (1 + (self._step_frac or 0.0))

    def _delay_h(self) -> float:
        """Hours that the events so far add to those of the steps: of steps that run again the first run paid too."""
        return sum(self._hours.values()) + (self._step_frac or 0.0) * self._hours["lost"]

    def _pass(self, step: int) -> None:
        """Note that the boundaries before ``step`` are over, and what the failure clock read at the last of them."""
        if step - 1 > self._checked_step:
            self._checked_step, self._checked_h = step - 1, self._clock_h(step - 1)

    def _save(self, event: Saved) -> None:
        self._pass(event.step)
        self._check_repeated(event)
        if not event.payload_bytes / (self._started.num_ps + 1) <= event.slowest_bytes <= event.payload_bytes:
            self._problem(f"the rank that wrote most wrote {event.slowest_bytes} of {event.payload_bytes} bytes")
        self._expect("save_h", event.save_h, self._save_h(event) if event.charged else 0.0)
        if event.charged:
            self._totals["num_saves"] += 1
            self._add(event, "payload_bytes")
            self._forbid_before(self._now_h(event) + event.save_h)
            self._hours["save"] += event.save_h
        self._add(event, *_PERSISTED)
        self._checkpoints[event.tier] = event
        self._saves.append(event)
        if event.closes_interval:
            # A save in the background is committed late: a shard restored after its step counts from the restore.
            self._since_samples = {rank: max(since, event.samples) for rank, since in self._since_samples.items()}

    def _forbid_before(self, hour: float) -> None:
        """Note that no failure may follow whose hour lies before ``hour``: it would have interrupted what is over."""
        self._checked_h = max(self._checked_h, hour) if self._has_interrupts else self._checked_h

    def _interrupt(self, event: Interrupted) -> None:
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
            wait_h = self._regroup_h if self._repair_h is None else self._repair_h
            prices_h = {"reschedule": wait_h + self._detect_h, "load": load_h}
        spent_h = max(0.0, event.hour - self._now_h(event))
        if not self._has_interrupts or spent_h > sum(prices_h.values()) * (1 + _TOLERANCE):
            self._problem(f"a failure at hour {event.hour} did not interrupt a {event.what} of {prices_h}")
        for bucket in ("save", "reschedule", "load"):
            part_h = min(spent_h, prices_h.get(bucket, 0.0))
            spent_h -= part_h
            self._expect(f"{bucket}_h", getattr(event, f"{bucket}_h"), part_h)
            self._hours[bucket] += getattr(event, f"{bucket}_h")
        self._interrupted_h.append(event.hour)

    def _notice(self, event: Noticed) -> None:
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
        self._expect("save_h", event.save_h, max(hours.values(), default=None))
        self._hours["save"] += event.save_h
        self._totals["payload_bytes"] += sum(event.payload_bytes.values())
        self._add(event, *_PERSISTED)
        if event.sequence is not None and self._saved is not None:  # the same checkpoint under a new number
            self._checkpoints[self._saved.tier] = replace(self._saved, sequence=event.sequence)
        self._noticed.append(event)
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
        rows_bytes = started.row_bytes * started.num_rows
        even_bytes = max(rows_bytes / started.num_ps, started.bytes_full - rows_bytes)
        if self._profile["io_bound"] == "storage":
            return num_bytes / started.bytes_full
        if self._profile["io_bound"] == "link":
            return slowest_bytes / even_bytes
        return max(slowest_bytes, num_bytes / links) / max(even_bytes, started.bytes_full / links)

    def _save_h(self, event: Saved) -> float:
        """Emulated hours charged for a save: proportional to its bytes, plus a fixed part.

        A save in the background is charged only its copy, and the wait until the previous save is on disk.
        """
        bytes_h = self._profile["o_save_h"] * self._full_saves(event.payload_bytes, event.slowest_bytes)
        write_h = bytes_h * self._tier_frac(event.tier) + self._profile["o_save_fixed_h"]
        if self._copy_frac is None:
            return write_h
        now_h = self._now_h(event)
        wait_h = max(0.0, self._written_h - now_h)
        self._written_h = now_h + wait_h + write_h
        return wait_h + min(bytes_h * self._copy_frac, write_h)

    def _inject(self, event: Injected) -> None:
        if event.loss:
            self._kill(event)
        else:
            self._check_hour(event)
        if event.fault == RETURN.name:
            self._returning.add(event.rank)
        if event.phase == "save" and not event.loss:
            self._failed_writes.append(event.rank)

    def _kill(self, event: Injected) -> None:
        self._pass(event.step)
        self._interrupted_h = [hour for hour in self._interrupted_h if hour != event.hour]
        slack_h = _TOLERANCE * max(1.0, event.hour)
        is_at_boundary = event.phase == "boundary"
        # A kill that waits for a phase may strike in steps that run again.
        clock_h = self._clock_h(event.step if is_at_boundary else max(event.step, len(self._losses)))
        if event.phase == "wall":
            pass  # at a second of the machine
        elif event.hour > clock_h + slack_h:
            self._problem(f"{event.rank} was killed when the clock read {clock_h} h, before its hour")
        elif is_at_boundary and event.hour < self._checked_h - slack_h:
            self._problem(f"{event.rank} was killed late: at the boundary before, the clock read {self._checked_h} h")
        self._num_kills[event.rank] += 1
        if is_at_boundary and is_trainer(event.rank):
            self._with_chief.add(event.rank)
        self._over_step = event.step + 1 if is_at_boundary else self._over_step
        known_h = [hours for hours in (self._repair_h, event.repair_h) if hours is not None]
        self._repair_h = max(known_h, default=None)
        self._hangs |= event.loss == "mute"
        self._loses_host |= event.lost_host is not None
        if self._has_processes and event.loss == "dead":
            self._expect(f"wait status of {event.rank}", event.machine.get("exitcode"), -9)

    def _check_hour(self, event: Injected) -> None:
        """The clock must have reached the fault's hour; a fault that waits for a phase may strike in a rerun step."""
        clock_h = self._clock_h(max(event.step, len(self._losses)))
        if event.hour > clock_h + _TOLERANCE * max(1.0, event.hour):
            self._problem(f"{event.fault} of {event.rank} when the clock read {clock_h} h, before its hour")

    def _lose(self, event: Lost) -> None:
        if self._interrupted_h:
            self._problem(f"an interruption at hour {self._interrupted_h[0]}, but no failure of that hour")
        self._interrupted_h = []
        for rank in event.ranks:
            is_planned = rank not in event.unplanned_ranks
            if is_planned and self._num_kills[rank] == 0:
                self._problem(f"{rank} was lost as planned, but no kill of it is on record")
            if is_planned:
                self._num_kills[rank] = 0  # one that is dead already may be killed again
        self._expect("planned", event.planned, not event.unplanned_ranks)
        self._totals["num_unplanned"] += len(event.unplanned_ranks)
        self._dead += [rank for rank in event.ranks if rank not in self._dead]

    def _regroup(self, event: Regrouped) -> None:
        self._expect("generation", event.generation, self._totals["generation"] + 1)
        self._totals["generation"] = event.generation

    def _recover(self, event: Recovered) -> None:
        if sorted(event.ranks) != sorted(self._dead):
            self._problem(f"recovered {', '.join(event.ranks)}, but lost {', '.join(self._dead) or 'no rank'}")
        self._dead = []
        if event.restores:
            self._undropped.append(event)
        self._check_kinds(event)
        self._pass(max(event.step, self._over_step))
        self._checked_step = event.resume_step - 1 if event.rollback else self._checked_step
        self._totals.update(num_failures=1, num_lost_ranks=len(event.ranks))
        self._add(event, *_OF_UPDATES)
        num_rerun = 0  # samples
        for tier in self._lost_tiers(event):
            self._checkpoints.pop(tier, None)
        self._check_dense(event)
        if event.rollback:
            self._undo_lost(event)
            self._roll_back(event)
            num_rerun = event.samples - event.resume_samples
        else:
            self._repeats.recover_partially(self._step, len(self._losses))
            ranks = _ps_of(event)
            self._expect("number of ranks with PLS", len(event.pls), len(ranks))
            losing = self._ranks_that("loses_updates", event)
            for rank in ranks:
                self._lose_samples(rank, event, loses=rank in losing)
        self._losing.append((self._step, event))
        self._expect("load_h", event.load_h, self._load_h(event))
        lost_h = num_rerun / self._started.total_samples * self._profile["job_h"]
        self._expect("lost_h", event.lost_h, lost_h)
        self._expect("reschedule_h", event.reschedule_h, self._reschedule_h(event) + self._detect_h)
        self._forbid_before(self._now_h(event) + event.load_h + event.reschedule_h)
        self._repair_h, self._hangs, self._loses_host, self._over_step = None, False, False, 0
        for bucket in STALLS[1:]:
            self._hours[bucket] += getattr(event, f"{bucket}_h")

    @property
    def _detect_h(self) -> float:
        """Hours until the failure was noticed."""
        return max(self._profile["detect_death_h"], self._profile["detect_h"] if self._hangs else 0.0)

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
        loses_node = self._loses_host or self._config["strategy"].get("kill_loses") == "node"
        lost = ["memory"] if is_pair or (0 in numbers and not has_trainers) else []
        return lost + (["disk"] if loses_node and (numbers or not has_trainers) else [])

    def _drop(self, event: Dropped) -> None:
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
        if not event.num_samples or not self._measures_movement:
            self._expect("movement without a measurement", event.movement, exact if self._measures_movement else None)

    def _check_dense(self, event: Recovered) -> None:
        """The dense network is kept unless all trainers died between two steps. Where it goes on says what it has lost.

        From a checkpoint: the samples since that; from initial values: all; with a rollback of all ranks: none.
        """
        has_died = CHIEF in self._with_chief and len(self._with_chief) == self._num_trainers
        self._with_chief = set()
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
        facts = {kind: facts.get(fact, False) for kind, facts in self._started.recoveries.items()}
        return [rank for rank in event.ranks if facts.get(event.kinds.get(rank, ""), False)]

    def _now_h(self, event: Saved | Recovered | Interrupted) -> float:
        """Wall hour of the emulated job at ``event``: computation and all overhead before it."""
        return event.samples / self._started.total_samples * self._steps_job_h() + self._delay_h()

    def _reschedule_h(self, event: Recovered) -> float:
        """Hours of rescheduling: the trace's repair or O_res; ``spare_o_res_h`` if each dead rank has a spare ready.

        These spares are then not ready until the dead ranks have been rescheduled. If ``trainer0`` is dead, no spare
        takes over.
        """
        profile, now_h = self._profile, self._now_h(event)
        wait_h = self._regroup_h if self._repair_h is None else self._repair_h
        ready = [index for index, ready_h in enumerate(self._spares_h) if ready_h <= now_h]
        are_ready = CHIEF not in event.ranks and len(event.ranks) <= len(ready)
        if profile["spare_o_res_h"] is None or not are_ready:
            return wait_h
        for index in ready[: len(event.ranks)]:
            self._spares_h[index] = now_h + wait_h
        return profile["spare_o_res_h"]

    def _load_h(self, event: Recovered) -> float:
        """Hours of a load: O_load, with ``profile.load: by_bytes`` times the bytes read, divided by a full save's.

        0 if only trainers died, unless the dense network was read or the profile has ``trainer_load``. Checks the
        number of bytes too.
        """
        started, rows = self._started, dict(zip(self._weights, self._started.rank_rows, strict=True))
        dense = started.bytes_full - started.row_bytes * started.num_rows
        shards = {rank: rows.get(rank, 0) * started.row_bytes for rank in self._ranks_that("reads_rows", event)}
        for rank in self._ranks_that("reads_group", event):
            shards[rank] *= ParityGroups(self._config["strategy"]["group_size"], started.num_ps).size_of(rank)
        by_trainer = event.upload_bytes + (dense if event.dense == "checkpoint" else 0)
        read, slowest = sum(shards.values()) + by_trainer, max([*shards.values(), by_trainer])
        if event.rollback:
            slowest = max(dense, started.row_bytes * max(started.rank_rows))
        self._expect("load_bytes", event.load_bytes, started.bytes_full if event.rollback else read)
        self._add(event, "load_bytes")
        frac = self._tier_frac(self._saved.tier) if event.rollback and self._saved else 1.0
        if not (_ps_of(event) or event.dense in ("checkpoint", "rollback") or self._profile["trainer_load"]):
            return 0.0
        return frac * self._load_price_h(event.load_bytes, slowest)

    def _load_price_h(self, load_bytes: int, slowest: int) -> float:
        is_by_bytes = self._profile["load"] == "by_bytes"
        return self._profile["o_load_h"] * (self._full_saves(load_bytes, slowest) if is_by_bytes else 1)

    @property
    def _regroup_h(self) -> float:
        """O_res or, with ``cluster.on_loss: shrink``, its price of forming a group, if there is one."""
        shrink_h = self._profile["shrink_o_res_h"] if self._shrinks else None
        return self._profile["o_res_h"] if shrink_h is None else shrink_h

    def _grow(self, event: Grown) -> None:
        """The nodes must have been injected as returning; their shards' bytes count as loaded."""
        if {*event.ranks} != self._returning:
            self._problem(f"{', '.join(event.ranks)} took shards over, but {sorted(self._returning)} returned")
        self._returning = set()
        rows = dict(zip(self._weights, self._started.rank_rows, strict=True))
        moved = [rows.get(rank, 0) * self._started.row_bytes for rank in event.ranks]
        self._expect("load_bytes", event.load_bytes, sum(moved))
        self._add(event, "load_bytes")
        self._expect("load_h", event.load_h, self._load_price_h(event.load_bytes, max(moved)))
        self._expect("reschedule_h", event.reschedule_h, self._regroup_h)
        for bucket in ("load", "reschedule"):
            self._hours[bucket] += getattr(event, f"{bucket}_h")

    def _roll_back(self, event: Recovered) -> None:
        if self._saved is None:
            self._problem("a rollback, but no checkpoint was saved")
            return
        self._expect("resume_samples", event.resume_samples, self._saved.samples)
        self._expect("checkpoint", event.sequence, self._saved.sequence)
        self._expect("PLS of a rollback", sum(event.pls.values()), 0.0)
        self._expect("rows sent by the trainer in a rollback", event.recovered_rows, 0)
        self._step = event.resume_step
        self._since_samples = dict.fromkeys(self._since_samples, event.resume_samples)

    def _undo_lost(self, rollback: Recovered) -> None:
        """What recoveries after the save have lost is trained again."""
        step = rollback.resume_step
        self._repeats.roll_back(step, self._step, len(self._losses))
        for _, event in (each for each in self._losing if each[0] >= step):
            for name in _OF_UPDATES:
                self._totals[name] -= getattr(event, name) or 0
        undone = [each for each in self._saves if each.step > step]
        for event in (*undone, *(each for each in self._noticed if each.step >= step)):
            for name in _PERSISTED:
                self._totals[name] -= getattr(event, name) or 0
        self._saves = [each for each in self._saves if each.step <= step]
        self._noticed = [each for each in self._noticed if each.step < step]
        self._losing = [each for each in self._losing if each[0] < step]
        self._pls = [each for each in self._pls if each[0] < rollback.resume_samples]

    def _lose_samples(self, rank: str, event: Recovered, *, loses: bool) -> None:
        if rank not in self._weights:
            self._problem(f"{rank} was lost, but is none of the {len(self._weights)} PS ranks")
            return
        if not loses:  # its durable state is still its last save
            self._expect(f"PLS of {rank}", event.pls.get(rank), 0.0)
            return
        fraction = (event.samples - self._since_samples[rank]) / self._started.total_samples
        pls = self._weights[rank] * fraction
        self._expect(f"PLS of {rank}", event.pls.get(rank), pls)
        self._pls.append((event.samples, pls))
        if self._counts_restores:
            self._since_samples[rank] = event.samples

    def _finish(self, event: Finished) -> None:
        self._expect("samples", event.samples, self._started.total_samples)
        self._finish_quality(event)
        self._expect("pls", event.pls, functools.reduce(operator.add, (pls for _, pls in self._pls), 0.0))
        for bucket, hours in self._hours.items():
            self._expect(f"{bucket}_h", getattr(event, f"{bucket}_h"), hours)
        self._expect("steps_h", event.steps_h, self._steps_h())
        total_h, job_h = self._total_h(), self._profile["job_h"]
        self._expect("overhead_frac", event.overhead_frac, None if total_h is None else total_h / job_h)
        self._finish_resources(event)
        for name in ("num_saves", "payload_bytes", "num_failures", "num_lost_ranks", "num_unplanned", "generation"):
            self._expect(name, getattr(event, name), self._totals[name])
        is_by_second = self._started.trace_inject == "wall"  # the last kill may come when all is done
        if not is_by_second and (unmatched := sorted((+self._num_kills).elements())):
            self._problem(f"{', '.join(unmatched)} was killed, but no `lost` event names it")
        if self._failed_writes:
            self._problem(f"a write of {', '.join(self._failed_writes)} failed, but no save follows it")
        self._finish_updates(event, "updates", "update_pls")
        self._finish_updates(event, "tracked", "update_pls_tracked")

    def _steps_h(self) -> float | None:
        """What every step has paid, steps that ran again included; None if the price is unknown."""
        run_h = self._profile["job_h"] + self._hours["lost"]
        return None if self._step_frac is None else self._step_frac * run_h

    def _total_h(self) -> float | None:
        """Hours of all buckets; None if the profile prices steps, but not all that the steps of this run pay for."""
        steps_h = 0.0 if self._profile["step_frac"] is None else self._steps_h()
        return None if steps_h is None else sum(self._hours.values()) + steps_h

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

    def _finish_resources(self, event: Finished) -> None:
        """Check bytes sent, and node-hours if the result has any or the profile a number of trainers."""
        num_trainers = None if self._shrinks else self._profile["num_trainers"]
        if event.node_h is not None or num_trainers is not None:
            num_spares = len(self._spares_h)
            num_nodes = self._started.num_ps + (num_trainers or 0) + num_spares
            idle_h = self._profile["job_h"] * num_spares
            total_h = self._total_h()
            self._expect("node_h", event.node_h, None if total_h is None else total_h * num_nodes + idle_h)
        sent = self._totals["payload_bytes"] + self._totals["load_bytes"] + (event.replica_bytes or 0)
        self._expect("wire_bytes", event.wire_bytes, sent)

    def _finish_updates(self, event: Finished, which: str, pls_name: str) -> None:
        applied, lost, recovered = (getattr(event, f"{kind}_{which}") for kind in ("applied", "lost", "recovered"))
        if recovered is not None:
            self._expect(f"recovered_{which}", recovered, self._totals[f"recovered_{which}"])
        if applied is None or lost is None:
            self._expect(pls_name, getattr(event, pls_name), None)
            return
        self._expect(f"lost_{which}", lost, self._totals[f"lost_{which}"])
        self._expect(pls_name, getattr(event, pls_name), lost / applied if applied else None)
        if (saved := self._totals[f"persisted_{which}"]) + lost > applied:
            self._problem(f"{which}: {saved} saved and {lost} lost, but only {applied} applied")

    _HANDLERS: ClassVar[dict[type[Event], Callable[..., None]]] = {
        Started: _start,
        Trained: _trained,
        Evaluated: _evaluate,
        Saved: _save,
        Noticed: _notice,
        Interrupted: _interrupt,
        Injected: _inject,
        Lost: _lose,
        Regrouped: _regroup,
        Recovered: _recover,
        Grown: _grow,
        Dropped: _drop,
        Finished: _finish,
    }


def _ps_of(event: Recovered) -> list[str]:
    return [rank for rank in event.ranks if not is_trainer(rank)]


def _step_frac(profile: Mapping[str, Any], started: Started) -> float | None:
    """The fraction of a step's time that every step pays; None if the profile lacks the price of a part."""
    prices = profile["step_frac"]
    if prices is None or any(part not in prices for part in started.step_parts):
        return None
    return sum(prices[part] for part in started.step_parts)


def _copy_frac(config: Mapping[str, Any]) -> float | None:
    """Time of copying a background save, as a fraction of the time of writing it.

    None if training waits for the whole write: ``save.mode`` is not async, or the profile has no bandwidths.
    """
    profile = config["profile"]
    network_gbps, snapshot_gbps = profile["network_gbps"], profile["snapshot_gbps"]
    is_async = config["save"]["mode"] == "async"
    return network_gbps / snapshot_gbps if is_async and network_gbps and snapshot_gbps else None
