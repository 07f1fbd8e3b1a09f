"""YAML reader that keeps the line of every setting. Duplicate keys are an error.

libyaml reads the structure. Plain scalars are read here, by the core schema of YAML 1.2 without its octal and
hexadecimal numbers: null, true and false, decimal integers, finite decimal floats; everything else is text.
"""

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from harness.core.errors import ConfigError, printable
from harness.files import in_repository

CLAIM = "claim"
"""The section of a YAML file that only `run.py reproduce` reads."""
GRIDS = "grids"
"""The section of a YAML file that makes it an experiment."""

_MAX_DEPTH = 20  # values inside each other; a grid file needs seven
_MAX_CHARACTERS = 2**20  # of a text; a grid file has a few thousand
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep; no key takes such a value"
_MAX_SHOWN = 80  # characters of a word of the command line
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MISREAD = re.compile(r"\s\s|[^\S ]|[\x00-\x1f\x7f-\x9f\ufeff]|^[?:]")
_TAG = re.compile(r"tag:yaml\.org,2002:(str|int|float|bool|null|timestamp|merge|value|seq|map)")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that the user gave: its dotted key, and its place (``quickstart.yaml:12``)."""

    key: str
    value: Any
    where: str
    argument: str | None = None
    """The command-line argument that gave it, e.g. ``trainer.batch_size=64``; None for a file."""


def read_settings(path: Path, groups: Collection[str]) -> tuple[list[Setting], list[list[Setting]] | None]:
    """All settings of the YAML file ``path``, with dotted keys, and the mappings under ``grids:`` (None if absent).

    ``groups``: the dotted keys whose mappings are flattened; any other mapping is a value. Raises ConfigError, which
    names the file, and the line if there is one.
    """
    document, root = _document(path, groups)
    settings: list[Setting] = []
    grids: list[list[Setting]] | None = None
    for key, node in document.pairs(root):
        if key == GRIDS:
            grids = document.grids(node)
        elif key != CLAIM:
            settings += document.settings(key, node)
    for group in (settings, *(grids or [])):
        refuse_twice(group)
    return settings, grids


def read_claim(path: Path) -> tuple[Any, Mapping[tuple[Any, ...], str], Collection[str]]:
    """The section ``claim:`` of the YAML file ``path`` (None if absent), places in it, and the file's other keys.

    The places map the path of each value in the section, a tuple of keys and list indices, to ``file:line``. Raises
    ConfigError.
    """
    document, root = _document(path, ())
    sections = dict(document.pairs(root))
    node = sections.pop(CLAIM, None)
    return document.value(CLAIM, node), dict(document.places(node, ())) if node else {}, [*sections]


def _document(path: Path, groups: Collection[str]) -> "tuple[_Document, MappingNode]":
    """The nodes of a file, and the mapping at its top. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = difflib.get_close_matches(path.stem, [each.stem for each in path.parent.glob("*.yaml")], n=1)
        hint = f"; did you mean {path.parent / near[0]}.yaml?" if near else in_repository(path)
        raise ConfigError(f"{path}: no such file{hint}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: expected a YAML file, got a folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, got an invalid byte at offset {error.start}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    document = _Document(text, str(path), groups)
    if document.root is None:
        raise ConfigError(f"{path}: expected a mapping of keys to values, got an empty file")
    if not isinstance(document.root, MappingNode):
        raise document.error(document.root, "expected a mapping of keys to values at the top of the file")
    return document, document.root


def read_argument(argument: str, groups: Collection[str]) -> list[Setting]:
    """The settings of the command-line argument ``key=value``. The value is YAML; empty is null. Raises ConfigError."""
    key, equals, text = argument.partition("=")
    shown = printable(argument, _MAX_SHOWN)
    source = f"{shown} on the command line"
    if not equals or not key.strip():
        raise ConfigError(f"{source}: expected the form key=value")
    if any("\ud800" <= character <= "\udfff" for character in argument):  # bytes that are no text, as Python reads them
        raise ConfigError(f"{source}: expected UTF-8 text")
    try:
        document = _Document(text, source, groups)
    except NotYaml:
        raise ConfigError(f"{source}: expected a YAML value, got {text[:_MAX_SHOWN]!r}") from None
    found = [Setting(key=key.strip(), value=None, where=source)]
    if document.root is not None:
        found = document.settings(key.strip(), document.root)
    return [replace(each, where="command line", argument=shown) for each in found]


def read_mapping(text: str, source: str) -> Any:
    """The value of the YAML document ``text``, as plain Python values. Raises ConfigError, which names ``source``."""
    document = _Document(text, source, ())
    return document.value("document", document.root)


def to_yaml(value: dict[str, Any]) -> str:
    """``value`` as YAML that this module can read; keys keep their order, lists and innermost mappings are inline."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=None, allow_unicode=True, width=120, sort_keys=False)


class _Dumper(yaml.CSafeDumper):
    """YAML writer without aliases, which quotes each text that this module would otherwise not read back exactly."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _quoted(dumper: _Dumper, text: str) -> ScalarNode:
    is_other = text in _WORDS or _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)
    style = '"' if _MISREAD.search(text) else "'" if is_other else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


class NotYaml(ConfigError):
    """A text is not valid YAML."""


