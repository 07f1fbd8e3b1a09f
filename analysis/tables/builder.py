"""The builder of tables: columns and rows of text in every form, and the templates of HTML pages (``assets``)."""

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Column as RichColumn
from rich.table import Table

from analysis.stats import Estimate

UNKNOWN = "–"
HINT = "± is half of the 95 % confidence interval over seeds; --explain says how the numbers are made."


@dataclass(frozen=True)
class Heading:
    """A column's heading: ``title`` in HTML, and ``short``, if given, elsewhere.

    In HTML, neighbouring columns of a ``group`` have a common heading.
    """

    title: str
    short: str = ""
    group: str = ""
    is_text: bool = False  # aligned left
    is_key: bool = False  # stays in sight in HTML when the table is scrolled

    @property
    def line(self) -> str:
        """The short title, else the title, on one line."""
        return (self.short or self.title).replace("\n", " ")


class Shown(Group):
    """A group of rich tables and texts for the console; ``str`` and notebooks show it as plain text."""

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=200, color_system=None)
        console.print(Group(*self.renderables))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    __repr__ = __str__


def rich_table(headings: Iterable[Heading], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table for the console, with its title above it, on the left."""
    columns = [RichColumn(each.short or each.title, justify="left" if each.is_text else "right") for each in headings]
    table = Table(*columns, title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def markdown_table(headings: Sequence[Heading], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown, with pipes in cells escaped."""
    rule = ["---" if each.is_text else "---:" for each in headings]
    lines = [[each.line for each in headings], rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_COMMANDS = {"\\": r"\textbackslash ", "~": r"\textasciitilde ", "^": r"\textasciicircum "}
_LATEX = str.maketrans(
    _COMMANDS
    | {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"±": r"$\pm$", "−": "$-$", "Δ": r"$\Delta$", "–": "--", "†": r"\dag{}", "…": r"\ldots{}"}
)


def latex_table(headings: Sequence[Heading], rows: Iterable[Sequence[str]], caption: str | None = None) -> str:
    """A LaTeX table for the package booktabs, with special characters escaped.

    With a ``caption``, which is LaTeX code, the table is a float with the label ``tab:strategies``.
    """

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cell.translate(_LATEX).replace("10⁻³", "$10^{-3}$") for cell in cells) + " \\\\\n"

    alignment = "".join("l" if each.is_text else "r" for each in headings)
    body = "".join(map(line, rows))
    head = line(each.line for each in headings)
    table = f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{head}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    if caption is None:
        return table
    return f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n\\label{{tab:strategies}}\n{table}\\end{{table}}\n"


def page_html(template: str, **values: Any) -> str:
    """The page that a template of ``assets`` makes of ``values``. Text is escaped unless its type is ``Html``."""
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(Path(__file__).parents[1] / "assets")
    templates = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    templates.globals["spans"] = _spans
    return templates


def _spans(headings: Iterable[Heading]) -> Iterator[tuple[str, int]]:
    """(group, number of columns) for each run of neighbouring columns that have the same group."""
    return ((name, len([*run])) for name, run in itertools.groupby(each.group for each in headings))


def show_mean(value: Estimate | None, *, scale: float = 1.0, digits: int = 2) -> str:
    """The mean of an estimate as text, without its interval; a dash for None."""
    return UNKNOWN if value is None else f"{value.mean * scale:.{digits}f}"


def show_interval(value: Estimate | None, *, scale: float = 1.0, digits: int = 2, signed: bool = False) -> str:
    """Mean ± half-width as text; ``± ?`` for one seed, a dash for None."""
    if value is None:
        return UNKNOWN
    mean = value.mean * scale
    text = f"{mean:+.{digits}f}" if signed else f"{mean:.{digits}f}"
    half = "?" if value.half_width is None else f"{value.half_width * scale:.{digits}f}"
    return f"{text.replace('-', '−')} ± {half}"
