"""The page of all claims: Markdown for the repository, and HTML that opens from disk."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from analysis.claims.claim import Claim
from analysis.claims.claims import CLAIMS, GROUPS
from analysis.claims.figures import Draw
from analysis.claims.rows import Row, Verdict
from analysis.figures import style, to_svg
from analysis.load import Cell
from analysis.report import figure_html, page
from analysis.tables import Heading, Html, html_table, rich_table
from harness.record.files import store_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Claims, reproduced"

_HEADINGS = (
    Heading("quantity", is_text=True),
    Heading("paper", is_text=True),
    Heading("here", is_text=True),
    Heading("n"),
    Heading("verdict", is_text=True),
    Heading("why", is_text=True),
)
_CLASSES: Mapping[Verdict, str] = {"reproduced": "good", "not reproduced": "bad", "cannot be told": "open"}
_EXPLANATION = (
    "Of papers, [read] is in the paper, [recalled] is from memory of its text, [2nd] from others' notes, and "
    "[derived] is computed here; `own claim` is this project's. Here: mean ± half of the 95 % interval over seeds, "
    "each with a failure trace of its own; of times the median (least–greatest); n: runs, pairs. Verdicts: "
    "reproduced: the whole interval agrees; not reproduced: none of it does; cannot be told: only a part of it does, "
    "or these data cannot decide; calibrated: constants were chosen so that it comes out, which confirms nothing; "
    "ours: no paper has the number. PLS is the portion of lost samples, AUC loss that to the run of the same seed "
    "without failures. Lost updates are those that no save held when their rank died. Overhead is the part of an "
    "emulated job's hours that saves, loads, lost work and rescheduling add. `cpr56` and `poster50` are CPR's two "
    "jobs: 8 ranks, 56 h, two failures of one rank; 18 ranks, 50 h, five failures of four. Strategies: STRATEGIES.md."
)


@dataclass(frozen=True)
class Finding:
    """What is known of a claim: its rows, its figure, and where its times were measured."""

    rows: Sequence[Row]
    figure: "Figure | None" = None
    machine: str = ""


Found = Mapping[str, Finding]
"""By the name of the claim; one that was not run is absent."""


def finding(name: str, results: Sequence[Cell], machine: str = "") -> Finding:
    """Judge a claim by its cells, or by the results of its benchmark, and draw its figure if there is something."""
    claim = CLAIMS[name]
    has_results = any(result.get("status", "done") == "done" for result in results)
    drawn = None if claim.draw is None or not has_results else _drawn(claim.draw, results)
    return Finding(claim.judge(results), drawn, machine)


def _drawn(draw: Draw, results: Sequence[Cell]) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 - a second to import

    with style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        draw(figure.subplots(1, 2), results)
    return figure


def write_figures(found: Found, folder: Path) -> None:
    """Write the figure of each claim as ``NAME.svg`` into ``folder``, on white. Raises StoreError."""
    with store_errors(folder, "written"), style():
        folder.mkdir(parents=True, exist_ok=True)
        for name, each in found.items():
            if each.figure is not None:
                each.figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")


def claim_table(name: str, rows: Sequence[Row]) -> Table:
    """The rows of one claim for the console."""
    headings = _headings(rows)
    cells = ([cell.replace("`", "") for cell in _cells(row)][: len(headings)] for row in rows)
    return rich_table(headings, cells, CLAIMS[name].title)


def markdown(found: Found, machine: str, folder: str) -> str:
    """The page as Markdown. ``machine``: where and when it was computed. ``folder``: of the figures, from the page."""
    lines = [f"# {TITLE}", "", _filled(_EXPLANATION), "", f"`make reproduce` writes this page. {machine}", ""]
    for heading, claims in GROUPS.items():
        lines += [f"* {heading}"]
        for name, claim in claims.items():
            entry = f"  * [{claim.title}](#{name}): {_summary(found.get(name))}"
            lines += textwrap.wrap(
                entry, 120, subsequent_indent=" " * 4, break_on_hyphens=False, break_long_words=False
            )
    for name, claim in CLAIMS.items():
        each = found.get(name, Finding([]))
        lines += ["", f'<a id="{name}"></a>', "", f"## {claim.title}", ""]
        lines += [_filled(f"Claim `{name}`. Source: {claim.source}. {claim.note}"), "", f"    {_command(name)}", ""]
        lines += [f"Measured: {each.machine}.", ""] if each.machine else []
        lines += _markdown_table(each.rows)
        if each.figure is not None:
            lines += ["", f"![{claim.title}]({folder}/{name}.svg)", "", _filled(f"*{_caption(name)}*")]
    return "\n".join(lines) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def html(found: Found, machine: str) -> str:
    """The page as one HTML file without references."""
    parts = [f"<h1>{TITLE}</h1>", f"<p>{_prose(_EXPLANATION)}</p>", f'<p class="note">{escape(machine)}</p>']
    parts.append("<nav>")
    for heading, claims in GROUPS.items():
        items = (
            f'<li><a href="#{name}">{_prose(claim.title)}</a>: {escape(_summary(found.get(name)))}</li>'
            for name, claim in claims.items()
        )
        parts.append(f"<b>{escape(heading)}</b><ul>{''.join(items)}</ul>")
    parts.append("</nav>")
    for name, claim in CLAIMS.items():
        parts += _html_section(name, claim, found.get(name, Finding([])))
    return page(TITLE, parts)


def _html_section(name: str, claim: Claim, each: Finding) -> Iterator[str]:
    yield f'<h2 id="{name}">{_prose(claim.title)}</h2>'
    yield f"<p>Source: {escape(claim.source)}. {_prose(claim.note)}</p><p><code>{_command(name)}</code></p>"
    if each.machine:
        yield f'<p class="note">Measured: {escape(each.machine)}.</p>'
    if each.rows:
        headings = _headings(each.rows)
        yield html_table(headings, (_html_cells(row)[: len(headings)] for row in each.rows))
    else:
        yield '<p class="note">Not run here.</p>'
    if each.figure is not None:
        with style():
            svg = to_svg(each.figure, name, claim.title)
        yield figure_html(svg, caption=Html(_prose(_caption(name))), is_broad=True)


def _caption(name: str) -> str:
    """Of the figure, with its command."""
    return f"{CLAIMS[name].caption} Command: {_command(name)}."


def _prose(text: str) -> str:
    """Markdown's code spans as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _command(name: str) -> str:
    return f"run.py reproduce {name}"


