"""Settings with their places, from YAML files and ``key=value`` words of the command line."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.config.keys import group_keys, leaf_keys
from harness.config.yaml_file import Document, read_yaml
from harness.core.errors import ConfigError, printable

CLAIM, GRIDS = "claim", "grids"
"""Sections of a YAML file: one that only `run.py reproduce` reads, and one that makes it an experiment."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One value that the user gave: its dotted key, and its place (``quickstart.yaml:12``)."""

    key: str
    value: Any
    where: str
    argument: str | None = None  # that gave it, e.g. ``trainer.batch_size=64``; None for a file


def read_settings(path: Path) -> tuple[list[Setting], list[list[Setting]] | None]:
    """All settings of the YAML file ``path``, with dotted keys, and the mappings under ``grids:`` (None if absent).

    Mappings of groups of keys are flattened; any other mapping is a value. Raises ConfigError.
    """
    document = read_yaml(path)
    settings = {key: value for key, value in document.value.items() if key not in (CLAIM, GRIDS)}
    grids = document.value.get(GRIDS, ())
    wrong = (
        [n for n, grid in enumerate(grids) if not isinstance(grid, dict)] if isinstance(grids, list | tuple) else [0]
    )
    if wrong or grids == []:
        where = document.find((GRIDS, *wrong[:1]))[1]
        raise ConfigError(f"{where}: grids: expected a list of mappings, e.g. `- {{seed: [0, 1]}}`")
    found = [_settings(document, settings)]
    found += [_settings(document, grid, "", (GRIDS, n)) for n, grid in enumerate(grids)]
    for group in found:
        refuse_twice(group)
    return found[0], found[1:] or None


def read_argument(argument: str) -> list[Setting]:
    """The settings of the command-line argument ``key=value``. The value is YAML; empty is null. Raises ConfigError."""
    (key, equals, text), shown = argument.partition("="), printable(argument, 80)
    if not equals or not key.strip():
        raise ConfigError(f"{shown} on the command line: expected the form key=value")
    document = Document(text.encode(errors="surrogatepass"), f"{shown} on the command line")
    found = _settings(document, document.value, key.strip())
    return [replace(each, where="command line", argument=shown) for each in found]


def _settings(document: Document, value: Any, key: str = "", path: tuple[Any, ...] = ()) -> list[Setting]:
    """The settings at and below ``key``, whose value is at ``path`` in the document. A group without keys has none."""
    if isinstance(value, dict) and (not key or key in group_keys()):
        inner = ((f"{key}.{name}".lstrip("."), each, (*path, name)) for name, each in value.items())
        return [found for name, each, at in inner for found in _settings(document, each, name, at)]
    is_empty_group = value is None and key in group_keys() - leaf_keys().keys()
    return [] if is_empty_group else [Setting(key=key, value=value, where=document.find(path)[1])]


def refuse_twice(settings: list[Setting]) -> None:
    """Raise ConfigError for a second setting of a key."""
    seen: dict[str, str] = {}
    for each in settings:
        if each.key in seen:
            raise ConfigError(f"{each.where}: {each.key} is already given at {seen[each.key]}; keep one")
        seen[each.key] = each.argument or each.where
