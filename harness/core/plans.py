"""The decisions of strategies, as data, which do not define how they are carried out; names of ranks, their hosts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Rank = str  # "ps3"

LoadPrice = Literal["whole", "by_bytes"]

DenseSource = Literal["kept", "checkpoint", "initial", "rollback"]
"""Where the dense network goes on after a failure: as it is; from the newest checkpoint, or initial values, since all
trainers have died; with a rollback of all ranks."""


def ps_rank(index: int) -> Rank:
    """Name of PS rank number ``index``."""
    return f"ps{index}"


def ps_index(rank: Rank) -> int:
    """Number of the PS rank named ``rank``."""
    return int(rank.removeprefix("ps"))


def trainer_rank(index: int) -> Rank:
    """Name of trainer number ``index``."""
    return f"trainer{index}"


CHIEF: Rank = trainer_rank(0)
"""The trainer rank whose files stand for those of the dense network."""


def is_ps(rank: Rank) -> bool:
    """Whether ``rank`` is the name of a PS rank."""
    return rank.startswith("ps")


def is_trainer(rank: Rank) -> bool:
    """Whether ``rank`` is the name of a trainer rank."""
    return rank.startswith("trainer")


def rank_order(rank: Rank) -> tuple[bool, int]:
    """Sort key of ranks: PS ranks by number, then trainer ranks by number."""
    return is_trainer(rank), int(rank.removeprefix("ps").removeprefix("trainer"))


def all_ranks(num_ps: int, num_trainers: int = 1) -> tuple[Rank, ...]:
    """The ranks of a run, in rank order."""
    return (*map(ps_rank, range(num_ps)), *map(trainer_rank, range(num_trainers)))


def spare_name(index: int) -> Rank:
    """Name of spare number ``index``, a process that takes over the name of a PS rank that has died."""
    return f"spare{index}"


def is_spare(name: Rank) -> bool:
    """Whether ``name`` is the name of a spare."""
    return name.startswith("spare") and not is_spare_trainer(name)


def spare_trainer_name(index: int) -> Rank:
    """Name of spare trainer number ``index``, a process that takes over the name of a trainer that has died."""
    return f"spare_trainer{index}"


def is_spare_trainer(name: Rank) -> bool:
    """Whether ``name`` is the name of a spare trainer."""
    return name.startswith("spare_trainer")


def buddy_of(rank: Rank, num_ps: int) -> Rank:
    """The PS rank that holds the replica of the shard of ``rank``, if any: the next one; after the last, the first."""
    return ps_rank((ps_index(rank) + 1) % num_ps)


def owner_of(rank: Rank, num_ps: int) -> Rank:
    """The PS rank whose replica ``rank`` holds; the inverse of :func:`buddy_of`."""
    return ps_rank((ps_index(rank) - 1) % num_ps)


class HostMap(dict[Rank, int]):
    """The host of each rank, by its index in ``cluster.hosts``. Both engines ask it which ranks die with a host.

    A rank that dies alone is replaced on its own host; ranks of a lost host move.

    The first host of each rank, PS ranks before trainers, is the host in ``place``, or else the host with the fewest
    ranks so far (ties to the lower index).

    Args:
        num_hosts: with 0, no rank has a host.
        place: host by rank.
        num_trainers: trainer ranks.

    Attributes:
        left: hosts that are not lost, ascending.
        lost: hosts that were lost, in order.
    """

    def __init__(self, num_ps: int, num_hosts: int, place: Mapping[Rank, int], num_trainers: int = 1) -> None:
        super().__init__()
        self.left = [*range(num_hosts)]
        self.lost: list[int] = []
        for rank in all_ranks(num_ps, num_trainers) if num_hosts else ():
            self[rank] = place[rank] if rank in place else self._emptiest()

    def on(self, host: int) -> tuple[Rank, ...]:
        """The ranks on a host: PS ranks by number, then trainers."""
        return tuple(rank for rank, its_host in self.items() if its_host == host)

    def lose(self, host: int) -> None:
        """Mark ``host`` as lost, and move each of its ranks, in order, to the host with the fewest ranks.

        A no-op for a host lost before. The ranks of the last host stay on it.
        """
        if host not in self.left:
            return
        self.left.remove(host)
        self.lost.append(host)
        for rank in self.on(host) if self.left else ():
            self[rank] = self._emptiest()

    def _emptiest(self) -> int:
        num = Counter(self.values())
        return min(self.left, key=lambda host: (num[host], host))


def host_name(index: int) -> str:
    """Name of host number ``index`` in a trace."""
    return f"host{index}"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The constants by which a strategy chooses its interval: a profile resolved for one run. Hours and samples.

    Fields with the name of a constant of :class:`harness.config.profiles.Profile` mean the same; ``num_spares`` nodes
    wait for the failure of a PS rank, ``num_spare_trainers`` for that of a trainer. Those with a default are prices
    (docs/CPR.md, "Prices"); by default they change no charge. ``snapshot_frac``: hours that training stands still for
    a save in the background, by hours of writing its bytes; None: training waits for the whole save.
    """

    job_h: float
    mtbf_h: float
    o_save_h: float
    o_load_h: float
    o_res_h: float
    num_ps: int
    ranks_per_failure: float
    pls_target: float
    total_samples: int
    load: LoadPrice = "whole"
    o_save_fixed_h: float = 0.0
    spare_o_res_h: float | None = None
    detect_h: float = 0.0
    trainer_load: bool = False
    snapshot_frac: float | None = None
    num_trainers: int | None = None
    num_spares: int = 0
    num_spare_trainers: int = 0


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The save interval of a run.

    ``samples`` is the interval, None for never. ``divisor`` is the number of saves per interval: 1/r with priority
    saves, otherwise 1. ``fallback``: a cpr_* strategy chose full recovery. ``overridden``: the user set the interval.
    """

    samples: int | None
    divisor: float = 1.0
    fallback: bool = False
    overridden: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The position of a run: the boundary after ``step`` steps, and its newest save."""

    step: int
    samples: int
    previous_samples: int  # at the boundary before this one
    total_samples: int
    saved_step: int | None = None  # of the newest save; for a recovery plan, of the newest checkpoint
    saved_samples: int | None = None


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """The decision to save at the present boundary.

    ``kind``: which rows are written, a key of ``harness.store.kinds.SAVE_KINDS``: ``full`` every row, ``priority`` the
    tracker's choice of the tracked tables and the other tables whole, ``tracked`` the tracker's choice alone,
    ``with_mirror`` as ``priority`` and mirrored rows, ``differential`` the rows that changed since a base.
    ``closes_interval``: this save ends a whole interval, and PLS counts from it (reconstructed: docs/CPR.md).
    """

    kind: str
    closes_interval: bool = True


@dataclass(frozen=True, kw_only=True)
class MirrorSpec:
    """The rows that the trainer's mirror holds: the fraction ``share`` of each tracked table, and all other tables."""

    share: float


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """The decision how to recover from the death of ranks.

    ``kinds``: by lost PS rank a kind of recovery, a key of ``harness.recovery.recoveries.RECOVERIES`` that the strategy
    declares: ``rollback`` for all of them, or any others. ``trainers``: trainers that died; nothing is lost with them
    while one lives. ``dense``: what the dense network restarts from.
    """

    kinds: Mapping[Rank, str]
    trainers: tuple[Rank, ...] = ()
    dense: DenseSource = "kept"

    @property
    def ranks(self) -> list[Rank]:
        """All ranks that died: PS ranks, then trainers."""
        return [*self.kinds, *self.trainers]
