"""The recommended strategy of each failure regime, if the differences are significant over the seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.table import Table

from analysis.blocks import Block, Line
from analysis.render import Heading, html_table, rich_table, show_interval, show_mean
from analysis.stats import BASELINE
from analysis.style import UNKNOWN

_SAME_COST = 1.05  # overheads up to this factor above the least count as equal
_TOLERATED = 1e-3  # loss of AUC
_CONTROLS = (BASELINE, "never_save")

_TITLE = "which strategy for which regime"
_HEADINGS = (
    Heading("regime", is_text=True),
    Heading("take", is_text=True),
    *(Heading(title) for title in ("overhead %", "ΔAUC 10⁻³", "full's overhead %")),
    Heading("cheaper, but open", is_text=True),
    Heading("loses AUC", is_text=True),
)
READING = (
    "Under 'take' is the cheapest strategy that is shown to lose at most 0.001 of AUC: the 95 % confidence interval of "
    "its paired difference to none, the run without failures, ends above -0.001. Cheap means low emulated overhead; "
    "overheads within 5 % of the least count as equal. For strategies under 'cheaper, but open' the seeds decide "
    "nothing: their intervals contain 0 and reach below -0.001. Strategies under 'loses AUC' have intervals below 0 "
    "that reach below -0.001."
)


@dataclass(frozen=True)
class Regime:
    """The strategies of one setting in order of overhead, grouped by the significance of their loss of AUC.

    ``taken``: of the strategies shown to lose at most 0.001 of AUC, those whose overhead is within 5 % of the lowest.
    ``open``: strategies with a lower overhead than ``taken`` whose loss of AUC is undecided. ``harmful``: strategies
    with a significant loss of AUC. ``unsure``: some strategy has only one seed; the other groups are then empty.
    """

    title: str
    taken: tuple[Line, ...]
    open: tuple[Line, ...]
    harmful: tuple[Line, ...]
    full: Line | None
    unsure: bool


def regimes(blocks: Sequence[Block]) -> list[Regime]:
    """A Regime for each block with a reference and at least two other strategies."""
    return [regime for block in blocks if (regime := _regime(block)) is not None]


def _regime(block: Block) -> Regime | None:
    lines = [line for line in block.lines if line.strategy not in _CONTROLS and line.estimates["overhead_frac"]]
    if len(lines) < 2 or all(line.auc_difference is None for line in lines):
        return None
    lines.sort(key=_overhead)
    full = next((line for line in lines if line.strategy == "full"), None)
    intervals = [line.auc_difference and line.auc_difference.interval for line in lines]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(lines):
        return Regime(block.title, (), (), (), full, unsure=True)
    harmless = [line for line, (low, _) in zip(lines, known, strict=True) if low >= -_TOLERATED]
    harmful = [line for line, (low, high) in zip(lines, known, strict=True) if low < -_TOLERATED and high < 0]
    taken = [line for line in harmless if _overhead(line) <= _SAME_COST * _overhead(harmless[0])]
    undecided = [line for line in lines if line not in harmless and line not in harmful]
    cheaper = [line for line in undecided if not taken or _overhead(line) < _overhead(taken[0])]
    return Regime(block.title, tuple(taken), tuple(cheaper), tuple(harmful), full, unsure=False)


def _overhead(line: Line) -> float:
    return line.mean("overhead_frac")


def _rows(found: Sequence[Regime]) -> Iterator[tuple[str, ...]]:
    for regime in found:
        best = regime.taken[0] if regime.taken else None
        taken = "too few seeds" if regime.unsure else _labels(regime.taken) or UNKNOWN
        yield (
            regime.title,
            taken,
            UNKNOWN if best is None else show_mean(best.estimates["overhead_frac"], scale=100),
            UNKNOWN if best is None else show_interval(best.auc_difference, scale=1e3, signed=True),
            UNKNOWN if regime.full is None else show_mean(regime.full.estimates["overhead_frac"], scale=100),
            UNKNOWN if regime.unsure else _labels(regime.open) or "none",
            UNKNOWN if regime.unsure else _labels(regime.harmful) or "none seen",
        )


def _labels(lines: Sequence[Line]) -> str:
    return ", ".join(line.label for line in lines)


def regime_table(blocks: Sequence[Block]) -> Table | None:
    """The recommendations for the console; None if there are fewer than two regimes."""
    found = regimes(blocks)
    return rich_table(_HEADINGS, _rows(found), _TITLE) if len(found) > 1 else None


def regime_html(blocks: Sequence[Block]) -> str:
    """The recommendations and how to read them, for the report; empty if there are fewer than two regimes."""
    found = regimes(blocks)
    if len(found) < 2:
        return ""
    table = html_table(_HEADINGS, _rows(found))
    return f'<h2>{_TITLE.capitalize()}</h2>\n{table}\n<p class="note">{escape(READING)}</p>'
