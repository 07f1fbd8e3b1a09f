"""The rendezvous of a generation of the RPC world: each member publishes its address and waits for those of all."""

from collections.abc import Callable

from harness.core.plans import Rank


class Rendezvous:
    """The addresses of the present generation, and the ranks that wait for them.

    All are sent at once when the last is there: a world of N members takes N messages each way, where asking for each
    other's name and address takes 4 N² (LOG, 2026-11-23).

    Args:
        send: sends a message to a rank.
        num_members: of generation 0.
    """

    def __init__(self, send: Callable[..., None], num_members: int) -> None:
        self._send = send
        self.begin(0, num_members)

    @property
    def is_awaited(self) -> bool:
        """Whether a rank waits: the generation is being formed."""
        return bool(self._waiting)

    def begin(self, generation: int, num_members: int) -> None:
        """Begin ``generation``; what is asked about earlier ones is void."""
        self.generation = generation
        self._num_members = num_members
        self._addresses: dict[str, bytes] = {}  # by worker
        self._present: set[Rank] = set()
        self._waiting: list[Rank] = []
        self._is_broken = False  # a rank died before the generation was complete

    def abandon(self) -> None:
        """Tell everyone that waits, now or later, that the present generation will not be complete."""
        self._is_broken = True
        self._answer()

    def is_mute(self, rank: Rank) -> bool:
        """Whether the others of the present generation wait for ``rank``: it has not published its address."""
        return rank not in self._present

    def publish(self, rank: Rank, generation: int, worker: str, address: bytes) -> None:
        """Handle the message of ``rank`` that the worker of its name is found at ``address``."""
        if generation == self.generation:
            self._addresses[worker] = address
            self._present.add(rank)
            self._answer()

    def await_all(self, rank: Rank, generation: int) -> None:
        """Handle the message of ``rank`` that asks for all addresses."""
        if generation != self.generation:
            self._send(rank, "broken", generation)
        else:
            self._waiting.append(rank)
            self._answer()

    def _answer(self) -> None:
        """Answer all that wait, if there is an answer."""
        if self._is_broken:
            message = ("broken", self.generation)
        elif len(self._addresses) == self._num_members:
            message = ("addresses", self.generation, dict(self._addresses))
        else:
            return
        waiting, self._waiting = self._waiting, []
        for rank in waiting:
            self._send(rank, *message)
