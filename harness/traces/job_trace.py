"""The failure trace of a run: a draw of a law, a file, a window of it, or the file scaled to the job's length."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.derived import host_map
from harness.config.model import Config, TraceConfig
from harness.core.errors import ConfigError, TraceError
from harness.core.plans import HostMap, host_name, is_trainer
from harness.traces.draw import draw
from harness.traces.gaps import Observed, length_of, observe
from harness.traces.mapping import Kind, find_window
from harness.traces.trace import Entry, Trace, read_trace

_DIGITS = 6  # of hours: milliseconds of the job


def job_trace(config: Config, *, goes_on: bool = False) -> Trace | None:
    """The run's trace, with hosts replaced by their ranks; None without one.

    ``goes_on``: as :func:`on_job` and :func:`harness.traces.draw.draw`. Raises TraceError and ConfigError as these
    and :func:`with_ranks`, and TraceError for a file that is no trace.
    """
    profile = config.profile
    if config.trace.law is not None:
        return draw(config.trace.law, profile, config.num_ps, config.trace_seed, goes_on=goes_on)
    if config.trace.path is None:
        return None
    trace = read_trace(Path(config.trace.path))
    trace = on_job(trace, config.trace, job_h=profile.job_h, seed=config.trace_seed, goes_on=goes_on)
    return with_ranks(trace, config)


def on_job(trace: Trace, mapping: TraceConfig, *, job_h: float, seed: int = 0, goes_on: bool = False) -> Trace:
    """``trace`` cut to a window or scaled to a job of ``job_h`` hours, if ``mapping`` asks for either.

    Entries keep their line numbers. ``seed``: draws a random window. ``goes_on``: the entries after a window are kept,
    for a job that overhead makes longer.

    Raises:
        ConfigError: a window and a stretch at once.
        TraceError: a trace shorter than the window, of unknown length, or that :func:`length_of` refuses.
    """
    if mapping.window is not None and mapping.stretch:
        raise ConfigError(
            "trace.window, trace.stretch: expected one of them, got both; a window is as long as the job already"
        )
    length_of(trace)
    if mapping.window is not None:
        return _window(trace, mapping.window, job_h, seed, goes_on=goes_on)
    return _stretched(trace, job_h) if mapping.stretch else trace


def with_profile_of_trace(config: Config) -> Config:
    """``config`` with MTBF and ranks per failure measured on its trace, if the profile has ``from_trace``.

    Raises ConfigError without a trace, without a failure in it or without a known length; and as :func:`job_trace` and
    :func:`observe`.
    """
    profile = config.profile
    if not profile.from_trace:
        return config
    trace = job_trace(config)
    if trace is None:
        raise ConfigError("profile.from_trace: expected a failure trace (trace.path), got none")
    mtbf_h, ranks_per_failure = mtbf_and_ranks(observe(trace))
    changes = {
        "name": f"{profile.name}({Path(trace.source).stem})",
        "mtbf_h": mtbf_h,
        "ranks_per_failure": ranks_per_failure,
        "from_trace": False,
    }
    return config.model_copy(update={"profile": profile.model_copy(update=changes)})


def mtbf_and_ranks(observed: Observed) -> tuple[float, float]:
    """Hours per instant of failure, and deaths per instant. Raises ConfigError without failures or a known length."""
    if not observed.num_deaths:
        raise ConfigError(f"{observed.source}: expected at least one failure, got none")
    if not observed.length_h:
        raise ConfigError(f"{observed.source}: unknown length; add '# length_h: HOURS' to its header")
    num_instants = len(observed.instants[0])
    return observed.length_h / num_instants, observed.num_deaths / num_instants


def _window(trace: Trace, kind: Kind, job_h: float, seed: int, *, goes_on: bool) -> Trace:
    length_h = length_of(trace)
    if length_h < job_h:
        raise TraceError(
            f"{trace.source}: trace.window={kind}: expected a trace at least as long as the job ({job_h:g} h), got "
            f"{length_h:g} h; trace.stretch=true scales it to the job"
        )
    hours = [entry.hour for entry in trace.failures]
    first_h = find_window(hours, kind, length_h=job_h, total_h=length_h, seed=seed)
    kept_h = length_h - first_h if goes_on else job_h
    keeps_all = goes_on or first_h + job_h > length_h - 1e-9  # also a failure with which the log ends
    entries = tuple(
        replace(entry, hour=min(round(entry.hour - first_h, _DIGITS), kept_h))
        for entry in trace.entries
        if entry.hour >= first_h and (keeps_all or entry.hour - first_h < job_h)
    )
    header = {**trace.header, "length_h": f"{kept_h:g}", "window_h": f"{first_h:g}-{first_h + kept_h:g}"}
    return replace(trace, entries=entries, header=header)


def _stretched(trace: Trace, job_h: float) -> Trace:
    length_h = length_of(trace)
    if not length_h:
        raise TraceError(f"{trace.source}: trace.stretch: unknown length; add '# length_h: HOURS' to its header")
    scale = job_h / length_h

    def scaled(entry: Entry) -> Entry:
        repair_h = None if entry.repair_h is None else round(entry.repair_h * scale, _DIGITS)
        return replace(entry, hour=min(round(entry.hour * scale, _DIGITS), job_h), repair_h=repair_h)

    header = {**trace.header, "length_h": f"{job_h:g}", "stretch": f"{length_h:g} h to {job_h:g} h"}
    return replace(trace, entries=tuple(map(scaled, trace.entries)), header=header)


# --- hosts ------------------------------------------------------------------------------------------------------------


def with_ranks(trace: Trace, config: Config) -> Trace:
    """``trace`` with each entry that names a host replaced by one entry per rank on that host.

    Ranks move only when a host is lost, so the host of each rank follows from the earlier entries. Raises TraceError
    for a host that the run does not have, that is lost already, or that has no rank; for any host if the run has
    spares.
    """
    if not any(entry.names_host for entry in trace.entries):
        return trace
    return replace(trace, entries=tuple(_resolved(trace, config)))


def _resolved(trace: Trace, config: Config) -> Iterator[Entry]:
    hosts, lines = host_map(config), dict[int, int]()
    for entry in trace.entries:
        if not entry.names_host:
            yield entry
            continue
        assert entry.host is not None, "an entry that names a host"
        where = f"{trace.source}:{entry.line}: rank"
        if (why := _misfit(entry.host, config, hosts, lines)) is not None:
            raise TraceError(f"{where}: {why}")
        yield from (replace(entry, who=rank) for rank in hosts.on(entry.host))
        hosts.lose(entry.host)
        lines[entry.host] = entry.line


def _misfit(host: int, config: Config, hosts: HostMap, lines: dict[int, int]) -> str | None:
    """Why a host cannot be lost now, in words, or None. ``lines``: by lost host, the trace's line that lost it."""
    name, cluster = host_name(host), config.cluster
    if not cluster.hosts:
        return f"{name} is an index into cluster.hosts, which names none; set cluster.hosts to names, such as [a,b,c]"
    if host >= len(cluster.hosts):
        all_hosts = f"{host_name(0)} … {host_name(len(cluster.hosts) - 1)}" if len(cluster.hosts) > 1 else host_name(0)
        return f"expected a host of cluster.hosts ({all_hosts}), got {name}"
    if cluster.spares:
        return (
            f"{name}: expected cluster.spares=0, got {cluster.spares}; on which host a spare takes over is not known "
            "before the run"
        )
    if host in lines:
        return f"{name} was lost at line {lines[host]} already, and does not come back"
    ranks = hosts.on(host)
    return None if ranks else f"{name} ({cluster.hosts[host]}) has no rank at that hour; name a host that has one"


def facts_of_named(config: Config) -> dict[str, Any]:
    """Facts for the config's hash, by key of ``cluster``, that change a result only through the trace.

    If the trace names hosts: their number, then the host of each rank. If it names trainers, or
    ``trace.trainers_die``: the number of trainers. If it has notices: what is done on them. Raises TraceError for a
    file that is no trace.
    """
    entries = () if config.trace.path is None else read_trace(Path(config.trace.path)).entries
    facts: dict[str, Any] = {}
    if any(entry.names_host for entry in entries):
        hosts = host_map(config)
        facts["hosts"] = [len(hosts.left), *hosts.values()]
    if config.trace.trainers_die or any(isinstance(entry.who, str) and is_trainer(entry.who) for entry in entries):
        facts["num_trainers"] = config.cluster.num_trainers
    has_notice = any(entry.notice_s for entry in entries) or (config.trace.law and config.trace.law.notice_s)
    if config.cluster.on_notice != "none" and has_notice:
        facts["on_notice"] = config.cluster.on_notice
    return facts