def _refuse_deep(text: str, source: str) -> None:
    """Raise ConfigError where values are nested too deep for the library, which composes nodes by recursion in C."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ConfigError(f"{source}:{event.start_mark.line + 1}: {_TOO_DEEP}")


class _Document:
    """The nodes of one text. Errors name ``source`` and the line."""

    def __init__(self, text: str, source: str, groups: Collection[str]) -> None:
        self._source = source
        self._groups = groups
        self._values: dict[int, Any] = {}  # by id of the node: an alias is its anchor's node
        if len(text) > _MAX_CHARACTERS:
            raise ConfigError(f"{source}: expected a configuration of at most {_MAX_CHARACTERS:,} characters, got more")
        try:
            _refuse_deep(text, source)
            self.root: Node | None = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = min(mark.line + 1, text.count("\n") + (not text.endswith("\n"))) if mark else 1
            words = ", ".join(filter(None, (error.context, error.problem)))
            if "nesting depth" in words:  # the library's own limit, of a thousand
                raise ConfigError(f"{source}:{line}: {_TOO_DEEP}") from None
            raise NotYaml(f"{source}:{line}: not YAML: {words}") from None
        except ReaderError as error:
            line = text.encode()[: error.position].count(b"\n") + 1  # the position is in bytes
            raise ConfigError(f"{source}:{line}: character {chr(error.character)!r} is not allowed in YAML") from None
        except UnicodeEncodeError:
            raise ConfigError(f"{source}: expected UTF-8 text") from None

    def where(self, node: Any) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"

    def error(self, node: Any, sentence: str) -> ConfigError:
        return ConfigError(f"{self.where(node)}: {sentence}")

    def pairs(self, node: Node) -> Iterator[tuple[str, Node]]:
        """Keys and value nodes of a mapping. Raises ConfigError for a key that is not text or is duplicated."""
        first_lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode) or (
                not key_node.style and _WORDS.get(key_node.value, key_node.value) is None
            ):
                raise self.error(key_node, "expected text as a key")
            key = key_node.value
            if key in first_lines:
                raise self.error(key_node, f"{key} is already given on line {first_lines[key]}; keep one")
            first_lines[key] = key_node.start_mark.line + 1
            yield key, value_node

    def grids(self, node: Node) -> list[list[Setting]]:
        """The settings of each mapping under ``grids:``, whose node is ``node``. Raises ConfigError."""
        if not isinstance(node, SequenceNode) or not node.value:
            raise self.error(node, "grids: expected a list of mappings, e.g. `- {seed: [0, 1]}`")
        for item in node.value:
            if not isinstance(item, MappingNode):
                raise self.error(item, "grids: expected a mapping of dotted keys to lists as each item")
        return [[*self.settings("", item)] for item in node.value]

    def settings(self, key: str, node: Node) -> Iterator[Setting]:
        """The settings at and below ``key``. A group without keys has none. Raises ConfigError."""
        if isinstance(node, MappingNode) and (not key or key in self._groups):
            for inner, value in self.pairs(node):
                yield from self.settings(f"{key}.{inner}".lstrip("."), value)
        elif not (key in self._groups and isinstance(node, ScalarNode) and self.value(key, node) is None):
            yield Setting(key=key, value=self.value(key, node), where=self.where(node))

    def value(self, key: str, node: Node | None) -> Any:
        """The plain value of a node. Raises ConfigError for a value that no key accepts."""
        if node is None:
            return None
        if id(node) not in self._values:
            self._values[id(node)] = unusable = self.error(
                node, f"{key}: unsupported YAML value; expected plain text, a number, a list or a mapping"
            )
            if not _TAG.fullmatch(str(node.tag)):
                raise unusable
            if isinstance(node, MappingNode):
                value: Any = {inner: self.value(key, each) for inner, each in self.pairs(node)}
            elif isinstance(node, SequenceNode):
                value = [self.value(key, each) for each in node.value]
            else:
                assert isinstance(node, ScalarNode)
                value = self._scalar(node)
            self._values[id(node)] = value
        value = self._values[id(node)]
        if isinstance(value, ConfigError):  # a node that contains itself
            raise value
        return value

    def places(self, node: Node, keys: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
        """Yields, for a node and each node in it, its keys and list indices after ``keys``, and its ``file:line``."""
        yield keys, self.where(node)
        inner = self.pairs(node) if isinstance(node, MappingNode) else ()
        for key, value in inner if not isinstance(node, SequenceNode) else enumerate(node.value):
            yield from self.places(value, (*keys, key))

    def _scalar(self, node: ScalarNode) -> Any:
        try:
            return _plain(node.value) if not node.style else node.value  # quoted, or a block
        except ValueError:  # Python's limit
            digits = f"{len(node.value):,} digits"
            raise self.error(node, f"expected a shorter number, got one of {digits}") from None


def _plain(text: str) -> Any:
    """The value of a plain scalar. Raises ValueError for an integer of more digits than Python converts."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else text


def refuse_twice(settings: list[Setting]) -> None:
    """Raise ConfigError for a second setting of a key."""
    seen: dict[str, str] = {}
    for setting in settings:
        if setting.key in seen:
            raise ConfigError(f"{setting.where}: {setting.key} is already given at {seen[setting.key]}; keep one")
        seen[setting.key] = setting.argument or setting.where
