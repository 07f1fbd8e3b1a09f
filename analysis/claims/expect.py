"""The expectations and studies of a claim, which turn results into rows. The fields are the keys of the YAML file.

Results are finished cells, with strategies and seeds, or the entries of a benchmark, with rounds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from analysis.claims.measures import Measure, Model, Names, matching, paired_difference
from analysis.claims.rows import (
    NO_RUN,
    UNPUBLISHED,
    Row,
    Verdict,
    confirms_nothing,
    joined,
    measured,
    shown,
    signed,
    study,
    within,
)
from analysis.load import Frame
from analysis.stats import BASELINE, Estimate

_UNKNOWN = "an unknown value of the condition"

FLAT = 0.1
"""By default, a smaller change of a measure counts as no change, in the measure's unit."""

Values = Annotated[Sequence[Any], BeforeValidator(lambda value: value if isinstance(value, list) else [value])]


@dataclass(frozen=True)
class Scope:
    """The data of a claim: its results, the measures that it may name, and ``by``, the key in which results differ.

    ``words``: words for the key, or a text in which the value replaces ``{}``. ``names``: words for its values, by the
    values' text.
    """

    results: Frame
    measures: Mapping[str, Measure]
    by: str | None = None
    words: str = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> list[Any]:
        """The values of the key ``by``, in order; empty without a key."""
        return values_of(self.results, self.by) if self.by else []

    @property
    def strategies(self) -> list[str]:
        """The strategies of the results except ``none``, in order of appearance."""
        found = self.results.reindex(columns=["strategy"])["strategy"].dropna().unique()
        return [each for each in found if each != BASELINE]

    def at(self, strategy: str | None, value: Any) -> Frame:
        """The results of a strategy (None: of all), at one value of the key if there is a key (None: no value)."""
        own = {} if strategy is None else {"strategy": strategy}
        return matching(self.results, own if self.by is None else {**own, self.by: value})

    def text(self, value: Any) -> str:
        """The words for a value of the key."""
        name = self.names.get(text_of(value), text_of(value))
        return self.words.format(name) if "{}" in self.words else spaced(self.words, name)


class Item(Model):
    """The fields that studies and expectations share: measures, strategies, and a selection of results."""

    of: Names
    """Names of measures."""
    strategy: Names | None = None
    by: str | None = None
    """A key in which the results differ, instead of the claim's; null: no key, so that all results are together."""
    words: Annotated[str, Field(alias="as")] = ""
    where: Mapping[str, Any] = {}
    """Columns with the values that results must have."""

    def within_scope(self, scope: Scope) -> Scope:
        """``scope`` with the key of this item, and only the results that ``where`` selects."""
        own = replace(scope, results=matching(scope.results, self.where))
        if "by" in self.model_fields_set:
            return replace(own, by=self.by, words=self.words)
        return replace(own, words=self.words or own.words)


class Study(Item):
    """A row of measures for each strategy and value of the key; not judged.

    ``against``: columns with values that select reference results, by default of the same strategy. The row's remark
    has the difference to them, paired by seed.
    """

    against: Mapping[str, Any] = {}
    what: str = "{}"
    """The name of a row, in which strategy and value replace ``{}``."""

    def rows(self, scope: Scope) -> Iterator[Row]:
        """A row for each strategy and value of the key that has results, also for results without a value."""
        scope = self.within_scope(scope)
        measures = [scope.measures[name] for name in self.of]
        for strategy in self.strategy or scope.strategies or [None]:
            for value in (*scope.values, None):
                if len(own := scope.at(strategy, value)):
                    words = [f"`{strategy}`"] if strategy else []
                    words += [] if value is None else [scope.text(value)]
                    ours = "; ".join(filter(None, (measure.text(own, scope.results) for measure in measures)))
                    yield study(
                        self.what.format(", ".join(words)), ours, len(own), self._compared(scope, own, measures)
                    )

    def _compared(self, scope: Scope, own: Frame, measures: Sequence[Measure]) -> str:
        """The differences to the results ``against`` as text; empty without such results, and for these themselves."""
        if not self.against:
            return ""
        others = matching(scope.results, {"strategy": own["strategy"].iloc[0], **self.against})
        found = (
            []
            if own.index.equals(others.index)
            else [(measure, measure.difference(own, others)) for measure in measures]
        )
        return "; ".join(measure.change_text(value) for measure, value in found if value)


