"""The verdicts on the strategies of a grid, as tables and sentences."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from analysis.stats import (
    ALPHA,
    BASELINE,
    DEFAULT_MARGIN,
    POWER,
    Block,
    Components,
    Line,
    Verdict,
    in_thousandths,
    regimes_of,
    rounding_text,
    verdicts,
)
from analysis.tables.builder import Heading, Shown, rich_table, show_interval

if TYPE_CHECKING:
    import pandas as pd

LEAST_SEEDS = 3
LEAST_AUC = 0.65
"""Verdicts over fewer seeds, or of a model whose AUC without failures is lower, have a line of caution."""

_HEADINGS = (
    Heading("strategy", is_text=True),
    Heading("n"),
    Heading("overhead, % of job", "overhead\n%"),
    Heading("AUC loss, 10⁻³", "AUC loss\n10⁻³"),
    Heading("front", is_text=True),
    Heading("verdict", is_text=True),
)
_FRONT = "◆"


def verdict_tables(blocks: Iterable[Block], margin: float) -> Iterator[dict[str, Any]]:
    """A table for each block with verdicts: ``title``, ``columns``, ``rows``, and conclusions as ``lines``."""
    for block in blocks:
        if found := verdicts(block, margin):
            lines = conclusions(block, found)
            yield {"title": block.title, "columns": _HEADINGS, "rows": [*_rows(found)], "lines": lines}


def advice(frame: "pd.DataFrame", margin: float = DEFAULT_MARGIN, *, explain: bool = False) -> Shown | None:
    """Tables of verdicts with conclusions, one for each setting of the finished cells; None if there is no verdict.

    ``explain``: add a note on the statistical tests.
    """
    parts: list[RenderableType] = []
    for each in verdict_tables(regimes_of(frame), margin):
        parts += [rich_table(each["columns"], each["rows"], each["title"]), *map(Text, each["lines"])]
    notes = [Text(reading(margin), style="dim")] if explain else []
    return Shown(*parts, *notes) if parts else None


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
    """Sentences: results shown, open questions, cautions, and the spread by source."""
    return [*_shown(found), *_open(found), *_caution(block, found), *_spread(block, found)]


def _shown(found: Sequence[Verdict]) -> Iterator[str]:
    margin = in_thousandths(found[0].margin)
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
    """(number of seeds, number of traces) of the line with the fewest; None if no line has a pair."""
    return min(((p["seed"].nunique(), p["draw"].nunique()) for line in lines if len(p := line.pairs)), default=None)


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
    auc = next((line.estimate("auc") for line in block.lines if line.strategy == BASELINE), None)
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


def _spread(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    """The standard deviations of the loss by source, one beside the other."""
    parts: list[str] = []
    for each in found:
        spread = each.line.components
        if spread is not None and each.loss.standard_error:
            own = {"seeds": spread.seed, "traces": spread.trace, "rest" if _is_split(spread) else "pairs": spread.rest}
            words = (f"{name} {1e3 * math.sqrt(value):.2f}" for name, value in own.items() if value is not None)
            parts.append(f"{each.label}: {', '.join(words)}")
    if parts:
        yield f"Standard deviations of the loss, 10⁻³, by source: {'; '.join(parts)}."
    yield rounding_text(block.rounding)


def _is_split(spread: Components) -> bool:
    return spread.seed is not None or spread.trace is not None


def reading(margin: float) -> str:
    """A note that explains the columns and the words of the verdict tables."""
    return (
        "AUC loss: AUC of none (the run of the same seed without failures) minus that of the strategy, mean over n "
        "pairs of seed and failure trace, ± half the width of the two-sided 95 % interval. Non-inferior: shown to be "
        f"below the margin of {in_thousandths(margin)}; inferior: shown to be above it; superior: shown to be below "
        f"0. One-sided paired t-tests at {100 * ALPHA:g} %, corrected for the number of strategies by Holm's method. "
        f"More seeds: with so many more pairs one verdict or the other is reached with probability {100 * POWER:g} %, "
        f"averaged over the losses that the pairs so far leave possible. {_FRONT}: no other strategy has both a lower "
        "overhead and a lower mean loss; that is no verdict."
    )
