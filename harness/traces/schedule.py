"""Converts a failure trace to the planned faults of one run."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import xxhash

from harness.config.model import Config
from harness.core.clock import FailureClock, strike_step
from harness.core.errors import ConfigError, TraceError
from harness.core.faults import FAULTS, KILL, Phase, PlannedFault, Strike, first_strikes, longest
from harness.core.plans import CHIEF, Rank, is_trainer, ps_rank, rank_order, trainer_rank
from harness.core.seeds import generator
from harness.traces.job_trace import job_trace
from harness.traces.shrink import shrunk
from harness.traces.trace import Entry, Trace, read_trace, to_text


def trace_facts(config: Config) -> dict[str, str | None] | None:
    """For env.json: the ``digest`` of the trace, and its ``law`` (:attr:`Trace.law`); None without a trace.

    The digest is that of the file, or, for a trace drawn from ``trace.law``, that of its text; ``law`` is then None.
    Raises TraceError and ConfigError as :func:`job_trace`, and TraceError for a file that is no trace.
    """
    if config.trace.law is not None:
        trace = job_trace(config)
        assert trace is not None
        return {"digest": xxhash.xxh3_64_hexdigest(to_text(trace).encode()), "law": None}
    if config.trace.path is None:
        return None
    path = Path(config.trace.path)
    law = read_trace(path).law
    return {"digest": xxhash.xxh3_64_hexdigest(path.read_bytes()), "law": law}


def planned_faults_of(config: Config, *, total_samples: int, num_steps: int) -> tuple[PlannedFault, ...]:
    """The planned faults of the run's trace, in the order of :func:`schedule`; empty without a trace.

    Raises TraceError if the trace does not fit the run, ConfigError if settings of the trace exclude each other, and
    both as :func:`job_trace`.
    """
    is_by_second = config.trace.inject == "wall"
    clock: FailureClock = "wall" if is_by_second else config.trace.clock
    trace = job_trace(config, goes_on=clock == "wall")
    if trace is None:
        return ()
    for entry in trace.entries:
        _refuse_for_config(entry, f"{trace.source}:{entry.line}", config)
    planned_faults = schedule(
        trace,
        job_h=config.profile.job_h,
        total_samples=total_samples,
        batch_size=config.trainer.batch_size,
        num_steps=num_steps,
        num_ps=config.num_ps,
        num_trainers=config.cluster.num_trainers,
        trainers_die=config.trace.trainers_die,
        seed=config.trace_seed,
        clock=clock,
    )
    for planned in planned_faults if is_by_second or config.trace.interrupts else ():
        if planned.time.takes_chief:
            where = f"{trace.source}:{planned.strikes[CHIEF].line}: rank: expected another rank than {CHIEF}"
            where = "trace.trainers_die: expected false" if config.trace.trainers_die else where
            where += " with trace.inject=wall" if is_by_second else " with trace.interrupts=true"
            error = ConfigError if config.trace.trainers_die else TraceError
            raise error(f"{where}; what {CHIEF} knows is handed over between two steps only")
    if config.cluster.on_loss == "shrink":
        job = {"job_h": config.profile.job_h, "total_samples": total_samples, "num_steps": num_steps}
        step_at = partial(strike_step, batch_size=config.trainer.batch_size, **job)
        planned_faults = shrunk(planned_faults, config.num_ps, num_steps, step_at)
    if config.trace.repair == "ignore":
        planned_faults = tuple(replace(planned, repair_h=None) for planned in planned_faults)
    return planned_faults


def merged_instants(config: Config, *, total_samples: int, num_steps: int) -> Iterator[str]:
    """A sentence if losses of ranks at several hours fall on one boundary between steps, where they are one failure.

    None where failures do not strike at the samples of their hour: on the wall clock or at real seconds. Raises
    TraceError and ConfigError as :func:`job_trace`.
    """
    if config.trace.clock == "wall" or config.trace.inject == "wall":
        return
    trace, job_h = job_trace(config), config.profile.job_h
    hours = {entry.hour for entry in (trace.failures if trace else ()) if entry.phase == "boundary"}
    job = {"total_samples": total_samples, "batch_size": config.trainer.batch_size, "num_steps": num_steps}
    num_boundaries = len({strike_step(hour, job_h=job_h, **job) for hour in hours})
    if num_boundaries < len(hours):
        yield (
            f"{len(hours)} failure instants of trace {config.trace_name} fall on {num_boundaries} boundaries between "
            f"steps, and instants at one boundary are one failure: the run has {num_steps:,} steps of "
            f"{job_h / num_steps:.3g} h each; more samples or smaller batches keep instants apart"
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
    num_trainers: int = 1,
    trainers_die: bool = False,
    clock: FailureClock = "samples",
) -> tuple[PlannedFault, ...]:
    """The planned faults of a job of ``job_h`` hours and ``total_samples`` samples, in three parts, each in order.

    First come losses of ranks, and other faults at boundaries, which precede the losses of their boundary; then faults
    that wait for a phase and lose no rank.

    With the clock ``samples`` an entry is due at the first boundary that reaches the samples of its hour, at the latest
    the boundary before the last step; ranks lost at one boundary are one planned fault. With ``wall`` ranks lost at one
    hour are one planned fault, since its boundary depends on the overhead charged before. Different phases are
    different planned faults. The ranks of an entry that gives a number are drawn by (seed, "trace", line), whatever
    else is in the trace. ``trainers_die``: all trainers die with each kill at a boundary.

    Raises:
        TraceError: a rank that the run does not have, more ranks than there are, or ``trainer0`` lost except by a kill
            between two steps. With the clock ``samples``: an hour past the job's end. With
            the clock ``wall``: a phase, or a fault that strikes in a phase only.
    """
    lost: defaultdict[tuple[int, float, Phase], list[tuple[Rank, Entry]]] = defaultdict(list)
    others: list[PlannedFault] = []
    for entry in trace.entries:
        where = f"{trace.source}:{entry.line}"
        _refuse_by_clock(entry, where, job_h, clock)
        step = strike_step(
            entry.hour, job_h=job_h, total_samples=total_samples, batch_size=batch_size, num_steps=num_steps
        )
        ranks = _ranks(entry, num_ps, num_trainers, seed, where)
        fault = entry.fault.drawn(partial(generator, seed, entry.fault.name, entry.line))
        if trainers_die and fault.loss == "dead" and entry.phase == "boundary":
            ranks += map(trainer_rank, range(num_trainers))
        if CHIEF in ranks and (entry.phase, fault.loss) != ("boundary", "dead"):
            raise TraceError(
                f"{where}: phase, fault: expected nothing for {CHIEF}, got {entry.phase}, {fault.name}; it can only be "
                "killed between two steps"
            )
        named = [(rank, replace(entry, fault=fault)) for rank in ranks]
        if fault.loss:
            lost[step, entry.hour if clock == "wall" else 0.0, entry.phase] += named
        else:
            others.append(_planned(step, named))
    at_once = [each for each in others if each.phase == "boundary"]
    at_once += [_planned(key[0], lost[key], num_trainers) for key in sorted(lost)]
    return (
        *sorted(at_once, key=lambda each: (each.step, each.hour if clock == "wall" else 0.0)),
        *(each for each in others if each.phase != "boundary"),
    )


def _refuse_for_config(entry: Entry, where: str, config: Config) -> None:
    """Raise TraceError for an entry that ``trace.inject`` rules out."""
    if config.trace.inject == "wall" and (entry.phase, entry.fault) != ("boundary", KILL):
        raise TraceError(
            f"{where}: phase, fault: expected nothing with trace.inject=wall, got {entry.phase}, {entry.fault.name}; "
            "a rank is killed at a second, whatever the run does then"
        )
    is_other = entry.host is not None or (isinstance(entry.who, str) and is_trainer(entry.who))
    if config.cluster.on_loss == "shrink" and entry.fault.loss and (is_other or entry.phase != "boundary"):
        raise TraceError(
            f"{where}: rank, phase: expected a PS rank between two steps with cluster.on_loss=shrink, got {entry.who}, "
            f"{entry.phase}; who takes over its shards must be known before the run"
        )


def _refuse_by_clock(entry: Entry, where: str, job_h: float, clock: FailureClock) -> None:
    """Raise TraceError for an hour past the job's end, or an entry that only ``trace.clock: samples`` allows."""
    if clock == "samples":
        if entry.hour > job_h:
            raise TraceError(
                f"{where}: expected an hour up to the end of the job ({job_h} h), got {entry.hour}; "
                "trace.window=densest takes a part of the trace, trace.stretch=true scales it to the job"
            )
    elif "boundary" not in entry.fault.phases:
        *names, last = (name for name, each in FAULTS.items() if "boundary" in each.phases)
        expected = f"{', '.join(names)} or {last}"
        raise TraceError(f"{where}: fault: expected {expected} with trace.clock=wall, got {entry.fault.name}")
    elif entry.phase != "boundary":
        raise TraceError(
            f"{where}: phase: expected none with trace.clock=wall, got {entry.phase}; a failure in a phase strikes "
            "after its hour, which only trace.clock=samples allows"
        )


