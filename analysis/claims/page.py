"""The page of claims as Markdown, and the table of a claim on the console."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape as markup_escape

from analysis.claims.claim import PARTS, Claim, Draw, Sentence, sentences
from analysis.claims.measures import results_of
from analysis.claims.rows import Row, verdict_of
from analysis.figures import legend, style, write_figure
from analysis.load import Frame
from analysis.tables import Fitted, Heading, markdown_table, rich_table
from harness.files import store_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Claims, reproduced"
_OWN = "Claims of your own"

_HEADINGS = (
    Heading("quantity", is_text=True),
    Heading("paper", is_text=True),
    Heading("here", is_text=True),
    Heading("n"),
    Heading("verdict", is_text=True),
    Heading("why", is_text=True),
)
_EXPLANATION = (
    "A number of a paper is [read] in it, [recalled] from memory of its text, [2nd] from others' notes, or [derived] "
    "here; `own claim` is this project's. Here: mean ± half of the 95 % interval over seeds, each with a failure trace "
    "of its own; of times median (least–greatest); n: runs, pairs. Verdicts: reproduced: the whole interval agrees; "
    "not reproduced: none of it does; cannot be told: only a part of it does, or these data cannot decide; calibrated: "
    "constants were chosen so that it comes out; identity: it follows from formulas, whatever is run. The last two "
    "judge nothing. The verdict of a claim is the worst of its rows. PLS is the portion of lost samples, AUC loss the "
    "loss to the run of the same seed without failures. Lost updates are those that no save held when their rank died. "
    "Overhead is the part of an emulated job's hours that saves, loads, lost work and rescheduling add. `cpr56` and "
    "`poster50` are CPR's two jobs: 8 ranks, 56 h, two failures of one rank; 18 ranks, 50 h, five failures of four."
)
_SAID = (
    Heading("paper", is_text=True),
    Heading("what it reports [read]", is_text=True),
    Heading("verdict", is_text=True),
    Heading("here, or why it is not judged", is_text=True),
)

_CONTENT = (
    Heading("part", is_text=True),
    Heading("claim", is_text=True),
    Heading("verdict", is_text=True),
)


@dataclass(frozen=True)
class Finding:
    """The result of a claim: its rows, its figure, and the machine on which its times were measured."""

    claim: Claim
    rows: Sequence[Row] = ()
    figure: "Figure | None" = None
    machine: str = ""

    @property
    def verdict(self) -> str:
        return verdict_of(self.rows)

    @property
    def caption(self) -> str:
        """The caption of the figure, with the command that reproduces the claim."""
        return f"{self.claim.section.caption} Command: {self.claim.command}.".strip()


def finding(claim: Claim, given: Frame | Sequence[Mapping[str, Any]], machine: str = "") -> Finding:
    """Judge a claim by its cells, or by the results of its benchmark, and draw its figure if there are results.

    Raises ConfigError as :meth:`Claim.rows`, and for a user's figure that raises.
    """
    results = results_of(given)
    drawn = None if claim.draw is None or results.empty else _drawn(claim.draw, results)
    return Finding(claim, claim.rows(results), drawn, machine)


def _drawn(draw: Draw, results: Frame) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 - a second to import

    with style():
        figure = Figure(figsize=(6.4, 3.9), layout="constrained")
        axes = figure.subplots()
        draw(results, axes)
        legend(axes)
    return figure


def said(found: Sequence[Finding]) -> list[Sequence[str]]:
    """The rows of the table of papers' sentences; [] unless ``found`` has every claim that judges one."""
    by_name = {each.claim.name: each for each in found if each.claim.is_ours}
    asked = sentences() if by_name else []
    if not {each.claim for each in asked if each.claim} <= by_name.keys():
        return []
    return [(each.paper, each.says, _judged(each, by_name), each.here) for each in asked]


