"""Failures of Los Alamos' clusters: a CSV of 26 columns, LA-UR-05-7318, 1996 to 2005.

Source: the README that comes with the data. Dates are US dates of local time, to the minute; ``Down Time`` is in
minutes. The calendar is taken as it stands: an hour that daylight saving skips or repeats is one hour in the gap.
"""

from dataclasses import dataclass

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import Cleaning, Failure, Observed, Watch
from harness.traces.importers.reading import as_count, as_number, csv_rows, shown, us_seconds

LICENCE = "released by Los Alamos National Laboratory, LA-UR-05-7318; acknowledge LANL"
NOT_POSITIVE = "records with down time <= 0 dropped"
NO_TIME = "records without a start dropped"
NO_NODE = "records without a node number dropped"
DIFFERS = "records whose down time is not end - start: kept, the down time believed"

_MINUTE_S = 60.0
_NUM_COLUMNS = 26
_MAX_NODES = 100_000
_MAX_DOWN_MINUTES = 10 * 365 * 24 * 60  # ten years, longer than any system of the log ran
_COLUMNS = {0: "System", 2: "nodes", 6: "nodenumz", 16: "Prob Started", 17: "Prob Fixed", 18: "Down Time"}
_SYSTEM, _NODES, _NODE, _STARTED, _FIXED, _DOWN = _COLUMNS


@dataclass(frozen=True)
class _Row:
    """One line; ``end_s`` None where it says neither when the node was back nor how long it was down."""

    system: int
    num_nodes: int
    node: str
    failure: Failure | None


def read(text: str, source: str, cleaning: Cleaning, *, system: str | int | None = None) -> Observed:
    """A record is a line; with ``system`` only its lines. A node is ``system-number``, numbers from 0.

    The column of nodes tells of those that never failed. Where a line has no down time, what lies between start and
    end is taken.

    Raises:
        TraceError: the first line that is not as described, or no line of ``system``.
    """
    wanted = None if system is None else as_count(system, "system", "option system", most=_MAX_NODES)
    failures: list[Failure] = []
    nodes: dict[int, int] = {}
    named: set[str] = set()
    watch = Watch()
    for where, fields in csv_rows(text, source):
        if _is_header(fields, where, is_first=not nodes):
            continue
        number = as_count(fields[_SYSTEM], "System", where, most=_MAX_NODES)
        nodes[number] = max(nodes.get(number, 0), as_count(fields[_NODES], "nodes", where, most=_MAX_NODES))
        if wanted not in (None, number):
            continue
        cleaning.num_read += 1
        failure = _failure(number, fields, where, cleaning)
        if failure is not None:
            failures.append(failure)
            named.add(failure.node)
            watch.saw(failure.start_s, failure.end_s)
    if wanted is not None and wanted not in nodes:
        raise TraceError(f"{source}: no line of system {wanted}; there are {shown(', '.join(map(str, sorted(nodes))))}")
    if not failures:
        raise TraceError(f"{source}: no failure in it")
    known = (f"{number}-{node}" for number in nodes if wanted in (None, number) for node in range(nodes[number]))
    return Observed(
        failures=failures, nodes=[*known, *named], first_s=watch.first_s, last_s=watch.last_s, has_calendar=True
    )


def _is_header(fields: list[str], where: str, *, is_first: bool) -> bool:
    """Whether it is the line of names, which only the first can be."""
    if len(fields) != _NUM_COLUMNS:
        raise TraceError(f"{where}: {len(fields)} columns; LANL's log has {_NUM_COLUMNS}")
    if not is_first or fields[_SYSTEM].isdigit():
        return False
    for column, name in _COLUMNS.items():
        if not fields[column].lower().startswith(name.lower()):
            raise TraceError(f"{where}: column {column + 1} is {shown(fields[column])}; expected {name!r}")
    return True


def _failure(system: int, fields: list[str], where: str, cleaning: Cleaning) -> Failure | None:
    """The line's failure, if no rule drops it."""
    if not fields[_STARTED]:
        cleaning.drop(NO_TIME, where)
        return None
    if not fields[_NODE]:
        cleaning.drop(NO_NODE, where)
        return None
    node = f"{system}-{as_count(fields[_NODE], 'nodenumz', where, most=_MAX_NODES)}"
    start_s = us_seconds(fields[_STARTED], "Prob Started", where)
    fixed_s = us_seconds(fields[_FIXED], "Prob Fixed", where) if fields[_FIXED] else None
    down_s = _down_s(fields[_DOWN], where)
    between_s = None if fixed_s is None else fixed_s - start_s
    if down_s is None:
        down_s = between_s
    if down_s is not None and down_s <= 0:
        cleaning.drop(NOT_POSITIVE, where)
        return None
    if None not in (between_s, down_s) and between_s != down_s:
        # In system 20's log: three times an hour of daylight saving, which the down time has right, twice a minute.
        cleaning.change(DIFFERS, where)
    return Failure(node, start_s, None if down_s is None else start_s + down_s, where)


def _down_s(text: str, where: str) -> float | None:
    if not text:
        return None
    minutes = as_number(text, "Down Time", where)
    if abs(minutes) > _MAX_DOWN_MINUTES:
        raise TraceError(f"{where}: Down Time is {shown(text)} minutes, more than ten years")
    return minutes * _MINUTE_S
