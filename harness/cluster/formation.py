"""A generation of the RPC world, and the place of a process in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.plans import Rank


@dataclass(frozen=True)
class Place:
    """The place of a process in a generation of the RPC world; can be pickled.

    Attributes:
        rank: its name.
        members: the names of all, in the order of their numbers.
    """

    generation: int
    rank: Rank
    members: tuple[Rank, ...]

    @property
    def index(self) -> int:
        """Its number."""
        return self.members.index(self.rank)


@dataclass(frozen=True, kw_only=True)
class Formation:
    """A generation; can be pickled.

    Attributes:
        members: in the order of their indexes: PS ranks, the trainer, spares.
        takeovers: spares that serve under the names of PS ranks since the generation was formed, by PS rank.
        keeps_spares: whether missing spares are started, and announced to the trainer.
    """

    generation: int
    members: tuple[Rank, ...]
    takeovers: Mapping[Rank, Rank]
    keeps_spares: bool

    def place(self, rank: Rank) -> Place:
        """The place of a member."""
        return Place(self.generation, rank, self.members)
