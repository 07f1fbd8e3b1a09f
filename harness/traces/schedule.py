"""Converts a failure trace to the planned kills of one run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from harness.config.model import Config
from harness.core.clock import FailureClock, boundary_at, hour_to_samples, strike_step
from harness.core.errors import TraceError
from harness.core.overhead import slow_hours
from harness.core.plans import (
    DEATH_FAULTS,
    WRITE_FAULTS,
    KillPhase,
    PlannedKill,
    Rank,
    Slowdown,
    longest,
    ps_index,
    ps_rank,
    rank_order,
)
from harness.core.seeds import generator
from harness.traces.job_trace import job_trace
from harness.traces.trace import Entry, Trace, read_trace, to_text

_NUM_BITS = 1 << 62  # more than a file has


def trace_digest(config: Config) -> str | None:
    """The hash of the trace's content; None without a trace. Raises TraceError for a file that is no trace."""
    if config.trace.law is not None:
        trace = job_trace(config)
        assert trace is not None
        return xxhash.xxh3_64_hexdigest(to_text(trace).encode())
    if config.trace.path is None:
        return None
    read_trace(Path(config.trace.path))
    return xxhash.xxh3_64_hexdigest(Path(config.trace.path).read_bytes())


def planned_kills_of(config: Config, *, total_samples: int, num_steps: int) -> tuple[PlannedKill, ...]:
    """The planned kills of the trace that ``config`` names, in order. Raises TraceError for one that does not fit."""
    is_by_second = config.trace.inject == "wall"
    clock: FailureClock = "wall" if is_by_second else config.trace.clock
    trace = job_trace(config, goes_on=clock == "wall")
    if trace is None:
        return ()
    for entry in trace.entries if is_by_second else ():
        if (entry.phase, entry.fault) != ("boundary", "kill"):
            raise TraceError(
                f"{trace.source}:{entry.line}: phase, fault: expected nothing with trace.inject=wall, got "
                f"{entry.phase}, {entry.fault}; a rank is killed at a second, whatever the run does then"
            )
    if "shm" in config.cluster.transports:
        _refuse_without_network(trace)
    planned_kills = schedule(
        trace,
        job_h=config.emulated.job_h,
        total_samples=total_samples,
        batch_size=config.trainer.batch_size,
        num_steps=num_steps,
        num_ps=config.num_ps,
        seed=config.trace_seed,
        clock=clock,
    )
    if config.trace.repair == "ignore":
        planned_kills = tuple(replace(planned_kill, repair_h=None) for planned_kill in planned_kills)
    return planned_kills


def _refuse_without_network(trace: Trace) -> None:
    """Raise TraceError for a rank that is cut off a network which it does not need."""
    for entry in trace.entries:
        if entry.fault == "partition":
            raise TraceError(
                f"{trace.source}:{entry.line}: fault: expected none of partition with shm in cluster.transports, got "
                "one; shared memory is no network: set cluster.transports=[uv]"
            )


def schedule(
    trace: Trace,
    *,
    job_h: float,
    total_samples: int,
    batch_size: int,
    num_steps: int,
    num_ps: int,
    seed: int,
    clock: FailureClock = "samples",
) -> tuple[PlannedKill, ...]:
    """The planned kills of a job of ``job_h`` hours and ``total_samples`` samples, by steps and hours, with flips of
    bits, each before the kills of its boundary; then slowdowns, then writes that fail.

    With the clock ``samples`` an entry is due at the first boundary whose samples reach its hour's, at the latest the
    boundary before the last step, and entries at one boundary are one planned kill. With ``wall`` entries of one hour
    are: at which boundary they strike depends on what is charged before. The ranks of an entry that gives a number are
    drawn by (seed, "trace", line), whatever else is in the trace. Entries of several phases are several planned kills.

    Raises:
        TraceError: an hour past the job's end (``samples``), a rank that the run does not have, more ranks than there
            are, a phase, a slow rank or a write that fails with the clock ``wall``.
    """
    planned: dict[tuple[int, float, KillPhase], list[tuple[Rank, Entry]]] = {}
    slow: list[tuple[int, Entry]] = []
    of_disks: list[PlannedKill] = []
    for entry in trace.entries:
        where = f"{trace.source}:{entry.line}"
        if entry.hour > job_h and clock == "samples":
            raise TraceError(
                f"{where}: expected an hour up to the end of the job ({job_h} h), got {entry.hour}; "
                "trace.window=densest takes a part of the trace, trace.stretch=true scales it to the job"
            )
        if (entry.phase != "boundary" or entry.fault == "slow") and clock == "wall":
            _refuse_on_wall_clock(entry, where)
        step = strike_step(
            entry.hour, job_h=job_h, total_samples=total_samples, batch_size=batch_size, num_steps=num_steps
        )
        if entry.fault == "slow":
            slow.append((step, entry))
            continue
        if entry.fault == "bitflip" or entry.fault in WRITE_FAULTS:
            of_disks.append(_fault_of_disk(step, entry, _ranks(entry, num_ps, seed, where), seed))
            continue
        killed = planned.setdefault((step, entry.hour if clock == "wall" else 0.0, entry.phase), [])
        killed += ((rank, entry) for rank in _ranks(entry, num_ps, seed, where))
    kills = (_planned_kill(step, phase, planned[step, hour, phase]) for step, hour, phase in sorted(planned))
    flips = (each for each in of_disks if each.flip is not None)
    slowdowns = _slowdowns([entry for _, entry in slow], job_h, total_samples, batch_size)
    return (
        *sorted([*flips, *kills], key=lambda each: (each.step, each.hours[0] if clock == "wall" else 0.0)),
        *(
            replace(
                _planned(step, entry, _ranks(entry, num_ps, seed, f"{trace.source}:{entry.line}")), slowdown=slowdown
            )
            for (step, entry), slowdown in zip(slow, slowdowns, strict=True)
        ),
        *(each for each in of_disks if each.flip is None),
    )


