"""Processes that will replace dead trainers, and spare trainers in reserve."""

from collections.abc import Callable, Iterator, Mapping

from harness.cluster.connections import Connections
from harness.cluster.processes import Processes
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed
from harness.core.plans import Rank, is_spare_trainer, spare_trainer_name


class Replacements(Mapping[Rank, bool]):
    """The processes that replace dead trainers and wait to take part: by name of the trainer, whether ready.

    A spare trainer is a process started in advance: it has read the data and has all objects of a trainer, but no
    number. It replaces the next trainer that dies.

    Args:
        spawn: starts a process under a name.

    Attributes:
        is_entering: whether the trainers are admitting the replacements now.
    """

    def __init__(
        self,
        options: ClusterConfig,
        processes: Processes,
        connections: Connections,
        spawn: Callable[[Rank], None],
    ) -> None:
        self._options, self._spawn = options, spawn
        self._processes, self._connections = processes, connections
        self._ready: dict[Rank, bool] = {}
        self._spares: dict[Rank, bool] = {}
        self._num_started = 0  # spares: a name is never used again
        self._num_restarts = 0  # in a row
        self.is_entering = False
        self._admitter: Rank | None = None

    def __getitem__(self, trainer: Rank) -> bool:
        return self._ready[trainer]

    def __iter__(self) -> Iterator[Rank]:
        return iter(self._ready)

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def waiting(self) -> list[Rank]:
        """Names of all these processes, spare trainers included."""
        return [*self._ready, *self._spares]

    def refill(self) -> None:
        """Start the spare trainers that are missing."""
        for spare in filter(self._processes.has_ended, [*self._spares]):
            self._processes.forget(spare)
            del self._spares[spare]
        for _ in range(self._options.spare_trainers - len(self._spares)):
            spare = spare_trainer_name(self._num_started)
            self._num_started += 1
            self._spawn(spare)
            self._spares[spare] = False

    def start(self, trainer: Rank) -> Rank | None:
        """Replace a dead trainer by a spare trainer, whose name is returned, or else by a new process."""
        there = [spare for spare in self._spares if spare in self._connections and not self._processes.has_ended(spare)]
        if not there:
            self._spawn(trainer)
            self._ready[trainer] = False
            return None
        spare = max(there, key=self._spares.__getitem__)  # the first that is ready, if any is
        self._ready[trainer] = self._spares.pop(spare)
        self._processes.rename(spare, trainer)
        self._connections.rename(spare, trainer)
        return spare

    def restart(self, trainer: Rank, how: str) -> Rank | None:
        """As :meth:`start`, for a replacement that ended before it took part. Raises RunFailed after too many."""
        self._num_restarts += 1
        if self._num_restarts > self._options.max_replacements_in_a_row:
            raise RunFailed(
                f"{trainer} {how}; so did {self._num_restarts - 1} before it (cluster.max_replacements_in_a_row)"
            )
        return self.start(trainer)

    def ready(self, rank: Rank) -> None:
        """Record that a replacement or spare trainer is ready to take part."""
        (self._spares if is_spare_trainer(rank) else self._ready)[rank] = True

    def begin(self) -> Rank | None:
        """Begin the admission if all are ready and a trainer waits for them; returns that trainer, else None."""
        if self._admitter is None or not self._ready or not all(self._ready.values()):
            return None
        admitter, self._admitter, self.is_entering = self._admitter, None, True
        return admitter

    def await_all(self, admitter: Rank) -> None:
        """Record that trainer ``admitter`` waits until all replacements are ready."""
        self._admitter = admitter

    def lost(self, trainer: Rank) -> None:
        """Record that a trainer has died. If it was the admitter, the trainer that acts in its place asks again."""
        if self._admitter == trainer:
            self._admitter = None

    def took_part(self) -> None:
        """Remove all replacements, which are trainers now."""
        self._ready, self.is_entering, self._num_restarts = {}, False, 0

    def give_up(self) -> None:
        """Remove all replacements, but no spare trainer: every trainer that could admit them has died."""
        self._ready, self.is_entering, self._admitter = {}, False, None
