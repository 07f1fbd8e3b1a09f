"""The verdicts on the strategies of a grid, as tables and sentences."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from analysis.stats import (
    ALPHA,
    AUC,
    BASELINE,
    DROP,
    POWER,
    Block,
    Components,
    Estimate,
    Line,
    Measure,
    Verdict,
    in_thousandths,
    is_skewed,
    measures_of,
    regimes_of,
    rounding_text,
    sample_equivalent,
    verdicts_of,
)
from analysis.tables.builder import UNKNOWN, Heading, Shown, counted, rich_table, show_interval
from analysis.tables.columns import DROP_NOTE, has_shared
from analysis.tables.notes import comparable

if TYPE_CHECKING:
    import pandas as pd

LEAST_SEEDS = 3
LEAST_AUC = 0.65
"""Verdicts have a line of caution if they are over fewer seeds, or if the AUC without failures is lower."""


def _headings(block: Block) -> tuple[Heading, ...]:
    measure = block.measure
    loss = {"auc": "AUC loss", "drop": "drop of AUC"}.get(measure.name, f"loss of {measure.title}")
    return (
        Heading("strategy", is_text=True),
        Heading("n"),
        Heading("overhead, % of job", "overhead\n%"),
        Heading(f"{loss}, 10⁻³", f"{loss}\n10⁻³"),
        *([Heading("over shared seeds, 10⁻³", "shared\n10⁻³")] if has_shared(block) else []),
        Heading("front", is_text=True),
        Heading("verdict", is_text=True),
    )


_FRONT = "◆"
_OFTEN = 1e-4  # standard deviation of a pair by rounding, of AUC: 0.08 to 0.10 · 10⁻³ in the demo (docs/STATISTICS.md)
_ROUNDING_UNKNOWN = (
    "Rounding: unknown; the same grid with strategy.name=none trainer.backend=torch adds the runs that measure it."
)


def verdict_tables(
    frame: "pd.DataFrame", margin: float | None = None, measure: Measure = AUC
) -> Iterator[dict[str, Any]]:
    """The tables of verdicts of each setting of the finished cells, one for each measure of ``measures_of``.

    A table has ``title``, ``columns``, ``rows``, and conclusions as ``lines``. ``margin``: None is each measure's own.
    """
    measures = measures_of(frame, measure)
    blocks = [regimes_of(frame, each) for each in measures]
    judged = (zip(own, verdicts_of(own, margin), strict=True) for own in blocks)
    for block, found in itertools.chain(*zip(*judged, strict=True)):
        if found:
            title = ", ".join(
                filter(None, (block.title, f"by {'final ' * (block.measure is AUC)}{block.measure.title}"))
            )
            lines = conclusions(block, found)
            yield {"title": title, "columns": _headings(block), "rows": [*_rows(block, found)], "lines": lines}


def advice(
    frame: "pd.DataFrame", margin: float | None = None, *, measure: Measure = AUC, explain: bool = False
) -> Shown | None:
    """The tables of verdicts with conclusions (:func:`verdict_tables`); None if there is no verdict.

    ``explain``: adds a note on the statistical tests.
    """
    parts: list[RenderableType] = []
    for each in verdict_tables(frame, margin, measure):
        parts += [rich_table(each["columns"], each["rows"], each["title"]), *map(Text, each["lines"])]
    notes = [Text(reading(frame, margin, measure), style="dim")] if explain else []
    return Shown(*parts, *notes) if parts else None


def _rows(block: Block, found: Sequence[Verdict]) -> Iterator[tuple[str, ...]]:
    for each in found:
        shared = show_interval(each.line.shared and each.line.shared.loss, scale=1e3, signed=True)
        loss = "0" if each.line.is_equal else show_interval(each.loss, scale=1e3, signed=True)
        yield (
            each.label,
            str(each.loss.num),
            _overhead(each) or UNKNOWN,
            loss,
            *([("0" if each.line.is_equal else shared)] if has_shared(block) else []),
            _FRONT if each.on_front else "",
            each.sentence,
        )


def conclusions(block: Block, found: Sequence[Verdict]) -> list[str]:
    """Sentences: the spread of the losses by source, losses in samples, cautions, open verdicts, and what is shown."""
    cautions = [*comparable(block), *_caution(block, found), *_skew(found)]
    return [*_spread(block, found), *_equivalents(block, found), *cautions, *_open(found), *_answer(found)]


def _answer(found: Sequence[Verdict]) -> Iterator[str]:
    """A sentence: which strategies lose nothing, less than the margin, or more, each with its overhead.

    The seeds and traces are those of most strategies that are named; the others have their own.
    """
    margin = f"{in_thousandths(found[0].margin)} of {found[0].measure.title}"
    full = [each for each in found if each.verdict == "equal by construction"]
    safe = [each for each in found if each.verdict in ("superior", "non-inferior")]
    inferior = [each for each in found if each.verdict == "inferior"]
    samples = [sample for each in (*safe, *inferior, *full) if (sample := _sample(each.line)) is not None]
    most = max(samples, key=samples.count, default=_sample(*(each.line for each in found)) or (0, 0))
    parts = [
        f"{_with_costs(own, most)} {verb if len(own) == 1 else verb.removesuffix('s')} {what}"
        for own, verb, what in (
            (full, "loses", "nothing"),
            (safe, "loses", f"less than {margin}"),
            (inferior, "loses", "more"),
        )
        if own
    ]
    if not safe:
        parts.append(f"of no strategy that loses updates is it shown that it loses less than {margin}")
    yield f"Shown over {_sample_text(most)}: {'; '.join(parts)}."


def _overhead(each: Verdict) -> str:
    """The overhead in %; empty if it is unknown."""
    return "" if math.isnan(each.overhead_frac) else f"{100 * each.overhead_frac:.2f}"


def _with_costs(found: Sequence[Verdict], most: tuple[int, int]) -> str:
    """Strategies with their overhead, and their seeds and traces unless these are ``most``."""
    texts: list[str] = []
    for each in found:
        own, job = _sample(each.line), "" if texts else " of the job"
        sample = "" if own in (None, most) else f"; {_sample_text(own)}"
        cost = f"{percent} %{job}" if (percent := _overhead(each)) else "unknown overhead"
        texts.append(f"{each.label} ({cost}{sample})")
    return ", ".join(texts)


def _sample_text(sample: tuple[int, int]) -> str:
    return f"{counted(sample[0], 'seed')} and {counted(sample[1], 'trace')}"


def _skew(found: Sequence[Verdict]) -> Iterator[str]:
    """A caution if the losses are too skewed for Student's t."""
    if is_skewed([each.line.losses["loss"].to_list() for each in found if each.loss.standard_error]):
        yield (
            "Caution: losses look skewed to great ones. Few seeds may all miss a rare great loss, so Student's t says "
            "too often that these lose less than the margin."
        )


