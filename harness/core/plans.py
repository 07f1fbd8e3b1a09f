"""Names of ranks, their hosts, and the decisions of strategies as plain data.

Other modules carry out the decisions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Rank = str  # "ps3"

LoadPrice = Literal["whole", "by_bytes"]

IoBound = Literal["storage", "link", "both"]

Tier = Literal["shared", "disk", "memory"]
"""Where a checkpoint is. ``shared``: on a disk that survives all losses. ``disk``: on the disk of each rank's node.
``memory``: in the memory of each rank and of its buddy. The last two are emulated: all of them are in the store."""

DenseSource = Literal["kept", "checkpoint", "initial", "rollback"]
"""What the dense network restarts from after a failure. ``kept``: it goes on as it is, since a trainer lives. Otherwise
all trainers have died: ``checkpoint`` is the newest checkpoint, ``initial`` the initial values, and ``rollback`` the
newest checkpoint together with a rollback of all ranks."""


def ps_rank(index: int) -> Rank:
    return f"ps{index}"


def ps_index(rank: Rank) -> int:
    return int(rank.removeprefix("ps"))


def trainer_rank(index: int) -> Rank:
    return f"trainer{index}"


CHIEF: Rank = trainer_rank(0)
"""The trainer that runs the step loop and holds the state of the run. The other trainers are compute ranks."""


def is_ps(rank: Rank) -> bool:
    return rank.startswith("ps")


def is_trainer(rank: Rank) -> bool:
    return rank.startswith("trainer")


def is_compute(rank: Rank) -> bool:
    """Whether ``rank`` is a compute rank: a trainer that computes shares of batches and holds no state."""
    return is_trainer(rank) and rank != CHIEF


def rank_order(rank: Rank) -> tuple[bool, int]:
    """Sort key of ranks: PS ranks by number, then trainer ranks by number."""
    return is_trainer(rank), int(rank.removeprefix("ps").removeprefix("trainer"))


def all_ranks(num_ps: int, num_trainers: int = 1) -> tuple[Rank, ...]:
    """All ranks of a run: PS ranks by number, then trainers by number."""
    return (*map(ps_rank, range(num_ps)), *map(trainer_rank, range(num_trainers)))


def spare_name(index: int) -> Rank:
    """Name of a spare, a process that waits for the death of a rank, and then takes over that rank's name."""
    return f"spare{index}"


def is_spare(name: Rank) -> bool:
    return name.startswith("spare")


def buddy_of(rank: Rank, num_ps: int) -> Rank:
    """The PS rank that holds the replica of ``rank``'s shard, where replicas are kept: the next one, cyclically."""
    return ps_rank((ps_index(rank) + 1) % num_ps)


def owner_of(rank: Rank, num_ps: int) -> Rank:
    """The PS rank whose replica ``rank`` holds; the inverse of :func:`buddy_of`."""
    return ps_rank((ps_index(rank) - 1) % num_ps)


