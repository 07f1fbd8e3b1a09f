"""Traces that name hosts: each such entry means the ranks that are on the host at its hour.

Ranks move only when a host is lost. So who is where follows from the hosts lost before, in the order of the trace.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.derived import host_map
from harness.config.model import Config
from harness.core.errors import TraceError
from harness.core.host_map import HostMap, host_name
from harness.core.plans import is_trainer
from harness.traces.trace import Entry, Trace, read_trace


def with_ranks(trace: Trace, config: Config) -> Trace:
    """``trace`` with an entry for each rank of a host in place of the entry that names the host.

    Raises TraceError for a host that the run does not have, one that is lost already, or that has no rank.
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
    """Why a host cannot be lost now, in words; None if it can. ``lines``: of the trace, by host that was lost."""
    name, cluster = host_name(host), config.cluster
    if not cluster.hosts:
        return f"{name} is an index into cluster.hosts, which names none; set cluster.hosts to names, such as [a,b,c]"
    if host >= len(cluster.hosts):
        all_hosts = f"{host_name(0)} … {host_name(len(cluster.hosts) - 1)}" if len(cluster.hosts) > 1 else host_name(0)
        return f"expected a host of cluster.hosts ({all_hosts}), got {name}"
    for key in ("spares", "spare_trainers"):
        if num := getattr(cluster, key):
            return (
                f"{name}: expected cluster.{key}=0, got {num}; on which host a spare takes over is not known before "
                "the run"
            )
    if host in lines:
        return f"{name} was lost at line {lines[host]} already, and does not come back"
    ranks = hosts.on(host)
    return None if ranks else f"{name} ({cluster.hosts[host]}) has no rank at that hour; name a host that has one"


def facts_of_named(config: Config) -> dict[str, Any]:
    """What decides results where the trace names hosts or trainers, by key of ``cluster``. Raises TraceError.

    Of hosts their number, and the host of each rank; of trainers their number. Names of hosts decide nothing.
    """
    entries = () if config.trace.path is None else read_trace(Path(config.trace.path)).entries
    facts: dict[str, Any] = {}
    if any(entry.names_host for entry in entries):
        hosts = host_map(config)
        facts["hosts"] = [len(hosts.left), *hosts.values()]
    if config.trace.trainers_die or any(isinstance(entry.who, str) and is_trainer(entry.who) for entry in entries):
        facts["num_trainers"] = config.cluster.num_trainers
    return facts
