"""Parsers of values in logs; a wrong value raises a TraceError with its place, what was expected, and the value."""

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
        raise TraceError(f"{path}: expected a regular file, got a folder or device")
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise TraceError(
            f"{path}:{line}: expected UTF-8, got the byte 0x{byte:02x}; convert the file to UTF-8"
        ) from error
    if not text.strip():
        raise TraceError(f"{path}: expected a log of failures, got an empty file")
    return text, f"sha256:{hashlib.sha256(content).hexdigest()}"


def csv_rows(text: str, source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield ``file:line`` and the stripped fields of each line that is not blank; LF, CRLF and CR end lines."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            fields = [field.strip() for field in row]
            if any(fields):
                yield f"{source}:{reader.line_num}", fields
    except csv.Error as error:
        raise TraceError(
            f"{source}:{reader.line_num}: expected a line of CSV, got text that the reader rejects ({error})"
        ) from error


def parse_json(text: str, source: str) -> Any:
    """The JSON value that ``text`` holds. NaN and Infinity are refused, as in the JSON standard."""

    def refuse(word: str) -> float:
        raise TraceError(f"{source}: expected JSON numbers, got {word}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{source}:{error.lineno}: expected JSON, got an error: {error.msg}; check that the file is complete"
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise TraceError(f"{source}: expected JSON numbers, got one that cannot be read: {error}") from error


def member(value: Any, key: str, where: str) -> Any:
    """``value[key]``. Raises TraceError unless ``value`` is a JSON object with this key."""
    if not isinstance(value, dict):
        raise TraceError(f"{where}: expected a JSON object with {key!r}, got {shown(value)}")
    if key not in value:
        raise TraceError(f"{where}: expected the key {key!r}, got the keys {shown(', '.join(map(str, value)))}")
    return value[key]


def as_list(value: Any, what: str, where: str) -> list[Any]:
    """``value``. Raises TraceError unless it is a JSON list."""
    if not isinstance(value, list):
        raise TraceError(f"{where}: {what}: expected a list, got {shown(value)}")
    return value


def as_number(value: Any, what: str, where: str) -> float:
    """``value``, a JSON number or its text, as a finite float."""
    is_text = isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    if is_text or (isinstance(value, int | float) and not isinstance(value, bool)):
        with suppress(OverflowError):  # an integer of more digits than a float has
            if math.isfinite(number := float(value)):
                return number
    raise TraceError(f"{where}: {what}: expected a number, got {shown(value)}")


def as_count(value: Any, what: str, where: str, *, most: int) -> int:
    """``value`` as a whole number from 0 to ``most``."""
    number = as_number(value, what, where)
    if number != int(number) or not 0 <= number <= most:
        raise TraceError(f"{where}: {what}: expected a whole number from 0 to {most:,}, got {shown(value)}")
    return int(number)


def as_seconds(value: Any, what: str, where: str, *, unit_s: float = 1.0) -> float:
    """A time in units of ``unit_s`` seconds, since 1970 or since the log's beginning, in seconds."""
    seconds = as_number(value, what, where) * unit_s
    if not 0 <= seconds <= LAST_S:
        raise TraceError(
            f"{where}: {what}: expected a time from 0 to the year 2100, got {shown(value)}; check its unit"
        )
    return seconds


def date_seconds(value: Any, what: str, where: str, *, formats: tuple[str, ...], like: str) -> float:
    """Seconds since 1970 of a date and time in one of ``formats`` (of ``strptime``), in the log's own time zone."""
    for form in formats if isinstance(value, str) else ():
        with suppress(ValueError):
            seconds = (datetime.strptime(value, form) - _1970).total_seconds()
            if not 0 <= seconds <= LAST_S:
                raise TraceError(f"{where}: {what}: expected a date between 1970 and 2100, got {value}")
            return seconds
    raise TraceError(f"{where}: {what}: expected a date and time like {like}, got {shown(value)}")


def as_name(value: Any, what: str, where: str) -> str:
    """A node's name: printable, without comma or quotation mark, at most 128 characters."""
    name = value.strip() if isinstance(value, str) else ""
    if not name or len(name) > _MAX_NAME or not name.isprintable() or set(name) & set(",\"'"):
        expected = f"a printable name of 1 to {_MAX_NAME} characters without commas and quotation marks"
        raise TraceError(f"{where}: {what}: expected {expected}, got {shown(value)}")
    return name


def shown(value: Any) -> str:
    """A value for a message, 60 characters at most."""
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
