"""Measures of a claim: formulas over columns of results, with means, 95 % intervals and paired differences.

A result is a finished cell, or an entry of what a benchmark wrote; the latter has no status and no seed.
"""

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean, median
from types import CodeType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict

from analysis.claims.rows import middle, shown
from analysis.load import Cell
from analysis.stats import BASELINE, DRAWN, Estimate, Pair, Partners, estimate, estimate_pairs, setting_keys
from harness.core.errors import ConfigError

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*")
_OF_NONE = {"strategy": BASELINE}


@cache
def _compiled(formula: str) -> tuple[CodeType, Sequence[str]]:
    """The arithmetic of a formula over ``c``, the values of its columns, and these columns. Raises ConfigError."""
    columns = tuple(dict.fromkeys(_NAME.findall(formula)))
    text = _NAME.sub(lambda name: f"c[{name[0]!r}]", formula)
    if not re.fullmatch(r"(\d+(\.\d+)?(e-?\d+)?|[\s+/()-]|\*(?!\*))*", _NAME.sub("", formula)):
        raise ConfigError(f"{formula!r}: expected names of columns, numbers, + - * / and brackets")
    try:
        return compile(text, "formula", "eval"), columns
    except SyntaxError:
        raise ConfigError(f"{formula!r}: expected arithmetic on columns, such as 100 * save_h / job_h") from None


def value_of(formula: str, result: Cell) -> Any:
    """The value of a formula in ``result``: a number, or one of each round; None where a column is unknown.

    ``a.b`` is a column of that name, or the entry ``b`` of column ``a``. Raises ConfigError if it is no formula.
    """
    code, columns = _compiled(formula)
    values = {name: _column(name, result) for name in columns}
    if any(value is None for value in values.values()):
        return None
    arrays = {name: np.array(value) if isinstance(value, list) else value for name, value in values.items()}
    return eval(code, {"__builtins__": {}}, {"c": arrays})  # arithmetic alone, by the check above


def _column(name: str, result: Cell) -> Any:
    if name in result:
        return result[name]
    first, dot, rest = name.partition(".")
    return _column(rest, result[first]) if dot and isinstance(result.get(first), Mapping) else None


def check_columns(formula: str, results: Sequence[Cell]) -> None:
    """Raise ConfigError for a column that none of ``results`` has."""
    known = {*itertools.chain(*results)}
    for name in _compiled(formula)[1]:
        if not any(name in each or name.partition(".")[0] in each for each in results):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"{name}: no such column of the results; {hint}")


class Model(BaseModel):
    """A mapping of a claim's YAML file; other keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Names = Annotated[Sequence[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""A name, or several."""


