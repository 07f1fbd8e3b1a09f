"""Which plugins a configuration asks for. Imports nothing heavy: it runs before every command."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_KEY = "plugins"


def requested(path: Path | None, overrides: Sequence[str]) -> Sequence[str]:
    """The value of the key ``plugins``: of the overrides, otherwise of the configuration's file.

    Mistakes in either are ignored here: the configuration is read again, and then reported with their place.
    """
    for word in reversed(overrides):
        if word.startswith(f"{_KEY}="):
            return _names(word.removeprefix(f"{_KEY}="))
    with suppress(OSError, UnicodeDecodeError):
        if path is not None and _KEY in (text := path.read_text(encoding="utf-8")):
            return _names(text, _KEY)
    return ()


def _names(text: str, key: str | None = None) -> Sequence[str]:
    from ruamel.yaml import YAML  # noqa: PLC0415 - only where a plugin is asked for
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    value: Any = None
    with suppress(YAMLError):
        value = YAML(typ="safe", pure=True).load(text)
    if key is not None:
        value = value.get(key) if isinstance(value, dict) else None
    names = value if isinstance(value, list) else [value]
    return [name for name in names if isinstance(name, str)]
