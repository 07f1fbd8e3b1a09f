"""Descriptions of expected values, suggestions for misspelt names, and settings of pydantic models."""

import difflib
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from harness.core.errors import ConfigError
from harness.files import expanded

Schema = dict[str, Any]
"""A JSON schema."""

STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
"""Settings of every pydantic model that users fill: no unknown keys, frozen, finite numbers, docstrings as help."""

YAML_FILE = r"\.yaml$"
"""A pattern of text that stands for a file's mapping."""

_SYNONYMS = {
    "lr": "trainer.learning_rate",
    **dict.fromkeys(("bs", "batch"), "trainer.batch_size"),
    **dict.fromkeys(("epoch", "epochs", "num_epochs"), "data.max_train_samples"),
    "seeds": "seed",
    **dict.fromkeys(("ps", "servers"), "cluster.num_ps"),
    **dict.fromkeys(("workers", "num_workers", "trainers"), "cluster.num_trainers"),
    **dict.fromkeys(("run", "replay"), "train"),
}
"""Names of keys and commands in other tools, and the key or command that is the nearest here."""


def suggest(word: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """``; did you mean NAME?`` with the known name nearest to ``word``, or several that are as near; empty without one.

    Dashes count as underscores, and capitals as small letters. Tried one after another: what another tool's word means,
    in the section of ``word``; the same last part in the most similar section; a similar last part in the section; the
    other tool's word; a similar name; a similar last part. ``shown``: how a name is written.
    """
    names = {name.lower().replace("-", "_"): name for name in known}
    word = word.lower().replace("-", "_")
    section, _, last = word.rpartition(".")

    def section_of(name: str) -> str:
        return name.rpartition(".")[0]

    def like(candidates: Iterable[str]) -> list[str]:
        parts = {name: name.rpartition(".")[2] for name in candidates}
        near = difflib.get_close_matches(last, sorted({*parts.values()}), n=1)
        return [name for name, part in parts.items() if part in near]

    meant = [name for name in [_SYNONYMS.get(last, "")] if name in names]
    same = [name for name in names if name.rpartition(".")[2] == last]
    nearest = difflib.get_close_matches(section, map(section_of, same), n=1)
    tries: tuple[list[str], ...] = (
        [name for name in meant if section in ("", section_of(name))],
        [name for name in same if section_of(name) in nearest] or same,
        like(name for name in names if section_of(name) == section),
        meant,
        difflib.get_close_matches(word, names, n=1) if section not in map(section_of, names) else [],
        like(names),
    )
    found = next(filter(None, tries), [])
    return f"; did you mean {' or '.join(shown(names[name]) for name in found)}?" if found else ""


def _path(text: str) -> str:
    try:
        return expanded(text)
    except ConfigError as error:
        raise PydanticCustomError("path", "{what}", {"what": str(error)}) from error


PathText = Annotated[str, AfterValidator(_path)]
"""A path; ``~`` and environment variables in it are expanded."""


# --- values in words -------------------------------------------------------------------------------------------------


_WORDS = {
    **dict.fromkeys(("a valid tuple", "a valid list", "a valid array"), "a list"),
    "a valid dictionary": "a mapping",
    "a valid string": "text",
    "a valid boolean, unable to interpret input": "true or false",
}
"""What YAML calls the types of pydantic's messages."""


def expectation(message: str) -> str:
    """A pydantic message as ``expected …``, in YAML's words; the message of a validator of ours keeps its words."""
    words = message.removeprefix("Value error, ").replace("Input should be", "expected")
    for word, of_yaml in _WORDS.items():
        words = words.replace(word, of_yaml)
    return words


def mistakes_of(error: ValidationError) -> list[str]:
    """A line for each mistake that pydantic found: ``key.key: expected …, got …``; without a key for broken JSON."""
    found: list[str] = []
    for one in error.errors():
        expected = expectation(one["msg"]).replace("Invalid JSON:", "expected JSON, got an error:")
        expected = expected.partition(", unable to parse")[0]
        got = "" if "got " in expected else f", got {_shown(one['input'])}"
        if one["type"] == "missing":
            expected, got = "expected this key", f", got the keys {_shown(', '.join(one['input']))}"
        found.append(": ".join(filter(None, [".".join(map(str, one["loc"])), f"{expected}{got}"])))
    return found


def _shown(value: Any) -> str:
    kind = {dict: "mapping"}.get(type(value), type(value).__name__)
    return f"a {kind}" if isinstance(value, dict | list | BaseModel) else show(value)


def show(value: object) -> str:
    """``value`` on one line, text in single quotes and all else as JSON, cut at 60 characters."""
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def options_of(spec: Schema) -> list[Schema]:
    """The alternatives of a schema with ``anyOf``, nested ones flattened; else the schema alone."""
    return [inner for option in spec["anyOf"] for inner in options_of(option)] if "anyOf" in spec else [spec]


def describe(spec: Schema) -> str:
    """The values that a schema allows, in words: ``a whole number >= 1``."""
    options = options_of(spec)
    choices = ", ".join(dict.fromkeys(str(choice) for option in options for choice in choices_of(option)))
    others = map(_describe_one, [option for option in options if not choices_of(option)])
    return " or ".join(dict.fromkeys([*([f"one of {choices}"] if choices else []), *others]))


def choices_of(spec: Schema) -> list[Any]:
    """The values that a schema enumerates (``enum``, ``const``); empty for any other schema."""
    return [spec["const"]] if "const" in spec else spec.get("enum", [])


def _describe_one(spec: Schema) -> str:
    kind = spec.get("type")
    if "prefixItems" in spec:
        return f"a list of {' and '.join(map(describe, spec['prefixItems']))}"
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
    if spec.get("pattern") == YAML_FILE:
        return "FILE.yaml"
    form = f"that matches {spec['pattern']}" if "pattern" in spec else ""
    return " ".join(filter(None, [words.get(str(kind), str(kind)), bounds, form]))


def _limit(value: float) -> str:
    """A bound as text; a large power of two as ``2^63``."""
    if isinstance(value, int) and abs(value) >= 2**53 and value.bit_count() == 1:
        return f"{'-' * (value < 0)}2^{value.bit_length() - 1}"
    return f"{value:.15g}"
