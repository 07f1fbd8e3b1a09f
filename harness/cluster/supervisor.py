"""The supervisor of a run: it records events, commits manifests, carries out planned kills and replaces dead ranks.

One class serves both engines, which differ in :class:`Ranks`.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from harness.cluster.supervisor_client import Resumption, WrittenPoint
from harness.core.errors import RunFailed
from harness.core.events import Event, Finished, Flipped, Killed, Lost, Machine, Regrouped, Slowed, WriteFailed
from harness.core.hosts import host_name
from harness.core.plans import DEATH_FAULTS, PlannedKill, Rank, Slowdown, Struck, merge_kills, rank_order
from harness.core.resumable import State
from harness.store import CheckpointStore, Manifest


class Ranks(Protocol):
    """The interface through which the supervisor kills and replaces ranks."""

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, Machine]:
        """Kill all of ``ranks``, then reap them; of ``hosts``, indices into ``cluster.hosts``, all that is there.

        Returns the ``machine`` part of each kill event, by rank.
        """
        ...

    def hang(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Make ``ranks`` answer nothing any more, or kill them where that is the same. Returns as :meth:`kill`."""
        ...

    def cut_off(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """Let no message reach ``ranks`` any more, or kill them where that is the same. Returns as :meth:`kill`."""
        ...

    def slow(self, factors: Mapping[Rank, float]) -> None:
        """From now on exactly the ranks in ``factors`` are slower, by these factors."""
        ...

    def reached(self, step: int) -> None:
        """The run has finished ``step`` steps."""
        ...

    def replace(self, ranks: Iterable[Rank], step: int) -> Machine:
        """Give the names of dead ranks to processes with empty shards, and connect these with the others.

        ``step`` steps are finished. Returns the ``machine`` part of the regroup event.
        """
        ...


class Supervisor:
    """Owns the trace, the record and the manifest of one run; serves its trainer.

    Args:
        planned_kills: named by their index; each is carried out once.
        seconds_per_hour: planned kills strike at the second of their hour, counted from the first step; None: when the
            trainer asks for them (``kill_planned``).
        on_status: called with the keyword values of :meth:`status` and ``generation``.
        clock: seconds, monotonic; for the ``machine`` part of events.
        sink: appends an event to the record.
        resumption: what the trainer is told of resume points when it starts; a trainer that writes any needs it.
        commit_point: commits a resume point with this state of the supervisor. Raises StoreError.
        is_stopping: whether the run is asked to stop.

    Attributes:
        generation: number of times that ranks were replaced. With spares, RPC worlds are formed at other times.
        num_unplanned: number of ranks that died without a planned kill.
    """

    def __init__(
        self,
        *,
        ranks: Ranks,
        sink: Callable[[Event], None],
        store: CheckpointStore,
        planned_kills: Iterable[PlannedKill],
        on_status: Callable[..., None],
        seconds_per_hour: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        resumption: Resumption | None = None,
        commit_point: Callable[[WrittenPoint, State], None] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._resumption = resumption
        self._commit_point = commit_point
        self._is_stopping = is_stopping
        self._ranks = ranks
        self._sink = sink
        self._store = store
        self._planned_kills = tuple(planned_kills)
        self._carried_out: set[int] = set()
        self._slow: dict[int, Slowdown] = {}  # slowdowns that last, by number
        self._on_status = on_status
        self._seconds_per_hour = seconds_per_hour
        self._began_s: float | None = None  # when the first step began
        self._newest: Event | None = None
        self._is_finished = False
        self._clock = clock
        self._killed: set[Rank] = set()
        self._resumed: list[Machine] = []  # of resumed runs, since the last event
        self.generation = 0
        self.num_unplanned = 0

    def state(self) -> State:
        """See :class:`harness.core.resumable.Stateful`."""
        return {
            "carried_out": sorted(self._carried_out),
            "slow": sorted(self._slow),
            "past_s": None if self._began_s is None else self._clock() - self._began_s,
            "killed": sorted(self._killed),
            "resumed": self._resumed,
            "generation": self.generation,
            "num_unplanned": self.num_unplanned,
        }

    def load(self, state: State) -> None:
        """See :class:`harness.core.resumable.Stateful`. A planned kill that was carried out is not repeated; a rank
        that was slow is slow again."""
        self._carried_out = set(state["carried_out"])
        slow = ((number, self._planned_kills[number].slowdown) for number in state["slow"])
        self._slow = {number: slowdown for number, slowdown in slow if slowdown is not None}
        if self._slow:
            self._set_speeds()
        self._began_s = None if state["past_s"] is None else self._clock() - state["past_s"]
        self._killed = set(state["killed"])
        self._resumed = list(state["resumed"])
        self.generation, self.num_unplanned = state["generation"], state["num_unplanned"]

    def note_resumption(self, machine: Machine) -> None:
        """Note where and as which processes the run goes on. The next event says so; no event is added."""
        self._resumed.append(machine)

    def record(self, event: Event) -> None:
        """Append an event to the record; the last one with ``generation`` and ``num_unplanned`` filled in."""
        if isinstance(event, Finished):
            event = replace(event, generation=self.generation, num_unplanned=self.num_unplanned)
            self._is_finished = True
        if self._resumed:
            event = replace(event, machine={**event.machine, "resumed": self._resumed})
            self._resumed = []
        self._newest = event
        self._sink(event)

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint by writing its manifest. Raises StoreError; the previous checkpoint then stays valid."""
        self._store.commit(manifest)

    def status(self, **values: Any) -> None:
        """Report the progress of the run to ``on_status``; see ``RunStatus``."""
        if self._began_s is None and values.get("phase") == "train":
            self._began_s = self._clock()
        self._on_status(generation=self.generation, **values)
        if "step" in values:
            self._ranks.reached(values["step"])

    def advanced(self, step: int) -> None:
        """A no-op: a trainer in this process cannot be watched."""

    def resumption(self) -> Resumption:
        """Where resume points are, and the one to go on from."""
        assert self._resumption is not None, "a run has resume points"
        return self._resumption

    def commit_point(self, written: WrittenPoint) -> None:
        """Commit a resume point as of the events recorded so far. Raises StoreError; the point before then stays."""
        assert self._commit_point is not None, "a run has resume points"
        self._commit_point(written, self.state())

    def is_stopping(self) -> bool:
        """Whether the run is asked to stop."""
        return self._is_stopping()

    def strike_by_second(self) -> float:
        """Carry out the planned kills whose second has come; returns the seconds until the next one, inf for none."""
        newest = self._newest
        if self._seconds_per_hour is None or self._began_s is None or newest is None or self._is_finished:
            return math.inf
        hours = {number: min(self._planned_kills[number].hours) for number in self._numbers_to_come}
        past_s = self._clock() - self._began_s
        for number, hour in hours.items():
            if hour * self._seconds_per_hour <= past_s:
                self._kill(newest.step, newest.samples, [number], phase="wall")
        return min((hours[each] * self._seconds_per_hour - past_s for each in self._numbers_to_come), default=math.inf)

    def kill_planned(self, step: int, samples: int, kills: Sequence[int]) -> Struck:
        """Carry out the planned kills with numbers ``kills`` as one, after ``step`` finished steps, and record it."""
        planned_kill = self._kill(step, samples, kills)
        return Struck(planned_kill.repair_h, bool(planned_kill.hanging | planned_kill.cut_off))

    def _kill(self, step: int, samples: int, kills: Sequence[int], phase: str | None = None) -> PlannedKill:
        assert not self._carried_out & set(kills), "a planned kill is carried out once"
        self._carried_out |= set(kills)
        planned_kill = merge_kills(step, [self._planned_kills[kill] for kill in kills])
        by_fault = {
            fault: [rank for rank in planned_kill.ranks if planned_kill.fault_of(rank) == fault]
            for fault in DEATH_FAULTS
        }
        machines = self._ranks.kill(by_fault["kill"], planned_kill.hosts)
        machines |= self._ranks.hang(by_fault["hang"])
        machines |= self._ranks.cut_off(by_fault["partition"])
        for rank, hour, line in zip(planned_kill.ranks, planned_kill.hours, planned_kill.lines, strict=True):
            self._killed.add(rank)
            host = planned_kill.host_of.get(rank)
            self.record(
                Killed(
                    step=step,
                    samples=samples,
                    rank=rank,
                    hour=hour,
                    line=line,
                    repair_h=planned_kill.repair_h,
                    phase=phase or planned_kill.phase,
                    fault=planned_kill.fault_of(rank),
                    lost_host=None if host is None else host_name(host),
                    machine=machines[rank],
                )
            )
        return planned_kill

    def survivors(self, dead: Iterable[Rank]) -> list[Rank]:
        """Ranks that planned kills ended and that are not among the ``dead`` which a search found. With kills by the
        second nobody: one may come after the search."""
        return [] if self._seconds_per_hour is not None else sorted(self._killed.difference(dead), key=rank_order)

    def slow_down(self, step: int, samples: int, number: int) -> None:
        """Begin the slowdown of that number, after ``step`` finished steps, and record it."""
        planned = self._planned_kills[number]
        assert planned.slowdown is not None, "a slowdown"
        self._carried_out.add(number)
        self._slow[number] = planned.slowdown
        self._set_speeds()
        for rank, hour, line in zip(planned.ranks, planned.hours, planned.lines, strict=True):
            self.record(
                Slowed(
                    step=step,
                    samples=samples,
                    rank=rank,
                    hour=hour,
                    line=line,
                    factor=planned.slowdown.factor,
                    last_hour=planned.slowdown.last_hour,
                    last_step=planned.slowdown.last_step,
                    reschedule_h=planned.slowdown.wait_h if rank == planned.ranks[0] else 0.0,
                )
            )

    def speed_up(self, number: int) -> None:
        """End the slowdown of that number."""
        del self._slow[number]
        self._set_speeds()

    def _set_speeds(self) -> None:
        """A rank is as slow as the slowest of its slowdowns."""
        by_factor = sorted(self._slow.items(), key=lambda item: item[1].factor)
        self._ranks.slow(
            {rank: slow.factor for number, slow in by_factor for rank in self._planned_kills[number].ranks}
        )

    def writes_failed(self, step: int, samples: int, failed: Mapping[Rank, tuple[tuple[int, ...], float]]) -> None:
        """Record writes that failed as planned: by rank the numbers of its planned faults, and seconds of the write.

        Faults of one rank that waited for one save strike as one: the first of them is recorded.
        """
        for rank, (numbers, seconds) in failed.items():
            self._carried_out |= set(numbers)
            planned = self._planned_kills[numbers[0]]
            assert planned.write_fault is not None, "a write that fails"
            place = planned.ranks.index(rank)
            self.record(
                WriteFailed(
                    step=step,
                    samples=samples,
                    rank=rank,
                    fault=planned.write_fault,
                    hour=planned.hours[place],
                    line=planned.lines[place],
                    machine={"seconds": seconds},
                )
            )

    def flip_bits(self, step: int, samples: int, number: int) -> None:
        """Flip a bit of the newest file of each rank of the planned flip, and record it.

        Raises RunFailed if there is no checkpoint.
        """
        planned = self._planned_kills[number]
        assert planned.flip is not None, "a flip"
        self._carried_out.add(number)
        for rank, hour, line in zip(planned.ranks, planned.hours, planned.lines, strict=True):
            flipped = self._store.flip_bit(rank, planned.flip)
            if flipped is None:
                raise RunFailed(
                    f"line {line} of the trace: expected a checkpoint of {rank} at step {step}, of which to flip a "
                    "bit, got none; take the line out, or a strategy that saves"
                )
            path, bit = flipped
            self.record(Flipped(step=step, samples=samples, rank=rank, hour=hour, line=line, path=path, bit=bit))

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Record that ranks were lost, and replace them.

        Args:
            lost: rank to the transport's error text.
            seconds: from the request that failed to its failure.
        """
        ranks = sorted(lost, key=rank_order)
        unplanned = [rank for rank in ranks if rank not in self._killed]
        self.num_unplanned += len(unplanned)
        self._killed -= set(ranks)
        self.record(
            Lost(
                step=step,
                samples=samples,
                ranks=ranks,
                planned=not unplanned,
                unplanned_ranks=unplanned,
                machine={"detail": dict(lost), "seconds": seconds},
            )
        )
        started_s = self._clock()
        self.generation += 1
        machine = self._ranks.replace(ranks, step)
        machine = {**machine, "seconds": self._clock() - started_s}
        self.record(Regrouped(step=step, samples=samples, generation=self.generation, replaced=ranks, machine=machine))

    @property
    def unfired(self) -> list[PlannedKill]:
        """The planned kills that have not been carried out."""
        return [self._planned_kills[number] for number in self._numbers_to_come]

    @property
    def _numbers_to_come(self) -> list[int]:
        return [number for number in range(len(self._planned_kills)) if number not in self._carried_out]
