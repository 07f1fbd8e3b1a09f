"""The failure trace of a job: which ranks die at which hour. The file format is failure_traces/README.md."""

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from harness.core.errors import TraceError
from harness.core.faults import FAULTS, KILL, PHASES, Fault, Phase
from harness.core.plans import Rank, host_name, is_trainer
from harness.files import in_repository

_NAME = re.compile(r"(ps|trainer|host)(0|[1-9][0-9]*)")
_COUNT = re.compile(r"[1-9][0-9]*")
MAX_HOURS = 1e9
"""The longest trace, in hours."""
MAX_HOSTS = 256
"""The most hosts of a run."""
MAX_TRAINERS = 256
"""The most trainers of a run."""
MAX_RANKS = 1_000_000
"""The most ranks of a trace, such as the nodes of a whole cluster."""
_NAMES = "column names that begin with 'hour,rank'"
_SEPARATOR = re.compile(r"\s*[,;|\t ]\s*")
_OF_ONE_DRAW = ("seed", "number", "lemons", "command")  # keys of a header
_MOST = {"ps": MAX_RANKS, "trainer": MAX_TRAINERS, "host": MAX_HOSTS}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a trace: a fault that strikes at ``hour``.

    ``who``: the rank that the fault strikes (``"ps3"``, ``"trainer1"``), or a number of PS ranks, which are drawn by
    seed. ``host``: the index of a lost host; ``who`` is then the host's name (``"host1"``), or in a run's trace one of
    its ranks. ``repair_h``: hours until the rank was back; None if unknown. ``notice_s``: emulated seconds before the
    fault at which the rank is told of it; 0 if it is not.
    ``phase``: what the run is doing when the fault strikes. ``line``: of the file, from 1. ``extra``: all columns after
    ``hour`` and ``rank``, as text.
    """

    hour: float
    who: Rank | int
    repair_h: float | None = None
    notice_s: float = 0.0
    phase: Phase = "boundary"
    fault: Fault = KILL
    host: int | None = None
    line: int
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def names_host(self) -> bool:
        """Whether ``who`` is a host, whose ranks must still be looked up."""
        return self.host is not None and self.who == host_name(self.host)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A failure trace, in order of hours. ``header`` holds the ``# key: value`` lines."""

    source: str
    entries: tuple[Entry, ...]
    header: Mapping[str, str]

    @property
    def law(self) -> str | None:
        """Digest of the header without seed, number and command; None if the header has no seed.

        All draws of one law with equal settings have the same digest.
        """
        if "seed" not in self.header:
            return None
        of_all = sorted((key, value) for key, value in self.header.items() if key not in _OF_ONE_DRAW)
        return xxhash.xxh3_64_hexdigest(repr(of_all).encode())

    @property
    def failures(self) -> tuple[Entry, ...]:
        """The entries that lose ranks, which die or hang; other faults are left out."""
        return tuple(entry for entry in self.entries if entry.fault.loss)


def read_trace(path: Path) -> Trace:
    """The trace in the CSV file ``path``. Raises TraceError as ``parse_trace``, and for a file that cannot be read."""
    text, _ = read_utf8(path, "a failure trace (CSV)")
    return parse_trace(text.splitlines(), str(path))


def read_utf8(path: Path, expected: str) -> tuple[str, bytes]:
    """The text of a UTF-8 file, without a byte order mark, and the file's bytes.

    Raises TraceError if it is no file (the message names what was ``expected``), cannot be read, or is not UTF-8.
    """
    if not path.is_file():
        got = "a folder or device" if path.exists() else f"no such file{in_repository(path)}"
        raise TraceError(f"{path}: expected {expected}, got {got}")
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig"), content
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        line, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise TraceError(
            f"{path}:{line}: expected UTF-8, got the byte 0x{byte:02x}; convert the file to UTF-8"
        ) from error


def to_text(trace: Trace, *, command: str | None = None) -> str:
    """``trace`` as CSV for ``parse_trace``; columns after the rank are those of ``Entry.extra``.

    ``command``: the command that makes the file again, for the header.
    """
    header = {**trace.header, **({} if command is None else {"command": command})}
    out = io.StringIO()
    out.writelines(f"# {key}: {' '.join(value.split())}\n" for key, value in header.items())
    columns = list(dict.fromkeys(name for entry in trace.entries for name in entry.extra)) or ["repair_h", "node"]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["hour", "rank", *columns])
    for entry in trace.entries:
        writer.writerow([f"{entry.hour:.12g}", entry.who, *(entry.extra.get(name, "") for name in columns)])
    return out.getvalue()


def with_notice(trace: Trace, notice_s: float) -> Trace:
    """``trace`` with a notice of ``notice_s`` seconds before each failure; as it is for 0."""
    told = {"notice_s": f"{notice_s:g}"}
    entries = (replace(each, notice_s=notice_s, extra={**each.extra, **told}) for each in trace.entries)
    return replace(trace, entries=tuple(entries)) if notice_s else trace


