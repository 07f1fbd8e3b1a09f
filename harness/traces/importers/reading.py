"""From bytes to values. Whatever is wrong is one TraceError that says where, what, and what would be right."""

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.core.errors import TraceError
from harness.traces.importers.cleaning import LAST_S

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}")
_US = re.compile(r"([0-9]{1,2})/([0-9]{1,2})/([0-9]{4}|[0-9]{2}) ([0-9]{1,2}):([0-9]{2})")
_MAX_NAME = 128  # characters; a longer name of a node is something else
_1970 = datetime(1970, 1, 1)


def read_text(path: Path) -> tuple[str, str]:
    """The file's text, UTF-8 with or without a byte order mark, and its checksum."""
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is not a file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise TraceError(f"{path}:{line}: not UTF-8 (byte 0x{content[error.start]:02x}); convert it first") from error
    if not text.strip():
        raise TraceError(f"{path}: empty")
    return text, f"sha256:{hashlib.sha256(content).hexdigest()}"


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without their ends, of any kind, counted from 1."""
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        yield number, line.rstrip("\n")


def csv_rows(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """``file:line`` and the stripped fields of each line that is not blank; any kind of line end."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TraceError(f"{source}:{reader.line_num}: not a line of CSV ({error})") from error
        fields = [field.strip() for field in row]
        if any(fields):
            yield f"{source}:{reader.line_num}", fields


def parse_json(text: str, source: str) -> Any:
    """The file's one value. NaN and Infinity are no JSON."""

    def refuse(word: str) -> float:
        raise TraceError(f"{source}: {word} is no JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source}:{error.lineno}: not JSON ({error.msg}); cut short?") from error
    except ValueError as error:  # an integer of thousands of digits
        raise TraceError(f"{source}: {error}") from error


def member(value: Any, key: str, where: str) -> Any:
    """``value[key]`` of a JSON object that must have it."""
    if not isinstance(value, dict):
        raise TraceError(f"{where}: {shown(value)} is no object with {key!r}")
    if key not in value:
        raise TraceError(f"{where}: no {key!r}; there are {shown(', '.join(map(str, value)))}")
    return value[key]


def as_list(value: Any, what: str, where: str) -> list[Any]:
    """A JSON list."""
    if not isinstance(value, list):
        raise TraceError(f"{where}: {what} is {shown(value)}, not a list")
    return value


def as_number(value: Any, what: str, where: str) -> float:
    """A finite number, of JSON or of text."""
    is_text = isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    if is_text or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):  # an integer of more digits than a float has
            if math.isfinite(number := float(value)):
                return number
    raise TraceError(f"{where}: {what} is {shown(value)}, not a number that it could be")


def as_count(value: Any, what: str, where: str, *, most: int) -> int:
    """A whole number from 0 to ``most``."""
    number = as_number(value, what, where)
    if number != int(number) or not 0 <= number <= most:
        raise TraceError(f"{where}: {what} is {shown(value)}, not a whole number from 0 to {most:,}")
    return int(number)


def as_seconds(value: Any, what: str, where: str, *, unit_s: float) -> float:
    """A time in units of ``unit_s`` seconds, since 1970 or since the log's beginning."""
    seconds = as_number(value, what, where) * unit_s
    if not 0 <= seconds <= LAST_S:
        raise TraceError(f"{where}: {what} {shown(value)} lies before 0 or after the year 2100; is the unit right?")
    return seconds


def iso_seconds(value: Any, what: str, where: str) -> float:
    """Seconds since 1970 of ``2017-10-07 01:12:09``, in the log's own time zone."""
    if isinstance(value, str) and _ISO.fullmatch(value):
        with suppress(ValueError):
            return _since_1970(datetime.fromisoformat(value), value, what, where)
    raise TraceError(f"{where}: {what} is {shown(value)}, not a date and time like 2017-10-07 01:12:09")


def us_seconds(text: str, what: str, where: str) -> float:
    """Seconds since 1970 of ``6/21/2005 10:54``, month first; a year of two digits is 1970 to 2069."""
    if match := _US.fullmatch(text):
        month, day, year, hour, minute = map(int, match.groups())
        if year < 100:
            year += 2000 if year < 70 else 1900
        with suppress(ValueError):
            return _since_1970(datetime(year, month, day, hour, minute), text, what, where)
    raise TraceError(f"{where}: {what} is {shown(text)}, not a US date and time like 6/21/2005 10:54")


def _since_1970(moment: datetime, text: str, what: str, where: str) -> float:
    seconds = (moment - _1970).total_seconds()
    if not 0 <= seconds <= LAST_S:
        raise TraceError(f"{where}: {what} {text} is not between 1970 and 2100")
    return seconds


def as_name(value: Any, what: str, where: str) -> str:
    """A node's name, fit for a line of CSV: printable, no comma, no quotation mark, at most 128 characters."""
    name = value.strip() if isinstance(value, str) else ""
    if not name or len(name) > _MAX_NAME or not name.isprintable() or set(name) & set(",\"'"):
        raise TraceError(f"{where}: {what} is {shown(value)}, not a name of a node")
    return name


def shown(value: Any) -> str:
    """A value as a message can bear it."""
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
