"""What a grid shows about each strategy: its overhead, its loss of AUC, and whether that loss is within a margin.

The margin is the largest loss of AUC that is accepted. ``DEFAULT_MARGIN`` is half of 0.001, the difference that papers
on click-through rates call significant (AutoInt, arXiv 1810.11921, section 5.2): a strategy that is non-inferior keeps
more than half of what a better model would gain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.blocks import Block, Line, regimes, regimes_of
from analysis.cells import Cell
from analysis.inference import ALPHA, MOST_SEEDS, POWER, claims_of, more_seeds
from analysis.render import Heading, html_table, rich_table, show_interval
from analysis.rounding import rounding_text
from analysis.stats import BASELINE, Estimate

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MARGIN = 5e-4

LEAST_SEEDS = 3
LEAST_AUC = 0.65
"""Verdicts over fewer seeds, or of a model whose AUC without failures is lower, have a line of caution."""

Word = Literal["equal by construction", "superior", "non-inferior", "inferior", "open"]

_HEADINGS = (
    Heading("strategy", is_text=True),
    Heading("n"),
    Heading("overhead, % of job", "overhead\n%"),
    Heading("AUC loss, 10⁻³", "AUC loss\n10⁻³"),
    Heading("front", is_text=True),
    Heading("verdict", is_text=True),
)
_FRONT = "◆"


@dataclass(frozen=True)
class Verdict:
    """What the seeds show about the AUC loss of one strategy, at a margin.

    ``loss``: AUC of ``none`` minus AUC of the strategy, with its two-sided 95 % interval; positive is worse.
    ``verdict``: ``non-inferior``: the loss is shown to be below the margin; ``inferior``: above the margin;
    ``superior``: below 0; ``equal by construction``: 0 in every seed, as nothing was lost; else ``open``.
    ``more_seeds``: further seeds that decide an open strategy with probability ``POWER``; None if unknown, or over
    ``MOST_SEEDS``. ``on_front``: no other strategy has both a lower overhead and a lower loss (means over the seeds).
    """

    line: Line
    overhead_frac: float
    loss: Estimate
    margin: float
    verdict: Word
    more_seeds: int | None
    is_within_rounding: bool
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
            "equal by construction": "equal by construction: no sample is lost, AUC is equal to the bit",
            "superior": "superior: AUC is higher than without failures",
            "non-inferior": f"non-inferior: loses less than {_in_thousandths(self.margin)} of AUC",
            "inferior": f"inferior: loses more than {_in_thousandths(self.margin)} of AUC",
            "open": f"open: {self._missing}",
        }[self.verdict]

    @property
    def _missing(self) -> str:
        if self.is_within_rounding:
            return "the loss is within the floor of rounding"
        if self.loss.standard_error is None:
            return "one seed has no spread; run at least three"
        if not self.loss.standard_error:
            return "the seeds have no spread"
        number = f"more than {MOST_SEEDS}" if self.more_seeds is None else f"about {self.more_seeds}"
        return f"{number} more seed{'' if self.more_seeds == 1 else 's'} to decide"


def verdicts(block: Block, margin: float = DEFAULT_MARGIN) -> list[Verdict]:
    """A verdict on each strategy of ``block`` that has a reference, by overhead.

    Each kind of claim has one-sided paired t-tests at 5 %, by Holm's method over the strategies of the block that are
    not equal by construction. Differences up to the floor of rounding are called neither superior nor inferior.
    """
    found = [
        Verdict(line, line.mean("overhead_frac"), line.auc_difference.negated, margin, "open", None, False, False)
        for line in block.lines
        if line.strategy != BASELINE and line.auc_difference is not None
    ]
    equal = [replace(each, verdict="equal by construction") for each in found if _is_equal(each)]
    tested = _tested([each for each in found if not _is_equal(each)], block, margin)
    return sorted(_with_front([*equal, *tested]), key=lambda each: (each.overhead_frac, each.strategy))


def _is_equal(verdict: Verdict) -> bool:
    """Whether no cell lost a sample or an update, as far as they are counted, and no AUC differs."""
    loss, lost = verdict.loss, ("pls", "update_pls", "lost_dense_frac")
    loses = any(cell.get(name) for cell in verdict.line.cells for name in lost)
    return loss.mean == 0 and not loss.standard_error and not loses


def _tested(found: Sequence[Verdict], block: Block, margin: float) -> Iterator[Verdict]:
    """The verdicts by tests; the number of seeds uses the level that Holm's method would have at the next claim."""
    claims = claims_of([each.loss for each in found], margin)
    levels = [ALPHA / max(1, claimed.count(False)) for claimed in (claims.inferior, claims.non_inferior)]
    floor = 0.0 if block.rounding is None else block.rounding.largest
    for place, each in enumerate(found):
        is_within = abs(each.loss.mean) <= floor
        if claims.non_inferior[place]:
            word: Word = "superior" if claims.superior[place] and not is_within else "non-inferior"
            yield replace(each, verdict=word)
        elif claims.inferior[place]:
            yield replace(each, verdict="open" if is_within else "inferior", is_within_rounding=is_within)
        else:
            yield replace(each, more_seeds=more_seeds(each.loss, margin, *levels))