class Expected(Item):
    """The fields that expectations share, but for those in ``without``.

    ``paper``: the published number. ``what``: the row's name, in which ``{strategy}``, ``{measure}`` and ``{at}`` are
    replaced. ``digits``: digits after the point. ``calibrated`` (constants were chosen so that it comes out),
    ``identity`` (a formula is compared with itself): agreement confirms nothing.
    """

    without: ClassVar[tuple[str, ...]] = ()
    """Fields that a class does not take."""

    at: Values | None = None
    """Values of the key for which there is a row; by default all."""
    paper: str = UNPUBLISHED
    what: str = ""
    digits: int = 2
    calibrated: bool = False
    identity: bool = False

    @model_validator(mode="after")
    def _takes_all(self) -> Self:
        if refused := [name for name in self.without if name in self.model_fields_set]:
            raise ValueError(f"expected no {' and no '.join(refused)}")
        return self

    def rows(self, scope: Scope) -> Iterator[Row]:
        """The rows for each strategy and measure: one for each value of the key, unless the class says otherwise."""
        scope = self.within_scope(scope)
        for strategy in self._strategies(scope):
            for name in self.of:
                for row in self._rows(scope, strategy, scope.measures[name]):
                    kind: Literal["calibrated", "identity"] = "identity" if self.identity else "calibrated"
                    yield confirms_nothing(row, kind) if self.identity or self.calibrated else row

    def _strategies(self, scope: Scope) -> Sequence[str | None]:
        return self.strategy or scope.strategies or [None]

    def _rows(self, scope: Scope, strategy: str | None, measure: Measure) -> Iterator[Row]:
        raise NotImplementedError

    def _at(self, scope: Scope) -> Sequence[Any]:
        """The values of the key for which there is a row; [None] if the results have no key."""
        return (self.at or scope.values) if scope.by else [None]

    def _what(self, strategy: str | None, measure: Measure, at: str, *, against: str = "") -> str:
        subject = "`{strategy}`" * bool(strategy) + f" less `{against}`" * bool(against)
        text = self.what or f"{subject}: " * bool(subject) + "{measure}" + "; {at}" * bool(at)
        for name, word in (("strategy", str(strategy)), ("measure", measure.label), ("at", at)):
            text = text.replace(f"{{{name}}}", word)
        return text


class Provided(Model):
    """A condition: the 95 % interval of the measure ``of`` is below a bound."""

    of: str
    below: float

    def holds(self, scope: Scope, own: Frame) -> bool | None:
        """Whether ``own`` meets the condition; None if the interval contains the bound or is unknown.

        True for results that are themselves the measure's reference.
        """
        measure = scope.measures[self.of]
        value = measure.mean(own, scope.results)
        if value is None:
            return True if measure.is_reference(own) else None
        low, high = value.interval or (-math.inf, math.inf)
        return True if high < self.below else False if low > self.below else None


def _in_order(span: tuple[float, float]) -> tuple[float, float]:
    if span[0] > span[1]:
        raise ValueError(f"expected the least value first, got {list(span)}")
    return span


