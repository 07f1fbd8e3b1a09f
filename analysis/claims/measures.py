"""Measures of a claim: formulas over columns of results, with means, 95 % intervals and paired differences.

A result is a row of a frame: a finished cell, or an entry of a benchmark's JSON file, which has no status and seed. A
value of an entry may be a list, with one number for each round of the benchmark.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from types import CodeType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator

from analysis.claims.rows import middle, shown
from analysis.load import COLUMNS, Frame
from analysis.stats import (
    BASELINE,
    DRAWN,
    SETTING,
    Estimate,
    estimate,
    estimate_pairs,
    paired,
    relevant_to_none,
    setting_keys,
)
from harness.config.words import suggest
from harness.core.errors import ConfigError

_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)*")
_OF_NONE = {"strategy": BASELINE}


@cache
def _compiled(formula: str) -> tuple[CodeType, Sequence[str]]:
    """The compiled formula, in which ``c`` maps columns to values; and the columns. Raises ConfigError."""
    columns = tuple(dict.fromkeys(_NAME.findall(formula)))
    text = _NAME.sub(lambda name: f"c[{name[0]!r}]", formula)
    if not re.fullmatch(r"(\d+(\.\d+)?(e-?\d+)?|[\s+/()-]|\*(?!\*))*", _NAME.sub("", formula)):
        raise ConfigError(f"{formula!r}: expected names of columns, numbers, + - * / and brackets")
    try:
        return compile(text, "formula", "eval"), columns
    except SyntaxError:
        raise ConfigError(f"{formula!r}: expected arithmetic on columns, such as 100 * save_h / job_h") from None


def results_of(given: Frame | Sequence[Mapping[str, Any]]) -> Frame:
    """The frame of results: the finished cells of a frame, paired with ``none``; or the entries of a benchmark.

    Cells also get the column ``loss_in_samples``. Values of nested mappings in an entry become columns ``a.b``.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    frame: Frame = given if isinstance(given, pd.DataFrame) else pd.json_normalize([*map(dict, given)])
    if frame.empty:
        frame = frame.reindex(columns=COLUMNS)
    if "status" not in frame:
        return frame
    needed = ("strategy", "seed", "auc", "auc_per_log_sample", *SETTING)
    found = paired(frame.reindex(columns=[*dict.fromkeys((*frame, *needed))])[frame["status"] == "done"])
    return found.assign(loss_in_samples=_in_samples(found))


def _in_samples(results: Frame) -> Any:
    """For each result, the fraction of the samples that would cost as much AUC as it loses; NaN if unknown.

    Computed as by ``analysis.stats.sample_equivalent``. The slope of AUC over the logarithm of the samples is the mean
    over all results of ``none`` in the same setting; seeds and traces may differ.
    """
    keys = relevant_to_none(key for key in setting_keys(results) if key not in ("trace", *DRAWN))
    slopes = results["auc_per_log_sample"].where(results["strategy"] == BASELINE)
    places = results.groupby(keys, dropna=False, sort=False).ngroup()
    slope = slopes.groupby(places).transform("mean")
    return -np.expm1(-results["loss"] / slope.where(slope > 0))


def matching(results: Frame, values: Mapping[str, Any]) -> Frame:
    """The results whose columns have ``values``; a list means any of its values, None an unknown value."""
    for key, value in values.items():
        column, known = results.reindex(columns=[key])[key], value if isinstance(value, list) else [value]
        results = results[column.isin([each for each in known if each is not None]) | (column.isna() & (None in known))]
    return results


def value_of(formula: str, results: Frame) -> Any:
    """The value of a formula for each result: a number, an array with one number per round, or NaN if unknown.

    Raises ConfigError if ``formula`` is not arithmetic on columns, and Python's own errors, such as TypeError, if the
    values are not numbers.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    code, columns = _compiled(formula)
    values = {name: _arrays(results.reindex(columns=[name])[name]) for name in columns}
    return pd.Series(eval(code, {"__builtins__": {}}, {"c": values}), results.index)  # arithmetic, by the check above


def _arrays(column: Any) -> Any:
    """The column with arrays for lists, and NaN for None."""
    if column.dtype != object:
        return column.astype(float)
    return column.map(
        lambda value: np.array(value) if isinstance(value, list) else math.nan if value is None else value
    )


def check_columns(formula: str, columns: Iterable[str]) -> None:
    """Raise ConfigError if the formula uses a name that is none of ``columns``, or is not arithmetic on columns.

    A name is also accepted if it has the same part before the first dot as a column.
    """
    known = {*columns}
    for name in _compiled(formula)[1]:
        first = name.partition(".")[0]
        if not any(name == each or first == each.partition(".")[0] for each in known):
            hint = suggest(name, known) or f"; there are {', '.join(sorted(known))}"
            raise ConfigError(f"{name}: no such column of the results{hint}")


class Model(BaseModel):
    """Base class of the mappings in a claim's YAML file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


