"""Groups of keys that have names: `profile: busy`, and `profile: {base: busy, mtbf_h: 3}`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler

from harness.config.words import YAML_FILE


@dataclass(frozen=True)
class Named:
    """A pydantic validator of such a group: the value is a name, or a mapping of ``base: NAME`` and what differs.

    ``harness.config.build`` reads the file of such a mapping.

    ``bases``: the group by name; the first is the base of a mapping that names none. ``merged``: the mapping of all
    keys, not validated yet, from the name of the base and the keys that differ; it raises ValueError as ``KEY: …``.
    """

    bases: Mapping[str, BaseModel]
    merged: Callable[[str, dict[str, Any]], dict[str, Any]]

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> Any:
        return BeforeValidator(self.resolved).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        named, file = {"type": "string", "enum": [*self.bases]}, {"type": "string", "pattern": YAML_FILE}
        return {"anyOf": [named, file, handler(core)]}

    def resolved(self, value: object) -> object:
        """The group, or the mapping of all its keys; a value that is neither name nor mapping is returned as it is."""
        values = {"base": value} if isinstance(value, str) else value
        if not isinstance(values, dict):
            return value
        base = str(values.get("base", next(iter(self.bases))))
        if base not in self.bases:
            raise ValueError(f"base: expected one of {', '.join(self.bases)}, got {base!r}")
        changed = {key: given for key, given in values.items() if key != "base"}
        return self.merged(base, changed) if changed else self.bases[base]