class Measure(Model):
    """A number of each result, or one of each round, and how it is shown.

    ``of``: a formula over the columns, or several, whose values are put together. ``words``: with ``{}`` in the
    place of the value. ``reference``: columns of the result with which it is compared, of the same seed and setting.
    ``change``: what of both is taken: the difference, or in percent how much more than the reference, or less.
    """

    of: Names
    words: str
    digits: int = 2
    axis: str = ""
    """The name of an axis, if not by ``words``."""
    reference: Mapping[str, Any] = {}
    change: Literal["difference", "more", "less"] = "difference"

    def each(self, own: Iterable[Cell], cells: Sequence[Cell] = ()) -> Iterator[tuple[Cell, list[float]]]:
        """Yield each result of ``own``, a part of ``cells``, with its values; an empty list if they are unknown."""
        reference_of = self._references(cells)
        for result in own:
            values: list[float] = []
            reference = reference_of(result) if self.reference else None
            for formula in self.of:
                value = value_of(formula, result)
                if self.reference and value is not None:
                    value = None if reference in (None, result) else self._changed(value, value_of(formula, reference))
                values += [] if value is None else np.atleast_1d(value).tolist()
            yield result, values

    def _references(self, cells: Sequence[Cell]) -> Callable[[Cell], Cell | None]:
        """Finds the result with the values of ``reference``, and otherwise those of the given one, or none."""
        if self.reference == _OF_NONE:
            return Partners(cells).of  # none depends on fewer keys
        keys = [key for key in setting_keys(cells) if key not in self.reference]
        others = [each for each in cells if matches(each, self.reference)]

        def find(result: Cell) -> Cell | None:
            same_seed = (each for each in others if each.get("seed") == result.get("seed"))
            return next((each for each in same_seed if all(each.get(k) in (result.get(k), None) for k in keys)), None)

        return find

    def _changed(self, value: Any, other: Any) -> Any:
        if other is None or (self.change != "difference" and not np.all(other)):
            return None
        if self.change == "difference":
            return value - other
        return 100 * (value / other - 1 if self.change == "more" else 1 - value / other)

    def rounds(self, own: Iterable[Cell], cells: Sequence[Cell] = ()) -> list[float]:
        """All values of :meth:`each`."""
        return [value for _, values in self.each(own, cells) for value in values]

    def mean(self, own: Iterable[Cell], cells: Sequence[Cell]) -> Estimate | None:
        """Of ``own``, finished cells among ``cells``; one whose reference was not run is left out."""
        if self.reference != _OF_NONE:
            return estimate(self.rounds(own, cells))
        traces = ((tuple(cell.get(key) for key in ("trace", *DRAWN)), cell, v) for cell, v in self.each(own, cells))
        return estimate_pairs([Pair(cell["seed"], trace, value) for trace, cell, values in traces for value in values])

    def by_seed(self, own: Iterable[Cell], cells: Sequence[Cell]) -> dict[int, float]:
        """As :meth:`mean`, the mean of the cells of each seed; only where it is known."""
        found: dict[int, list[float]] = {}
        for cell, values in self.each(own, cells):
            if values:
                found.setdefault(cell["seed"], []).extend(values)
        return {seed: fmean(values) for seed, values in found.items()}

    def differences(self, own: Sequence[Cell], others: Sequence[Cell]) -> dict[int, float]:
        """``own`` less ``others`` by seed, means of the cells of each, without a reference of their own."""
        plain = self.model_copy(update={"reference": {}})
        left, right = (plain.by_seed(both, both) for both in (own, others))
        return {seed: left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())}

    def difference(self, own: Sequence[Cell], others: Sequence[Cell]) -> Estimate | None:
        """The mean of ``differences``; None without a common seed."""
        return estimate(self.differences(own, others).values())

    def point(self, own: Sequence[Cell], cells: Sequence[Cell]) -> tuple[float, float, float] | None:
        """Middle, low end and high end of an error bar.

        Of runs: the mean and its 95 % interval. Of a benchmark's rounds: the median, the least and the greatest value.
        """
        if own and "status" not in own[0]:
            values = self.rounds(own, cells)
            return (median(values), min(values), max(values)) if values else None
        value = self.mean(own, cells) if own else None
        return None if value is None else (value.mean, *(value.interval or (value.mean, value.mean)))

    def text(self, own: Sequence[Cell], cells: Sequence[Cell]) -> str:
        """The words, with the mean and half of its interval; for a benchmark's rounds, median, least and greatest."""
        if own and "status" not in own[0]:
            values = self.rounds(own, cells)
            return self.words.format(middle(values, self.digits)) if values else ""
        value = self.mean(own, cells)
        return "" if value is None else self.words.format(shown(value, digits=self.digits))

    def change_text(self, value: Estimate) -> str:
        """A difference in the same words, with its sign."""
        plus = "+" if round(value.mean, self.digits) > 0 else ""
        return self.words.format(f"{plus}{shown(value, digits=self.digits)}").replace("-", "−")

    @property
    def name(self) -> str:
        """The words without the value: ``overhead, %``."""
        title, _, unit = self.words.partition("{}")
        return ", ".join(filter(None, (title.strip(), unit.strip(" ·"))))

    @property
    def label(self) -> str:
        """The name of an axis."""
        return self.axis or self.name


def matches(result: Cell, values: Mapping[str, Any]) -> bool:
    """Whether a result has these values of columns; a list stands for any of its values."""
    return all(result.get(key) in (value if isinstance(value, list) else [value]) for key, value in values.items())


OVERHEAD = Measure(of=["100 * overhead_frac"], words="overhead {} %", axis="overhead, % of the job")
PLS = Measure(of=["100 * pls"], words="PLS {} %")
LOST = Measure(of=["100 * update_pls"], words="lost updates {} %")
LOST_TRACKED = Measure(of=["100 * update_pls_tracked"], words="lost updates of tracked tables {} %")
LOSS = Measure(of=["-1000 * auc"], words="AUC loss {}·10⁻³", axis="AUC lost to none, 10⁻³", reference=_OF_NONE)
WRITTEN = Measure(of=["payload_bytes / 1000000"], words="written {} MB", digits=1)
MEMORY = Measure(of=["memory_bytes / 1000000"], words="memory {} MB")
HOURS = Measure(of=["overhead_frac * job_h"], words="overhead {} h", axis="overhead, emulated hours")
NODE_HOURS = Measure(of=["node_h"], words="overhead of all nodes {} node-hours", digits=1)
MEASURES: Mapping[str, Measure] = {
    "auc": Measure(of=["auc"], words="AUC {}", digits=4),
    "auc_loss": LOSS,
    "hours": HOURS,
    "log_loss": Measure(of=["log_loss"], words="log loss {}", digits=4),
    "log_loss_more": Measure(
        of=["1000 * log_loss"], words="log loss more than without failures {}·10⁻³", reference=_OF_NONE
    ),
    "lost": LOST,
    "lost_tracked": LOST_TRACKED,
    "memory": MEMORY,
    "node_hours": NODE_HOURS,
    "overhead": OVERHEAD,
    "pls": PLS,
    "removed": Measure(
        of=["overhead_frac"],
        words="part of full recovery's overhead that it removes {} %",
        reference={"strategy": "full"},
        change="less",
    ),
    "saves": Measure(of=["100 * save_h / job_h"], words="overhead of saves {} % of the job"),
    "written": WRITTEN,
}
"""By the name that a claim gives; a claim may add its own."""
