"""A validator of names that plugins may add to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function


@dataclass(frozen=True)
class OneOf:
    """A validator of a name by a table of names that a plugin may add to."""

    names: Sequence[str]

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names:
            raise ValueError(f"expected one of {', '.join(self.names)}, got {name!r}")
        return name
