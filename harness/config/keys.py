"""The configuration keys, their types, and error sentences about them; derived from ``config.model``."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from harness.config.model import BY_TRACE, NO_RESULT, Config
from harness.config.plugins import LOADED
from harness.config.words import Schema, choices_of, describe, options_of, show, suggest
from harness.core.choices import CHOICES
from harness.core.errors import ConfigError


def _marked(model: type[BaseModel], *marks: str) -> dict[str, Any]:
    """The keys marked by one of ``marks``, nested, in the form of pydantic's argument ``exclude``."""
    marked: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        group = field.annotation
        if any(mark in field.metadata for mark in marks):
            marked[name] = True
        elif isinstance(group, type) and issubclass(group, BaseModel) and (inner := _marked(group, *marks)):
            marked[name] = inner
    return marked


IRRELEVANT = _marked(Config, NO_RESULT, BY_TRACE)
"""Keys that do not affect a run's results or events; the result hash leaves them out."""
_WORDS = re.compile(r"[\w.+-]+( *, *[\w.+-]+)+")  # with commas between them
NO_SETTING = _marked(Config, NO_RESULT)
"""Keys that affect no result, not even through the trace."""


@cache
def schema() -> Schema:
    """JSON schema of a configuration file. Treat as read-only."""
    return Config.model_json_schema()


@cache
def leaf_keys() -> dict[str, Schema]:
    """JSON schema of each key that takes a value, by dotted key."""
    return dict(_leaves(schema(), ""))


@cache
def group_keys() -> frozenset[str]:
    """Dotted keys of the groups, which contain other keys."""
    return frozenset(key.rpartition(".")[0] for key in leaf_keys() if "." in key)


def names_of(key: str) -> list[str]:
    """The names that may stand for the group ``key``; empty for a group without names."""
    return [name for option in options_of(leaf_keys().get(key, {})) for name in choices_of(option)]


@cache
def list_keys() -> frozenset[str]:
    """Dotted keys whose value is itself a list."""
    return frozenset(
        key for key, spec in leaf_keys().items() if any(s.get("type") == "array" for s in options_of(spec))
    )


def is_irrelevant(key: str) -> bool:
    """Whether ``key`` affects no result and no event on any engine."""
    return _holds(IRRELEVANT, key)


def is_setting(key: str) -> bool:
    """Whether runs that differ in ``key`` are of several settings: it affects results, or is the engine.

    Keys that affect results only through the trace are settings.
    """
    return key == "engine" or not _holds(NO_SETTING, key)


def _holds(marked: Mapping[str, Any], key: str) -> bool:
    group, _, rest = key.partition(".")
    keys = marked.get(group, {})
    return keys is True or rest in keys


def unknown(key: str, sections: Iterable[str] = ()) -> str:
    """An error sentence on the unknown key ``key``, with the most similar of the known keys and ``sections``."""
    known = sorted({*leaf_keys(), *group_keys(), *sections})
    return f"unknown key {key}{suggest(key, known, _with_owners) or '; `run.py schema` lists them all'}"


def _with_owners(key: str) -> str:
    """``KEY of A, B`` for an option of A and B alone, if that is at most half of its group's parts; else ``key``."""
    owners = _owners(key)
    of_all = len(CHOICES.get(key.partition(".")[0], ()))
    return f"{key} of {', '.join(owners)}" if 0 < len(owners) <= of_all / 2 else key


@cache
def part_keys(group: str, name: str) -> frozenset[str]:
    """Dotted keys of the options of part ``name`` of ``group``, a strategy or a model."""
    return frozenset(f"{group}.{option}" for option in CHOICES[group][name].model_fields if option != "name")


@cache
def option_keys(group: str) -> frozenset[str]:
    """Dotted keys of the options of all parts of ``group``."""
    return frozenset[str]().union(*(part_keys(group, name) for name in CHOICES[group]))


def no_option(key: str, names: Iterable[str]) -> str:
    """An error sentence on option ``key``, which the parts ``names`` lack; it names those that have it."""
    owners = _owners(key)
    verb = "has" if len(owners) == 1 else "have"
    return f"{key}: not an option of {key.partition('.')[0]} {' or '.join(names)}; {', '.join(owners)} {verb} it"


