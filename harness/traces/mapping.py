"""Converts the log of a cluster to the trace of a job: window of hours, choice of nodes, their ranks, time scale."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, NaiveDatetime, WithJsonSchema, model_validator

from harness.core.errors import TraceError
from harness.core.faults import longest
from harness.core.plans import Rank, host_name, ps_index, ps_rank
from harness.core.seeds import generator
from harness.traces.importers.findings import FailureLog, Outage, counted
from harness.traces.importers.words import Parameters
from harness.traces.trace import MAX_HOSTS, MAX_HOURS, MAX_RANKS, Entry, Trace, with_notice

Kind = Literal["densest", "median", "quietest", "random"]

_STARTS_PER_LENGTH = 16  # windows of a length are searched at every sixteenth of it
_MOST_WINDOWS = 100_000  # into which a log is divided; shorter ones are a mistaken unit
_LEAST_HOURS = 0.01  # of a trace, whose lines have four decimals

Moment = Annotated[
    float | NaiveDatetime,
    Field(union_mode="left_to_right"),
    WithJsonSchema({"type": "hours since the log begins, or a date like 2026-01-31T06:00"}),
]


class MapSpec(Parameters):
    """The parameters by which a part of a log becomes the trace of a job.

    The window is ``from_`` to ``to``, or the one of ``length_h`` hours that ``window`` names. Without numbers of ranks
    or hosts every node is a rank.
    """

    from_: Annotated[Moment | None, Field(validation_alias="from")] = None
    """First hour of the window, counted from the log's beginning, or an ISO date."""
    to: Moment | None = None
    """Last hour of the window, or an ISO date; without it, the window is length_h long, or lasts to the log's end."""
    window: Kind | None = None
    """The window of length_h hours with most, median or fewest failures, or a random one."""
    length_h: Annotated[float, Field(gt=0)] | None = None
    """Hours of the window."""
    stretch_h: Annotated[float, Field(ge=_LEAST_HOURS, le=MAX_HOURS)] | None = None
    """Hours to which the window is scaled, repair times in proportion."""
    nodes: str | None = None
    """A regular expression for whole names of nodes; only these are taken."""
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    """Ranks of the job, among which all nodes are dealt in natural order of their names, with their failures."""
    keep_rate: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    """Ranks of the job; a failure is kept with probability ranks / nodes, so that a rank fails as often as a node."""
    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS)] | None = None
    """Hosts of the job instead of ranks (docs/HOSTS.md): each is lost by its first failure, with all its ranks."""
    num_nodes: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    """Nodes that were watched, if the log names only those that failed."""
    notice_s: Annotated[float, Field(ge=0, le=MAX_HOURS)] = 0.0
    """Seconds before each failure at which its rank was told of it; the logs do not say. Spot instances: 120 on AWS, 30
    on GCP and Azure."""
    seed: int = 0
    """Seed of the random choices of keep_rate and window=random."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if None not in (self.keep_rate, self.ranks) and self.keep_rate != self.ranks:
            raise TraceError(
                f"keep_rate, ranks: expected one number of ranks, got {self.keep_rate} and {self.ranks}; give only one"
            )
        if self.hosts is not None and (self.ranks or self.keep_rate):
            raise TraceError("hosts: expected neither ranks nor keep_rate: a host has the ranks of a run's placement")
        if self.window is not None and (self.from_ is not None or self.to is not None or self.length_h is None):
            raise TraceError(f"window={self.window}: expected length_h=HOURS without from and to, got other words")
        return self


def map_log(log: FailureLog, spec: MapSpec) -> Trace:
    """The trace of a job. Failures at one instant stay at one instant, at which a rank dies only once.

    Raises TraceError: a window outside the log, no node that matches, fewer ``num_nodes`` than the log names, fewer
    nodes than ranks with ``keep_rate``, more than MAX_RANKS ranks, or a trace that is too short or too long.
    """
    nodes = _choose_nodes(log, spec.nodes)
    outages = [outage for outage in log.outages if outage.node in nodes]
    first_h, last_h = _window(log, outages, spec)
    outages = [
        outage for outage in outages if first_h <= outage.start_h < last_h or outage.start_h == last_h == log.length_h
    ]
    if spec.num_nodes is not None and spec.num_nodes < len(nodes):
        raise TraceError(f"num_nodes: expected at least the {len(nodes)} that the log names, got {spec.num_nodes}")
    num_nodes, num_ranks = spec.num_nodes or len(nodes), spec.hosts or spec.keep_rate or spec.ranks or len(nodes)
    rules = Counter[str]()
    if spec.keep_rate:
        outages = _thin(outages, num_ranks / num_nodes, spec.seed, rules)
    ranks = {node: ps_rank(index % num_ranks) for node, index in nodes.items()}
    length_h = last_h - first_h if spec.stretch_h is None else spec.stretch_h
    if not _LEAST_HOURS <= length_h <= MAX_HOURS:
        raise TraceError(
            f"length_h: expected a trace of {_LEAST_HOURS:g} to {MAX_HOURS:g} hours, got {length_h:g}; stretch_h "
            "scales it"
        )
    if num_ranks > MAX_RANKS:
        raise TraceError(f"{log.source}: expected at most {MAX_RANKS} nodes, got {num_ranks}; select some by nodes=")
    entries = _entries(outages, ranks, first_h, length_h / (last_h - first_h), length_h, rules)
    if spec.hosts is not None:
        entries = _lost_once(entries, rules)
    kind = "ranks" if spec.hosts is None else "hosts"
    counts = {**log.dropped, **log.changed, **rules}
    applied = [f"{count} {rule}" for rule, count in counts.items() if count]
    began = None if log.began is None else datetime.fromisoformat(log.began) + timedelta(hours=first_h)
    header = {
        "title": f"{log.format} log, hours {first_h:g} to {last_h:g}, {num_nodes} nodes on {num_ranks} {kind}",
        "source": log.source,
        "licence": log.licence,
        "checksum": log.checksum,
        "format": log.format,
        "records": f"kept {log.num_kept} of {log.num_read}",
        **({"censored": counted(log.censored)} if log.censored else {}),
        **{f"rule {number}": rule for number, rule in enumerate(applied, start=1)},
        **({} if began is None else {"began": began.isoformat(timespec="seconds")}),
        "window_h": f"{first_h:g}-{last_h:g}",
        **({} if spec.stretch_h is None else {"stretch": f"{last_h - first_h:g} h to {spec.stretch_h:g} h"}),
        "length_h": f"{length_h:g}",
        "nodes": str(num_nodes),
        kind: str(num_ranks),
        "seed": str(spec.seed),
    }
    return with_notice(Trace(source=log.source, entries=entries, header=header), spec.notice_s)


def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A sort key by which node2 comes before node10."""
    return tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", name)
    )


