"""A generation of the RPC world: its members, and how they learn each other's addresses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core.plans import Rank


@dataclass(frozen=True, kw_only=True)
class Formation:
    """The number and members of one generation of the RPC world; can be pickled.

    Attributes:
        members: in the order of their numbers: PS ranks, trainers, spares.
        takeovers: PS rank to the spare that has taken its name since the generation was formed.
    """

    generation: int
    members: tuple[Rank, ...]
    takeovers: Mapping[Rank, Rank]


class Rendezvous:
    """Collects the addresses of all members of a generation, then sends all of them to every member.

    A world of N members takes N messages each way, where asking for each other's name and address takes 4 N² (LOG,
    2026-11-23).

    Args:
        send: sends a message to a rank.
    """

    def __init__(self, formation: Formation, send: Callable[..., None]) -> None:
        self._formation = formation
        self._send = send
        self._addresses: dict[Rank, tuple[bytes, object]] = {}
        self._is_broken = False  # a rank died before the generation was complete

    @property
    def missing(self) -> list[Rank]:
        """The members that have not published their addresses yet."""
        return [member for member in self._formation.members if member not in self._addresses]

    @property
    def is_complete(self) -> bool:
        """Whether all members have published their addresses: the generation is formed."""
        return not self._is_broken and not self.missing

    @property
    def can_complete(self) -> bool:
        """Whether the generation is formed or can still be formed: it was not abandoned."""
        return not self._is_broken

    @property
    def is_awaited(self) -> bool:
        """Whether the generation is being formed: a member waits for the addresses of others."""
        return not self._is_broken and 0 < len(self._addresses) < len(self._formation.members)

    def publish(self, rank: Rank, generation: int, address: tuple[bytes, object]) -> None:
        """Store the address of ``rank``. All are sent after the last one; "broken" is, if the generation was abandoned.

        ``address``: of its RPC agent and, of a trainer, the address at which other trainers connect.
        """
        is_past = generation != self._formation.generation
        if not is_past:
            self._addresses[rank] = address
        if is_past or self._is_broken:
            self._send(rank, "broken", generation)
        elif self.is_complete:
            self._answer("addresses", generation, self._addresses)

    def abandon(self) -> None:
        """Give the generation up: members that wait for the addresses, now or later, are told "broken"."""
        self._is_broken = True
        self._answer("broken", self._formation.generation)

    def _answer(self, *message: object) -> None:
        for rank in self._addresses:
            self._send(rank, *message)
