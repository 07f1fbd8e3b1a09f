"""The supervisor of a run: it records events, commits manifests, carries out planned faults and replaces dead ranks.

One class serves both engines, which differ in :class:`Ranks`.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from harness.cluster.members import Members
from harness.cluster.supervisor_client import Resumption, Succession
from harness.core.errors import RunFailed
from harness.core.events import Event, Finished, Injected, Lost, Machine, Regrouped
from harness.core.faults import Effect, Injection, PlannedFault, RankFaults, merge_faults
from harness.core.plans import Rank, host_name, rank_order
from harness.core.resumable import Resumable
from harness.store import Manifest, Store


class Ranks(RankFaults, Protocol):
    """The interface by which the supervisor injects faults into ranks and replaces dead ones.

    ``members``: the table of lost ranks. A method that kills or stops ranks counts them as lost there.
    """

    members: Members

    def note_step(self, step: int) -> None:
        """Called when the run has finished ``step`` steps. By default a no-op."""

    def replace(self, ranks: Collection[Rank], step: int) -> Machine:
        """Replace dead ranks, PS ranks by ones with empty shards. The caller then counts them as living.

        A replacement has the name of the dead rank. ``step`` steps are finished. Returns the ``machine`` part of the
        regroup event. Raises RunFailed.
        """
        ...

    def replace_chief(self, ranks: Sequence[Rank]) -> None:
        """Replace ``ranks`` at once: ``trainer0``, and ranks lost with it. No trainer is left to ask for it."""
        ...


_STRUCK = {
    "dead": "killed by the trace",
    "mute": "stopped by the trace; if it answered, something else continued it (SIGCONT, a shell's `fg`)",
}
"""Why a rank is lost, by how a planned fault loses it."""


@dataclass(kw_only=True, eq=False)
class Supervisor(Resumable):
    """Owns the trace, the record and the manifest of one run; serves its trainer.

    Args:
        planned_faults: each is carried out once; its number is its index.
        seconds_per_hour: real seconds for an hour of the trace. With it the supervisor carries out each planned fault
            when its hour has come, counted from the first step. None: a fault is carried out when the trainer asks for
            it (:meth:`inject`).
        on_status: called with the keyword values of :meth:`status` and ``generation``.
        clock: seconds, monotonic; for the ``machine`` part of events.
        sink: appends an event to the record.
        begins_with: the resume point that the run continues from, if any, and where new ones are written.
        write_point: commits a resume point. Its arguments are the supervisor's state and those of :meth:`commit_point`.
            Raises StoreError.

    Attributes:
        generation: number of times that ranks were replaced. It is not the generation of the RPC world: a takeover by a
            spare forms none, and new spares form one.
        num_unplanned: number of ranks that died without a planned kill.
    """

    _state = ("_carried_out", "_past_s", "_resumed", "generation", "num_unplanned")

    ranks: Ranks
    sink: Callable[[Event], None]
    store: Store
    planned_faults: Sequence[PlannedFault]
    on_status: Callable[..., None]
    seconds_per_hour: float | None = None
    clock: Callable[[], float] = time.monotonic
    begins_with: Resumption | None = None
    write_point: Callable[..., None] | None = None

    generation: int = field(default=0, init=False)
    num_unplanned: int = field(default=0, init=False)
    _carried_out: list[int] = field(default_factory=list, init=False)
    _began_s: float | None = field(default=None, init=False)  # when the first step began
    _newest: Event | None = field(default=None, init=False)
    _succession: Succession | None = field(default=None, init=False)
    _resumed: list[Machine] = field(default_factory=list, init=False)  # of resumed runs, since the last event

    @property
    def _past_s(self) -> float | None:
        """Seconds since the first step began."""
        return None if self._began_s is None else self.clock() - self._began_s

    @_past_s.setter
    def _past_s(self, past_s: float | None) -> None:
        self._began_s = None if past_s is None else self.clock() - past_s

    def note_resumption(self, machine: Machine) -> None:
        """Add ``machine``, facts about the processes of the resumed run, to the next event's ``machine`` part."""
        self._resumed.append(machine)

    def record(self, event: Event) -> None:
        """Append an event to the record, a Finished event with ``generation`` and ``num_unplanned`` filled in."""
        if isinstance(event, Finished):
            event = replace(event, generation=self.generation, num_unplanned=self.num_unplanned)
        if self._resumed:
            event = replace(event, machine={**event.machine, "resumed": self._resumed})
            self._resumed = []
        self._newest = event
        self.sink(event)

    def commit(self, manifest: Manifest) -> None:
        self.store.commit(manifest)

    def status(self, **values: Any) -> None:
        """Pass the progress of the run on to ``on_status``. ``values``: fields of ``RunStatus`` that have changed."""
        if self._began_s is None and values.get("phase") == "train":
            self._began_s = self.clock()
        self.on_status(generation=self.generation, **values)
        if "step" in values:
            self.ranks.note_step(values["step"])

    def resumption(self) -> Resumption:
        assert self.begins_with is not None, "a run has resume points"
        return replace(self.begins_with, succession=self._succession)

    def commit_point(self, *written: Any) -> None:
        assert self.write_point is not None, "a run has resume points"
        self.write_point(self.state(), *written)

    def strike_by_second(self) -> float:
        """Carry out the planned faults whose hour has come, as :meth:`inject`; returns the seconds until the next one.

        Infinite without ``seconds_per_hour``, before the first step, and if no fault is to come.
        """
        newest = self._newest
        past_s = self._past_s
        if self.seconds_per_hour is None or past_s is None or isinstance(newest, Finished | None):
            return math.inf
        hours = {number: self.planned_faults[number].hour for number in self._numbers_to_come}
        for number, hour in hours.items():
            if hour * self.seconds_per_hour <= past_s:
                self.inject(newest.step, newest.samples, [number], phase="wall")
        return min((hours[each] * self.seconds_per_hour - past_s for each in self._numbers_to_come), default=math.inf)

    def inject(
        self,
        step: int,
        samples: int,
        numbers: Sequence[int],
        seconds: Mapping[Rank, float] | None = None,
        state: bytes | None = None,
        *,
        phase: str | None = None,
    ) -> Injection:
        """Carry out and record planned faults; see ``SupervisorClient.inject``.

        ``phase``: the phase that the events name; None: the planned one.
        """
        assert set(numbers).isdisjoint(self._carried_out), "a planned fault is carried out once"
        self._carried_out += numbers
        planned = merge_faults(step, [self.planned_faults[number] for number in numbers])
        effects: dict[Rank, Effect] = {}
        for fault, ranks in planned.ranks_by_fault.items():
            effects |= fault.strike(planned, ranks, self.ranks, self.store)
        if seconds is not None:
            effects = {rank: Effect(machine={"seconds": failed_s}) for rank, failed_s in seconds.items()}
        for rank, strike in planned.strikes.items():
            if rank in effects:
                self._record_fault(planned, rank, samples, effects[rank], phase or planned.phase)
            elif strike.fault.damage:
                raise RunFailed(
                    f"line {strike.line} of the trace: expected a checkpoint of {rank} at step {step} for the fault "
                    f"{strike.fault.name}, got none; take the line out, or a strategy that saves"
                )
        if planned.time.takes_chief:
            assert state is not None, "a trainer that is to die hands its state over"
            self._succession = Succession(state=state, injection=planned.injection)
            self.ranks.replace_chief(self.ranks.members.planned)  # and ranks struck before, which were not found
        return planned.injection

    def _record_fault(self, planned: PlannedFault, rank: Rank, samples: int, effect: Effect, phase: str) -> None:
        """Record the fault of one rank."""
        hour, line, fault, host, *_ = planned.strikes[rank]
        if fault.loss:
            self.ranks.members.lose(rank, _STRUCK[fault.loss], is_planned=True)
        self.record(
            Injected(
                step=planned.step,
                samples=samples,
                fault=fault.name,
                rank=rank,
                hour=hour,
                line=line,
                phase=phase,
                loss=fault.loss,
                repair_h=planned.repair_h,
                lost_host=None if host is None else host_name(host),
                details=dict(effect.details),
                machine=dict(effect.machine),
            )
        )

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """Record that ranks were lost, and replace them; see ``SupervisorClient.replace``."""
        ranks = sorted(lost, key=rank_order)
        planned = {*self.ranks.members.planned}
        unplanned = [rank for rank in ranks if rank not in planned]
        self.num_unplanned += len(unplanned)
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
        started_s = self.clock()
        self.generation += 1
        machine = self.ranks.replace(ranks, step)
        self.ranks.members.count_as_living(ranks)
        machine = {**machine, "seconds": self.clock() - started_s}
        self.record(Regrouped(step=step, samples=samples, generation=self.generation, replaced=ranks, machine=machine))

    @property
    def unfired(self) -> list[PlannedFault]:
        return [self.planned_faults[number] for number in self._numbers_to_come]

    @property
    def _numbers_to_come(self) -> list[int]:
        return [number for number in range(len(self.planned_faults)) if number not in self._carried_out]
