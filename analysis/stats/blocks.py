"""Finished cells by setting and strategy, with estimates over their seeds, and verdicts on each strategy's loss."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from analysis.load import CONTENTS, Frame
from analysis.stats.estimates import (
    AUC,
    BASELINE,
    DROP,
    Components,
    Estimate,
    Measure,
    components,
    conditions,
    estimate_pairs,
    setting_keys,
)
from analysis.stats.inference import ALPHA, MOST_SEEDS, claims_of, more_seeds
from analysis.stats.partners import Rounding, estimate_rounded, paired, reasons, rounding_of, without_replicates
from harness.core import strategies

_DIGESTS = {key: key.partition(".")[0] for key in CONTENTS}
"""Keys of a setting whose values are digests, each with the name of what was hashed."""


@dataclass(frozen=True, eq=False)
class Line:
    """One strategy under one setting: its finished cells with their partners (``paired``), and estimates over seeds.

    ``label``: the strategy, followed in brackets by the engines of its cells that differ from the block's engine.
    """

    strategy: str
    label: str
    cells: Frame
    unpaired: Sequence[tuple[int, str]] = ()
    """(seed, reason) of each cell without an AUC difference."""
    rounding: Rounding | None = None
    """The effect of rounding in the block's measure, and in AUC; None if it is unknown."""
    auc_rounding: Rounding | None = None
    shared_keys: frozenset[tuple[int, int]] | None = None
    """(seed, draw of the trace) of the losses that all strategies have; None if all have the same ones."""

    @property
    def has_budget(self) -> bool:
        """Whether each save has a budget of rows, which a tracker chooses (``CprPriority``)."""
        kind = strategies.STRATEGIES.get(self.strategy)
        return kind is not None and issubclass(kind, strategies.CprPriority)

    @cached_property
    def keys(self) -> frozenset[tuple[int, int]]:
        """(seed, draw of the trace) of each loss."""
        return frozenset(_keys(self.losses))

    @cached_property
    def shared(self) -> "Line | None":
        """The line with the cells of ``shared_keys`` alone; None if it lacks some. One equal to ``none`` is whole."""
        if self.shared_keys is None or self.is_equal:
            return self
        if not self.shared_keys or not self.shared_keys <= self.keys:
            return None
        is_shared = [key in self.shared_keys for key in _keys(self.cells)]
        return replace(self, cells=self.cells[is_shared], shared_keys=None)

    @cached_property
    def is_equal(self) -> bool:
        """Whether all losses are 0, and no cell is on record as having lost updates (samples, if these are unknown)."""
        lost = self.cells.reindex(columns=["pls", "update_pls", "lost_dense_frac"])
        lost["pls"] = lost["pls"].where(lost["update_pls"].isna())
        return not self.losses["loss"].any() and not lost.fillna(0.0).any(axis=None)

    @cached_property
    def pairs(self) -> Frame:
        """The cells that have a difference of AUC to their partner."""
        return self.cells[self.cells["auc_difference"].notna()]

    @cached_property
    def auc_difference(self) -> Estimate | None:
        return estimate_rounded(self.pairs, "auc_difference", self.auc_rounding)

    @cached_property
    def losses(self) -> Frame:
        """The cells that have a loss to their partner in the block's measure."""
        return self.cells[self.cells["loss"].notna()]

    @cached_property
    def loss(self) -> Estimate | None:
        """The mean loss to ``none`` in the block's measure; positive is worse."""
        return estimate_rounded(self.losses, "loss", self.rounding)

    @property
    def components(self) -> Components | None:
        """Variance components of the losses (:func:`components`); None for fewer than two."""
        return components(self.losses, "loss") if len(self.losses) > 1 else None

    @property
    def test_set_error(self) -> float:
        """Standard error of the mean loss of AUC that the choice of test samples alone causes; NaN if unknown.

        Each of the G parts of the test set is like a small test set of its own, so the error is the standard deviation
        of the mean loss between the parts, divided by the root of G (random groups, Wolter 2007, chapter 2).
        """
        if self.losses.empty or self.losses["group_losses"].isna().any():
            return math.nan
        means = np.mean(np.stack(self.losses["group_losses"].to_list()), axis=0)
        return float(np.std(means, ddof=1)) / math.sqrt(len(means))

    def estimate(self, name: str) -> Estimate | None:
        """The estimate of column ``name`` over the line's cells; None if no cell has a value.

        As in :func:`estimate_pairs`, cells that share a seed or a trace are not independent.
        """
        if name not in self._estimates:
            known = self.cells[["seed", "draw", name]].dropna(subset=name)
            self._estimates[name] = estimate_pairs(known.astype({name: float}), name)
        return self._estimates[name]

    @cached_property
    def _estimates(self) -> dict[str, Estimate | None]:
        return {}

    def mean(self, name: str) -> float:
        """Mean of column ``name`` over the line's cells; 0 if no cell has a value."""
        value = self.estimate(name)
        return 0.0 if value is None else value.mean


