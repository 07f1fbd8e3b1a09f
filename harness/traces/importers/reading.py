"""From bytes to values; a wrong value raises a TraceError with its place, itself, and what was expected."""

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

LAST_S = 4_102_444_800.0
"""The year 2100 in seconds since 1970; long enough for a log that counts from 0."""
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_MAX_NAME = 128  # characters of a node's name
_1970 = datetime(1970, 1, 1)


def read_text(path: Path) -> tuple[str, str]:
    """The file's text, UTF-8 with or without a byte order mark, and its checksum."""
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is not a file")
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise TraceError(f"{path}:{line}: not UTF-8 (byte 0x{byte:02x}); convert it first") from error
    if not text.strip():
        raise TraceError(f"{path}: empty")
    return text, f"sha256:{hashlib.sha256(content).hexdigest()}"


def csv_rows(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """``file:line`` and the stripped fields of each line that is not blank; any kind of line end."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields):
                yield f"{source}:{reader.line_num}", fields
    except csv.Error as error:
        raise TraceError(f"{source}:{reader.line_num}: not a line of CSV ({error})") from error


def parse_json(text: str, source: str) -> Any:
    """The file's one value. NaN and Infinity are refused, as in the JSON standard."""

    def refuse(word: str) -> float:
        raise TraceError(f"{source}: {word} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source}:{error.lineno}: not JSON ({error.msg}); cut short?") from error
    except ValueError as error:  # an integer of thousands of digits
        raise TraceError(f"{source}: {error}") from error


def member(value: Any, key: str, where: str) -> Any:
    """``value[key]`` of a JSON object."""
    if not isinstance(value, dict):
        raise TraceError(f"{where}: {shown(value)}; expected an object with {key!r}")
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
    raise TraceError(f"{where}: {what} is {shown(value)}, not a number")


def as_count(value: Any, what: str, where: str, *, most: int) -> int:
    """A whole number from 0 to ``most``."""
    number = as_number(value, what, where)
    if number != int(number) or not 0 <= number <= most:
        raise TraceError(f"{where}: {what} is {shown(value)}, not a whole number from 0 to {most:,}")
    return int(number)


def as_seconds(value: Any, what: str, where: str, *, unit_s: float = 1.0) -> float:
    """A time in units of ``unit_s`` seconds, since 1970 or since the log's beginning, in seconds."""
    seconds = as_number(value, what, where) * unit_s
    if not 0 <= seconds <= LAST_S:
        raise TraceError(f"{where}: {what} {shown(value)} lies before 0 or after the year 2100; is the unit right?")
    return seconds


def date_seconds(value: Any, what: str, where: str, *, formats: tuple[str, ...], like: str) -> float:
    """Seconds since 1970 of a date and time in one of ``formats`` (of ``strptime``), in the log's own time zone."""
    for form in formats if isinstance(value, str) else ():
        with suppress(ValueError):
            seconds = (datetime.strptime(value, form) - _1970).total_seconds()
            if not 0 <= seconds <= LAST_S:
                raise TraceError(f"{where}: {what} {value} is not between 1970 and 2100")
            return seconds
    raise TraceError(f"{where}: {what} is {shown(value)}, not a date and time like {like}")


def as_name(value: Any, what: str, where: str) -> str:
    """A node's name: printable, without comma or quotation mark, at most 128 characters."""
    name = value.strip() if isinstance(value, str) else ""
    if not name or len(name) > _MAX_NAME or not name.isprintable() or set(name) & set(",\"'"):
        raise TraceError(f"{where}: {what} is {shown(value)}, not a name of a node")
    return name


def shown(value: Any) -> str:
    """A value for a message, 60 characters at most."""
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
