"""Verdicts on each strategy of a grid: its overhead, its loss, and whether that loss is within a margin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from analysis.stats.blocks import Block, Line
from analysis.stats.estimates import BASELINE, Estimate
from analysis.stats.inference import ALPHA, MOST_SEEDS, claims_of, more_seeds
from analysis.stats.measure import Measure

Word = Literal["equal by construction", "superior", "non-inferior", "inferior", "open"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on the loss of one strategy in a measure, at a margin.

    ``loss``: difference to ``none`` with its two-sided 95 % interval; positive is worse.
    ``verdict``: ``non-inferior``: the loss is shown to be below the margin; ``inferior``: above the margin;
    ``superior``: below 0; ``equal by construction``: 0 in every seed, as nothing was lost; else ``open``.
    ``more_seeds``: further seeds that decide an open strategy with probability ``POWER``; None if unknown, or over
    ``MOST_SEEDS``. ``on_front``: no other strategy has both a lower overhead and a lower loss (means over the seeds).
    """

    line: Line
    overhead_frac: float
    loss: Estimate
    margin: float
    measure: Measure
    verdict: Word
    more_seeds: int | None
    on_front: bool

    @property
    def strategy(self) -> str:
        """Name of the strategy."""
        return self.line.strategy

    @property
    def label(self) -> str:
        """The strategy as tables name it."""
        return self.line.label

    @property
    def sentence(self) -> str:
        """The verdict in words."""
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
            return "the seeds have no spread"
        number = f"more than {MOST_SEEDS}" if self.more_seeds is None else f"about {self.more_seeds}"
        return f"{number} more seed{'' if self.more_seeds == 1 else 's'} to decide"


def verdicts(block: Block, margin: float | None = None) -> list[Verdict]:
    """A verdict on each strategy of ``block`` with AUC differences to ``none``, in order of overhead.

    Each kind of claim is tested by one-sided paired t-tests at 5 %, with Holm's method over the strategies of the block
    that are not equal by construction. ``margin``: None is the measure's own.
    """
    limit = block.measure.margin if margin is None else margin
    found = [
        Verdict(line, line.mean("overhead_frac"), line.loss, limit, block.measure, "open", None, False)
        for line in block.lines
        if line.strategy != BASELINE and line.loss is not None
    ]
    equal = [replace(each, verdict="equal by construction") for each in found if _is_equal(each)]
    tested = _tested([each for each in found if not _is_equal(each)], limit)
    return sorted(_with_front([*equal, *tested]), key=lambda each: (each.overhead_frac, each.strategy))


def _is_equal(verdict: Verdict) -> bool:
    """Whether no cell lost a sample or an update, as far as they are counted, and all AUCs equal those of ``none``."""
    loss, lost = verdict.loss, verdict.line.cells.reindex(columns=["pls", "update_pls", "lost_dense_frac"])
    return loss.mean == 0 and not loss.standard_error and not lost.fillna(0.0).any(axis=None)


def _tested(found: Sequence[Verdict], margin: float) -> Iterator[Verdict]:
    """The verdicts by tests; ``more_seeds`` uses the level at which Holm's method would test the next claim."""
    claims = claims_of([each.loss for each in found], margin)
    levels = [ALPHA / max(1, claimed.count(False)) for claimed in (claims.inferior, claims.non_inferior)]
    for place, each in enumerate(found):
        if claims.non_inferior[place]:
            yield replace(each, verdict="superior" if claims.superior[place] else "non-inferior")
        elif claims.inferior[place]:
            yield replace(each, verdict="inferior")
        else:
            yield replace(each, more_seeds=more_seeds(each.loss, margin, *levels))


def _with_front(found: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with ``on_front`` set: whether each is on the Pareto front of overhead and loss."""
    points = [(each.overhead_frac, each.loss.mean) for each in found]
    return [
        replace(each, on_front=not any(_dominates(other, point) for other in points))
        for each, point in zip(found, points, strict=True)
    ]


def _dominates(left: tuple[float, float], right: tuple[float, float]) -> bool:
    return left != right and left[0] <= right[0] and left[1] <= right[1]


def in_thousandths(margin: float) -> str:
    return f"{1e3 * margin:g}·10⁻³"
