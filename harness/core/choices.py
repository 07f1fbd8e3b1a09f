"""The groups of a configuration whose other keys depend on a name: ``strategy`` and ``model``.

Each part of such a group is a class with ``Options``, its keys beside the name. Configurations are built from the
options of all parts that are entered here.
"""

from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model


class Options(BaseModel):
    """The options of one part of a group: its name, and the keys of that part alone."""

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
    """Add part ``name`` to the group of ``options``, whose field ``name`` then allows only ``name``, its default.

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
    """The options of a part of ``group``: ``values``, and defaults for the rest. Raises pydantic's ValidationError."""
    return CHOICES[group][name].model_validate(values)
