"""The expected values of a claim, which turn finished cells into rows. The fields are the keys of the YAML file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from analysis.claims.measures import MEASURES, matching
from analysis.claims.rows import NO_RUN, Row, confirms_nothing, signed, within
from analysis.figures.axes import text_of
from analysis.load import Frame
from analysis.stats import BASELINE, natural

FLAT = 0.1
"""By default, a smaller change of a measure counts as no change, in the measure's unit."""


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Names = Annotated[Sequence[str], BeforeValidator(_listed)]
"""A list of names; a single name is a list of one."""
Values = Annotated[Sequence[Any], BeforeValidator(_listed)]


class Model(BaseModel):
    """Base class of the mappings in a claim's YAML file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True)
class Scope:
    """The finished cells of a claim, and ``by``, the key in which they differ. ``words``: what rows call the key."""

    cells: Frame
    by: str | None = None
    words: str = ""

    @property
    def values(self) -> list[Any]:
        """The values of the key ``by``, in order; [None] without a key."""
        return values_of(self.cells, self.by) if self.by else [None]

    @property
    def strategies(self) -> list[str]:
        """The strategies of the cells except ``none``, in order of appearance."""
        return [each for each in self.cells["strategy"].dropna().unique() if each != BASELINE]

    def at(self, strategy: str, value: Any) -> Frame:
        """The cells of a strategy at one value of the key, if there is a key (None: those without a value)."""
        return matching(self.cells, {"strategy": strategy} | ({} if self.by is None else {self.by: value}))

    def text(self, value: Any) -> str:
        """The words for a value of the key."""
        return "" if value is None else f"{self.words} {text_of(value)}".strip()


class Expected(Model):
    """The fields that expectations share.

    ``of``: names in ``MEASURES``. ``paper``: the published number. ``where``: columns with the values that cells must
    have. ``at``: values of the claim's key; by default all. ``calibrated`` (constants were chosen so that it comes
    out), ``identity`` (it follows from formulas): agreement confirms nothing.
    """

    of: Names
    paper: str
    where: Mapping[str, Any] = {}
    at: Values | None = None
    calibrated: bool = False
    identity: bool = False

    def rows(self, scope: Scope) -> Iterator[Row]:
        """The rows for each strategy, measure and value of the key; one "cannot be told" if there are no cells."""
        scope = Scope(matching(scope.cells, self.where), scope.by, scope.words)
        kind: Literal["calibrated", "identity"] = "identity" if self.identity else "calibrated"
        found = [
            row for strategy in self.arms(scope) for name in self.of for row in self.judge(scope, strategy, name)
        ] or [Row(" and ".join(self.of), self.paper, "–", 0, "cannot be told", NO_RUN)]
        yield from (confirms_nothing(row, kind) if self.identity or self.calibrated else row for row in found)

    def arms(self, scope: Scope) -> Sequence[str]:
        """The strategies that are judged."""
        raise NotImplementedError

    def judge(self, scope: Scope, strategy: str, name: str) -> Iterator[Row]:
        """The rows of one strategy and measure."""
        raise NotImplementedError


class _OfStrategies(Expected):
    strategy: Names | None = None

    def arms(self, scope: Scope) -> Sequence[str]:
        return self.strategy or scope.strategies


def _in_order(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"expected the least value first, got {list(span)}")
    return span


class Within(_OfStrategies):
    """Expects the whole 95 % interval of a measure in a range."""

    within: Annotated[tuple[float, float], AfterValidator(_in_order)]

    def judge(self, scope: Scope, strategy: str, name: str) -> Iterator[Row]:
        for value in self.at or scope.values:
            own, measure = scope.at(strategy, value), MEASURES[name]
            what = _named(f"`{strategy}`: {measure.label}", scope.text(value), self.where)
            yield within(what, self.paper, measure.mean(own, scope.cells), *self.within, digits=measure.digits)


class Less(Expected):
    """Expects a measure to be less for the strategies ``less`` than for ``than``, paired by seed, at each value.

    The values are of the claim's key ``by``. A strategy that has no cells at a value of ``by`` is compared by its cells
    in which ``by`` is not set.
    """

    less: Names
    than: str

    @model_validator(mode="after")
    def _compares_two(self) -> "Less":
        if self.than in self.less:
            raise ValueError(f"expected two strategies, got {self.than} twice")
        return self

    def arms(self, scope: Scope) -> Sequence[str]:
        return self.less if len(scope.cells) else ()

    def judge(self, scope: Scope, strategy: str, name: str) -> Iterator[Row]:
        for value in self.at or scope.values:
            measure = MEASURES[name]
            own, other = (self._cells(scope, each, value) for each in (strategy, self.than))
            what = _named(f"`{strategy}` less `{self.than}`: {measure.label}", scope.text(value), self.where)
            change = measure.difference(own, other, scope.cells)
            yield signed(what, self.paper, change, sign=-1, digits=measure.digits, why="paired by seed")

    def _cells(self, scope: Scope, strategy: str, value: Any) -> Frame:
        cells = scope.at(strategy, value)
        return cells if len(cells) else scope.at(strategy, None)


class Trend(_OfStrategies):
    """Expects a measure to rise, fall or stay from the value ``from`` of the key to each of ``until``, paired by seed.

    By default the change is from the first value to the last. A measure stays if its change is less than ``flat``,
    in its unit.
    """

    trend: Literal["rises", "falls", "stays"]
    flat: float = FLAT
    since: Annotated[Any, Field(alias="from")] = None
    until: Values = (None,)

    @model_validator(mode="after")
    def _is_flat(self) -> "Trend":
        if self.at is not None:
            raise ValueError("expected from and until instead of at")
        if "flat" in self.model_fields_set and self.trend != "stays":
            raise ValueError(f"expected no flat with trend {self.trend}")
        return self

    def judge(self, scope: Scope, strategy: str, name: str) -> Iterator[Row]:
        values, measure = scope.values or [None], MEASURES[name]
        first = values[0] if self.since is None else self.since
        for last in self.until:
            end = values[-1] if last is None else last
            what = f"`{strategy}`: {measure.label}; {scope.words} {text_of(end)} less {text_of(first)}"
            own, other = (scope.at(strategy, value) for value in (end, first))
            change = measure.difference(own, other, scope.cells)
            what = what.replace(";  ", "; ")
            if self.trend == "stays":
                why = f"flat: within {self.flat:g}"
                yield within(what, self.paper, change, -self.flat, self.flat, digits=measure.digits, why=why)
            else:
                sign = -1 if self.trend == "falls" else 1
                yield signed(what, self.paper, change, sign=sign, digits=measure.digits)


EXPECTATIONS: Mapping[str, type[Expected]] = {"within": Within, "less": Less, "trend": Trend}
"""The expectations, each by a key that no other has."""


def _named(text: str, at: str, where: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (text, at, *(f"{key} {text_of(value)}" for key, value in where.items()))))


def values_of(results: Frame, key: str) -> list[Any]:
    """The different values of ``key`` in the results, sorted by the numbers that they are or contain."""
    return sorted(results.reindex(columns=[key])[key].dropna().unique().tolist(), key=natural)