def _keys(cells: Frame) -> Iterator[tuple[int, int]]:
    return zip(cells["seed"].to_list(), cells["draw"].to_list(), strict=True)


@dataclass(frozen=True)
class Block:
    """All strategies under one setting. ``title``: the values in which it differs from other blocks; may be empty.

    ``axes``: the keys of these values. Of keys whose values vary together it has one.
    """

    setting: dict[str, Any]
    title: str
    lines: list[Line]
    measure: Measure = AUC
    rounding: Rounding | None = None
    """The effect of rounding; None if it is unknown."""
    axes: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The values of ``axes`` as text."""
        return tuple("null" if self.setting[key] is None else str(self.setting[key]) for key in self.axes)


def sample_equivalent(block: Block, loss: Estimate) -> tuple[float, float, float] | None:
    """The fraction of the samples that would cost as much AUC as ``loss`` if they were left out, with its interval.

    None if it is unknown. The ends are NaN if the loss or the slope is of one run.

    In the second half of a run of ``none``, AUC grows by a slope times the logarithm of the samples (column
    ``auc_per_log_sample``). The learning rate is constant and each sample is seen once, so a run over the first samples
    ends at the model that the whole run has there. It is unknown for other measures than AUC, and if the slope's 95 %
    interval (for one run, the slope) is not above 0. The interval has the errors of loss and slope, taken as
    independent (Fieller 1954, with the half-widths of both).
    """
    slope = next((line.estimate("auc_per_log_sample") for line in block.lines if line.strategy == BASELINE), None)
    if slope is None or block.measure.name != "auc" or (slope.interval or (slope.mean,))[0] <= 0:
        return None
    mean = slope.mean
    of_slope, of_loss = (math.nan if each.half_width is None else each.half_width for each in (slope, loss))
    root = math.sqrt((loss.mean * of_slope) ** 2 + (mean * of_loss) ** 2 - (of_slope * of_loss) ** 2)
    ends = ((loss.mean * mean + sign * root) / (mean**2 - of_slope**2) for sign in (-1, 1))
    fraction, low, high = (-math.inf if each < -20 else -math.expm1(-each) for each in (loss.mean / mean, *ends))
    return fraction, low, high


def strategy_order(strategy: str) -> tuple[int, str]:
    """The sort key of a strategy: its place in ``harness.core.strategies.STRATEGIES``, then its name."""
    names = [*strategies.STRATEGIES]
    return (names.index(strategy) if strategy in names else len(names), strategy)


def blocks_of(frame: Frame, measure: Measure = AUC) -> list[Block]:
    """The finished cells of a frame by setting (``setting_keys``) and strategy.

    Cells that differ only in the draw of their trace are in one block. A block also has the reference cells (strategy
    ``none``) of its cells. A strategy that lacks a swept option is in the blocks of all values of that option. A block
    is left out if its own cells are all in other blocks too. Replicates of references (``analysis.stats.partners``)
    are left out.
    """
    return _blocks(frame, setting_keys(frame), measure)


def measures_of(frame: Frame, measure: Measure = AUC) -> list[Measure]:
    """The measures of the verdicts: ``measure``; and AUC and ``DROP`` together, if drops of failures are on record."""
    done = frame[frame["status"] == "done"]
    has_drops = (done["num_failures"].gt(0) & done["drop"].notna()).any()
    return [measure, *(each for each in (AUC, DROP) if measure in (AUC, DROP) and has_drops and each is not measure)]


def regimes_of(frame: Frame, measure: Measure = AUC) -> list[Block]:
    """As :func:`blocks_of`, with both engines in one block: of equal cells on several engines one is kept."""
    keys = [key for key in setting_keys(frame) if key != "engine"]
    done = frame[frame["status"] == "done"].sort_values("engine", kind="stable")
    return _blocks(done.drop_duplicates(["strategy", "seed", *keys]), keys, measure)


def _blocks(cells: Frame, keys: Sequence[str], measure: Measure) -> list[Block]:
    """The blocks of the finished ones among ``cells``; a setting is the values of ``keys``."""
    done = without_replicates(paired(cells[cells["status"] == "done"], measure=measure)).copy()
    own: _Groups = {}
    for label, values in zip(done.index, conditions(done, keys).itertuples(index=False, name=None), strict=True):
        own.setdefault(values, []).append(label)
    strategy = done["strategy"].to_dict()
    partner = done["partner"].dropna().to_dict()
    whole = {values: [*group, *_cells_lacking_options(values, own, keys, strategy)] for values, group in own.items()}
    # References of other settings come along with the cells that are paired with them.
    whole = {
        values: [*dict.fromkeys((*group, *(partner[label] for label in group if label in partner)))]
        for values, group in whole.items()
    }
    groups = _without_repeated(whole, own, strategy)
    axes = _axes(keys, [*groups])
    blocks: list[Block] = []
    for values in sorted(groups, key=lambda values: [*map(natural, values)]):
        setting = dict(zip(keys, values, strict=True))
        title = setting_text({key: setting[key] for key in axes})
        group = done.loc[groups[values]]
        references = group[group["strategy"] == BASELINE]
        rounding, of_auc = (rounding_of(references, cells, each) for each in (measure, AUC))
        lines = [replace(line, rounding=rounding, auc_rounding=of_auc) for line in _lines(setting, group, cells)]
        blocks.append(Block(setting, title, _with_shared_keys(lines), measure, rounding, axes))
    return blocks


def _axes(keys: Sequence[str], settings: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    """The ``keys`` that vary between the settings; of several that vary together, the one that was swept."""
    found: dict[tuple[int, ...], str] = {}
    for key in sorted(keys, key=lambda key: (key != "engine", "." not in key)):
        values = [setting[keys.index(key)] for setting in settings]
        if len(set(values)) > 1:
            found.setdefault(tuple(map(values.index, values)), key)
    return tuple(sorted(found.values(), key=[*keys].index))


def natural(value: Any) -> list[str | float]:
    """A sort key: numbers, also those inside of texts, are in numeric order (``fixed2`` before ``fixed16``)."""
    if isinstance(value, int | float):
        return ["", float(value)]
    parts = re.split(r"(\d+(?:\.\d+)?)", str(value))
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def setting_text(setting: Mapping[str, Any]) -> str:
    """A setting as text: ``key value`` of every entry, None as ``null``.

    A digest (``CONTENTS``) is shown as ``data (digest 0a1b2c3d)``, and left out where it is None.
    """
    return ", ".join(
        f"{name} (digest {value})" if (name := _DIGESTS.get(key)) else f"{key} {'null' if value is None else value}"
        for key, value in setting.items()
        if value is not None or key not in _DIGESTS
    )


_Groups = dict[tuple[Any, ...], list[Any]]
"""Index labels of cells by the values of a setting."""


def _cells_lacking_options(
    setting: tuple[Any, ...], groups: _Groups, keys: Sequence[str], strategy: Mapping[Any, str]
) -> list[Any]:
    """Cells of other groups that belong under ``setting`` too, as their strategies lack the options that differ."""
    options = {place for place, key in enumerate(keys) if key.startswith("strategy.")}
    guests: list[Any] = []
    for values, group in groups.items():
        differing = {place for place in range(len(keys)) if values[place] != setting[place]}
        if differing and differing <= options and all(values[place] is None for place in differing):
            others = [own for each, own in groups.items() if any(each[place] is not None for place in differing)]
            has_option = {BASELINE, *(strategy[label] for own in others for label in own)}
            guests += [label for label in group if strategy[label] not in has_option]
    return guests


def _without_repeated(groups: _Groups, own: _Groups, strategy: Mapping[Any, str]) -> _Groups:
    """``groups`` without those whose ``own`` cells are all in groups that are kept."""

    def order(values: tuple[Any, ...]) -> tuple[bool, int]:
        return all(strategy[label] == BASELINE for label in own[values]), values.count(None)

    kept: _Groups = {}
    seen: set[Any] = set()
    for values in sorted(groups, key=order):
        if not seen.issuperset(own[values]):
            kept[values] = groups[values]
            seen.update(groups[values])
    return kept


def _lines(setting: Mapping[str, Any], group: Frame, cells: Frame) -> list[Line]:
    lines: list[Line] = []
    for strategy, own in sorted(group.groupby("strategy"), key=lambda item: strategy_order(item[0])):
        engines = sorted({*own["engine"]} - {setting["engine"]}) if "engine" in setting else []
        label = " ".join([strategy, *(f"({engine})" for engine in engines)])
        lines.append(Line(strategy, label, own, [*reasons(own[own["auc_difference"].isna()], cells)]))
    return lines


LEAST_PAIRS = 3
"""A strategy with fewer pairs of seed and trace does not restrict those that others are compared by."""


def _with_shared_keys(lines: list[Line]) -> list[Line]:
    """The lines with ``shared_keys``. Strategies that are equal to ``none`` by construction restrict nothing."""
    own = [line.keys for line in lines if line.strategy != BASELINE and line.keys and not line.is_equal]
    least = min(LEAST_PAIRS, max(map(len, own), default=0))
    shared = frozenset.intersection(*(keys for keys in own if len(keys) >= least)) if own else frozenset()
    return [replace(line, shared_keys=shared) for line in lines] if any(keys != shared for keys in own) else lines


def equal_runs(block: Block) -> list[tuple[Line, Line, int, int]]:
    """(strategy, other strategy, number of cells with equal final models, number of cells that both have).

    Equal are the digests of all parameters, AUC and log loss. Each strategy is named once at most, with the other one
    that it shares most such cells with. Strategies that are equal to ``none`` by construction are left out.
    """
    names = ["model_digest", "auc", "log_loss"]
    results: list[tuple[Line, dict[tuple[int, int], tuple[Any, ...]]]] = []
    found: list[tuple[Line, Line, int, int]] = []
    for line in block.lines:
        cells = line.cells.reindex(columns=["seed", "draw", *names]).dropna()
        if line.strategy != BASELINE and not line.is_equal and len(cells):
            own = dict(zip(_keys(cells), cells[names].itertuples(index=False, name=None), strict=True))
            pairs = [
                (line, other, sum(own[key] == theirs[key] for key in shared), len(shared))
                for other, theirs in results
                if (shared := own.keys() & theirs.keys())
            ]
            found += [max(pairs, key=lambda pair: pair[2] / pair[3])] if pairs else []
            results.append((line, own))
    return [pair for pair in found if pair[2]]


Word = Literal["equal by construction", "superior", "non-inferior", "inferior", "open"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on the loss of one strategy in a measure, at a margin.

    ``loss``: difference to ``none`` with its two-sided 95 % interval; positive is worse.
    ``verdict``: ``non-inferior``: the loss is shown to be below the margin; ``inferior``: shown to be above the margin;
    ``superior``: shown to be below 0; ``equal by construction``: 0 in every seed, as nothing was lost; else ``open``.
    ``more_seeds``: number of further seeds that decide an open verdict with probability ``POWER``; None if unknown or
    over ``MOST_SEEDS``, and for another verdict. ``on_front``: no other strategy has an overhead and a loss that are
    both as low, and one of them lower: means over the pairs of seed and trace that all share (``Line.shared``).
    """

    line: Line
    overhead_frac: float  # NaN: unknown
    loss: Estimate
    margin: float
    measure: Measure
    verdict: Word
    more_seeds: int | None
    on_front: bool

    @property
    def strategy(self) -> str:
        return self.line.strategy

    @property
    def label(self) -> str:
        return self.line.label

    @property
    def sentence(self) -> str:
        return {
            "equal by construction": f"equal by construction: nothing lost, {self.measure.title} equal to the bit",
            "superior": f"superior: {self.measure.title} is better than without failures",
            "non-inferior": f"non-inferior: loses less than {in_thousandths(self.margin)} of {self.measure.title}",
            "inferior": f"inferior: loses more than {in_thousandths(self.margin)} of {self.measure.title}",
            "open": f"open: {self._missing}",
        }[self.verdict]

    @property
    def _missing(self) -> str:
        if self.loss.standard_error is None:
            return "one seed has no spread; run at least three"
        if not self.loss.standard_error:
            same = "the same loss in" if self.loss.mean else f"no loss of {self.measure.title}: equal to none in"
            return f"{same} all cells, so no spread to test"
        number = f"more than {MOST_SEEDS}" if self.more_seeds is None else f"about {self.more_seeds}"
        is_crossed = self.line.losses["seed"].duplicated().any()  # with traces
        plural = "" if self.more_seeds == 1 else "s"
        return f"{number} more {f'pair{plural} of seed and trace' if is_crossed else f'seed{plural}'} to decide"