class Within(Expected):
    """Expects a measure in a range: its whole 95 % interval, or all rounds of a benchmark.

    ``best``: only the value of the key at which the measure is least, or most, is judged. ``provided``: a condition
    that this value must meet; without ``best`` it is the value with most. ``noise_below``: a round below it shows that
    the machine was busy, so nothing is judged. ``also``: measures shown in the row's remark, beside ``why``.
    """

    without = ("digits",)  # those of the measure

    within: Annotated[tuple[float, float], AfterValidator(_in_order)]
    best: Literal["least", "most"] | None = None
    provided: Provided | None = None
    noise_below: float = -math.inf
    also: Names = ()
    why: str = ""

    @model_validator(mode="after")
    def _shows_all(self) -> Self:
        if self.also and (self.best or self.provided):
            raise ValueError("expected no also beside best or provided")
        return self

    def _rows(self, scope: Scope, strategy: str | None, measure: Measure) -> Iterator[Row]:
        found = {value: scope.at(strategy, value) for value in self._at(scope)}
        if self.best or self.provided:
            yield self._best_row(scope, strategy, measure, {value: own for value, own in found.items() if len(own)})
            return
        for value, own in found.items():
            what = self._what(strategy, measure, "" if value is None else scope.text(value))
            also = (scope.measures[name].text(own, scope.results) for name in self.also)
            yield self._row(scope, what, measure, own, joined(*also, self.why))

    def _row(self, scope: Scope, what: str, measure: Measure, own: Frame, why: str) -> Row:
        low, high = self.within
        if own.empty or "status" in own:
            value = measure.mean(own, scope.results) if len(own) else None
            return within(what, self.paper, value, low, high, digits=measure.digits, why=why)
        values = measure.values(own, scope.results).to_list()
        row = measured(what, self.paper, values, low, high, digits=measure.digits, why=why)
        is_noise = bool(values) and min(values) < self.noise_below and row.verdict != "study"
        noise = f"a round is below {self.noise_below:g}: the machine was not quiet"
        return replace(row, verdict="cannot be told", why=joined(noise, why)) if is_noise else row

    def _best_row(self, scope: Scope, strategy: str | None, measure: Measure, found: Mapping[Any, Frame]) -> Row:
        """The row of the best value of the key among the values that are shown to meet the condition.

        If it is not reproduced, but better values are in the range, the remark names the last of these. The verdict is
        then "cannot be told" if it was already, or if one of them may meet the condition; else "not reproduced".
        """
        kept = {value: self.provided is None or self.provided.holds(scope, own) for value, own in found.items()}
        points = {value: measure.point(own, scope.results) for value, own in found.items()}
        sign = -1 if self.best == "least" else 1
        order = sorted((v for v in found if points[v]), key=lambda v: sign * (points[v] or (0,))[0], reverse=True)
        best = next((value for value in order if kept[value]), None)
        what = self._what(strategy, measure, "" if best is None else scope.text(best))
        row = self._row(scope, what, measure, scope.results[:0] if best is None else found[best], self.why)
        if row.verdict == "reproduced" or self.provided is None:
            return row
        rows = {value: self._row(scope, "", measure, found[value], "") for value in order}
        better = [value for value in order if rows[value].verdict == "reproduced"]
        if not better:
            return row
        beside = scope.measures[self.provided.of].text(found[better[-1]], scope.results)
        why = f"{scope.text(better[-1])} reaches {rows[better[-1]].ours}, at {beside or _UNKNOWN}"
        may_keep = any(kept[value] is None for value in better)
        verdict: Verdict = "cannot be told" if may_keep or row.verdict == "cannot be told" else "not reproduced"
        return replace(row, verdict=verdict, why=joined(row.why, why))


class Less(Expected):
    """Expects a measure to be less for the strategies ``less`` than for ``than``, paired by seed, at each value.

    A strategy without runs at a value of the key is compared by its runs without a value.
    """

    without = ("strategy",)

    less: Names
    than: str

    @model_validator(mode="after")
    def _compares_two(self) -> Self:
        if self.than in self.less:
            raise ValueError(f"expected two strategies, got {self.than} twice")
        return self

    def _strategies(self, scope: Scope) -> Sequence[str]:
        return self.less

    def _rows(self, scope: Scope, strategy: str | None, measure: Measure) -> Iterator[Row]:
        for value in self._at(scope):
            text = self._what(strategy, measure, "" if value is None else scope.text(value), against=self.than)
            own, other = (self._runs(scope, each, value) for each in (strategy, self.than))
            change = _difference(measure, own, other, scope.results)
            yield signed(text, self.paper, change, sign=-1, digits=self.digits, why="paired by seed")

    def _runs(self, scope: Scope, strategy: str | None, value: Any) -> Frame:
        runs = scope.at(strategy, value)
        return runs if len(runs) else scope.at(strategy, None)


