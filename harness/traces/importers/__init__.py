"""Failure logs of real clusters in their original form, each format one module and one entry of FORMATS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import TraceError
from harness.traces.importers import bamboo, fta, infinitehbd, intervals, lanl, philly, skypilot
from harness.traces.importers.cleaning import HOUR_S, Cleaning, Observed, finish_pending_save, hour_zero, to_outages
from harness.traces.importers.reading import read_text
from harness.traces.log import FailureLog


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format: ``read(text, source, cleaning, **options)`` finds what a file claims, the rest is common.

    ``options`` names what ``read`` takes, with what it means; values may be text, as a command line has them.
    """

    read: Callable[..., Observed]
    title: str
    licence: str
    options: Mapping[str, str] = field(default_factory=dict)


FORMATS: dict[str, Importer] = {
    "infinitehbd": Importer(
        read=infinitehbd.read, title="fault_start and fault_end events in days, JSON", licence=infinitehbd.LICENCE
    ),
    "lanl": Importer(
        read=lanl.read,
        title="Los Alamos' failures of 1996 to 2005, CSV of 26 columns",
        licence=lanl.LICENCE,
        options={"system": "number of the system; all systems if none is named"},
    ),
    "bamboo": Importer(
        read=bamboo.read,
        title="spot instances: milliseconds,add|remove,instance",
        licence=bamboo.LICENCE,
        options={"by": "what a node is: a 'slot' of the cluster, or an 'instance' by its name"},
    ),
    "skypilot": Importer(
        read=skypilot.read, title="counts of live spot instances at each tick, JSON", licence=skypilot.LICENCE
    ),
    "fta": Importer(read=fta.read, title="event_trace.tab of the Failure Trace Archive", licence=fta.LICENCE),
    "philly": Importer(read=philly.read, title="cluster_job_log of the Philly traces, JSON", licence=philly.LICENCE),
    "intervals": Importer(
        read=intervals.read,
        title="node,start,end",
        licence=intervals.LICENCE,
        options={"unit": f"of start and end: {', '.join(intervals.UNITS)}"},
    ),
}


def read_log(format: str, path: Path, *, strict: bool = False, **options: str | int) -> FailureLog:
    """The log in ``path``, cleaned by the rules of docs/TRACES.md; ``strict`` refuses what would need one.

    Raises:
        TraceError: one line with file, line or record, what is wrong and what would be right.
    """
    importer = FORMATS.get(format)
    if importer is None:
        raise TraceError(f"format {format!r}; there are {', '.join(FORMATS)}")
    for option in options:
        if option not in importer.options:
            takes = ", ".join(importer.options) or "none"
            raise TraceError(f"format {format} has no option {option!r}; its options: {takes}")
    text, checksum = read_text(path)
    cleaning = Cleaning(strict=strict)
    try:
        observed = importer.read(text, str(path), cleaning, **options)
    except RecursionError as error:
        raise TraceError(f"{path}: nested too deeply to be a log of failures") from error
    zero_s, began = hour_zero(observed, str(path))
    outages = to_outages(finish_pending_save(observed.failures, cleaning), zero_s)
    return FailureLog(
        format=format,
        source=path.name,
        licence=importer.licence,
        checksum=checksum,
        outages=outages,
        nodes=tuple(sorted(set(observed.nodes))),
        length_h=(observed.last_s - zero_s) / HOUR_S,
        began=began,
        num_read=cleaning.num_read,
        num_kept=len(outages),
        dropped=dict(cleaning.dropped),
        changed=dict(cleaning.changed),
    )
