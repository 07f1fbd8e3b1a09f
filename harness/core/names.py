"""Replaceable parts that a configuration chooses by a key of its own, and their names.

The parts themselves are in rooms above the configuration, or are slow to import; their names are here, so that a wrong
one is reported at once. A part that is added to its table adds its name.
"""

from collections import UserDict
from collections.abc import Mapping
from typing import Self, TypeVar

Part = TypeVar("Part")

CLIENT_NAMES = ["none", "lookahead", "stale"]
"""Allowed values of ``cache.mode``."""
OPTIMIZER_NAMES = ["sgd", "rowwise_adagrad", "adagrad"]
"""Allowed values of ``trainer.optimizer``."""
LAUNCHER_NAMES = ["fork", "hosts", "ray"]
"""Allowed values of ``cluster.launcher``."""


class PartTable(UserDict[str, Part]):
    """Parts by name. A new entry, however it is made, appends its name to ``names``: a configuration then allows it."""

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