class Trend(Expected):
    """Expects a measure to rise, fall or stay from the value ``since`` of the key to each of ``until``, paired by seed.

    By default the change is from the first value to the last. A measure stays if its change is less than ``flat``,
    in its unit.
    """

    without = ("at", "what")

    trend: Literal["rises", "falls", "stays"]
    flat: float = FLAT
    since: Annotated[Any, Field(alias="from")] = None
    until: Values = (None,)

    @model_validator(mode="after")
    def _is_flat(self) -> Self:
        if "flat" in self.model_fields_set and self.trend != "stays":
            raise ValueError(f"expected no flat with trend {self.trend}")
        return self

    def _rows(self, scope: Scope, strategy: str | None, measure: Measure) -> Iterator[Row]:
        label, values = spaced(f"`{strategy}`:" if strategy else "", measure.label), scope.values
        for last in self.until:
            if not values:
                yield Row(label, self.paper, "–", 0, "cannot be told", NO_RUN)
                continue
            since, until = (
                end if given is None else given for end, given in ((values[0], self.since), (values[-1], last))
            )
            change = _difference(measure, scope.at(strategy, until), scope.at(strategy, since), scope.results)
            text = spaced(f"{label};", scope.words, f"{text_of(until)} less {text_of(since)}")
            if change and self.trend == "stays" and self.paper != UNPUBLISHED:
                verdict, why = _flat(change, self.flat)
                yield Row(text, self.paper, shown(change), change.num, verdict, why)
            else:
                yield signed(text, self.paper, change, sign=-1 if self.trend == "falls" else 1, digits=self.digits)


class Signed(Expected):
    """Expects a measure of each strategy above or below 0, at each value of the key ``by``."""

    signed: Literal["above", "below"]

    def _rows(self, scope: Scope, strategy: str | None, measure: Measure) -> Iterator[Row]:
        for value in self._at(scope):
            what = self._what(strategy, measure, "" if value is None else scope.text(value))
            change = measure.mean(scope.at(strategy, value), scope.results)
            yield signed(what, self.paper, change, sign=1 if self.signed == "above" else -1, digits=self.digits)


EXPECTATIONS: Mapping[str, type[Expected]] = {"within": Within, "less": Less, "trend": Trend, "signed": Signed}
"""The expectations, each by a key that no other has."""


def _difference(measure: Measure, own: Frame, others: Frame, results: Frame) -> Estimate | None:
    """The mean over ``own`` minus the mean over ``others`` (:func:`paired_difference`)."""
    return paired_difference(own, measure.values(own, results), others, measure.values(others, results))


def _flat(change: Estimate, flat: float) -> tuple[Verdict, str]:
    """The verdict on the claim that the change is less than ``flat``, by its 95 % interval, and the reason."""
    low, high = change.interval or (-math.inf, math.inf)
    if low > -flat and high < flat:
        return "reproduced", f"flat: within {flat:g}"
    if low > flat or high < -flat:
        return "not reproduced", f"flat: within {flat:g}, and the interval lies outside"
    return "cannot be told", f"flat: within {flat:g}, and the interval lies in part outside"


def values_of(results: Frame, key: str) -> list[Any]:
    """The different values of ``key`` in the results, sorted by the number that they are or begin with."""
    return sorted(results.reindex(columns=[key])[key].dropna().unique().tolist(), key=_natural)


def _natural(value: Any) -> tuple[float, str]:
    """Sort key: a number, or a text by the number with which it begins; other texts last, in order of letters."""
    text = str(value)
    try:
        return float(text.split(maxsplit=1)[0]), text
    except ValueError:
        return math.inf, text


def text_of(value: Any) -> str:
    """A value of a key as text: ``200`` for 200.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def spaced(*words: str) -> str:
    """The words that are not empty, joined by spaces."""
    return " ".join(filter(None, words))