LEAST_DEGREES = 4
"""Degrees of freedom, those of five seeds, that ``superior`` needs where the effect of rounding is unknown."""


def verdicts(block: Block, margin: float | None = None) -> list[Verdict]:
    """The verdicts on one setting alone (:func:`verdicts_of`)."""
    return verdicts_of([block], margin)[0]


def verdicts_of(blocks: Sequence[Block], margin: float | None = None) -> list[list[Verdict]]:
    """A verdict on each strategy that has a loss to ``none``, for each block of one measure, in order of overhead.

    Each kind of claim is tested by one-sided paired t-tests at 5 %, with Holm's method over all strategies of all
    blocks that are not equal by construction. ``margin``: None is the margin of the measure.
    """
    found = [
        [
            Verdict(line, _overhead(line), line.loss, limit, block.measure, "open", None, False)
            for line in block.lines
            if line.strategy != BASELINE and line.loss is not None
        ]
        for block in blocks
        for limit in [block.measure.margin if margin is None else margin]
    ]
    tested = _tested([each for own in found for each in own if not each.line.is_equal])
    judged = [
        [replace(each, verdict="equal by construction") if each.line.is_equal else next(tested) for each in own]
        for own in found
    ]
    return [sorted(_with_front(own), key=_order) for own in judged]