def _ranks(entry: Entry, num_ps: int, num_trainers: int, seed: int, where: str) -> list[Rank]:
    key, num, name = "num_ps", num_ps, ps_rank
    if isinstance(entry.who, str) and is_trainer(entry.who):
        key, num, name = "num_trainers", num_trainers, trainer_rank
    ranks = name(0) + (f" … {name(num - 1)}" if num > 1 else "")
    if isinstance(entry.who, str):
        if (index := rank_order(entry.who)[1]) >= num:
            more = f"cluster.{key}={index + 1} or more has it"
            raise TraceError(f"{where}: expected a rank of this run ({ranks}), got {entry.who}; {more}")
        return [entry.who]
    if entry.who > num_ps:
        raise TraceError(f"{where}: expected at most {num_ps} ranks, since this run has {ranks}, got {entry.who}")
    return [ps_rank(i) for i in generator(seed, "trace", entry.line).choice(num_ps, entry.who, replace=False).tolist()]


def _strike(entry: Entry) -> Strike:
    facts = {"repair_h": entry.repair_h, "notice_h": entry.notice_s / 3600}
    return Strike(entry.hour, entry.line, entry.fault, entry.host, **facts)


def _planned(step: int, named: Sequence[tuple[Rank, Entry]], num_trainers: int = 1) -> PlannedFault:
    """One planned fault of all entries that strike together; ``named``: each struck rank with its entry."""
    strikes = first_strikes([(rank, _strike(each)) for rank, each in named])
    losses = [(rank, entry) for rank, entry in named if entry.fault.loss]
    return PlannedFault(
        step=step,
        strikes=strikes,
        repair_h=longest(entry.repair_h for rank, entry in losses if strikes[rank].line == entry.line),
        phase=named[0][1].phase,
        hosts=tuple(dict.fromkeys(entry.host for _, entry in named if entry.host is not None)),
        num_trainers=num_trainers,
    )
