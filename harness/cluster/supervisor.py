"""The desk of the supervisor: everything that is written, and everyone who is killed, goes through here.

One class for both engines; only the launcher that kill and start ranks differ.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from harness.core.events import Event, Finished, Killed, Lost, Machine, Regrouped
from harness.core.plans import PlannedKill, Rank, ps_index
from harness.store import CheckpointStore, Manifest


class Launcher(Protocol):
    """Who can kill ranks and start them."""

    def kill(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """End ``ranks`` without warning, all before any is reaped; how, as facts of the machine."""
        ...

    def replace(self, ranks: Iterable[Rank], generation: int) -> Machine:
        """Start empty replacements and call everyone into ``generation``."""
        ...


class Sink(Protocol):
    """Where events go."""

    def record(self, event: Event) -> None:
        """Write it down."""
        ...


class Supervisor:
    """Owns the trace, the record and the manifest of one run; serves its trainer.

    Args:
        planned_kills: planned kills, in order of their steps; each fires once.
        on_status: told the keyword values of :meth:`status`.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        launcher: Launcher,
        sink: Sink,
        store: CheckpointStore,
        planned_kills: Iterable[PlannedKill],
        on_status: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._sink = sink
        self._store = store
        self._due = {planned_kill.step: planned_kill for planned_kill in planned_kills}
        self._on_status = on_status
        self._clock = clock
        self._killed: set[Rank] = set()
        self.generation = 0
        self.num_unplanned = 0

    def record(self, event: Event) -> None:
        """Append an event to the record, completed with what only the supervisor knows."""
        if isinstance(event, Finished):
            event = replace(event, generation=self.generation, num_unplanned=self.num_unplanned)
        self._sink.record(event)

    def commit(self, manifest: Manifest) -> None:
        """Make a checkpoint exist."""
        self._store.commit(manifest)

    def status(self, **values: Any) -> None:
        """Tell whoever watches the run."""
        self._on_status(generation=self.generation, **values)

    def kill_planned(self, step: int, samples: int) -> float | None:
        """Kill whom the trace names for this boundary, once; hours that rescheduling takes, if the trace says."""
        planned_kill = self._due.pop(step, None)
        if planned_kill is None:
            return None
        machines = self._launcher.kill(planned_kill.ranks)
        for rank, hour, line in zip(planned_kill.ranks, planned_kill.hours, planned_kill.lines, strict=True):
            self._killed.add(rank)
            self.record(
                Killed(
                    step=step,
                    samples=samples,
                    rank=rank,
                    hour=hour,
                    line=line,
                    repair_h=planned_kill.repair_h,
                    machine=machines[rank],
                )
            )
        return planned_kill.repair_h

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> int:
        """Record who was lost, start replacements, and form the next generation; its number."""
        ranks = sorted(lost, key=ps_index)
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
        machine = self._launcher.replace(ranks, self.generation)
        machine = {**machine, "seconds": self._clock() - started_s}
        self.record(Regrouped(step=step, samples=samples, generation=self.generation, replaced=ranks, machine=machine))
        return self.generation

    @property
    def unfired(self) -> list[PlannedKill]:
        """Planned kills that did not happen."""
        return list(self._due.values())
