"""Tables and numbers as text: for the console (rich) and for HTML."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from analysis.stats import Estimate

UNKNOWN = "–"


@dataclass(frozen=True)
class Heading:
    """One column: ``title`` in HTML, ``short`` on the console, ``group`` over neighbours of the same kind in HTML."""

    title: str
    short: str = ""
    group: str = ""
    is_text: bool = False  # aligned left
    is_key: bool = False  # stays in sight in HTML when the table is scrolled


class Html(str):
    """A cell that is HTML already and is not escaped."""

    __slots__ = ()


def rich_table(headings: Iterable[Heading], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A table for the console, its title above on the left."""
    columns = [Column(each.short or each.title, justify="left" if each.is_text else "right") for each in headings]
    table = Table(*columns, title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def html_table(headings: Sequence[Heading], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table as HTML; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col"{_class(each)}>{escape(each.title)}</th>' for each in headings)
    if any(each.group for each in headings):
        groups = [(name, len([*run])) for name, run in itertools.groupby(each.group for each in headings)]
        top = "".join(f'<th colspan="{span}" scope="colgroup">{escape(name)}</th>' for name, span in groups)
        head = f"{top}</tr><tr>{head}"
    lines: list[str] = []
    for first, *rest in rows:
        cells = (f"<td{_class(each)}>{_html(cell)}</td>" for each, cell in zip(headings[1:], rest, strict=True))
        lines.append(f'<tr><th scope="row">{_html(first)}</th>{"".join(cells)}</tr>')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "".join(lines)
    table = f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _class(heading: Heading) -> str:
    names = [*(["text"] * heading.is_text), *(["key"] * heading.is_key)]
    return f' class="{" ".join(names)}"' if names else ""


def _html(cell: str) -> str:
    return cell if isinstance(cell, Html) else escape(cell)


def show_mean(value: Estimate | None, *, scale: float = 1.0, digits: int = 2) -> str:
    """The mean of an estimate as text, without its interval."""
    return UNKNOWN if value is None else f"{value.mean * scale:.{digits}f}"


def show_interval(value: Estimate | None, *, scale: float = 1.0, digits: int = 2, signed: bool = False) -> str:
    """Mean ± half-width; ``± ?`` for one seed."""
    if value is None:
        return UNKNOWN
    mean = value.mean * scale
    text = f"{mean:+.{digits}f}" if signed else f"{mean:.{digits}f}"
    half = "?" if value.half_width is None else f"{value.half_width * scale:.{digits}f}"
    return f"{text.replace('-', '−')} ± {half}"