def parse_trace(lines: Iterable[str], source: str) -> Trace:
    """The trace in ``lines``; ``source`` is its name in errors. Blank lines and CRLF are tolerated.

    Raises TraceError ``SOURCE:LINE: …`` for the first deviation from the format.
    """
    header: dict[str, str] = {}
    columns: list[str] = []
    entries: list[Entry] = []
    number = 0
    for number, raw in enumerate(lines, start=1):
        text = raw.removeprefix("\ufeff").strip()
        where = f"{source}:{number}"
        if not text:
            continue
        if text.startswith("#"):
            key, colon, value = text.lstrip("# ").partition(":")
            if colon:
                header[key.strip()] = value.strip()
        elif not columns:
            columns = _split(text, where)
            if columns[:2] != ["hour", "rank"] or len(set(columns)) < len(columns):
                names = "distinct column names" if columns[:2] == ["hour", "rank"] else _NAMES
                is_near = columns[:2] != ["hour", "rank"] and _SEPARATOR.split(text.lower())[:2] == ["hour", "rank"]
                hint = "; write names in small letters, with commas between them" if is_near else ""
                raise TraceError(f"{where}: expected {names}, got {text!r}{hint}")
        else:
            entries.append(_entry(_split(text, where), columns, number, where))
            if len(entries) > 1 and entries[-1].hour < entries[-2].hour:
                order = f"expected an hour >= {entries[-2].hour}, got {entries[-1].hour}"
                raise TraceError(f"{where}: {order}; sort the lines by hour")
    if not columns:
        raise TraceError(f"{source}:{max(number, 1)}: expected {_NAMES}, got none")
    return Trace(source=source, entries=tuple(entries), header=header)


def _split(text: str, where: str) -> list[str]:
    try:
        return [value.strip() for value in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise TraceError(f"{where}: expected a line of CSV, got text that the reader rejects ({error})") from error


def _entry(values: list[str], columns: list[str], number: int, where: str) -> Entry:
    if len(values) != len(columns):
        is_near = len(_SEPARATOR.split(",".join(values))) == len(columns)
        hint = "; write commas between values" if is_near else ""
        raise TraceError(f"{where}: expected {len(columns)} values ({','.join(columns)}), got {len(values)}{hint}")
    extra = dict(zip(columns[2:], values[2:], strict=True))
    hour, repair = _hours("hour", values[0], where), extra.get("repair_h")
    who = _who(values[1], where)
    repair_h = _hours("repair_h", repair, where) if repair else None
    fault = _fault(extra, where)
    entry = Entry(
        hour=hour,
        who=who,
        repair_h=repair_h,
        notice_s=_hours("notice_s", extra.get("notice_s") or "0", where, unit="seconds"),
        phase=_phase(extra.get("phase"), fault, where),
        fault=fault,
        host=int(who[4:]) if isinstance(who, str) and who.startswith("host") else None,
        line=number,
        extra=extra,
    )
    if entry.host is not None and not (fault.takes_hosts and entry.phase == "boundary"):
        raise TraceError(
            f"{where}: fault, phase: expected nothing for a host, got {fault.name}, {entry.phase}; a host is lost "
            "between two steps"
        )
    if not fault.takes_trainers and isinstance(entry.who, str) and is_trainer(entry.who):
        raise TraceError(f"{where}: rank: expected a PS rank for the fault {fault.name}, got {entry.who}")
    is_of_trainer = isinstance(entry.who, str) and is_trainer(entry.who)
    if entry.notice_s and (is_of_trainer or not fault.loss or entry.phase != "boundary"):
        raise TraceError(
            f"{where}: notice_s: expected nothing for {entry.who} with {fault.name} in phase {entry.phase}, got "
            f"{entry.notice_s:g}; only the loss of PS ranks between two steps has a notice"
        )
    return entry


def _fault(extra: Mapping[str, str], where: str) -> Fault:
    """The fault that a line names, by default a kill."""
    name = extra.get("fault") or KILL.name
    if name not in FAULTS:
        raise TraceError(f"{where}: fault: expected nothing or one of {', '.join(FAULTS)}, got {name!r}")
    return FAULTS[name].of(name)


def _phase(text: str | None, fault: Fault, where: str) -> Phase:
    """The phase that a line names, or the default of its fault."""
    if not text:
        return fault.phases[0]
    for phase in PHASES:
        if phase == text and phase in fault.phases:
            return phase
    if text not in PHASES or fault.phases == PHASES:
        raise TraceError(f"{where}: phase: expected nothing or one of {', '.join(PHASES)}, got {text!r}")
    others = [phase for phase in fault.phases if phase != "boundary"]
    expected = " or ".join(["nothing", *others])
    raise TraceError(f"{where}: phase: expected {expected} for the fault {fault.name}, got {text}")


def _hours(column: str, text: str, where: str, *, unit: str = "hours") -> float:
    try:
        hours = float(text)
    except ValueError:
        raise TraceError(f"{where}: {column}: expected a number, got {text!r}") from None
    if not 0 <= hours <= MAX_HOURS:  # nan is not
        raise TraceError(f"{where}: {column}: expected {unit} from 0 to {MAX_HOURS:g}, got {text}")
    return hours


def _who(text: str, where: str) -> Rank | int:
    """The rank, the host, or the number of ranks that a column names.

    Lengths are compared before numbers, since Python refuses to convert thousands of digits.
    """
    short = text if len(text) <= 20 else f"{text[:20]}…"
    if found := _NAME.fullmatch(text):
        kind, number = found.groups()
        if len(number) > len(str(_MOST[kind])) or int(number) >= _MOST[kind]:
            raise TraceError(f"{where}: rank: expected {kind}0 to {kind}{_MOST[kind] - 1}, got {short}")
        return text
    if _COUNT.fullmatch(text):
        if len(text) > len(str(MAX_RANKS)) or int(text) > MAX_RANKS:
            raise TraceError(f"{where}: rank: expected a number of ranks from 1 to {MAX_RANKS}, got {short}")
        return int(text)
    near = re.sub(r"(?<=[a-z])[\s_-]*0*(?=[0-9])", "", text.lower())
    hint = f"; did you mean {near}?" if _NAME.fullmatch(near) else ""
    raise TraceError(
        f"{where}: rank: expected a name ('ps3', 'trainer1', 'host1') or a number of ranks >= 1, got {text!r}{hint}"
    )
