"""Records of logs as pydantic models. A wrong value raises a TraceError: its place, what was expected, the value.

The types of fields: ``Name`` of a node, ``Number``, ``Count``, and dates (``date_seconds``).
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from harness.config.words import mistakes_of
from harness.core.errors import TraceError

_MAX_NAME = 128  # characters of a node's name
_1970 = datetime(1970, 1, 1)


class Record(BaseModel):
    """A record of a log, or a part of one. Keys that it does not have are ignored."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, names: Sequence[str], texts: Sequence[str], where: str) -> Self:
        """The record with these texts as fields; an empty text is None. ``where``: the beginning of a TraceError."""
        try:
            return cls.model_validate({name: text or None for name, text in zip(names, texts, strict=True)})
        except ValidationError as error:
            raise TraceError(f"{where}: {mistakes_of(error)[0]}") from None


def read_json(model: Any, text: str, source: str) -> Any:
    """The JSON value ``text`` as ``model``. Records of a list count from 1 in a TraceError."""
    try:
        return TypeAdapter(model).validate_json(text)
    except ValidationError as error:
        mistake = re.sub(r"^([0-9]+)[.:] ?", lambda found: f"record {int(found[1]) + 1}: ", mistakes_of(error)[0])
        raise TraceError(f"{source}: {mistake}") from None


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


def _number(value: Any) -> Any:
    """``value``; pydantic takes ``true`` and ``1_0`` for numbers too."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError("expected a number")
    return value


def _name(value: str) -> str:
    name = value.strip()
    if not name or len(name) > _MAX_NAME or not name.isprintable() or set(name) & set(",\"'"):
        raise ValueError(f"expected a printable name of 1 to {_MAX_NAME} characters without commas and quotation marks")
    return name


Name = Annotated[str, AfterValidator(_name)]
"""A node's name."""
Number = Annotated[float, BeforeValidator(_number)]
"""A finite number, or its text."""
Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]
"""A whole number, or its text."""


def date_seconds(value: Any, *, formats: Sequence[str], like: str) -> float:
    """Seconds since 1970 of a date and time in one of ``formats`` (of ``strptime``), in the log's own time zone."""
    for form in formats if isinstance(value, str) else ():
        with suppress(ValueError):
            return (datetime.strptime(value, form) - _1970).total_seconds()
    raise ValueError(f"expected a date and time like {like}")


def shown(value: Any) -> str:
    """A value for a message, 60 characters at most."""
    text = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