def _choose_nodes(log: FailureLog, pattern: str | None) -> dict[str, int]:
    """The log's nodes whose names match ``pattern``, numbered in natural order.

    Raises TraceError if there is none, or ``pattern`` is no regular expression.
    """
    try:
        chosen = [node for node in log.nodes if pattern is None or re.fullmatch(pattern, node)]
    except re.error as error:
        raise TraceError(f"nodes: expected a regular expression, got {pattern!r}: {error}") from error
    if not chosen:
        some = ", ".join(sorted(log.nodes, key=natural)[:3])
        expected = f"expected a pattern that matches a node of {log.source} ({len(log.nodes)} nodes: {some}, …)"
        raise TraceError(f"nodes: {expected}, got {pattern!r}")
    return {node: index for index, node in enumerate(sorted(chosen, key=natural))}


def _window(log: FailureLog, outages: Sequence[Outage], spec: MapSpec) -> tuple[float, float]:
    """The first and last hour of the window that ``spec`` selects.

    Raises TraceError for a window that is empty, lies outside the log or is too short to be searched for, and for a
    date if the log has no calendar.
    """
    if spec.window is not None and (length_h := spec.length_h) is not None:
        if not log.length_h / _MOST_WINDOWS <= length_h <= log.length_h:
            raise TraceError(
                f"length_h: expected {log.length_h / _MOST_WINDOWS:g} to {log.length_h:g} hours, "
                f"the length of {log.source}, got {length_h:g}"
            )
        hours = [outage.start_h for outage in outages]
        first_h = find_window(hours, spec.window, length_h=length_h, total_h=log.length_h, seed=spec.seed)
        return first_h, first_h + length_h
    first_h = 0.0 if spec.from_ is None else _hour(log, "from", spec.from_)
    if spec.to is not None:
        last_h = _hour(log, "to", spec.to)
    else:
        last_h = log.length_h if spec.length_h is None else first_h + spec.length_h
    if not 0 <= first_h < last_h <= log.length_h:
        raise TraceError(
            f"from, to: expected ascending hours from 0 to {log.length_h:g} ({log.source}), "
            f"got {first_h:g} to {last_h:g}"
        )
    return first_h, last_h


