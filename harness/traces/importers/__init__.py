"""Readers of the failure logs of real clusters in their original form.

An importer is one function ``read(text, found)``, which calls ``found.fail(node, start_s, end_s, where)``
for each failure and ``found.drop`` or ``found.change`` with a rule's sentence where it leaves out or corrects a record.
It has one entry in FORMATS. Overlaps, calendar, counts and ``strict`` are handled here for all importers.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import TraceError
from harness.traces.importers import intervals, lanl, spot, training
from harness.traces.importers.findings import HOUR_S, FailureLog, Findings, LogFormat
from harness.traces.trace import read_utf8


@dataclass(frozen=True, kw_only=True)
class Importer:
    """A format of failure logs and its reader.

    ``has_calendar``: whether times are seconds since 1970 in the log's own time zone; None: they are if the last one
    lies in 1990 or later. ``options``: the fields of :class:`LogFormat` that apply, besides ``format`` and ``strict``.
    """

    read: Callable[[str, Findings], None]
    licence: str
    has_calendar: bool | None
    options: tuple[str, ...] = ()


FORMATS: dict[str, Importer] = {
    "infinitehbd": Importer(
        read=training.read_infinitehbd,
        licence="Apache-2.0, stepfun-ai/InfiniteHBD-Trace (arXiv 2502.03885)",
        has_calendar=False,
    ),
    "lanl": Importer(
        read=lanl.read,
        licence="released by Los Alamos National Laboratory, LA-UR-05-7318; acknowledge LANL",
        has_calendar=True,
        options=("system",),
    ),
    "bamboo": Importer(
        read=spot.read_events,
        licence="MIT, uclasystem/bamboo (NSDI 2023)",
        has_calendar=False,
        options=("by",),
    ),
    "skypilot": Importer(
        read=spot.read_counts,
        licence="skypilot-org/spot-traces (NSDI 2024); it names no licence: ask before passing it on, and cite",
        has_calendar=False,
    ),
    "fta": Importer(
        read=intervals.read_fta,
        licence="Failure Trace Archive; cite the archive and the data set's own source",
        has_calendar=None,
    ),
    "philly": Importer(
        read=training.read_philly,
        licence="msr-fiddle/philly-traces, provided as is; cite Jeon et al., ATC 2019",
        has_calendar=True,
    ),
    "intervals": Importer(
        read=intervals.read_intervals,
        licence="not stated in the file",
        has_calendar=None,
        options=("unit",),
    ),
}


def read_log(path: Path, how: LogFormat) -> FailureLog:
    """The log in ``path``, cleaned by the rules of docs/TRACES.md.

    Raises TraceError: an unknown format, an option of another one, a file that cannot be read or is not as its format
    says, or, with ``how.strict``, a record to which a rule applies.
    """
    importer = FORMATS.get(how.format)
    if importer is None:
        raise TraceError(f"format: expected one of {', '.join(FORMATS)}, got {how.format!r}")
    if others := how.model_fields_set - {"format", "strict", *importer.options}:
        accepted = ", ".join(importer.options) or "none"
        raise TraceError(f"format={how.format}: expected one of its options ({accepted}), got {min(others)}")
    text, content = read_utf8(path, "a log of failures")
    if not text.strip():
        raise TraceError(f"{path}: expected a log of failures, got an empty file")
    found = Findings(str(path), how)
    importer.read(text, found)
    zero_s, began = found.hour_zero(importer.has_calendar)
    return FailureLog(
        format=how.format,
        source=path.name,
        licence=importer.licence,
        checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
        outages=found.outages(zero_s),
        nodes=tuple(sorted(found.nodes)),
        length_h=(found.last_s - zero_s) / HOUR_S,
        began=began,
        dropped=dict(found.dropped),
        changed=dict(found.changed),
    )
