"""The parts that a configuration chooses by name: strategies, models, clients, optimizers, launchers, stores.

``strategy`` and ``model`` are groups of keys. The other keys of a group depend on its key ``name``: each part of the
group is a class with ``Options``, which declares these keys. :func:`enter` makes them known to configurations.

The other parts are chosen by one key. Their tables are in packages that import the configuration, or that are slow to
import. So their names are listed here, and a configuration refuses a wrong name without importing these packages. A
part that is added to its table is added to the list of names too (:class:`PartTable`).
"""

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    create_model,
)


class Options(BaseModel):
    """Base of the options of one part of a group: the part's name, and the keys that only this part has."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    group: ClassVar[str]

    name: str


CHOICES: dict[str, dict[str, type[Options]]] = {"strategy": {}, "model": {}}
"""The options of each part, by group and by name."""

DEFAULTS = {"strategy": "full", "model": "dlrm"}
"""The part of each group that is used if a configuration does not name one."""


class _Named(Options):
    """Options that can be pickled, although their class has no import path."""

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(options_of, self.group, **self.model_dump()), ()


def enter(name: str, options: type[Options], summary: str | None) -> None:
    """Add part ``name`` to the group ``options.group`` in :data:`CHOICES`.

    The entry is a subclass of ``options`` whose field ``name`` allows only this name, which is also its default.
    ``summary`` describes the part in the schema.
    """
    title = name.title().replace("_", "")
    named: Any = (Literal[name], Field(name, description=options.model_fields["name"].description))
    # Every field has its description; a search for docstrings would walk all modules, half a second for all models.
    no_search = {"use_attribute_docstrings": False}
    bases: tuple[type[Options], ...] = (_Named, options)
    CHOICES[options.group][name] = create_model(
        f"{title}Options", __base__=bases, __doc__=summary, __cls_kwargs__=no_search, name=named
    )


def options_of(group: str, /, name: str, **values: Any) -> Options:
    """The options of part ``name`` of ``group``: ``values``, and defaults for the rest.

    Raises KeyError for an unknown group or name, and pydantic's ValidationError for invalid values.
    """
    return CHOICES[group][name].model_validate(values)


# --- parts chosen by one key ------------------------------------------------------------------------------------------

Part = TypeVar("Part")

CLIENT_NAMES = ["none", "lookahead", "stale"]
"""Allowed values of ``cache.mode``."""
OPTIMIZER_NAMES = ["sgd", "rowwise_adagrad", "adagrad", "adam"]
"""Allowed values of ``trainer.optimizer``."""
LAUNCHER_NAMES = ["fork", "hosts", "ray"]
"""Allowed values of ``cluster.launcher``."""
STORE_NAMES = ["files", "memory"]
"""Allowed values of ``store.kind``, besides ``auto``."""


@dataclass(frozen=True)
class OneOf:
    """A pydantic validator: the value must be one of ``names``, a list to which plugins may add later, or ``also``."""

    names: Sequence[str]
    also: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> Any:
        return AfterValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(core), "enum": [*self.also, *self.names]}

    def _check(self, name: str) -> str:
        if name not in (allowed := [*self.also, *self.names]):
            raise ValueError(f"expected one of {', '.join(allowed)}, got {name!r}")
        return name


class PartTable(UserDict[str, Part]):
    """A table of parts by name. A new entry appends its name to the list ``names``, so that configurations allow it.

    At the start the names must be those of ``parts``, in the same order.
    """

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
