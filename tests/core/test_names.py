"""Laws of the tables of parts."""

from collections.abc import Callable
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.config.model import OneOf
from harness.core.names import PartTable


def _or(table: PartTable[int]) -> None:
    table |= {"new": 2}


@pytest.mark.parametrize(
    "add",
    [
        lambda table: table.__setitem__("new", 2),
        _or,
        lambda table: table.update({"new": 2}),
        lambda table: table.update(new=2),
        lambda table: table.setdefault("new", 2),
    ],
    ids=["item", "or", "update", "keyword", "setdefault"],
)
def test_a_new_part_is_allowed_however_it_is_entered(add: Callable[[PartTable[int]], object]) -> None:
    """A configuration accepts its name, and still refuses others."""
    names = ["old"]
    allowed = TypeAdapter(Annotated[str, OneOf(names)])
    table = PartTable(names, {"old": 1})
    with pytest.raises(ValidationError, match="expected one of old, got 'new'"):
        allowed.validate_python("new")
    add(table)
    assert allowed.validate_python("new") == "new"
    assert dict(table) == {"old": 1, "new": 2}
    assert names == ["old", "new"]
