"""Names of the replaceable parts that a configuration chooses, each by a key of its own.

The parts themselves are in packages that import the configuration, or are slow to import. Their names are here, so that
a wrong name is reported at once. A part that is added to its table adds its name.
"""

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler

Part = TypeVar("Part")

CLIENT_NAMES = ["none", "lookahead", "stale"]
"""Allowed values of ``cache.mode``."""
OPTIMIZER_NAMES = ["sgd", "rowwise_adagrad", "adagrad", "adam"]
"""Allowed values of ``trainer.optimizer``."""
LAUNCHER_NAMES = ["fork", "hosts", "ray"]
"""Allowed values of ``cluster.launcher``."""


@dataclass(frozen=True)
class OneOf:
    """A pydantic validator that the value is one of ``names``, a list to which plugins may add."""

    names: Sequence[str]

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> Any:
        return AfterValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names:
            raise ValueError(f"expected one of {', '.join(self.names)}, got {name!r}")
        return name


class PartTable(UserDict[str, Part]):
    """A table of parts by name. Any new entry appends its name to ``names``, so that configurations allow it."""

    def __init__(self, names: list[str], parts: dict[str, Part]) -> None:
        assert names == [*parts], "the names that a configuration knows are those of the table"
        self._names = names
        super().__init__(parts)

    def __setitem__(self, name: str, part: Part) -> None:
        super().__setitem__(name, part)
        if name not in self._names:
            self._names.append(name)

    def __ior__(self, parts: Mapping[str, Part]) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.update(parts)
        return self