def _with_front(found: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with their places on the Pareto front of overhead and loss."""
    points = [(each.overhead_frac, each.loss.mean) for each in found]
    return [
        replace(each, on_front=not any(_dominates(other, point) for other in points))
        for each, point in zip(found, points, strict=True)
    ]


def _dominates(left: tuple[float, float], right: tuple[float, float]) -> bool:
    return left != right and left[0] <= right[0] and left[1] <= right[1]


def advice(frame: "pd.DataFrame", margin: float = DEFAULT_MARGIN) -> RenderableType | None:
    """A table of verdicts for each setting of the finished cells, and what they show; None if nothing is compared."""
    parts: list[RenderableType] = []
    for block in regimes_of(frame):
        if found := verdicts(block, margin):
            parts += [rich_table(_HEADINGS, _rows(found), block.title or None)]
            parts += [Text(line) for line in conclusions(block, found)]
    return Group(*parts, Text(reading(margin), style="dim")) if parts else None


def advice_html(cells: Sequence[Cell], margin: float = DEFAULT_MARGIN) -> str:
    """As ``advice``, for the report; empty if nothing is compared."""
    parts: list[str] = []
    for block in regimes(cells):
        if found := verdicts(block, margin):
            parts += [html_table(_HEADINGS, _rows(found), block.title)]
            parts += [f"<p>{escape(line)}</p>" for line in conclusions(block, found)]
    note = f'<p class="note">{escape(reading(margin))}</p>'
    return "\n".join(["<h2>Which strategy</h2>", *parts, note]) if parts else ""


def _rows(found: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    for each in found:
        loss = "0" if each.verdict == "equal by construction" else show_interval(each.loss, scale=1e3, signed=True)
        yield (
            each.label,
            str(each.loss.num),
            f"{100 * each.overhead_frac:.2f}",
            loss,
            _FRONT if each.on_front else "",
            each.sentence,
        )


def conclusions(block: Block, found: Sequence[Verdict]) -> list[str]:
    """What is shown, what is open, caution, the floor of rounding, and the spread over traces: one sentence each."""
    return [*_shown(found), *_open(found), *_caution(block, found), *_rounding(block, found), *_spread(found)]


def _shown(found: Sequence[Verdict]) -> Iterator[str]:
    margin = _in_thousandths(found[0].margin)
    safe = next((each for each in found if each.verdict in ("superior", "non-inferior")), None)
    full = next((each for each in found if each.verdict == "equal by construction"), None)
    if safe:
        yield (
            f"Shown{_over(safe.line)}: {safe.label} loses less than {margin} of AUC, the cheapest strategy of which "
            f"this is shown: {_cost(safe)}{f', where {full.label} costs {_cost(full)}' if full else ''}."
        )
    else:
        keeps = f" Only {full.label} is known to keep AUC, by construction; it costs {_cost(full)}." if full else ""
        yield f"Of no strategy that loses samples is it shown that it loses less than {margin} of AUC.{keeps}"
    if inferior := [each.label for each in found if each.verdict == "inferior"]:
        lines = [each.line for each in found if each.verdict == "inferior"]
        yield f"Shown{_over(*lines)} to lose more than {margin} of AUC: {', '.join(inferior)}."


def _sample(*lines: Line) -> tuple[int, int] | None:
    """Numbers of seeds and of traces of the line that has the fewest; None if no line has a pair."""
    sizes = [(len({p.seed for p in line.pairs}), len({p.trace for p in line.pairs})) for line in lines if line.pairs]
    return min(sizes, default=None)


def _over(*lines: Line) -> str:
    sample = _sample(*lines)
    return "" if sample is None else f" over {_counted(sample[0], 'seed')} and {_counted(sample[1], 'trace')}"


def _counted(num: int, word: str) -> str:
    return f"{num} {word}{'' if num == 1 else 's'}"


def _caution(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    """Warns of few seeds, and of a model that has hardly learned."""
    parts: list[str] = []
    sample = _sample(*(each.line for each in found))
    if sample is not None and sample[0] < LEAST_SEEDS:
        parts.append(f"{_counted(sample[0], 'seed')} of {_counted(sample[1], 'trace')} say little of others")
    auc = next((line.estimates.get("auc") for line in block.lines if line.strategy == BASELINE), None)
    if auc is not None and auc.mean < LEAST_AUC:
        learned = "the model has hardly learned, so losses are small for that reason"
        parts.append(f"AUC of {BASELINE} is {auc.mean:.2f}: {learned}")
    if parts:
        yield f"Caution: {'; '.join(parts)}."


def _cost(verdict: Verdict) -> str:
    return f"{100 * verdict.overhead_frac:.2f} % of the job"


def _open(found: Sequence[Verdict]) -> Iterator[str]:
    if undecided := [each for each in found if each.verdict == "open"]:
        yield f"Open, neither shown to lose less nor to lose more: {', '.join(each.label for each in undecided)}."


def _rounding(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    yield rounding_text(block.rounding)
    if block.rounding is not None and found[0].margin < block.rounding.largest:
        yield "The margin is below the floor of rounding: with another backend, losses near it may be judged otherwise."


def _spread(found: Sequence[Verdict]) -> Iterator[str]:
    known = [(each.label, each.line.split) for each in found if each.line.split and each.loss.standard_error]
    if known:
        parts = (f"{label} {1e3 * s.between_traces:.2f} | {1e3 * s.between_seeds:.2f}" for label, s in known)
        yield f"Standard deviation of the loss between traces | between seeds of a trace, 10⁻³: {', '.join(parts)}."


def _in_thousandths(margin: float) -> str:
    return f"{1e3 * margin:g}·10⁻³"


def reading(margin: float) -> str:
    """How to read the tables."""
    return (
        "AUC loss: AUC of none (the run of the same seed without failures) minus that of the strategy, mean over n "
        "pairs of seed and failure trace, ± half the width of the two-sided 95 % interval. Non-inferior: shown to be "
        f"below the margin of {_in_thousandths(margin)}; inferior: shown to be above it; superior: shown to be below "
        f"0. One-sided paired t-tests at {100 * ALPHA:g} %, corrected for the number of strategies by Holm's method. "
        f"More seeds: with so many more pairs one verdict or the other is reached with probability {100 * POWER:g} %, "
        f"averaged over the losses that the pairs so far leave possible. {_FRONT}: no other strategy has both a lower "
        "overhead and a lower mean loss; that is no verdict."
    )
