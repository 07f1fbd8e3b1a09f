"""Which plugins a configuration asks for. Imports nothing heavy: it runs before every command."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_KEY = "plugins"


def requested(paths: Sequence[Path], overrides: Sequence[str]) -> Sequence[str]:
    """The value of the key ``plugins``: of the overrides, otherwise of the files, and of experiments of their claims.

    Mistakes in either are ignored here: the configuration is read again, and then reported with their place.
    """
    for word in reversed(overrides):
        if word.startswith(f"{_KEY}="):
            return _names(_parsed(word.removeprefix(f"{_KEY}=")))
    names: list[str] = []
    for path in paths:
        values = _content(path)
        claim = values.get("claim")
        beside = claim.get("experiment") if isinstance(claim, dict) else None
        files = [values, *([_content(path.parent / beside)] if isinstance(beside, str) else [])]
        names += [name for each in files for name in _names(each.get(_KEY))]
    return names


def _content(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file with plugins, or with a claim on another file; of any other file an empty one."""
    with suppress(OSError, UnicodeDecodeError):
        if _KEY in (text := path.read_text(encoding="utf-8")) or "experiment:" in text:
            return value if isinstance(value := _parsed(text), dict) else {}
    return {}


def _parsed(text: str) -> Any:
    from ruamel.yaml import YAML  # noqa: PLC0415 - only where a plugin is asked for
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    with suppress(YAMLError):
        return YAML(typ="safe", pure=True).load(text)
    return None


def _names(value: Any) -> list[str]:
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str)]
