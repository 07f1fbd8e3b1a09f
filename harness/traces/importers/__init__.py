"""Readers of the failure logs of real clusters in their original form.

An importer is one function ``read(text, found)``, which calls ``found.fail(node, start_s, end_s, where)`` for each
failure, and counts a record that it leaves out or corrects in ``found.dropped`` or ``found.changed``, by the rule's
sentence. It has one entry in FORMATS. Overlaps and calendar are handled here for all importers.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.core.errors import TraceError
from harness.traces.importers import infinitehbd, intervals, lanl, slurm, spot
from harness.traces.importers.findings import DOWN, HOUR_S, FailureLog, Findings, LogFormat, Outage, counted
from harness.traces.trace import read_utf8


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format of failure logs and its reader.

    ``has_calendar``: whether times are seconds since 1970 in the log's own time zone; None: they are if the last one
    lies in 1990 or later. ``options``: the fields of :class:`LogFormat` that apply, besides those of all formats.
    """

    read: Callable[[str, Findings], None]
    has_calendar: bool | None
    options: tuple[str, ...] = ()


_OF_ALL = ("format", "merge_h")  # options
FORMATS: dict[str, Importer] = {
    "infinitehbd": Importer(read=infinitehbd.read, has_calendar=False, options=("censored",)),
    "lanl": Importer(read=lanl.read, has_calendar=True, options=("system", "censored")),
    "bamboo": Importer(read=spot.read_events, has_calendar=False, options=("censored",)),
    "skypilot": Importer(read=spot.read_counts, has_calendar=False),
    "slurm": Importer(read=slurm.read, has_calendar=None, options=("unit", "columns", "censored")),
    "intervals": Importer(read=intervals.read_intervals, has_calendar=None, options=("unit", "columns", "censored")),
}

_INFINITEHBD = "Apache-2.0, stepfun-ai/InfiniteHBD-Trace (arXiv 2502.03885)"
_LANL = "released by Los Alamos National Laboratory, LA-UR-05-7318; acknowledge LANL"
_BAMBOO = "MIT, uclasystem/bamboo (NSDI 2023)"
LICENCES: dict[str, str] = {
    "5871b881b341c9526223c025eda3a9bd2f0f875cf8d53441688ccd953e11b80d": _INFINITEHBD,  # fault_trace.json
    "c203af4201e5b094b7d77dede917d74921c2e3ea121521a01830174c091169fc": _LANL,  # system 20
    "0b7828fcd4637799590578287415d4d4bbb5e3cfef5fbaf23ca8e5b3ef6bdd68": _BAMBOO,  # p3-trace.csv
    "6a21d2003cfa16acfb65fb87b5521dd995c72f49a37900979eea177e853592eb": _BAMBOO,  # g4dn-trace.csv
}
"""Licences of published files by SHA-256. A format alone tells no licence: others write it too."""
_DOUBTFUL = re.compile(
    r"mainten|(?<!un)(planned|scheduled)|upgr|install|owner|\buser\b|cancel|drain|stop|shut|retire|decom|reserv|offline",
    re.IGNORECASE,
)
_LONG = 0.05  # of the log's hours: an empty beginning that changes the MTBF
_EQUAL = 0.02  # relative difference of times between failures that count as equal
_LEAST_EQUAL = 5


def read_log(path: Path, how: LogFormat) -> FailureLog:
    """The log in ``path``, cleaned by the rules of docs/TRACES.md.

    Raises TraceError: an unknown format, an option of another one, a file that cannot be read or is not as its format
    says.
    """
    importer = FORMATS.get(how.format)
    if importer is None:
        raise TraceError(f"format: expected one of {', '.join(FORMATS)}, got {how.format!r}")
    if others := how.model_fields_set & LogFormat.model_fields.keys() - {*_OF_ALL, *importer.options}:
        accepted = ", ".join(importer.options) or "none"
        raise TraceError(f"format={how.format}: expected one of its options ({accepted}), got {min(others)}")
    text, content = read_utf8(path, "a log of failures")
    if not text.strip():
        raise TraceError(f"{path}: expected a log of failures, got an empty file")
    found = Findings(str(path), how)
    importer.read(text, found)
    if how.censored is not None and not found.censored:
        some = ", ".join(reason for reason, _ in found.reasons.most_common(5)) or "none"
        raise TraceError(f"{path}: censored: expected a pattern found in a reason ({some}), got {how.censored!r}")
    zero_s, began = found.hour_zero(importer.has_calendar)
    checksum = hashlib.sha256(content).hexdigest()
    return FailureLog(
        format=how.format,
        source=path.name,
        licence=LICENCES.get(checksum, "not stated"),
        checksum=f"sha256:{checksum}",
        outages=found.outages(zero_s),
        nodes=tuple(sorted(found.nodes)),
        length_h=(found.last_s - zero_s) / HOUR_S,
        began=began,
        first_h=(found.first_s - zero_s) / HOUR_S,
        columns=found.columns,
        dropped=dict(found.dropped),
        changed=dict(found.changed),
        reasons=dict(found.reasons),
        censored=dict(found.censored),
    )


def doubts(log: FailureLog, *, is_from_start: bool = True) -> Iterator[str]:
    """A sentence on each sign that failures are counted that are none, or hours that nobody watched.

    ``is_from_start``: whether the hours before the first record are used.
    """
    found = {reason: num for reason, num in log.reasons.items() if _DOUBTFUL.search(reason)}
    if found:
        yield f"reasons that may be no failures: {counted(found)}; censored=REGEX leaves records with such a reason out"
    by_node: dict[str, list[Outage]] = {}
    for outage in log.outages:
        by_node.setdefault(outage.node, []).append(outage)
    pairs = [pair for outages in by_node.values() for pair in itertools.pairwise(outages)]
    gaps_h = [after.start_h - before.start_h for before, after in pairs]
    gap_h = median(gaps_h) if gaps_h else 0.0
    num = sum(abs(each_h - gap_h) <= _EQUAL * gap_h for each_h in gaps_h)
    if num >= max(_LEAST_EQUAL, len(gaps_h) / 2):
        yield (
            f"{num:,} of {len(pairs):,} times between failures of one node are {gap_h:.3g} h, as of a machine that "
            f"reports again and again: merge_h={1.5 * gap_h:.2g} makes such reports one failure"
        )
    num_adjacent = sum(before.end_h == after.start_h for before, after in pairs) - log.changed.get(DOWN, 0)
    if num_adjacent > 0:
        yield (
            f"{num_adjacent:,} record{'s begin' if num_adjacent > 1 else ' begins'} when an outage of the same node "
            "ends: merge_h=0 makes both one failure"
        )
    if is_from_start and log.first_h > _LONG * log.length_h:
        first_h = math.floor(log.first_h * 1e4) / 1e4
        yield (
            f"the first {log.first_h:.3g} h of {log.length_h:.4g} have no record and count as hours without a failure: "
            f"if nobody watched, from={first_h:.10g} leaves them out"
        )