class ParityGroups:
    """Groups of ``size`` consecutive PS ranks (the last may be smaller); the rank after a group holds its parity.

    After the last group comes the first rank. ``size`` is below ``num_ps``, so no rank holds its own group's parity.
    None: 4, or half of ``num_ps`` if that is less.

    Attributes:
        members: by holder, the ranks of the group whose parity it holds.
        holder_of: by rank, the holder of its group's parity.
    """

    def __init__(self, size: int | None, num_ps: int) -> None:
        size = max(1, min(4, num_ps // 2)) if size is None else size
        ranks = [ps_rank(index) for index in range(num_ps)]
        groups = [tuple(ranks[first : first + size]) for first in range(0, num_ps, size)]
        self.members = {buddy_of(group[-1], num_ps): group for group in groups}
        self.holder_of = {rank: holder for holder, group in self.members.items() for rank in group}

    def needed_for(self, rank: Rank) -> frozenset[Rank]:
        """The ranks whose shards and parity restore ``rank``."""
        holder = self.holder_of[rank]
        return frozenset({holder, *self.members[holder]} - {rank})

    def size_of(self, rank: Rank) -> int:
        """The number of ranks in the group of ``rank``."""
        return len(self.members[self.holder_of[rank]])


class HostMap(dict[Rank, int]):
    """The host of each rank, as an index into ``cluster.hosts``. Both engines ask it which ranks die with a host.

    At the start each rank, PS ranks before trainers, gets its host in ``place``. A rank without one gets the host with
    the fewest ranks so far (ties to the lower index). A rank that dies alone is replaced on its own host. The ranks of
    a lost host move to other hosts.

    Args:
        num_hosts: number of hosts; with 0, no rank has a host.
        place: host by rank, for some of the ranks or none.

    Attributes:
        left: hosts that are not lost, ascending.
        lost: hosts that were lost, in order of their loss.
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

        A no-op for a host lost before. If no host is left, the ranks stay on ``host``.
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


class NodeMap(dict[Rank, Rank]):
    """The node that hosts the shard of each PS rank. A node is a PS rank's process.

    At the start each PS rank hosts its own shard or, with fewer nodes, shard k is on node k modulo ``num_nodes``. A
    node that is present hosts its own shard. Both engines, the schedule of failures and the simulator ask this map
    which shards die with a node.
    """

    def __init__(self, num_ps: int, num_nodes: int | None = None) -> None:
        super().__init__({ps_rank(index): ps_rank(index % (num_nodes or num_ps)) for index in range(num_ps)})

    def lose(self, nodes: Collection[Rank]) -> None:
        """Move each shard of ``nodes``, in rank order, to the node with the fewest shards (ties to the lower number).

        If no other node is present, ``nodes`` are replaced, and their shards stay.
        """
        left = [rank for rank in self if self[rank] == rank and rank not in nodes]
        for shard, node in self.items() if left else ():
            if node in nodes:
                num = Counter(self.values())
                self[shard] = min(left, key=lambda each: (num[each], ps_index(each)))

    def give_back(self, node: Rank) -> None:
        """Have ``node``, which returns, host its own shard again."""
        self[node] = node

    @property
    def hosted(self) -> dict[Rank, Rank]:
        """The shards whose own node is away, and the node that hosts each."""
        return {shard: node for shard, node in self.items() if shard != node}


def host_name(index: int) -> str:
    """Name of host number ``index`` in a trace."""
    return f"host{index}"


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The constants of a profile, resolved for one run. A strategy chooses its interval by them. Hours and samples.

    Most are keys of ``profile``, described there (``run.py schema profile``), with its defaults. Those from ``load`` on
    are prices (docs/CPR.md, "Prices"); by default they change no charge.

    Attributes:
        total_samples: samples of the whole run.
        o_res_h: hours to reschedule a job after a failure, or with ``cluster.on_loss: shrink`` to form a group.
        snapshot_frac: for a save in the background, the ratio of the time that training stands still to the time of
            writing the bytes; None: training waits for the whole save.
        num_spares: nodes that wait for the failure of a rank.
        batch_size: samples of a step.
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
    io_bound: IoBound = "storage"
    storage_links: float | None = None
    o_save_fixed_h: float = 0.0
    spare_o_res_h: float | None = None
    detect_h: float = 0.0
    detect_death_h: float = 0.0
    trainer_load: bool = False
    snapshot_frac: float | None = None
    num_trainers: int | None = None
    num_spares: int = 0
    batch_size: int = 1
    step_frac: Mapping[str, float] | None = None
    tier_frac: Mapping[Tier, float] | None = None

    def samples_of(self, hours: float) -> int:
        """The samples that the job trains on in ``hours``, rounded, at least 1."""
        return max(1, round(hours / self.job_h * self.total_samples))

    def steps_of(self, hours: float) -> int:
        """The steps in which the job trains on the samples of ``hours``, rounded up, at least 1."""
        return -(-self.samples_of(hours) // self.batch_size)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The save interval of a run.

    Attributes:
        samples: samples between saves that close an interval; None: no save after the initial one.
        divisor: saves in an interval: 1/r with priority saves, otherwise 1.
        fallback: whether a strategy of CPR chose full recovery.
        overridden: whether the user set the interval.
    """

    samples: int | None
    divisor: float = 1.0
    fallback: bool = False
    overridden: bool = False


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The position of a run: the boundary after ``step`` steps, and the newest save at that time.

    Attributes:
        step: steps made until now.
        samples: samples trained until now: steps × batch size.
        previous_samples: samples at the boundary before this one.
        total_samples: samples of the whole run.
        saved_step: step of the newest save; for a recovery, of the newest checkpoint; None without one.
        saved_samples: samples at that step.
        saved_tier: for a recovery, where that checkpoint is.
        pls: for a recovery, the portion of lost samples of the run if the lost ranks are restored alone.
    """

    step: int
    samples: int
    previous_samples: int
    total_samples: int
    saved_step: int | None = None
    saved_samples: int | None = None
    saved_tier: Tier = "shared"
    pls: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """The decision to save at the present boundary.

    Attributes:
        kind: which rows are written, a key of ``harness.store.kinds.SAVE_KINDS``. ``full``: every row. ``priority``:
            the tracker's choice of rows of tracked tables, and the other tables whole. ``tracked``: the tracker's
            choice alone. ``with_mirror``: as ``priority``, and mirrored rows with unsaved updates. ``differential``:
            the rows that changed since a base.
        closes_interval: whether this save ends a whole interval. PLS counts lost samples from such a save
            (reconstructed: docs/CPR.md).
        tier: where the checkpoint is kept.
    """

    kind: str
    closes_interval: bool = True
    tier: Tier = "shared"


@dataclass(frozen=True, kw_only=True)
class MirrorSpec:
    """The rows that the trainer's mirror holds: the fraction ``share`` of each tracked table, and all other tables."""

    share: float


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """The decision how to recover from the death of ranks.

    Attributes:
        kinds: the kind of recovery of each lost PS rank, a key of ``harness.recovery.recoveries.RECOVERIES``. A kind
            that rolls back must be the kind of all lost ranks.
        trainers: trainers that died; nothing is lost with them while one lives.
        dense: what the dense network restarts from.
    """

    kinds: Mapping[Rank, str]
    trainers: tuple[Rank, ...] = ()
    dense: DenseSource = "kept"

    @property
    def ranks(self) -> list[Rank]:
        """All ranks that died: PS ranks, then trainers."""
        return [*self.kinds, *self.trainers]
