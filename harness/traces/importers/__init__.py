"""Failure logs of real clusters in their original form.

An importer is one function ``read(text, found, **options)``, which calls ``found.fail(node, start_s, end_s, where)``
for each failure and ``found.drop`` or ``found.change`` with a rule's sentence where it leaves out or corrects a record.
It has one entry in FORMATS. Overlaps, calendar, counts and ``strict`` are handled here for all importers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import TraceError
from harness.traces.importers import fta, infinitehbd, intervals, lanl, philly, spot
from harness.traces.importers.findings import HOUR_S, FailureLog, Findings
from harness.traces.importers.reading import read_text


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format of failure logs.

    ``has_calendar``: times are seconds since 1970 in the log's own time zone; None: they are
    if the last one lies in 1990 or later.
    ``options`` holds the meaning of each keyword of ``read``; values may be text, as the command line has them.
    """

    read: Callable[..., None]
    licence: str
    has_calendar: bool | None
    options: Mapping[str, str] = field(default_factory=dict)


FORMATS: dict[str, Importer] = {
    "infinitehbd": Importer(
        read=infinitehbd.read,
        licence="Apache-2.0, stepfun-ai/InfiniteHBD-Trace (arXiv 2502.03885)",
        has_calendar=False,
    ),
    "lanl": Importer(
        read=lanl.read,
        licence="released by Los Alamos National Laboratory, LA-UR-05-7318; acknowledge LANL",
        has_calendar=True,
        options={"system": "number of the system; all of them without it"},
    ),
    "bamboo": Importer(
        read=spot.read_events,
        licence="MIT, uclasystem/bamboo (NSDI 2023)",
        has_calendar=False,
        options={"by": "what a node is: a slot of the cluster, or an instance by its name; slot without it"},
    ),
    "skypilot": Importer(
        read=spot.read_counts,
        licence="skypilot-org/spot-traces (NSDI 2024); it names no licence: ask before passing it on, and cite",
        has_calendar=False,
    ),
    "fta": Importer(
        read=fta.read,
        licence="Failure Trace Archive; cite the archive and the data set's own source",
        has_calendar=None,
    ),
    "philly": Importer(
        read=philly.read,
        licence="msr-fiddle/philly-traces, provided as is; cite Jeon et al., ATC 2019",
        has_calendar=True,
    ),
    "intervals": Importer(
        read=intervals.read,
        licence="not stated in the file",
        has_calendar=None,
        options={"unit": f"unit of start and end: {', '.join(intervals.UNITS)}; s without it"},
    ),
}


def read_log(format: str, path: Path, *, strict: bool = False, **options: str | int) -> FailureLog:
    """The log in ``path``, cleaned by the rules of docs/TRACES.md; ``strict`` refuses a log that needs one.

    Raises:
        TraceError: an unknown format or option, or a file that is not as its format says; one line.
    """
    importer = FORMATS.get(format)
    if importer is None:
        raise TraceError(f"format: expected one of {', '.join(FORMATS)}, got {format!r}")
    for option in options:
        if option not in importer.options:
            accepted = ", ".join(importer.options) or "none"
            raise TraceError(f"format {format}: expected one of its options ({accepted}), got {option!r}")
    text, checksum = read_text(path)
    found = Findings(str(path), strict=strict)
    try:
        importer.read(text, found, **options)
    except RecursionError as error:
        raise TraceError(f"{path}: expected a log of failures, got JSON nested too deeply to parse") from error
    zero_s, began = found.hour_zero(importer.has_calendar)
    return FailureLog(
        format=format,
        source=path.name,
        licence=importer.licence,
        checksum=checksum,
        outages=found.outages(zero_s),
        nodes=tuple(sorted(found.nodes)),
        length_h=(found.last_s - zero_s) / HOUR_S,
        began=began,
        dropped=dict(found.dropped),
        changed=dict(found.changed),
    )
