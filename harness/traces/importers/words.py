"""Parameters of `run.py trace import` as ``key=value`` words of the command line.

The key of a word is a field's name without a trailing ``_`` (``from_``). Each mistake is one line of a TraceError: the
key, what was expected, and what was given.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from harness.config.words import STRICT, Schema, describe, show, suggest
from harness.core.errors import TraceError

P = TypeVar("P", bound="Parameters")


class Parameters(BaseModel):
    """Base class of parameters that words give. A validator of several of them raises TraceError."""

    model_config = STRICT


def read_words(model: type[P], words: Sequence[str]) -> P:
    """The parameters by the ``key=value`` words.

    Raises:
        TraceError: one line for each word without ``=``, unknown key, repeated key, or invalid value; or as a validator
            of several parameters.
    """
    known = _keys_of(model)
    given: dict[str, str] = {}
    mistakes: list[str] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            mistakes.append(f"{word}: expected key=value{suggest(key, known)}")
        elif key not in known:
            hint = suggest(key, known) or f"; expected one of {', '.join(known)}"
            mistakes.append(f"unknown key {key}{hint}")
        elif known[key] in given:
            mistakes.append(f"{key}: expected one value, got {show(given[known[key]])} and {show(text)}")
        else:
            given[known[key]] = text
    try:
        found = model.model_validate(given)
    except ValidationError as error:
        names = dict.fromkeys(str(one["loc"][0]) for one in error.errors())
        specs = model.model_json_schema()["properties"]
        mistakes += [f"{_key(name)}: expected {_expected(specs[name])}, got {show(given[name])}" for name in names]
        raise TraceError("\n".join(mistakes)) from None
    if mistakes:
        raise TraceError("\n".join(mistakes))
    return found


def explained(model: type[Parameters]) -> Iterator[str]:
    """Lines of help on each word of ``model``: its values, default and meaning."""
    specs = model.model_json_schema()["properties"]
    for key, name in _keys_of(model).items():
        default = specs[name].get("default")
        shown = "" if default in (None, "") else f" (default: {str(default).lower()})"
        yield f"  {key}=  {_expected(specs[name])}{shown}"
        yield from textwrap.wrap(
            specs[name].get("description", ""), 106, initial_indent=" " * 8, subsequent_indent=" " * 8
        )


def _keys_of(model: type[Parameters]) -> dict[str, str]:
    return {_key(name): name for name in model.model_fields}


def _key(name: str) -> str:
    return name.rstrip("_")


def _expected(spec: Schema) -> str:
    return describe(spec).removesuffix(" or null")