def _refuse_on_wall_clock(entry: Entry, where: str) -> None:
    """Raise TraceError for an entry that only ``trace.clock: samples`` allows."""
    if entry.fault == "slow" or entry.fault in WRITE_FAULTS:
        expected = f"{', '.join(DEATH_FAULTS[:-1])} or {DEATH_FAULTS[-1]}"
        raise TraceError(f"{where}: fault: expected {expected} with trace.clock=wall, got {entry.fault}")
    raise TraceError(
        f"{where}: phase: expected none with trace.clock=wall, got {entry.phase}; a failure in a phase strikes "
        "after its hour, which only trace.clock=samples allows"
    )


def _slowdowns(entries: Sequence[Entry], job_h: float, total_samples: int, batch_size: int) -> list[Slowdown]:
    """What each entry with the fault ``slow`` does, at most until the job's end."""
    spans = [(entry.hour, min(job_h, entry.hour + (entry.repair_h or 0.0)), entry.factor or 1.0) for entry in entries]
    return [
        Slowdown(
            factor=factor,
            last_hour=last_h,
            last_step=boundary_at(hour_to_samples(last_h, job_h=job_h, total_samples=total_samples), batch_size),
            wait_h=wait_h,
        )
        for (_, last_h, factor), wait_h in zip(spans, slow_hours(spans), strict=True)
    ]


def _planned(step: int, entry: Entry, ranks: Iterable[Rank]) -> PlannedKill:
    """What ``entry`` alone does to ``ranks``, from boundary ``step`` on."""
    ranks = tuple(sorted(ranks, key=rank_order))
    return PlannedKill(step=step, ranks=ranks, hours=(entry.hour,) * len(ranks), lines=(entry.line,) * len(ranks))


def _fault_of_disk(step: int, entry: Entry, ranks: Iterable[Rank], seed: int) -> PlannedKill:
    planned = _planned(step, entry, ranks)
    write_fault = WRITE_FAULTS.get(entry.fault)
    if write_fault is None:
        return replace(planned, flip=int(generator(seed, "bitflip", entry.line).integers(_NUM_BITS)))
    return replace(planned, phase="save", write_fault=write_fault)


def _ranks(entry: Entry, num_ps: int, seed: int, where: str) -> list[Rank]:
    ranks = ps_rank(0) + (f" … {ps_rank(num_ps - 1)}" if num_ps > 1 else "")
    if isinstance(entry.who, str):
        if ps_index(entry.who) >= num_ps:
            more = f"cluster.num_ps={ps_index(entry.who) + 1} or more has it"
            raise TraceError(f"{where}: expected a rank of this run ({ranks}), got {entry.who}; {more}")
        return [entry.who]
    if entry.who > num_ps:
        raise TraceError(f"{where}: expected at most {num_ps} ranks, since this run has {ranks}, got {entry.who}")
    return [ps_rank(i) for i in generator(seed, "trace", entry.line).choice(num_ps, entry.who, replace=False).tolist()]


def _planned_kill(step: int, phase: KillPhase, named: Sequence[tuple[Rank, Entry]]) -> PlannedKill:
    """The kill of all ranks that entries name. A rank dies by its first entry, or by the first one of its host."""
    lost = {rank: entry for rank, entry in reversed(named) if entry.host is not None}
    killed = dict(reversed(named)) | lost
    ranks = tuple(sorted(killed, key=rank_order))
    return PlannedKill(
        step=step,
        ranks=ranks,
        hours=tuple(killed[rank].hour for rank in ranks),
        lines=tuple(killed[rank].line for rank in ranks),
        repair_h=longest(entry.repair_h for entry in killed.values()),
        phase=phase,
        hanging=frozenset(rank for rank in ranks if killed[rank].fault == "hang"),
        cut_off=frozenset(rank for rank in ranks if killed[rank].fault == "partition"),
        hosts=tuple(dict.fromkeys(entry.host for _, entry in named if entry.host is not None)),
        host_of={rank: entry.host for rank, entry in lost.items() if entry.host is not None},
    )
