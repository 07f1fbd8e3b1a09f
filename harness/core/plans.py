"""The decisions of strategies, as data. A plan does not define how it is carried out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

Rank = str  # "ps3"

LoadPrice = Literal["whole", "by_bytes"]

KillPhase = Literal["boundary", "lookup", "apply", "save", "manifest", "restore", "regroup", "eval"]
"""The moment of a planned kill: a boundary between steps, or a phase that a run passes through."""
PHASES: tuple[KillPhase, ...] = get_args(KillPhase)
DeathFault = Literal["kill", "hang", "partition"]
"""How a rank is lost: it ends; it stands still; it runs, and no packet reaches it any more."""
DEATH_FAULTS: tuple[DeathFault, ...] = get_args(DeathFault)
Fault = Literal[DeathFault, "slow", "disk_full", "disk_error", "bitflip"]
"""What happens to a rank: it is lost; it is slower for a time, and nothing is lost; a write of its next save fails, as
the disk is full, or with an input/output error; a bit of its newest file changes."""
FAULTS: tuple[Fault, ...] = get_args(Fault)
WriteFault = Literal["disk_full", "disk_error"]
WRITE_FAULTS: dict[Fault, WriteFault] = {"disk_full": "disk_full", "disk_error": "disk_error"}
"""The faults by which the first write of a save fails."""


def ps_rank(index: int) -> Rank:
    """Name of PS rank number ``index``."""
    return f"ps{index}"


def ps_index(rank: Rank) -> int:
    """Number of the PS rank named ``rank``."""
    return int(rank.removeprefix("ps"))


def trainer_rank(index: int) -> Rank:
    """Name of trainer rank number ``index``."""
    return f"trainer{index}"


CHIEF: Rank = trainer_rank(0)
"""The trainer rank whose files and digests stand for those of the dense network."""


def is_ps(rank: Rank) -> bool:
    """Whether ``rank`` is the name of a PS rank."""
    return rank.startswith("ps")


def is_trainer(rank: Rank) -> bool:
    """Whether ``rank`` is the name of a trainer rank."""
    return rank.startswith("trainer")


def rank_order(rank: Rank) -> tuple[bool, int]:
    """Sort key of ranks: PS ranks by number, then trainer ranks by number."""
    return is_trainer(rank), int(rank.removeprefix("ps").removeprefix("trainer"))


def all_ranks(num_ps: int) -> tuple[Rank, ...]:
    """The ranks of a run, in rank order."""
    return (*map(ps_rank, range(num_ps)), CHIEF)


def spare_name(index: int) -> Rank:
    """Name of spare number ``index``, a process that takes over the name of a PS rank that has died."""
    return f"spare{index}"


def is_spare(name: Rank) -> bool:
    """Whether ``name`` is that of a spare."""
    return name.startswith("spare")


def buddy_of(rank: Rank, num_ps: int) -> Rank:
    """The next PS rank, the first after the last: it holds the replica of the shard of ``rank``, if there are any."""
    return ps_rank((ps_index(rank) + 1) % num_ps)


def owner_of(rank: Rank, num_ps: int) -> Rank:
    """The PS rank whose replica ``rank`` holds; the inverse of :func:`buddy_of`."""
    return ps_rank((ps_index(rank) - 1) % num_ps)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The constants by which a strategy chooses its interval: a profile resolved for one run. Hours and samples.

    Symbols as in CPR section 4 (docs/CPR.md): T_total, T_fail, O_save, O_load, O_res, N, k, S. The fields with a
    default are prices (docs/CPR.md, "Prices"); by default they change no charge.

    Attributes:
        load: ``whole``: a failure costs O_load; ``by_bytes``: O_load for the whole model, less for a part of it.
        o_save_fixed_h: hours of a save besides those of its bytes.
        spare_o_res_h: rescheduling hours of a failure that a spare takes over; None: as any other.
        detect_h: hours until a rank that hangs or is cut off is given up, before it is replaced.
        snapshot_frac: hours that training stands still for a save in the background, as a fraction of those that its
            bytes take to be written; None: the save is waited for.
        num_trainers: trainer nodes of the emulated cluster; None: unknown.
        num_spares: nodes that wait for a failure.
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
    snapshot_frac: float | None = None
    num_trainers: int | None = None
    num_spares: int = 0


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
class PlannedKill:
    """PS ranks that a failure trace kills together, at the boundary after ``step`` steps.

    With another ``phase`` than ``boundary`` the kill waits from that boundary on, and strikes when the phase occurs.

    With ``trace.clock: wall`` the plan has one for each hour, which strikes when the wall clock reads it; ``step`` is
    then the boundary without overhead.

    ``ranks`` are ordered by number. ``hours[i]`` and ``lines[i]`` are those of the first trace entry that kills
    ``ranks[i]``. ``repair_h`` is the longest repair time of the entries, in hours; None if no entry has one.
    ``hanging``, ``cut_off``: those of ``ranks`` that are not ended, but stopped, or cut off the network. ``slowdown``:
    none dies, and ``ranks`` are slower.
    ``write_fault``: none dies, and the next save of ``ranks`` fails once. ``flip``: none dies, and the newest file of
    each of ``ranks`` has a bit flipped, the one of this number; counted on from the first where the file is shorter.
    ``hosts``: lost as a whole, in this order, by index. ``host_of``: with which of them a rank dies, if with one.
    """

    step: int
    ranks: tuple[Rank, ...]
    hours: tuple[float, ...]
    lines: tuple[int, ...]
    repair_h: float | None = None
    phase: KillPhase = "boundary"
    hanging: frozenset[Rank] = frozenset()
    cut_off: frozenset[Rank] = frozenset()
    slowdown: "Slowdown | None" = None
    write_fault: WriteFault | None = None
    flip: int | None = None
    hosts: tuple[int, ...] = ()
    host_of: Mapping[Rank, int] = field(default_factory=dict)

    def fault_of(self, rank: Rank) -> DeathFault:
        """How one of ``ranks`` is lost."""
        return "hang" if rank in self.hanging else "partition" if rank in self.cut_off else "kill"

    @property
    def time(self) -> "KillTime":
        """When it strikes, without who dies."""
        fails_write, flips = self.write_fault is not None, self.flip is not None
        return KillTime(self.step, min(self.hours), self.phase, self.slowdown, fails_write, flips)


class KillTime(NamedTuple):
    """The boundary of a planned kill with ``trace.clock: samples``, and its first hour, which counts with ``wall``.

    With a ``phase`` other than ``boundary``: the boundary from which on the kill waits for that phase.
    ``fails_write``, ``flips``: nobody dies, a save fails once, or a bit is flipped.
    """

    step: int
    hour: float
    phase: KillPhase = "boundary"
    slowdown: "Slowdown | None" = None
    fails_write: bool = False
    flips: bool = False

    @property
    def is_at_boundary(self) -> bool:
        """Whether it strikes at the boundary itself, after what else is due there."""
        return self.phase == "boundary" and self.slowdown is None


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """Ranks that are ``factor`` times as slow until ``last_hour`` of the trace, which is boundary ``last_step``.

    ``wait_h``: emulated hours that the job takes longer for it, besides those of slowdowns before it.
    """

    factor: float
    last_hour: float
    last_step: int
    wait_h: float


def merge_kills(step: int, planned_kills: Sequence[PlannedKill]) -> PlannedKill:
    """The one kill after ``step`` steps of all ``planned_kills`` (at least one): of one phase, in order of hours."""
    first = {
        rank: (hour, line, kill.fault_of(rank))
        for loses_host in (False, True)  # who dies with a host dies by its line
        for kill in reversed(planned_kills)
        for rank, hour, line in zip(kill.ranks, kill.hours, kill.lines, strict=True)
        if (rank in kill.host_of) >= loses_host
    }
    ranks = tuple(sorted(first, key=rank_order))
    return PlannedKill(
        step=step,
        ranks=ranks,
        hours=tuple(first[rank][0] for rank in ranks),
        lines=tuple(first[rank][1] for rank in ranks),
        repair_h=longest(kill.repair_h for kill in planned_kills),
        phase=planned_kills[0].phase,
        hanging=frozenset(rank for rank in ranks if first[rank][2] == "hang"),
        cut_off=frozenset(rank for rank in ranks if first[rank][2] == "partition"),
        hosts=tuple(dict.fromkeys(host for kill in planned_kills for host in kill.hosts)),
        host_of={rank: host for kill in reversed(planned_kills) for rank, host in kill.host_of.items()},
    )


class Struck(NamedTuple):
    """What a failure of the trace costs besides the profile's prices.

    ``repair_h``: emulated hours of rescheduling, None where the trace does not say. ``hangs``: a rank was stopped or
    cut off, and must be given up first.
    """

    repair_h: float | None = None
    hangs: bool = False

    def also(self, other: "Struck") -> "Struck":
        """Both as one failure."""
        return Struck(longest((self.repair_h, other.repair_h)), self.hangs or other.hangs)


def longest(repairs_h: Iterable[float | None]) -> float | None:
    """The longest of the known repair times, in hours; None if none is known."""
    return max((hours for hours in repairs_h if hours is not None), default=None)


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

    ``kind``: what is written, a key of ``harness.store.kinds.SAVE_KINDS``: ``full`` every row, ``priority`` the
    tracker's choice of the tracked tables and the other tables whole, ``tracked`` the former alone, ``with_mirror`` as
    ``priority`` and mirrored rows, ``differential`` the rows that changed since a base. ``closes_interval``: this save
    ends a whole
    interval, and PLS counts from it (reconstructed: docs/CPR.md).
    """

    kind: str
    closes_interval: bool = True


@dataclass(frozen=True, kw_only=True)
class MirrorSpec:
    """The rows that the trainer's mirror holds: of each tracked table the fraction ``share``, of the others all.

    ``dies``: each planned failure takes the trainer's memory, and the mirror with it.
    """

    share: float
    dies: bool = False


@dataclass(frozen=True, kw_only=True)
class RecoveryPlan:
    """The decision how to recover from the death of ranks.

    ``rollback``: every rank and the trainer return to the newest checkpoint, and lost steps are repeated.
    Otherwise only ``ranks`` are restored: those in ``replicated`` from the replica at their buddy, which lacks nothing,
    the others from the newest saved version of each row (``checkpoint``) or to their initial values (``initial``).
    ``resets_states``: the state of the optimizer that was saved with these rows is not used; it begins anew.
    """

    rollback: bool
    ranks: frozenset[Rank]
    source: Literal["checkpoint", "initial"] = "checkpoint"
    resets_states: bool = False
    replicated: frozenset[Rank] = frozenset()

    @property
    def reads_checkpoint(self) -> bool:
        """Whether a checkpoint is read."""
        return self.source == "checkpoint" and bool(self.rollback or self.ranks - self.replicated)
