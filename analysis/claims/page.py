"""The page of all claims: Markdown for the repository, and HTML that opens from disk."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rich.table import Table

from analysis.cells import Cell
from analysis.claims.claims import CLAIMS, Claim
from analysis.claims.rows import Row
from analysis.page import figure_html, page
from analysis.render import Heading, Html, html_table, rich_table
from analysis.style import style, to_svg
from harness.record.files import store_errors

TITLE = "Claims, reproduced"

_HEADINGS = (
    Heading("quantity", is_text=True),
    Heading("paper", is_text=True),
    Heading("here", is_text=True),
    Heading("n"),
    Heading("verdict", is_text=True),
    Heading("why", is_text=True),
)
_EXPLANATION = (
    "Of papers, [read] is in the paper and [recalled] is from memory of its text. Here: mean ± half of the 95 % "
    "interval over seeds, each with a failure trace of its own; n: runs, pairs. Verdicts: reproduced; not reproduced; "
    "cannot be told: the interval holds both; calibrated: constants were chosen so that it comes out, which confirms "
    "nothing; ours: no paper has the number."
)

Found = Mapping[str, Sequence[Row]]
"""Rows by the name of their claim; a claim that was not run has none."""

Figures = Mapping[str, str]
"""A figure as SVG by the name of its claim, for those that have one."""


def figures_of(cells: Mapping[str, Sequence[Cell]], folder: Path) -> Figures:
    """Draw the figures of claims by their cells, write each as ``NAME.svg`` into ``folder``; as SVG for the page."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - a second to import

    found: dict[str, str] = {}
    with store_errors(folder, "written"), style():
        folder.mkdir(parents=True, exist_ok=True)
        for name, own in cells.items():
            if (draw := CLAIMS[name].draw) is not None and any(cell.get("status", "done") == "done" for cell in own):
                figure = Figure(figsize=(9, 3.4), layout="constrained")
                draw(figure.subplots(1, 2), own)
                figure.savefig(folder / f"{name}.svg", metadata={"Date": None}, facecolor="white")
                found[name] = to_svg(figure, name, CLAIMS[name].title)
    return found


def claim_table(name: str, rows: Sequence[Row]) -> Table:
    """The rows of one claim for the console."""
    return rich_table(_HEADINGS, ([cell.replace("`", "") for cell in _cells(row)] for row in rows), CLAIMS[name].title)


def markdown(found: Found, machine: str, figures: Figures, folder: str) -> str:
    """The page as Markdown. ``machine``: where and when it was computed. ``folder``: of the figures, from the page."""
    lines = [f"# {TITLE}", "", _filled(_EXPLANATION), "", f"`make reproduce` writes this page. {machine}", ""]
    lines += [f"* [{claim.title}](#{name}): {_summary(found.get(name, ()))}" for name, claim in CLAIMS.items()]
    for name, claim in CLAIMS.items():
        lines += [
            "",
            f'<a id="{name}"></a>',
            "",
            f"## {claim.title}",
            "",
            _filled(f"Claim `{name}`. Source: {claim.source}. {claim.note}"),
        ]
        lines += ["", f"    {_command(name)}", "", *_markdown_table(found.get(name, ()))]
        if name in figures:
            lines += ["", f"![{claim.title}]({folder}/{name}.svg)", "", _filled(f"*{claim.caption}*")]
    return "\n".join(lines) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def html(found: Found, machine: str, figures: Figures) -> str:
    """The page as one HTML file without references."""
    parts = [f"<h1>{TITLE}</h1>", f"<p>{escape(_EXPLANATION)}</p>", f'<p class="note">{escape(machine)}</p>']
    items = (
        f'<li><a href="#{name}">{_prose(claim.title)}</a>: {escape(_summary(found.get(name, ())))}</li>'
        for name, claim in CLAIMS.items()
    )
    parts.append(f"<nav><ul>{''.join(items)}</ul></nav>")
    for name, claim in CLAIMS.items():
        parts += _html_section(name, claim, found.get(name, ()))
        if name in figures:
            parts.append(figure_html(figures[name], caption=claim.caption.replace("`", "")))
    return page(TITLE, parts)


def _html_section(name: str, claim: Claim, rows: Sequence[Row]) -> Iterator[str]:
    yield f'<h2 id="{name}">{_prose(claim.title)}</h2>'
    yield f"<p>Source: {escape(claim.source)}. {_prose(claim.note)}</p><p><code>{_command(name)}</code></p>"
    if rows:
        yield html_table(_HEADINGS, map(_html_cells, rows))
    else:
        yield '<p class="note">Not run here.</p>'


def _prose(text: str) -> str:
    """Markdown's code spans as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _command(name: str) -> str:
    return f"run.py reproduce {name}"


def _cells(row: Row) -> list[str]:
    return [row.what, row.paper, row.ours.replace("-", "−"), str(row.num), row.verdict, row.why]


def _html_cells(row: Row) -> list[str]:
    what, *others = _cells(row)
    return [Html(f'<span class="wraps">{_prose(what)}</span>'), *(Html(_prose(cell)) for cell in others)]


def _markdown_table(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return ["Not run here."]
    return [
        f"| {' | '.join(heading.title for heading in _HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
    ]


def _summary(rows: Iterable[Row]) -> str:
    """How many rows have each verdict."""
    words = [row.verdict for row in rows]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "not run"
