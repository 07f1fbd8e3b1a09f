"""Expected values in words; parameters of traces as pydantic models and as ``key=value`` words of the command line.

A word's key is a field's name, without the ``_`` at the end of one that Python reserves. Each mistake is one line of a
TraceError: the key, what was expected, and what was given.
"""

import difflib
import json
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.core.errors import TraceError

Schema = dict[str, Any]
"""A JSON schema."""

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
"""Of every model that users fill."""


class Parameters(BaseModel):
    """Base of a set of parameters, validated when it is made. Raises TraceError, a line a mistake."""

    model_config = STRICT
    no_words: ClassVar[Collection[str]] = ()
    """Fields that no word gives."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            cls = type(self)
            lines = (_complaint(cls, str(one["loc"][0]), values.get(str(one["loc"][0]))) for one in error.errors())
            raise TraceError("\n".join(dict.fromkeys(lines))) from None

    def changed(self, **changes: Any) -> Self:
        """The same parameters but for ``changes``, validated."""
        return type(self)(**{**dict(self), **changes})


def read_words(models: Sequence[type[Parameters]], words: Sequence[str]) -> list[dict[str, Any]]:
    """Of ``key=value`` words the values by field, for each of ``models``, none of which shares a key with another.

    Raises:
        TraceError: no word, an unknown key, one given twice, or a value that its field does not take; a line for each.
    """
    known = {key: model for model in models for key in keys_of(model)}
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            mistakes.append(f"{word}: expected key=value{_near(key, known)}")
        elif key not in known:
            hint = _near(key, known) or f"; expected one of {', '.join(known)}"
            mistakes.append(f"unknown key {key}{hint}")
        elif key in values:
            mistakes.append(f"{key}: expected one value, got {show(values[key])} and {show(text)}")
        else:
            annotation = known[key].model_fields[keys_of(known[key])[key]].rebuild_annotation()
            adapter = TypeAdapter[Any](annotation, config=ConfigDict(allow_inf_nan=False))
            try:
                values[key] = adapter.validate_python(text)
            except ValidationError:
                mistakes.append(_complaint(known[key], keys_of(known[key])[key], text))
    if mistakes:
        raise TraceError("\n".join(mistakes))
    return [{name: values[key] for key, name in keys_of(model).items() if key in values} for model in models]


def keys_of(model: type[Parameters]) -> dict[str, str]:
    """The field of each word's key."""
    return {name.rstrip("_"): name for name in model.model_fields if name not in model.no_words}


def explained(model: type[Parameters]) -> Iterator[str]:
    """Of each word what it takes, its default, what it does; lines of text."""
    specs = model.model_json_schema()["properties"]
    for key, name in keys_of(model).items():
        default = specs[name].get("default")
        shown = "" if default in (None, [], "") else f" (default: {str(default).lower()})"
        yield f"  {key}=  {_expected(specs[name])}{shown}"
        yield from textwrap.wrap(
            specs[name].get("description", ""), 106, initial_indent=" " * 8, subsequent_indent=" " * 8
        )


def _complaint(model: type[Parameters], name: str, value: object) -> str:
    """An error sentence on ``value``, which the field ``name`` does not take."""
    if name not in model.model_fields:
        return f"unknown key {name}{_near(name, keys_of(model))}"
    expected = _expected(model.model_json_schema()["properties"][name])
    return f"{name.rstrip('_')}: expected {expected}, got {'nothing' if value is None else show(value)}"


def _expected(spec: dict[str, Any]) -> str:
    return describe(spec).removesuffix(" or null")


def _near(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


# --- values in words -------------------------------------------------------------------------------------------------


def mistakes_of(error: ValidationError) -> list[str]:
    """Each mistake that pydantic found, as ``key.key: expected …, got …``; one of JSON's form has no key."""
    found: list[str] = []
    for one in error.errors():
        expected = one["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        expected = expected.replace("Invalid JSON:", "expected JSON, got an error:").partition(", unable to parse")[0]
        got = "" if "got " in expected else f", got {_shown(one['input'])}"
        if one["type"] == "missing":
            expected, got = "expected this key", f", got the keys {_shown(', '.join(one['input']))}"
        found.append(": ".join(filter(None, [".".join(map(str, one["loc"])), f"{expected}{got}"])))
    return found


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, dict | list | BaseModel) else show(value)


def show(value: object) -> str:
    """``value`` as YAML would write it on one line, cut at 60 characters."""
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def options_of(spec: Schema) -> list[Schema]:
    """The schemas of which one must hold; unions of unions are one."""
    return [inner for option in spec["anyOf"] for inner in options_of(option)] if "anyOf" in spec else [spec]


def describe(spec: Schema) -> str:
    """The values of this schema in words: ``a whole number >= 1``."""
    options = options_of(spec)
    choices = ", ".join(str(choice) for option in options for choice in choices_of(option))
    others = map(_describe_one, [option for option in options if not choices_of(option)])
    return " or ".join(dict.fromkeys([*([f"one of {choices}"] if choices else []), *others]))


def choices_of(spec: Schema) -> list[Any]:
    """The values that ``spec`` lists; empty if it describes them otherwise."""
    return [spec["const"]] if "const" in spec else spec.get("enum", [])


def _describe_one(spec: Schema) -> str:
    kind = spec.get("type")
    if kind == "array":
        least = f" of at least {spec['minItems']}," if "minItems" in spec else ""
        return f"a list{least} whose items are each {describe(spec['items'])}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text",
        "object": "a mapping",
    }
    limits = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
    bounds = " and ".join(f"{sign} {_limit(spec[name])}" for name, sign in limits if name in spec)
    form = f"that matches {spec['pattern']}" if "pattern" in spec else ""
    return " ".join(filter(None, [words.get(str(kind), str(kind)), bounds, form]))


def _limit(value: float) -> str:
    """A bound as text: of whole numbers of 64 bits as a power of two."""
    if isinstance(value, int) and abs(value) >= 2**53 and value.bit_count() == 1:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return f"{value:.15g}"
