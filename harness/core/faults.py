"""Faults of a failure trace, with their effects on ranks, and the planned faults of a run.

A new fault is one class, with its facts and :meth:`Fault.strike`, and one entry in ``FAULTS`` (docs/EXTENDING.md).
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np

from harness.core.plans import CHIEF, Rank, is_trainer, rank_order

Phase = Literal["boundary", "lookup", "forward", "apply", "save", "manifest", "restore", "regroup", "eval"]
"""When a fault strikes: at a boundary between steps, or in a phase that a run passes through."""
PHASES: tuple[Phase, ...] = get_args(Phase)

Loss = Literal["dead", "mute"]
"""How a rank is lost. ``dead``: it has ended. ``mute``: it may still run, and is killed before it is replaced."""

Detail = float | str
_NUM_BITS = 1 << 62  # more bits than a file has


class RankFaults(Protocol):
    """The operations on ranks by which faults are injected."""

    def kill(self, ranks: Sequence[Rank], hosts: Sequence[int] = ()) -> dict[Rank, dict[str, Any]]:
        """Kill and reap all of ``ranks``, and all processes of the run on ``hosts`` (indices into ``cluster.hosts``).

        Returns, by rank, the ``machine`` part of its event.
        """
        ...

    def hang(self, ranks: Sequence[Rank]) -> dict[Rank, dict[str, Any]]:
        """Stop ``ranks``; an engine may kill them if the effect is the same. Returns as :meth:`kill`."""
        ...

    def give_back(self, nodes: Sequence[Rank]) -> dict[Rank, dict[str, Any]]:
        """Start processes for ``nodes`` that return (``cluster.on_loss: shrink``). Returns as :meth:`kill`.

        ``Cluster.move`` then gives each of them its shard.
        """
        ...


class FileFaults(Protocol):
    """The operations on files of the newest checkpoint by which faults are injected."""

    def edit_newest_file(self, rank: Rank, change: Callable[[bytes], bytes]) -> str | None:
        """Replace the content of the newest file with rows of ``rank`` by ``change(content)``.

        Returns the file's path below the folder of checkpoints, without the writer's name; None without a checkpoint.
        Raises StoreError.
        """
        ...

    def flip_bit(self, rank: Rank, number: int) -> tuple[str, int] | None:
        """Flip bit ``number``, modulo the number of bits, of rows and row ids in the newest file with rows of ``rank``.

        Returns the file's path below the folder of checkpoints, and the bit's number in the file; None without a
        checkpoint. Raises StoreError.
        """
        ...


class Effect(NamedTuple):
    """What one fault did to one rank, for its event: ``details``, equal on both engines, and ``machine``."""

    details: Mapping[str, Detail] = {}
    machine: Mapping[str, Any] = {}


Effects = Mapping[Rank, Effect]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault, as an entry of a failure trace names it. ``name``: its key in ``FAULTS``.

    Attributes:
        loss: how the struck ranks are lost; None if they are not. Ranks lost at one boundary and phase are one failure.
        phases: the phases in which the fault may strike; the first one if the trace names none.
        takes_trainers, takes_hosts: whether it may strike a trainer, a whole host.
        damage: what it does to the newest file of a rank, in words; empty if it damages no file. With damage, the file
            must exist, and the details have ``path``.
        details: types of the details that its event must have.
        words: what happened, for ``run.py show``, formatted with ``fault`` and the details.
        title: the first column of its line in ``run.py show``; empty: the name of the fault.
        aim: words in the error for a phase that never came: "a phase in which {aim} {ranks}".
        write_errno: the system's error (errno) with which a write of the next save fails; None if none fails. The
            ranks carry out this fault themselves.
    """

    name: str
    write_errno: int | None = None

    loss: ClassVar[Loss | None] = None
    phases: ClassVar[tuple[Phase, ...]] = ("boundary",)
    takes_trainers: ClassVar[bool] = False
    takes_hosts: ClassVar[bool] = False
    damage: ClassVar[str] = ""
    details: ClassVar[Mapping[str, Any]] = {}
    words: ClassVar[str] = ""
    title: ClassVar[str] = ""
    aim: ClassVar[str] = "to strike"

    @classmethod
    def of(cls, name: str) -> Self:
        """The fault that a line of a trace names."""
        return cls(name=name)

    def drawn(self, make_generator: Callable[[], np.random.Generator]) -> Self:
        """This fault with its random parts drawn. The generator depends on seed, fault name and line alone."""
        return self

    def strike(self, planned: "PlannedFault", on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        """Carry out the fault on the ranks ``on``, some or all of ``planned``, by ``ranks`` and ``files``.

        Returns the effect by rank; a rank that the fault could not strike has none.
        """
        return dict.fromkeys(on, Effect())


class Death(Fault):
    """A fault by which ranks are lost, at a boundary or in any phase."""

    loss = "dead"
    phases = PHASES
    takes_trainers = True
    title = "kill"
    aim = "to kill"


class Kill(Death):
    """The ranks are killed by SIGKILL, alone or with their whole host."""

    takes_hosts = True

    def strike(self, planned: "PlannedFault", on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        return _machine(ranks.kill(on, planned.hosts))


class Hang(Death):
    """The ranks are stopped by SIGSTOP and answer nothing."""

    loss = "mute"

    def strike(self, planned: "PlannedFault", on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        return _machine(ranks.hang(on))


class WriteFailure(Fault):
    """The first write of each struck rank's part of the next save fails with the system's error ``write_errno``."""

    phases = ("save",)
    words = "{fault}, its part was written again"
    title = "write_failed"
    aim = "a write fails of"

    @classmethod
    def of(cls, name: str) -> Self:
        return cls(name=name, write_errno=_ERRNOS[name])


@dataclass(frozen=True, kw_only=True)
class BitFlip(Fault):
    """One bit of the rows in the newest file of each struck rank is flipped on disk: :meth:`FileFaults.flip_bit`."""

    number: int = 0

    damage = "a bit of it was flipped"
    details: ClassVar[Mapping[str, Any]] = {"path": str, "bit": int}
    words = "bit {bit} of {path} flipped"

    def drawn(self, make_generator: Callable[[], np.random.Generator]) -> Self:
        return replace(self, number=int(make_generator().integers(_NUM_BITS)))

    def strike(self, planned: "PlannedFault", on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        flipped = {rank: files.flip_bit(rank, self.number) for rank in on}
        return {rank: Effect({"path": found[0], "bit": found[1]}) for rank, found in flipped.items() if found}


class Return(Fault):
    """The nodes of lost ranks return, and host their shards again. Planned with ``cluster.on_loss: shrink`` alone."""

    def strike(self, planned: "PlannedFault", on: Sequence[Rank], ranks: RankFaults, files: FileFaults) -> Effects:
        return _machine(ranks.give_back(on))


def _machine(machines: Mapping[Rank, Mapping[str, Any]]) -> Effects:
    return {rank: Effect(machine=machine) for rank, machine in machines.items()}


_ERRNOS = {"disk_full": errno.ENOSPC, "disk_error": errno.EIO}

KILL = Kill(name="kill")
RETURN = Return(name="return")
AWAY = Fault(name="away")  # of nodes that are away: it strikes nobody. Planned with `cluster.on_loss: shrink` alone
FAULTS: dict[str, type[Fault]] = {
    "kill": Kill,
    "hang": Hang,
    "disk_full": WriteFailure,
    "disk_error": WriteFailure,
    "bitflip": BitFlip,
}
"""All faults, by the name that a trace gives them."""


class Injection(NamedTuple):
    """The facts of an injected failure that its charge depends on, besides the profile's prices.

    ``repair_h``: emulated hours of rescheduling; None if the trace has none. ``hangs``: whether a rank hung.
    ``takes_trainers``: whether all trainers died. ``loses_hosts``: whether a whole host was lost.
    """

    repair_h: float | None = None
    hangs: bool = False
    takes_trainers: bool = False
    loses_hosts: bool = False

    def also(self, other: "Injection") -> "Injection":
        """Merge two failures into one: the longer repair, and the facts of both."""
        repair_h = longest((self.repair_h, other.repair_h))
        return Injection(repair_h, *(one or another for one, another in zip(self[1:], other[1:], strict=True)))


class FaultTime(NamedTuple):
    """When a planned fault strikes, and its kind: all that a trainer may know of it. The ranks are not named.

    With ``trace.clock: samples`` the fault is due at the boundary after ``step`` steps, with ``wall`` when the clock
    reads ``hour``, after the other actions there. With another ``phase`` it strikes when the run next enters that.
    ``loses_ranks``: whether its ranks are lost. ``fails_write``: whether it fails a write of a save.
    ``takes_chief``: whether the trainer that holds the state of the run dies. ``takes_trainers``: whether all die.
    ``returns``: PS ranks whose nodes return. ``notices``: the PS ranks that are told of their death, and the emulated
    hours that they then have: no secret.
    """

    step: int
    hour: float
    phase: Phase = "boundary"
    loses_ranks: bool = True
    fails_write: bool = False
    takes_chief: bool = False
    takes_trainers: bool = False
    returns: tuple[Rank, ...] = ()
    notices: tuple[tuple[Rank, float], ...] = ()


class Strike(NamedTuple):
    """The fault that strikes one rank, and the trace entry (hour and line) that names it.

    ``host``: index of the host with which the rank dies; None if it dies alone. ``repair_h``: hours after which the
    rank's node returns, with ``cluster.on_loss: shrink``; None: it does not. ``notice_h``: emulated hours before the
    fault at which the rank is told of it; 0 if it is not.
    """

    hour: float
    line: int
    fault: Fault = KILL
    host: int | None = None
    repair_h: float | None = None
    notice_h: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PlannedFault:
    """Faults of ranks that strike together, at the boundary after ``step`` steps, or in a ``phase`` after it.

    With ``trace.clock: wall`` there is one for each hour of the trace, which strikes when the wall clock reads it;
    ``step`` is then the boundary without overhead.

    ``strikes``: by rank, in rank order; all of these ranks are lost, or none. ``repair_h``: the longest repair time of
    lost ranks, in hours; None if no entry has one. ``hosts``: indices of hosts lost as a whole, in this order.
    ``num_trainers``: of the run.
    """

    step: int
    strikes: Mapping[Rank, Strike]
    repair_h: float | None = None
    phase: Phase = "boundary"
    hosts: tuple[int, ...] = ()
    num_trainers: int = 1

    @property
    def takes_trainers(self) -> bool:
        """Whether all trainers die."""
        return self.fault.loss is not None and sum(map(is_trainer, self.strikes)) == self.num_trainers

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(self.strikes)

    @property
    def hour(self) -> float:
        """The earliest hour of its trace entries."""
        return min(strike.hour for strike in self.strikes.values())

    @property
    def fault(self) -> Fault:
        """The fault of the first rank. Without lost ranks, all ranks have the same fault."""
        return next(iter(self.strikes.values())).fault

    @property
    def ranks_by_fault(self) -> dict[Fault, list[Rank]]:
        found: dict[Fault, list[Rank]] = {}
        for rank, strike in self.strikes.items():
            found.setdefault(strike.fault, []).append(rank)
        return found

    @property
    def notices(self) -> dict[Rank, float]:
        """The hours of notice of each PS rank that has any."""
        told = {rank: each for rank, each in self.strikes.items() if each.fault.loss and not is_trainer(rank)}
        return {rank: each.notice_h for rank, each in told.items() if each.notice_h}

    @property
    def injection(self) -> Injection:
        hangs = any(strike.fault.loss == "mute" for strike in self.strikes.values())
        return Injection(self.repair_h, hangs, self.takes_trainers, bool(self.hosts))

    @property
    def time(self) -> FaultTime:
        loses_ranks, fails_write = self.fault.loss is not None, self.fault.write_errno is not None
        takes_chief = loses_ranks and CHIEF in self.strikes
        returns = self.ranks if self.fault == RETURN else ()
        facts = loses_ranks, fails_write, takes_chief, self.takes_trainers
        return FaultTime(self.step, self.hour, self.phase, *facts, returns=returns, notices=tuple(self.notices.items()))


def first_strikes(named: Sequence[tuple[Rank, Strike]]) -> dict[Rank, Strike]:
    """The first strike of each rank, with its longest notice, in rank order.

    A strike of a whole host counts before all others of its ranks.
    """
    with_host = [(rank, strike) for rank, strike in named if strike.host is not None]
    first = dict([*reversed(named), *reversed(with_host)])
    notices_h = dict(sorted(((rank, strike.notice_h) for rank, strike in named)))
    return {rank: first[rank]._replace(notice_h=notices_h[rank]) for rank in sorted(first, key=rank_order)}


def merge_faults(step: int, planned: Sequence[PlannedFault]) -> PlannedFault:
    """Merge ``planned`` into one fault after ``step`` steps; a rank gets its first strike (:func:`first_strikes`).

    Several faults must be of one phase and in order of hours.
    """
    if len(planned) == 1:
        return replace(planned[0], step=step)
    return PlannedFault(
        step=step,
        strikes=first_strikes([named for each in planned for named in each.strikes.items()]),
        repair_h=longest(each.repair_h for each in planned),
        phase=planned[0].phase,
        hosts=tuple(dict.fromkeys(host for each in planned for host in each.hosts)),
        num_trainers=planned[0].num_trainers,
    )


def longest(repairs_h: Iterable[float | None]) -> float | None:
    """The longest of the known repair times, in hours; None if none is known."""
    return max((hours for hours in repairs_h if hours is not None), default=None)
