"""YAML with the line of every setting: duplicates are refused, numbers and booleans are read as YAML 1.2 does.

Plain PyYAML reads ``1e-3`` as text, ``1:30`` as ninety and ``on`` as true; it keeps the last of two equal keys.
"""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import ConfigError

_MAX_DEPTH = 20  # lists and mappings inside each other; a grid file needs six
_MAX_SHOWN = 80  # characters of a word of the command line

_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that the user gave: its dotted key, and where it stands (``quickstart.yaml:12``)."""

    key: str
    value: Any
    where: str
    argument: str | None = None
    """The word of the command line that it came from, e.g. ``trainer.batch_size=64``."""


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2: null, true/false, decimal integers, floats; all else is text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own name and form

    source = "yaml"
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As the base class does, but not without end: it calls itself for each level."""
        line = self.peek_event().start_mark.line + 1
        if self.depth >= _MAX_DEPTH:
            raise ConfigError(f"{self.source}:{line}: nested more than {_MAX_DEPTH} deep; no key takes such a value")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base class does, but two equal keys are an error."""
        return {key: self.construct_object(value, deep=True) for key, value in self.pairs(node)}

    def construct_float(self, node: yaml.ScalarNode) -> Any:
        """A finite number; anything else stays text, which no numeric key accepts."""
        value = float(node.value)
        return value if math.isfinite(value) else node.value

    def pairs(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
        """Keys and value nodes. Raises ConfigError on a key that is no text or stands twice."""
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _TAG + "null":
                raise ConfigError(f"{self.source}:{line}: a key must be a word")
            key = key_node.value
            if key in first_lines:
                raise ConfigError(f"{self.source}:{line}: {key} stands already on line {first_lines[key]}; keep one")
            first_lines[key] = line
            yield key, value_node


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> Any:
    return loader.construct_float(node)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    try:
        return int(node.value)
    except ValueError:  # Python's limit
        line = node.start_mark.line + 1
        raise ConfigError(f"{loader.source}:{line}: a number of {len(node.value):,} digits; no key takes it") from None


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node)


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_TAG + "float", _construct_float)
_Loader.add_constructor(_TAG + "int", _construct_int)
_Loader.add_constructor(_TAG + "map", _construct_map)


def read_settings(path: Path, groups: Collection[str]) -> tuple[list[Setting], list[list[Setting]] | None]:
    """Everything that the YAML file at ``path`` sets, flattened, and the mappings under its ``grids:`` (None: no key).

    A mapping is flattened while its dotted key is one of ``groups``. Raises ConfigError, with the line if there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, a YAML file is needed") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    loader = _Loader(text_of(text, str(path)))
    loader.source = str(path)
    node = _compose(loader)
    if node is None:
        raise ConfigError(f"{path}: empty; a mapping of keys to values is needed")
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: the file must be a mapping of keys to values")
    settings: list[Setting] = []
    grids: list[list[Setting]] | None = None
    for key, value in loader.pairs(node):
        if key == "grids":
            grids = [list(_flatten(loader, item, "", groups)) for item in _grid_nodes(loader, value)]
        else:
            settings.extend(_flatten_value(loader, key, value, groups))
    _refuse_twice(settings)
    for grid in grids or []:
        _refuse_twice(grid)
    return settings, grids


def read_argument(argument: str, groups: Collection[str]) -> list[Setting]:
    """What ``key=value`` on the command line sets; the value is YAML, an empty one is null. Raises ConfigError."""
    key, equals, text = argument.partition("=")
    shown = argument if len(argument) <= _MAX_SHOWN else f"{argument[: _MAX_SHOWN - 3]}..."
    source = f"{shown} on the command line"
    if not equals or not key.strip():
        raise ConfigError(f"{source}: not of the form key=value")
    loader = _Loader(text_of(text, source))
    loader.source = source
    try:
        node = loader.get_single_node()
    except yaml.YAMLError:
        raise ConfigError(f"{source}: {text[:_MAX_SHOWN]!r} is not a YAML value") from None
    if node is None:
        return [Setting(key=key.strip(), value=None, where="command line", argument=shown)]
    found = _flatten_value(loader, key.strip(), node, groups)
    return [Setting(key=s.key, value=s.value, where="command line", argument=shown) for s in found]


def text_of(text: str, source: str) -> str:
    """``text`` itself, if YAML can hold its characters. Raises ConfigError naming the line of one that it cannot."""
    bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if bad is None:
        return text
    line = text.count("\n", 0, bad.start()) + 1
    raise ConfigError(f"{source}:{line}: character {bad.group()!r} may not stand in YAML")


def _compose(loader: _Loader) -> yaml.Node | None:
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{loader.source}:{line}: not YAML: {error.problem or error.context}") from None


def _grid_nodes(loader: _Loader, node: yaml.Node) -> list[yaml.Node]:
    where = f"{loader.source}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise ConfigError(f"{where}: grids must be a list of mappings, e.g. `- {{seed: [0, 1]}}`")
    for item in node.value:
        if not isinstance(item, yaml.MappingNode):
            raise ConfigError(
                f"{loader.source}:{item.start_mark.line + 1}: a grid must be a mapping of dotted keys to lists"
            )
    return node.value


def _flatten(loader: _Loader, node: yaml.Node, prefix: str, groups: Collection[str]) -> Iterator[Setting]:
    assert isinstance(node, yaml.MappingNode)
    for key, value in loader.pairs(node):
        yield from _flatten_value(loader, prefix + key, value, groups)


def _flatten_value(loader: _Loader, key: str, node: yaml.Node, groups: Collection[str]) -> Iterator[Setting]:
    if key in groups and isinstance(node, yaml.MappingNode):
        yield from _flatten(loader, node, f"{key}.", groups)
        return
    where = f"{loader.source}:{node.start_mark.line + 1}"
    try:
        value = loader.construct_object(node, deep=True)
    except yaml.YAMLError:
        raise ConfigError(
            f"{where}: {key}: this YAML value cannot be used; plain text, numbers and lists can"
        ) from None
    if not (value is None and key in groups):  # a group whose keys are all commented out
        yield Setting(key=key, value=value, where=where)


def _refuse_twice(settings: list[Setting]) -> None:
    seen: dict[str, str] = {}
    for setting in settings:
        if setting.key in seen:
            raise ConfigError(f"{setting.where}: {setting.key} is given already at {seen[setting.key]}; keep one")
        seen[setting.key] = setting.where