def _judged(sentence: Sentence, found: Mapping[str, Finding]) -> str:
    if sentence.claim is None:
        return "not judged"
    rows = found[sentence.claim].rows
    of = [row for row in rows if not sentence.rows or any(text in row.what for text in sentence.rows)]
    return f"[{verdict_of(of)}](#{sentence.claim})"


def write_figures(found: Iterable[Finding], folder: Path) -> None:
    """Write the figure of each claim as ``NAME.svg`` into ``folder``, on white. Raises StoreError."""
    with store_errors(folder, "written"), style():
        folder.mkdir(parents=True, exist_ok=True)
        for each in found:
            if each.figure is not None:
                write_figure(each.figure, folder, each.claim.name, ("svg",))


def claim_table(found: Finding) -> Fitted:
    """The rows of one claim as a table for the console."""
    headings = _headings(found.rows)
    cells = ([_plain(cell) for cell in _cells(row)][: len(headings)] for row in found.rows)
    return rich_table(headings, cells, _plain(f"{found.claim.section.title}: {found.verdict}"))


def _plain(text: str) -> str:
    """Text for the console: without Markdown's backticks, and with rich's markup escaped."""
    return markup_escape(text.replace("`", ""))


def _parts(found: Sequence[Finding]) -> Iterator[tuple[str, list[Finding]]]:
    """(heading, findings) of each part of the page that has any; the claims of a user are the last part."""
    parts = {name: part for part, own in PARTS.items() for name in own}
    heading = {each.claim.name: parts.get(each.claim.name, _OWN) if each.claim.is_ours else _OWN for each in found}
    for part in (*PARTS, _OWN):
        if own := [each for each in found if heading[each.claim.name] == part]:
            yield part, own


def markdown(found: Sequence[Finding], machine: str, folder: str) -> str:
    """The page as Markdown.

    ``machine``: a sentence on where and when it was computed. ``folder``: the path of the figures' folder in links.
    """
    written = f"`run.py reproduce` writes this page. {machine}"
    lines = [f"# {TITLE}", "", _filled(_EXPLANATION), "", _filled(written), ""]
    if rows := said(found):
        lines += [markdown_table(_SAID, rows)]
    content = [(part, _link(each), _summary(each)) for part, own in _parts(found) for each in own]
    lines += [markdown_table(_CONTENT, content).rstrip()]
    for each in found:
        name, section = each.claim.name, each.claim.section
        lines += ["", f'## <a id="{name}"></a>{section.title}', ""]
        head = f"Claim `{name}`: {each.verdict}. `{each.claim.command}`. Source: {section.source}. {section.note}"
        measured = f" Measured: {each.machine}." if each.machine else ""
        lines += [_filled(head.strip() + measured), ""]
        headings = _headings(each.rows)
        rows = (_cells(row)[: len(headings)] for row in each.rows)
        lines += [markdown_table(headings, rows).rstrip()] if each.rows else ["Not run here."]
        if each.figure is not None:
            lines += ["", f"![{section.title}]({folder}/{name}.svg)", "", _filled(f"*{each.caption}*")]
    return "\n".join(lines) + "\n"


def _link(found: Finding) -> str:
    return f"[{found.claim.section.title}](#{found.claim.name})"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _headings(rows: Sequence[Row]) -> Sequence[Heading]:
    """The headings of a claim's table; the last one, ``why``, is left out if no row has a reason."""
    return _HEADINGS if any(row.why for row in rows) else _HEADINGS[:-1]


def _cells(row: Row) -> list[str]:
    return [row.what, row.paper, _minus(row.ours), f"{row.num:,}", row.verdict, _minus(row.why)]


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w`])-(?=[\d.])", "−", text)


def _summary(found: Finding) -> str:
    """The verdict of the claim; if its rows have different verdicts, with the number of rows of each."""
    words = [row.verdict for row in found.rows]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return found.verdict if len({*words}) < 2 else f"{found.verdict} ({counts})"
