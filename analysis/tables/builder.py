"""The builder of tables: columns and rows of text in every form."""

import io
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Column as RichColumn
from rich.table import Table
from rich.text import Text

from analysis.stats import Estimate
from harness.core.errors import UserError

UNKNOWN = "–"
HINT = "± is half of the 95 % confidence interval over seeds; --explain says how the numbers are made."
_LEAST_TEXT = 20  # characters to which a column of text is wrapped before a column is left out
_ANY_WIDTH = 10_000  # wider than any table


@dataclass(frozen=True)
class Heading:
    """A column's heading: ``title`` in HTML, and ``short``, if given, elsewhere.

    In HTML, neighbouring columns of a ``group`` have a common heading. ``key``: the column's name on the command line,
    if not the title in lower case.
    """

    title: str
    short: str = ""
    group: str = ""
    key: str = ""
    is_text: bool = False  # aligned left
    is_key: bool = False  # stays in sight in HTML when the table is scrolled
    order: int = 0  # 0: on every console; where one is too narrow, columns of the greatest order go first

    @property
    def name(self) -> str:
        return self.key or self.title.lower()

    @property
    def line(self) -> str:
        """The short title, else the title, on one line, with its unit behind a comma."""
        return _UNIT.sub(r", \1", (self.short or self.title).replace("\n", " "))


_UNIT = re.compile(r" (%|10⁻³|MB|s|h)$")
H = TypeVar("H", bound=Heading)


class Shown(Group):
    """A group of rich tables and texts for the console; ``str`` and notebooks show it as plain text."""

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=200, color_system=None)
        console.print(Group(*self.renderables))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    __repr__ = __str__


@dataclass(frozen=True)
class Fitted:
    """A table that fits any console: where not all columns have room, some are left out, and a line names them.

    First texts are wrapped; then columns go, those of the greatest ``Heading.order`` first, from the right. No number
    is cut or wrapped. ``folds``: columns without room stand below the others instead, beside the columns of order 0.
    """

    headings: Sequence[Heading]
    rows: Sequence[Sequence[str]]
    title: str | None = None
    folds: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        left = [place for place, heading in enumerate(self.headings) if heading.order]
        while True:
            shown = self._with_room(left, console, options)
            yield self._table(shown)
            left = [place for place in left if place not in shown]
            if not (left and self.folds):
                break
        if left:
            names = ", ".join(self.headings[place].name for place in left)
            hint = "--columns of `table` and `compare` chooses; a file or a pipe (`| less -S`) gets all"
            yield Text(f"Left out at a width of {options.max_width}: {names}. {hint}.", style="dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        every = range(len(self.headings))
        narrowest = self._with_room(every, console, options.update(max_width=0))
        widest = Measurement.get(console, options, self._table(every)).maximum
        return Measurement(min(widest, self._width(narrowest, console, options)), widest)

    def _with_room(self, places: Iterable[int], console: Console, options: ConsoleOptions) -> list[int]:
        """The columns to show, of ``places``: as many as the console has room for; at least one if the table folds."""
        kept = [*places]
        for place in sorted(kept, key=lambda place: (self.headings[place].order, place), reverse=True):
            if len(kept) == self.folds or self._width(kept, console, options) <= options.max_width:
                break
            kept.remove(place)
        return kept

    def _width(self, places: Collection[int], console: Console, options: ConsoleOptions) -> int:
        return Measurement.get(console, options.update(max_width=_ANY_WIDTH), self._table(places)).minimum

    def _table(self, places: Collection[int]) -> Table:
        """The table of the columns at ``places`` and of all columns of order 0, below its title."""
        shown = [place for place, heading in enumerate(self.headings) if not heading.order or place in places]
        columns = [self._column(place) for place in shown]
        table = Table(*columns, title=self.title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for row in self.rows:
            table.add_row(*(row[place] for place in shown))
        return table

    def _column(self, place: int) -> RichColumn:
        heading = self.headings[place]
        title = heading.short or heading.title
        widest = max(len(line) for text in (title, *(row[place] for row in self.rows)) for line in text.split("\n"))
        if heading.is_text:
            return RichColumn(title, min_width=min(widest, _LEAST_TEXT))
        return RichColumn(title, justify="right", min_width=widest)


def rich_table(
    headings: Iterable[Heading], rows: Iterable[Sequence[str]], title: str | None = None, *, folds: bool = False
) -> Fitted:
    """A table for the console, with its title above it on the left."""
    return Fitted([*headings], [*rows], title, folds)


def chosen(headings: Iterable[H], names: Sequence[str], order: int = 3) -> list[H]:
    """The ``headings`` of these ``names``, in order; without names all up to ``order``. Raises UserError."""
    known = {heading.name: heading for heading in headings}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--columns: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    named = [replace(known[name], order=min(known[name].order, 1)) for name in names]
    return named or [heading for heading in known.values() if heading.order <= order]


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

    With a ``caption``, which is LaTeX code and may have a label, the table is a float.
    """

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cell.translate(_LATEX).replace("10⁻³", "$10^{-3}$") for cell in cells) + " \\\\\n"

    alignment = "".join("l" if each.is_text else "r" for each in headings)
    body = "".join(map(line, rows))
    head = line(each.line for each in headings)
    table = f"\\begin{{tabular}}{{{alignment}}}\n\\toprule\n{head}\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n"
    if caption is None:
        return table
    return f"\\begin{{table}}\n\\centering\n\\caption{{{caption}}}\n{table}\\end{{table}}\n"


def counted(num: int, word: str) -> str:
    """A number of things as text: ``1 seed``, ``1,200 seeds``."""
    return f"{num:,} {word}{'' if num == 1 else 's'}"


def of_some(text: str, num: int, num_all: int) -> str:
    """``text`` of an estimate, its first line followed by ``num`` in brackets if that is not ``num_all``, and not 0."""
    first, *others = text.split("\n")
    return "\n".join([f"{first} ({num})", *others]) if 0 < num < num_all else text


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