def _owners(key: str) -> list[str]:
    group = key.partition(".")[0]
    return [name for name in CHOICES.get(group, ()) if key in part_keys(group, name)]


def explained(key: str) -> list[str]:
    """Lines of help on a key, or on each key of a group: its values, default and description.

    Raises ConfigError for an unknown key.
    """
    keys = [name for name in leaf_keys() if name == key or name.startswith(f"{key}.")]
    if not keys:
        raise ConfigError(unknown(key))
    lines: list[str] = []
    for name in keys:
        specs = [leaf_keys()[name], *leaf_keys()[name].get("anyOf", ())]  # an option of several parts may have several
        given = (spec["default"] for spec in specs if "default" in spec)
        defaults = dict.fromkeys(
            show(each["name"] if isinstance(each, dict) and "name" in each else each) for each in given
        )
        lines.append(
            f"{_with_owners(name)}: {describe(specs[0])}" + f" (default: {' or '.join(defaults)})" * bool(defaults)
        )
        texts = dict.fromkeys(" ".join(spec["description"].split()) for spec in specs if "description" in spec)
        lines += [f"    {line}" for text in texts for line in textwrap.wrap(text, 110)]
    return lines


def complaint(key: str, value: object, part: str | None = None) -> str:
    """An error sentence on ``value``, which is invalid for ``key``: names the expected values and a similar one.

    ``part``: the strategy or model of which ``key`` is an option.
    """
    if key in group_keys() and key not in leaf_keys():
        inner = ", ".join(name for name in leaf_keys() if name.startswith(f"{key}."))
        return f"{key}: takes no value such as {show(value)}; it holds {inner}"
    spec = leaf_keys()[key] if part is None else _spec_of(key, part)
    sentence = f"{key}: {show(value)} is not {describe(spec)}"
    if key in group_keys():
        sentence += ", nor a mapping with base: one of them"
    if isinstance(value, str) and _WORDS.fullmatch(value):
        return f"{sentence}; did you mean the list [{value.replace(' ', '')}]?"
    choices = [str(choice) for option in options_of(spec) for choice in choices_of(option)]
    hint = suggest(value, choices) if isinstance(value, str) else ""
    if not hint and LOADED and key.endswith(".name"):
        hint = f"; no such {key.removesuffix('.name')} is added by the plugins {', '.join(LOADED)}"
    return sentence + hint


def _spec_of(key: str, part: str) -> Schema:
    group, _, option = key.partition(".")
    properties = schema()["$defs"][CHOICES[group][part].__name__]["properties"]
    return properties.get(option, leaf_keys()[key])


def _leaves(group: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    for name, spec in group["properties"].items():
        key = prefix + name
        inner = _resolve(spec)
        if "oneOf" in inner:
            inner = {"properties": _merged([_resolve(choice)["properties"] for choice in inner["oneOf"]])}
        options = options_of(inner)
        inside = [found for option in options if "properties" in (found := _resolve(option))]
        if inside and len(options) > 1:  # a group with names
            names = [option for option in options if "$ref" not in option]
            yield key, {**inner, "anyOf": names}
            yield f"{key}.base", names[0]
        elif not inside:
            yield key, inner
        for each in inside:
            yield from _leaves(each, f"{key}.")


def _merged(groups: list[dict[str, Schema]]) -> dict[str, Schema]:
    """Schema by key over all parts of a group; keys whose schemas differ get ``anyOf`` of them."""
    merged: dict[str, Schema] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        specs = [group[name] for group in groups if name in group]
        words = [spec["const"] for spec in specs if "const" in spec]
        distinct = [spec for number, spec in enumerate(specs) if spec not in specs[:number]]
        merged[name] = {"enum": words} if words else distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
    return merged


def _resolve(spec: Schema) -> Schema:
    if "$ref" not in spec:
        return spec
    return schema()["$defs"][spec["$ref"].rpartition("/")[2]]
