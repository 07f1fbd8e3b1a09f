"""Descriptions of delimited click logs: which column is the label, a dense feature or a category.

A log of Avazu is one of them; Criteo's format, which has no header and hexadecimal categories, is not.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.config.words import mistakes_of
from harness.config.yaml_file import read_settings
from harness.core.errors import DataError

_NO_SEPARATORS = '"\r\n.+-_'

Transform = Literal["log1p", "none"]
"""Of a dense feature x: log(max(x, 0) + 1), as of Criteo's integers, or x."""
Column = Annotated[str, Field(min_length=1)]


class Schema(BaseModel):
    """The columns of a delimited log. Those that it does not name are ignored.

    A column is a name in the header, or, without a header, a number that counts from 1. ``dense``: columns and what
    becomes of them; a list of columns is short for ``log1p`` of each. ``missing``: words that stand for a missing
    value, beside the empty one; a missing dense value is stored as 0, and all missing values of a category are one id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","
    header: bool = True
    label: Column
    dense: dict[Column, Transform] = {}
    categories: Annotated[tuple[Column, ...], Field(min_length=1)]
    missing: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    @field_validator("dense", mode="before")
    @classmethod
    def _as_mapping(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if twice := [column for column, number in Counter(map(str, value)).items() if number > 1]:
            raise ValueError(f"expected each column once, got {twice[0]} twice")
        return dict.fromkeys(value, "log1p")

    @field_validator("separator")
    @classmethod
    def _is_one_byte(cls, value: str) -> str:
        if not value.isascii() or value.isalnum() or value in _NO_SEPARATORS:
            raise ValueError(f"expected one ASCII character such as ',', ';', '|' or a tab, got {value!r}")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if twice := [column for column, number in Counter(self.columns).items() if number > 1]:
            raise ValueError(f"expected each column once, got {twice[0]} twice")
        wrong = [column for column in self.columns if not (column.isdecimal() and column.isascii() and int(column))]
        if wrong and not self.header:
            raise ValueError(f"expected columns by number, from 1, where header is false, got {wrong[0]!r}")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read: label, dense features, categories."""
        return (self.label, *self.dense, *self.categories)


AVAZU = Schema(
    label="click",
    categories=(
        *("hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
        *("app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
        *(f"C{number}" for number in range(14, 22)),
    ),
)
"""Kaggle's file of Avazu, 2014: the 22 columns beside ``id`` and ``click`` are categories, ``hour`` among them."""


def read_schema(path: Path) -> Schema:
    """The schema in a YAML file. Raises DataError or ConfigError, which name the file, and the line if there is one."""
    settings, grids = read_settings(path, ())
    where = {setting.key: setting.where for setting in settings} | ({} if grids is None else {"grids": path})
    for key in where:
        if key not in Schema.model_fields:
            raise DataError(f"{where[key]}: unknown key {key}, expected {', '.join(Schema.model_fields)}")
    try:
        return Schema.model_validate({setting.key: setting.value for setting in settings})
    except ValidationError as error:
        key = error.errors()[0]["loc"][:1]
        raise DataError(f"{where.get(str(key[0]), path) if key else path}: {mistakes_of(error)[0]}") from None
