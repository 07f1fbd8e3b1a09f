"""Which strategy to take for which failure regime, as far as a grid's seeds allow to say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from analysis.stats import BASELINE
from analysis.style import UNKNOWN
from analysis.table import Block, Line, show_interval, show_mean

_SAME_COST = 1.05  # overheads so near the least are called equal
_TOLERATED = 1e-3  # AUC
_CONTROLS = (BASELINE, "never_save")

READING = (
    "Taken is the cheapest strategy that is shown to lose at most 0.001 of AUC: the 95 % confidence interval of its "
    "paired difference to none, the run without failures, ends above -0.001. Cheap is the emulated overhead; within "
    "5 % of the least counts as equal. Of those under 'cheaper, but open' the seeds do not tell: their intervals "
    "reach both 0 and beyond -0.001. Those under 'loses AUC' have intervals below 0 that reach beyond -0.001."
)


@dataclass(frozen=True)
class Regime:
    """One setting: strategies in order of overhead, split by what the seeds say of their AUC.

    ``taken`` are the cheapest that are shown to be harmless; ``open`` are cheaper, but nothing is shown of them;
    ``harmful`` lose. ``unsure`` says that there are too few seeds to tell anything: then nothing is taken.
    """

    title: str
    taken: tuple[Line, ...]
    open: tuple[Line, ...]
    harmful: tuple[Line, ...]
    full: Line | None
    unsure: bool


def regimes(blocks: Sequence[Block]) -> list[Regime]:
    """One for each block with a reference and at least two strategies to choose from."""
    return [regime for block in blocks if (regime := _regime(block)) is not None]


def _regime(block: Block) -> Regime | None:
    lines = [line for line in block.lines if line.strategy not in _CONTROLS and line.estimates["overhead_frac"]]
    if len(lines) < 2 or all(line.auc_difference is None for line in lines):
        return None
    lines.sort(key=_overhead)
    full = next((line for line in lines if line.strategy == "full"), None)
    if any(_interval(line) is None for line in lines):
        return Regime(block.title, (), (), (), full, unsure=True)
    harmless = [line for line in lines if _low(line) >= -_TOLERATED]
    taken = [line for line in harmless if _overhead(line) <= _SAME_COST * _overhead(harmless[0])]
    harmful = [line for line in lines if line not in harmless and _high(line) < 0]
    told = [*harmless, *harmful]
    undecided = [line for line in lines if line not in told and (not taken or _overhead(line) < _overhead(taken[0]))]
    return Regime(block.title, tuple(taken), tuple(undecided), tuple(harmful), full, unsure=False)


def _interval(line: Line) -> tuple[float, float] | None:
    difference = line.auc_difference
    if difference is None or difference.half_width is None:
        return None
    return difference.mean - difference.half_width, difference.mean + difference.half_width


def _low(line: Line) -> float:
    interval = _interval(line)
    assert interval is not None
    return interval[0]


def _high(line: Line) -> float:
    interval = _interval(line)
    assert interval is not None
    return interval[1]


def _overhead(line: Line) -> float:
    value = line.estimates["overhead_frac"]
    assert value is not None
    return value.mean


_HEADINGS = ("regime", "take", "overhead %", "ΔAUC 10⁻³", "full's overhead %", "cheaper, but open", "loses AUC")
_WORDS = ("regime", "take", "cheaper, but open", "loses AUC")


def _rows(found: Sequence[Regime]) -> Iterator[tuple[str, ...]]:
    for regime in found:
        best = regime.taken[0] if regime.taken else None
        yield (
            regime.title,
            "too few seeds to tell" if regime.unsure else ", ".join(line.label for line in regime.taken) or UNKNOWN,
            UNKNOWN if best is None else show_mean(best.estimates["overhead_frac"], scale=100),
            UNKNOWN if best is None else show_interval(best.auc_difference, scale=1e3, digits=2, signed=True),
            UNKNOWN if regime.full is None else show_mean(regime.full.estimates["overhead_frac"], scale=100),
            UNKNOWN if regime.unsure else ", ".join(line.label for line in regime.open) or "none",
            UNKNOWN if regime.unsure else ", ".join(line.label for line in regime.harmful) or "none seen",
        )


def regime_table(blocks: Sequence[Block]) -> Table | None:
    """For the console; None where there is one regime or none."""
    found = regimes(blocks)
    if len(found) < 2:
        return None
    shown = Table(
        *(Column(name, justify="left" if name in _WORDS else "right") for name in _HEADINGS),
        title="which strategy for which regime",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in _rows(found):
        shown.add_row(*row)
    return shown


def regime_html(blocks: Sequence[Block]) -> str:
    """The same with how to read it, for the report; empty where there is one regime or none."""
    found = regimes(blocks)
    if len(found) < 2:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in _HEADINGS)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in rest) + "</tr>"
        for first, *rest in _rows(found)
    )
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f'<h2>Which strategy for which regime</h2>\n{table}\n<p class="note">{escape(READING)}</p>'
