"""Spares: PS processes without a shard that wait to take over the name of a PS rank that dies."""

from collections.abc import Callable

from harness.cluster.connections import Connections
from harness.cluster.processes import Processes
from harness.core.plans import Rank, spare_name


class Spares:
    """The spares of a world. Missing ones are started once the run has got further than at the failure that took them.

    Args:
        wanted: number of spares that are kept.

    Attributes:
        names: of those that were started and are not known to have ended.
    """

    def __init__(self, wanted: int, processes: Processes, connections: Connections) -> None:
        self._wanted = wanted
        self._processes = processes
        self._connections = connections
        self._num_named = 0  # a name is never used again
        self._refill_after: int | None = None  # step after which missing spares are started
        self.names: list[Rank] = []
        self.names += self._new_names()

    def ready(self) -> list[Rank]:
        """Spares that live and are connected."""
        self.forget_dead()
        return [spare for spare in self.names if spare in self._connections]

    def forget_dead(self) -> list[Rank]:
        """Reap spares that have ended, and return their names."""
        dead = [spare for spare in self.names if self._processes[spare].exitcode is not None]
        for spare in dead:
            self._connections.drop(spare)
            self.names.remove(spare)
            self._processes.forget(spare)
        return dead

    def take_over(self, spare: Rank, rank: Rank) -> None:
        """From now on the process of ``spare`` is that of ``rank``."""
        self.names.remove(spare)
        self._processes.rename(spare, rank)
        self._connections.rename(spare, rank)

    def refill_after(self, step: int) -> None:
        """Ranks were replaced at ``step``: have missing spares started when the run has got further."""
        self._refill_after = step if len(self.names) < self._wanted else None

    def refill(self, step: int, spawn: Callable[[Rank], None]) -> None:
        """Start missing spares by ``spawn`` if it is time."""
        if self._refill_after is not None and step > self._refill_after:
            self._refill_after = None
            self.forget_dead()
            for spare in self._new_names():
                spawn(spare)
                self.names.append(spare)

    @property
    def are_connected(self) -> bool:
        """Whether all spares are connected."""
        return all(spare in self._connections for spare in self.names)

    def _new_names(self) -> list[Rank]:
        """Names for the spares that are missing."""
        first, self._num_named = self._num_named, self._num_named + self._wanted - len(self.names)
        return [spare_name(k) for k in range(first, self._num_named)]