def _order(verdict: Verdict) -> tuple[bool, float, str]:
    is_unknown = math.isnan(verdict.overhead_frac)
    return is_unknown, 0.0 if is_unknown else verdict.overhead_frac, verdict.strategy


def _overhead(line: Line) -> float:
    return math.nan if (found := line.estimate("overhead_frac")) is None else found.mean


def _tested(found: Sequence[Verdict]) -> Iterator[Verdict]:
    """The verdicts by tests; ``more_seeds`` uses the level at which Holm's method would test the next claim."""
    margin = found[0].margin if found else 0.0
    claims = claims_of([each.loss for each in found], margin)
    levels = [ALPHA / max(1, claimed.count(False)) for claimed in (claims.inferior, claims.non_inferior)]
    for place, each in enumerate(found):
        if claims.non_inferior[place]:
            has_spread = each.line.rounding is not None or each.loss.degrees >= LEAST_DEGREES
            yield replace(each, verdict="superior" if claims.superior[place] and has_spread else "non-inferior")
        elif claims.inferior[place]:
            yield replace(each, verdict="inferior")
        else:
            yield replace(each, more_seeds=more_seeds(each.loss, margin, *levels))


def _with_front(found: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts, with ``on_front`` set for those on the Pareto front of overhead and loss, over the shared pairs."""
    lines = [each.line.shared for each in found]
    points = [line and line.loss and (_overhead(line), line.loss.mean) for line in lines]
    points = [None if point is None or math.isnan(point[0]) else point for point in points]
    known = [point for point in points if point]
    return [
        replace(each, on_front=bool(point) and not any(dominates(other, point) for other in known))
        for each, point in zip(found, points, strict=True)
    ]


def dominates(left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether ``left`` has at most as much of both as ``right``, and is another point."""
    return left != right and left[0] <= right[0] and left[1] <= right[1]


def in_thousandths(margin: float) -> str:
    return f"{1e3 * margin:g}·10⁻³"