def _headings(rows: Sequence[Row]) -> Sequence[Heading]:
    """Without the last, ``why``, where no row has one."""
    return _HEADINGS if any(row.why for row in rows) else _HEADINGS[:-1]


def _cells(row: Row) -> list[str]:
    return [row.what, row.paper, _minus(row.ours), f"{row.num:,}", row.verdict, _minus(row.why)]


def _minus(text: str) -> str:
    return re.sub(r"(?<![\w`])-(?=[\d.])", "−", text)


def _html_cells(row: Row) -> list[str]:
    what, paper, ours, num, verdict, why = (_prose(cell) for cell in _cells(row))
    marked = f'<span class="{_CLASSES.get(row.verdict, "")}">{verdict}</span>'
    ours = ours.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")  # on one line
    return [Html(cell) for cell in (f'<span class="wraps">{what}</span>', paper, ours, num, marked, why)]


def _markdown_table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["Not run here."]
    headings = _headings(rows)
    return [
        f"| {' | '.join(heading.title for heading in headings)} |",
        "|---" * len(headings) + "|",
        *(f"| {' | '.join(_cells(row)[: len(headings)])} |" for row in rows),
    ]


def _summary(found: Finding | None) -> str:
    """How many rows have each verdict."""
    words = [row.verdict for row in found.rows] if found else []
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "not run"