def _hour(log: FailureLog, key: str, moment: float | datetime) -> float:
    """``moment`` in hours since the log begins. Raises TraceError for a date if the log has no calendar."""
    if not isinstance(moment, datetime):
        return moment
    if log.began is None:
        raise TraceError(f"{key}: expected a number of hours, since {log.source} has no calendar, got {moment}")
    return (moment - datetime.fromisoformat(log.began)).total_seconds() / 3600


def find_window(hours: Sequence[float], kind: Kind, *, length_h: float, total_h: float, seed: int) -> float:
    """The first hour of the window of ``length_h`` hours with the most, median or fewest failures within ``total_h``.

    ``hours``: the hours of the failures, ascending. Windows start every 1/16 of their length; of windows with as many
    failures the first is chosen. The start of a ``random`` window is drawn by ``seed``.
    """
    if kind == "random":
        return min(round(float(generator(seed, "window").uniform(0, total_h - length_h)), 2), total_h - length_h)
    starts_W = np.arange(0, total_h - length_h + 1e-9, length_h / _STARTS_PER_LENGTH)
    hours_E = np.array(hours)
    counts_W = np.searchsorted(hours_E, starts_W + length_h) - np.searchsorted(hours_E, starts_W)
    ordered = np.argsort(counts_W, kind="stable")
    count = counts_W[ordered[{"quietest": 0, "median": (len(ordered) - 1) // 2, "densest": -1}[kind]]]
    return float(starts_W[np.flatnonzero(counts_W == count)[0]])


def _thin(outages: Sequence[Outage], probability: float, seed: int, rules: Counter[str]) -> list[Outage]:
    """A random sample of the failures, each kept with ``probability``, so that a rank fails as often as a node.

    Nodes are not sampled, since a handful of them has most failures: a small job would nearly always have too few
    failures or far too many. Raises TraceError for a probability above 1.
    """
    if probability > 1:
        raise TraceError(f"keep_rate: expected at least 1 node per rank, got {1 / probability:.3g}; lower it")
    kept = generator(seed, "trace", "thin").random(len(outages)) < probability
    rules[f"failures left out to keep the rate of a node, each with probability {1 - probability:.6g}"] = int(
        (~kept).sum()
    )
    return [outage for outage, is_kept in zip(outages, kept, strict=True) if is_kept]


def _entries(  # noqa: PLR0917
    outages: Sequence[Outage],
    ranks: Mapping[str, Rank],
    first_h: float,
    scale: float,
    length_h: float,
    rules: Counter[str],
) -> tuple[Entry, ...]:
    """The entries of the trace, in hours rounded to 1e-4; failures of a rank at one instant keep the longest repair."""
    found: dict[tuple[float, Rank], tuple[float | None, str]] = {}
    for outage in outages:
        hour = min(round((outage.start_h - first_h) * scale, 4), math.floor(length_h * 1e4) / 1e4)
        key = hour, ranks[outage.node]
        repair_h = None if outage.repair_h is None else round(outage.repair_h * scale, 4)
        before_h, node = found.get(key, (None, outage.node))
        if key in found:
            rules["failures of a node whose rank dies at that instant already"] += 1
        found[key] = longest((before_h, repair_h)), node
    return tuple(
        Entry(
            hour=hour,
            who=rank,
            repair_h=repair_h,
            line=number,
            extra={"repair_h": "" if repair_h is None else f"{repair_h:g}", "node": node},
        )
        for number, ((hour, rank), (repair_h, node)) in enumerate(
            sorted(found.items(), key=lambda item: (item[0][0], natural(item[0][1]))), start=1
        )
    )


def _lost_once(entries: Sequence[Entry], rules: Counter[str]) -> tuple[Entry, ...]:
    """The first failure of each host, which is then lost for good. In ``entries`` rank psN stands for host N."""
    found: dict[int, Entry] = {}
    for entry in entries:
        assert isinstance(entry.who, str), "a name"
        host = ps_index(entry.who)
        if host in found:
            rules["failures of a host that was lost before left out"] += 1
        else:
            found[host] = replace(entry, who=host_name(host), host=host, line=len(found) + 1)
    return tuple(found.values())
