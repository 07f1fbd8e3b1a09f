"""Parameters of `run.py trace import` as ``key=value`` words of the command line.

Each mistake is one line of a TraceError: the key, what was expected, and what was given.
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

    model_config = {**STRICT, "populate_by_name": True}


def read_words(model: type[P], words: Sequence[str]) -> P:
    """The parameters by the ``key=value`` words.

    Raises:
        TraceError: one line for each word without ``=``, unknown key, repeated key, or invalid value; or as a validator
            of several parameters.
    """
    specs = model.model_json_schema()["properties"]
    given: dict[str, str] = {}
    mistakes: list[str] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            mistakes.append(f"{word}: expected key=value{suggest(key, specs)}")
        elif key not in specs:
            hint = suggest(key, specs) or f"; expected one of {', '.join(specs)}"
            mistakes.append(f"unknown key {key}{hint}")
        elif key in given:
            mistakes.append(f"{key}: expected one value, got {show(given[key])} and {show(text)}")
        else:
            given[key] = text
    try:
        found = model.model_validate(given)
    except ValidationError as error:
        names = dict.fromkeys(str(one["loc"][0]) for one in error.errors())
        mistakes += [f"{name}: expected {_expected(specs[name])}, got {show(given[name])}" for name in names]
        raise TraceError("\n".join(mistakes)) from None
    if mistakes:
        raise TraceError("\n".join(mistakes))
    return found


def explained(model: type[Parameters]) -> Iterator[str]:
    """Lines of help on each word of ``model``: its values, default and meaning."""
    for key, spec in model.model_json_schema()["properties"].items():
        default = spec.get("default")
        shown = "" if default in (None, "") else f" (default: {str(default).lower()})"
        yield f"  {key}=  {_expected(spec)}{shown}"
        yield from textwrap.wrap(spec.get("description", ""), 106, initial_indent=" " * 8, subsequent_indent=" " * 8)


def _expected(spec: Schema) -> str:
    return describe(spec).removesuffix(" or null")
