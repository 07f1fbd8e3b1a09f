"""YAML with the line of every value, and without the surprises of YAML 1.1.

PyYAML makes the nodes. A plain scalar is null (also ``~``, or empty), true or false, a decimal integer (``010`` is 10),
or a finite decimal float (``1e-3``). All else is text: ``yes``, ``off``, ``0x1F``, ``1_000``, ``1:30``, ``2021-01-01``.
An alias stands for its anchor's value. Duplicate keys and tags are errors; ``<<`` is a key like others.
"""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from yaml import MappingNode, ScalarNode, SequenceNode

from harness.config.words import suggest
from harness.core.errors import ConfigError
from harness.files import in_repository

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_MAX_DEPTH = 20  # values inside each other; a grid file needs seven


class Document(yaml.CBaseLoader):
    """The ``value`` of a YAML text, in plain Python values. Raises ConfigError, which names ``source`` and the line."""

    def __init__(self, content: bytes, source: str) -> None:
        self._source = source
        try:
            super().__init__(content)
            self._root: Any = self.get_single_node()
        except yaml.reader.ReaderError as error:
            line = content.count(b"\n", 0, error.position) + 1
            raise ConfigError(f"{source}:{line}: not YAML: {error.reason}") from None
        except yaml.MarkedYAMLError as error:
            line = min(error.problem_mark.line + 1 if error.problem_mark else 1, len(content.splitlines()))
            words = ", ".join(filter(None, (error.context, error.problem)))
            raise ConfigError(f"{source}:{line}: not YAML: {words}") from None
        self.value: Any = None if self._root is None else self.construct_object(self._root)

    def find(self, path: Iterable[Any]) -> tuple[tuple[Any, ...], str]:
        """The keys and list indices of ``path`` that lead on to a value, and the place of the last such value."""
        node, keys = self._root, ()
        for key in path:
            inner = dict(enumerate(node.value)) if isinstance(node, SequenceNode) else {}
            inner |= {name.value: value for name, value in node.value} if isinstance(node, MappingNode) else {}
            node, keys = (inner[key], (*keys, key)) if key in inner else (node, keys)
        return keys, self._where(node)

    def _where(self, node: Any) -> str:
        return f"{self._source}:{1 if node is None else node.start_mark.line + 1}"

    def construct_object(self, node: Any, deep: bool = True) -> Any:
        if node.tag not in _TAGS or node in self.recursive_objects or len(self.recursive_objects) > _MAX_DEPTH:
            expected = f"text, a number, a list or a mapping without tags, at most {_MAX_DEPTH} levels deep"
            raise ConfigError(f"{self._where(node)}: unsupported YAML value; expected {expected}")
        return super().construct_object(node, deep=True)

    def construct_scalar(self, node: Any) -> Any:
        return node.value if node.style else _plain(node.value)  # quoted, or a block

    def construct_mapping(self, node: Any, deep: bool = True) -> dict[Any, Any]:
        places: dict[str, str] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ConfigError(f"{self._where(key)}: expected text as a key")
            if key.value in places:
                raise ConfigError(f"{self._where(key)}: {key.value} is already given at {places[key.value]}; keep one")
            places[key.value] = self._where(key)
        return {key.value: self.construct_object(value) for key, value in node.value}


def read_yaml(path: Path) -> Document:
    """The document of a YAML file with a mapping at its top. Raises ConfigError."""
    try:
        document = Document(path.read_bytes(), str(path))
    except FileNotFoundError:
        stems = [each.stem for each in path.parent.glob("*.yaml")]
        hint = suggest(path.stem, stems, lambda stem: f"{path.parent / stem}.yaml") or in_repository(path)
        raise ConfigError(f"{path}: no such file{hint}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(document.value, dict):
        raise ConfigError(f"{document.find(())[1]}: expected a mapping of keys to values at the top of the file")
    return document


def to_yaml(value: dict[str, Any]) -> str:
    """``value`` as YAML that this module can read; keys keep their order, lists and innermost mappings are inline."""
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=None, allow_unicode=True, width=120, sort_keys=False)


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, text: str) -> ScalarNode:
        is_word = re.fullmatch(r"[\w./][\w./+-]*", text) and isinstance(_plain(text), str)
        return self.represent_scalar(_TAGS[0], text, style=None if is_word else '"')


_Dumper.add_representer(str, _Dumper.text)


def _plain(text: str) -> Any:
    """The value of a plain scalar."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        return text
    return int(text) if text.lstrip("+-").isdecimal() else float(text)