Names = Annotated[Sequence[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
"""A list of names; a single name is a list of one."""


class Measure(Model):
    """A number computed for each result, or for each round of it, and how it is shown.

    ``of``: a formula over the columns, or several, whose values are pooled. ``words``: text in which the value replaces
    ``{}``. ``digits``: digits after the point. ``reference``: columns with values; each result is compared with the
    result that has these values and the same seed and setting. ``change``: how it is compared: by the difference, or by
    how much ``more`` or ``less`` it is, in percent.
    """

    of: Names
    words: str
    digits: int = 2
    axis: str = ""
    """The name of an axis; by default it is made from ``words``."""
    reference: Mapping[str, Any] = {}
    change: Literal["difference", "more", "less"] = "difference"

    @field_validator("words")
    @classmethod
    def _has_a_place(cls, words: str) -> str:
        try:
            words.format("1")
        except (IndexError, KeyError, ValueError):
            raise ValueError(f"expected a text in which {{}} stands for the value, got {words!r}") from None
        return words

    def values(self, own: Frame, results: Frame) -> Any:
        """The known values for ``own``, a part of ``results``, as a series by the results' index labels.

        A label has a value for each formula and round. Infinite values count as unknown. Raises ConfigError if a
        formula is invalid or gives no numbers.
        """
        try:
            return self._values(own, results).replace([math.inf, -math.inf], math.nan).dropna()
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ConfigError(f"{', '.join(self.of)}: expected arithmetic on numbers, got {error}") from None

    def _values(self, own: Frame, results: Frame) -> Any:
        import pandas as pd  # noqa: PLC0415 - takes half a second to import

        found = [value_of(formula, own) for formula in self.of]
        if self.reference:
            partner = self._partners(own, results)
            others = [value_of(formula, results).reindex(partner).set_axis(partner.index) for formula in self.of]
            found = [self._changed(value[partner.index], other) for value, other in zip(found, others, strict=True)]
        return pd.concat([value.explode() for value in found]).dropna().astype(float)

    def _partners(self, own: Frame, results: Frame) -> Any:
        """For each of ``own`` that has a partner, the index label of the result that it is compared with.

        The partner has the values of ``reference``, an equal seed, and equal or missing values of the other keys.
        """
        if self.reference == _OF_NONE:
            found = own["partner"].where(own["partner"].isin(results.index))  # none depends on fewer keys
        else:
            keys = ["seed", *(setting_keys(results) if "status" in results else [])]
            keys = [key for key in keys if key not in self.reference]
            left, right = (each.reindex(columns=keys) for each in (own, matching(results, self.reference)))
            pairs = left.reset_index(names="own").merge(right.reset_index(names="partner"), on="seed")
            for key in keys[1:]:
                pairs = pairs[(pairs[f"{key}_x"] == pairs[f"{key}_y"]) | pairs[f"{key}_y"].isna()]
            found = pairs.groupby("own")["partner"].first().reindex(own.index)
        return found[found.notna() & (found != found.index)]

    def _changed(self, value: Any, other: Any) -> Any:
        if self.change == "difference":
            return value - other
        other = other.where(other != 0)
        return 100 * (value / other - 1 if self.change == "more" else 1 - value / other)

    def mean(self, own: Frame, results: Frame) -> Estimate | None:
        """The mean over ``own``, a part of ``results``, of results whose reference ran; None without a value.

        Of cells, those that share a seed or a trace are not independent (:func:`estimate_pairs`).
        """
        values = self.values(own, results)
        if "status" not in results:
            return estimate(values)
        return estimate_pairs(own[["seed", "draw"]].join(values.rename("value"), how="inner"), "value")

    def is_reference(self, own: Frame) -> bool:
        """Whether all of ``own`` are results that others are compared with; their own value is 0 by definition."""
        return bool(self.reference) and len(matching(own, self.reference)) == len(own)

    def by_seed(self, own: Frame, results: Frame) -> Any:
        """The mean for each seed over ``own``, as a series by seed; seeds without a known value are left out."""
        values = self.values(own, results)
        return values.groupby(values.index.map(own.reindex(columns=["seed"])["seed"])).agg(fmean)

    def differences(self, own: Frame, others: Frame) -> Any:
        """For each common seed, the mean over ``own`` minus the mean over ``others``; ``reference`` is ignored."""
        return (self.plain_by_seed(own) - self.plain_by_seed(others)).dropna()

    def plain_by_seed(self, own: Frame) -> Any:
        """:meth:`by_seed` without ``reference``."""
        return self.model_copy(update={"reference": {}}).by_seed(own, own)

    def difference(self, own: Frame, others: Frame) -> Estimate | None:
        """As :func:`paired_difference`; ``reference`` is ignored."""
        plain = self.model_copy(update={"reference": {}})
        return paired_difference(own, plain.values(own, own), others, plain.values(others, others))

    def point(self, own: Frame, results: Frame) -> tuple[float, float, float] | None:
        """Middle, low end and high end of an error bar; None without a value.

        Of runs: the mean and the ends of its 95 % interval; all three are equal for one run. Of a benchmark's rounds:
        the median, the least and the greatest value.
        """
        if "status" not in results:
            values = self.values(own, results)
            return (float(values.median()), values.min(), values.max()) if len(values) else None
        value = self.mean(own, results)
        return None if value is None else (value.mean, *(value.interval or (value.mean, value.mean)))

    def text(self, own: Frame, results: Frame) -> str:
        """``words`` with mean ± half of its interval, or the rounds' median, least and greatest; empty without any."""
        if "status" not in results:
            values = self.values(own, results).to_list()
            return self.words.format(middle(values, self.digits)) if values else ""
        value = self.mean(own, results)
        return "" if value is None else self.words.format(shown(value, digits=self.digits))

    def change_text(self, value: Estimate) -> str:
        """``words`` with the difference ``value``, which has a sign."""
        plus = "+" if round(value.mean, self.digits) > 0 else ""
        return self.words.format(f"{plus}{shown(value, digits=self.digits)}").replace("-", "−")

    @property
    def name(self) -> str:
        """The words without the value: ``overhead, %``."""
        title, _, unit = self.words.partition("{}")
        return ", ".join(filter(None, (title.strip(), unit.strip(" ·"))))

    @property
    def label(self) -> str:
        return self.axis or self.name


def paired_difference(own: Frame, values: Any, others: Frame, other_values: Any) -> Estimate | None:
    """The mean of ``values``, of the results ``own``, minus that of ``other_values``; None without a common seed.

    Paired by seed. Where seeds have several traces, pairs are of one seed and trace, and those that share either are
    not independent (:func:`estimate_pairs`). A side with one trace for each seed is paired with all of the other's.
    """

    def means_by(*keys: str) -> tuple[Any, Any]:
        left, right = (
            found.groupby([found.index.map(frame.reindex(columns=[key])[key]).rename(key) for key in keys]).agg(fmean)
            for frame, found in ((own, values), (others, other_values))
        )
        return left, right

    left, right = means_by("seed")
    left_pairs, right_pairs = means_by("seed", "draw")
    by_seed = (left - right).dropna()
    if len(right_pairs) == len(right):
        by_both = left_pairs.sub(right, level="seed")
    elif len(left_pairs) == len(left):
        by_both = right_pairs.rsub(left, level="seed")
    else:
        by_both = left_pairs - right_pairs
    by_both = by_both.dropna().rename("value").reset_index()
    is_crossed = len(by_both) > len(by_seed) and {*by_both["seed"]} == {*by_seed.index}
    return estimate_pairs(by_both, "value") if is_crossed else estimate(by_seed)


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
    "loss_in_samples": Measure(
        of=["100 * loss_in_samples"], words="loss of {} % of the samples", axis="AUC lost to none, % of the samples"
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
"""The project's measures, by name; a claim may define others."""