def _equivalents(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    """A sentence: the margin and each loss as fractions of the samples, with intervals (``sample_equivalent``)."""
    margin = Estimate(0, found[0].margin, 0.0, 0.0)
    values = {"margin": margin} | {each.label: each.loss for each in found if not each.line.is_equal}
    known = {label: part for label, loss in values.items() if (part := sample_equivalent(block, loss)) is not None}
    if known:
        yield f"Samples that cost as much AUC if left out: {', '.join(map(_percent, known, known.values()))}."


def _percent(label: str, part: tuple[float, float, float]) -> str:
    """A fraction with its interval, if it is known: ``margin 3.9 % (3.2 to 5.2)``."""
    mean, low, high = (f"{100 * each:.1f}".replace("-", "−") for each in part)
    return f"{label} {mean} %" + ("" if math.isnan(part[1]) else f" ({low} to {high})")


def _sample(*lines: Line) -> tuple[int, int] | None:
    """(number of seeds, number of traces) of the line with the fewest seeds; None if no line has a loss."""
    return min(((p["seed"].nunique(), p["draw"].nunique()) for line in lines if len(p := line.losses)), default=None)


def _caution(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    """Cautions on few seeds, on a model that has hardly learned, and on losses that rounding may have made alike."""
    parts: list[str] = []
    sample = _sample(*(each.line for each in found if each.verdict != "equal by construction"))
    if sample is not None and sample[0] < LEAST_SEEDS:
        parts.append(f"{counted(sample[0], 'seed')} of {counted(sample[1], 'trace')} say little of others")
    auc = next((line.estimate("auc") for line in block.lines if line.strategy == BASELINE), None)
    if auc is not None and auc.mean < LEAST_AUC:
        learned = "the model has hardly learned, so losses are small for that reason"
        parts.append(f"AUC of {BASELINE} is {auc.mean:.2f}: {learned}")
    if parts:
        yield f"Caution: {'; '.join(parts)}."
    close = [each.label for each in found if each.measure is AUC and _is_closer_than_rounding(each)]
    if block.rounding is None and close:
        yield (
            f"Caution: pairs of {', '.join(close)} differ by less than rounding alone often makes them "
            f"({in_thousandths(_OFTEN)}), so few seeds decide by chance. {_ROUNDING_UNKNOWN}"
        )


def _is_closer_than_rounding(each: Verdict) -> bool:
    error = each.loss.standard_error
    return bool(error) and error * math.sqrt(each.loss.num) < _OFTEN


def _open(found: Sequence[Verdict]) -> Iterator[str]:
    if undecided := [each for each in found if each.verdict == "open"]:
        yield f"Open, neither shown to lose less nor to lose more: {', '.join(each.label for each in undecided)}."


def _spread(block: Block, found: Sequence[Verdict]) -> Iterator[str]:
    """A sentence on the standard deviations of each strategy's loss by source, and one on rounding, if known."""
    parts: list[str] = []
    for each in found:
        spread = each.line.components
        if spread is not None and each.loss.standard_error:
            own = {"seeds": spread.seed, "traces": spread.trace, "rest" if _is_split(spread) else "pairs": spread.rest}
            words = [f"{name} {1e3 * math.sqrt(value):.2f}" for name, value in own.items() if value is not None]
            words += _test_set(each)
            parts.append(f"{each.label}: {', '.join(words)}")
    if parts:
        note = " (test set: error of the mean)" * any("test set" in part for part in parts)
        yield f"Standard deviations of the loss, 10⁻³, by source{note}: {'; '.join(parts)}."
    if block.rounding is not None:
        yield rounding_text(block.rounding, block.measure)


def _test_set(each: Verdict) -> Iterator[str]:
    """Words on the standard error by the choice of test samples, if it is known; of drops it is an upper bound."""
    if each.measure is AUC and not math.isnan(error := each.line.test_set_error):
        yield f"test set {1e3 * error:.2f}"
    if each.measure is DROP and not math.isnan(error := each.line.losses["drop_error"].mean(skipna=False)):
        yield f"test set at most {1e3 * error:.2f}"


def _is_split(spread: Components) -> bool:
    return spread.seed is not None or spread.trace is not None


def reading(frame: "pd.DataFrame", margin: float | None = None, measure: Measure = AUC) -> str:
    """A note that explains the columns and the words of the verdict tables, and how rounding is measured if it is not.

    ``margin``: None is the measure's.
    """
    measures = measures_of(frame, measure)
    is_measured = all(block.rounding for each in measures if each is not DROP for block in regimes_of(frame, each))
    notes = [*([DROP_NOTE] if DROP in measures else []), *([] if is_measured else [_ROUNDING_UNKNOWN])]
    limit = in_thousandths(measure.margin if margin is None else margin)
    return (
        f"Loss: by how much {' or '.join(each.title for each in measures)} is worse than that of none, the run of the "
        "same seed without failures; mean over n pairs of seed and failure trace, ± half the width of the two-sided "
        "95 % interval, which is never narrower than rounding allows, if its effect is known. Shared: over the pairs "
        f"that all strategies have. Non-inferior: shown to be below the margin of {limit}; inferior: shown to be above "
        "it; superior: shown to be below 0, which needs five seeds if the effect of rounding is unknown. One-sided "
        f"paired t-tests at {100 * ALPHA:g} %, corrected by Holm's method for all strategies and settings shown. More "
        f"seeds: with so many more pairs one verdict or the other is reached with probability {100 * POWER:g} %, "
        f"averaged over the losses that the pairs so far leave possible. {_FRONT}: no other strategy has both a lower "
        f"overhead and a lower mean loss over the shared pairs; that is no verdict. {' '.join(notes)}"
    )
