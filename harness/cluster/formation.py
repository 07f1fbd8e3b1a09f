"""A generation of the RPC world: its members, and how they meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core.plans import Rank


@dataclass(frozen=True, kw_only=True)
class Formation:
    """A generation; can be pickled.

    Attributes:
        members: in the order of their numbers: PS ranks, the trainer, spares.
        takeovers: spares that serve under the names of PS ranks since the generation was formed, by PS rank.
    """

    generation: int
    members: tuple[Rank, ...]
    takeovers: Mapping[Rank, Rank]


class Rendezvous:
    """The addresses of the members of the present generation. All are sent at once when the last is there.

    A world of N members takes N messages each way, where asking for each other's name and address takes 4 N² (LOG,
    2026-11-23).

    Args:
        send: sends a message to a rank.
        num_members: of generation 0.
    """

    def __init__(self, send: Callable[..., None], num_members: int) -> None:
        self._send = send
        self.begin(0, num_members)

    def begin(self, generation: int, num_members: int) -> None:
        """Begin ``generation``; what is said about earlier ones is void."""
        self._generation = generation
        self._num_members = num_members
        self._addresses: dict[Rank, bytes] = {}
        self._is_broken = False  # a rank died before the generation was complete

    @property
    def is_complete(self) -> bool:
        """Whether all members have met: the generation is formed."""
        return not self._is_broken and len(self._addresses) == self._num_members

    @property
    def is_awaited(self) -> bool:
        """Whether a rank waits for others: the generation is being formed."""
        return not self._is_broken and 0 < len(self._addresses) < self._num_members

    def is_mute(self, rank: Rank) -> bool:
        """Whether the others of the present generation wait for ``rank``: it has not published its address."""
        return rank not in self._addresses

    def publish(self, rank: Rank, generation: int, address: bytes) -> None:
        """Handle the message of ``rank`` that it is found at ``address``, and waits for the addresses of all."""
        if generation != self._generation:
            self._send(rank, "broken", generation)
            return
        self._addresses[rank] = address
        if self._is_broken:
            self._send(rank, "broken", generation)
        elif self.is_complete:
            self._answer("addresses", generation, self._addresses)

    def abandon(self) -> None:
        """Tell everyone that waits, now or later, that the present generation will not be complete."""
        self._is_broken = True
        self._answer("broken", self._generation)

    def _answer(self, *message: object) -> None:
        for rank in self._addresses:
            self._send(rank, *message)
