"""The table per strategy: quality, what was lost, what it cost; emulated and measured never in one column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from analysis.audit import BUCKETS
from analysis.cells import Cell, cells_of
from analysis.stats import BASELINE, SETTING, Estimate, baseline_of, estimate, paired_differences, setting_keys
from analysis.style import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

STRATEGIES = ("none", "never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu")
"""The order of rows and figures; others follow by name."""


@dataclass(frozen=True)
class Line:
    """One strategy under one setting: its finished cells, and estimates over their seeds by column.

    ``label`` is the strategy, and in brackets the engine if that is not the block's: a reference lent by another block.
    """

    strategy: str
    label: str
    cells: list[Cell]
    auc_difference: Estimate | None
    estimates: Mapping[str, Estimate | None]


@dataclass(frozen=True)
class Block:
    """All strategies under one setting. ``title`` names what sets it apart from the other blocks; may be empty."""

    setting: dict[str, Any]
    title: str
    lines: list[Line]


def blocks_of(frame: "pd.DataFrame") -> list[Block]:
    """The finished cells of a frame by setting (engine, trace, profile, swept keys) and strategy."""
    return summarise(cells_of(frame))


def summarise(cells: Sequence[Cell]) -> list[Block]:
    """As ``blocks_of``. Cells that did not finish, or have no result, are in no block."""
    keys = setting_keys(cells)
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if cell["status"] == "done":
            groups.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    settings = [dict(zip(keys, values, strict=True)) for values in groups]
    blocks: list[tuple[dict[str, Any], list[Cell]]] = []
    for setting, group in zip(settings, groups.values(), strict=True):
        blocks.append((setting, _with_reference(group, cells)))
    lent = {id(cell) for _, group in blocks for cell in group if not _is_reference_only(group)}
    blocks = [(s, g) for s, g in blocks if not (_is_reference_only(g) and all(id(cell) in lent for cell in g))]
    telling = [key for key in keys if len({setting[key] for setting, _ in blocks}) > 1]
    blocks.sort(key=lambda block: [str(value) for value in block[0].values()])
    return [Block(setting, _title(setting, telling), _lines(setting, group, cells)) for setting, group in blocks]


def _with_reference(group: list[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """The cells of one setting, and the reference cells they are paired with where those ran under another."""
    own = {id(cell) for cell in group}
    partners = {id(partner): partner for cell in group if (partner := baseline_of(cell, cells)) is not None}
    return [*group, *(partner for key, partner in partners.items() if key not in own)]


def _is_reference_only(group: Sequence[Cell]) -> bool:
    return all(cell["strategy"] == BASELINE for cell in group)


def _title(setting: Mapping[str, Any], telling: Sequence[str]) -> str:
    return ", ".join(f"{key} {'none' if setting[key] is None else setting[key]}" for key in telling)


def _lines(setting: Mapping[str, Any], group: Sequence[Cell], cells: Sequence[Cell]) -> list[Line]:
    by_strategy: dict[str, list[Cell]] = {}
    for cell in group:
        by_strategy.setdefault(cell["strategy"], []).append(cell)
    return [
        Line(
            strategy=strategy,
            label=" ".join([strategy, *_lenders(setting, by_strategy[strategy])]),
            cells=by_strategy[strategy],
            auc_difference=estimate(paired_differences(by_strategy[strategy], cells, "auc")),
            estimates={name: estimate(map(get, by_strategy[strategy])) for name, get in _QUANTITIES.items()},
        )
        for strategy in sorted(by_strategy, key=strategy_order)
    ]


def _lenders(setting: Mapping[str, Any], cells: Sequence[Cell]) -> list[str]:
    return [f"({engine})" for engine in sorted({cell["engine"] for cell in cells} - {setting["engine"]})]


def strategy_order(strategy: str) -> tuple[int, str]:
    """Sort key: the order of ``STRATEGIES``, then by name."""
    return (STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES), strategy)


def _fraction(bucket: str) -> Callable[[Cell], float | None]:
    def of(cell: Cell) -> float | None:
        hours, job_h = cell[f"{bucket}_h"], cell["job_h"]
        return None if hours is None or job_h is None else hours / job_h

    return of


def _column(name: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell[name]


_PLAIN = ("auc", "log_loss", "pls", "update_pls", "update_pls_tracked", "overhead_frac", "payload_bytes", "stall_s")
_CACHE = ("cache_hit_rate", "cache_saved_frac", "cache_peak_rows")
_QUANTITIES: dict[str, Callable[[Cell], float | None]] = {
    **{name: _column(name) for name in (*_PLAIN, *_CACHE)},
    **{f"{bucket}_frac": _fraction(bucket) for bucket in BUCKETS},
}


@dataclass(frozen=True)
class _Heading:
    """A column as shown. ``group`` spans neighbours of one kind in the HTML table."""

    group: str
    title: str
    short: str  # for the console
    show: Callable[[Line], str]


def _mean(name: str, scale: float, digits: int) -> Callable[[Line], str]:
    return lambda line: show_mean(line.estimates[name], scale=scale, digits=digits)


def show_mean(value: Estimate | None, *, scale: float = 1.0, digits: int = 2) -> str:
    """The mean alone."""
    return UNKNOWN if value is None else f"{value.mean * scale:.{digits}f}"


def show_interval(value: Estimate | None, *, scale: float = 1.0, digits: int = 2, signed: bool = False) -> str:
    """Mean ± half-width; ``±`` of the unknown where there is one seed."""
    if value is None:
        return UNKNOWN
    mean = value.mean * scale
    text = f"{mean:+.{digits}f}" if signed else f"{mean:.{digits}f}"
    half = "?" if value.half_width is None else f"{value.half_width * scale:.{digits}f}"
    return f"{text.replace('-', '−')} ± {half}"


def _difference(line: Line) -> str:
    return UNKNOWN if line.strategy == "none" else show_interval(line.auc_difference, scale=1e3, digits=2, signed=True)


MORE_THAN_THE_JOB = (
    "† The profile's overhead exceeds the job itself: no real job would be run so. See strategy.interval_samples, the "
    "profile and the trace."
)


def _total(line: Line) -> str:
    """The overhead, marked where in some cell it is more than the job."""
    mark = " †" if any((cell["overhead_frac"] or 0) > 1 for cell in line.cells) else ""
    return show_mean(line.estimates["overhead_frac"], scale=100) + mark


_HEADINGS = (
    _Heading("", "strategy", "strategy", lambda line: line.label),
    _Heading("", "n", "n", lambda line: str(len(line.cells))),
    _Heading("quality", "AUC", "AUC", lambda line: show_interval(line.estimates["auc"], digits=5)),
    _Heading("quality", "ΔAUC to none, 10⁻³", "ΔAUC\n10⁻³", _difference),
    _Heading("quality", "log loss", "log\nloss", _mean("log_loss", 1, 5)),
    _Heading("lost, %", "PLS", "PLS\n%", _mean("pls", 100, 2)),
    _Heading("lost, %", "updates", "upd.\nlost %", _mean("update_pls", 100, 2)),
    _Heading("lost, %", "updates, tracked", "tracked\nlost %", _mean("update_pls_tracked", 100, 2)),
    *(
        _Heading("emulated overhead, % of job", bucket, f"{short}\n%", _mean(f"{bucket}_frac", 100, 2))
        for bucket, short in zip(BUCKETS, ("save", "load", "lost", "resch."), strict=True)
    ),
    _Heading("emulated overhead, % of job", "total", "total\n%", _total),
    _Heading("", "written, MB", "written\nMB", _mean("payload_bytes", 1e-6, 1)),
    _Heading("measured", "stall, s", "stall\ns", _mean("stall_s", 1, 2)),
)
_CACHE_HEADINGS = (
    _Heading("cache", "hits, %", "hits\n%", _mean("cache_hit_rate", 100, 1)),
    _Heading("cache", "traffic saved, %", "saved\n%", _mean("cache_saved_frac", 100, 1)),
    _Heading("cache", "peak rows", "peak\nrows", _mean("cache_peak_rows", 1, 0)),
)
"""Where some run of a block has a cache."""

_CACHE_CAPTION = (
    "Cache: rows that need not be fetched, of distinct rows of all batches; bytes that do not travel, both ways, of "
    "those of a run without a cache; the most rows cached or under way at one time."
)


def _headings(block: Block) -> tuple[_Heading, ...]:
    return (*_HEADINGS, *_CACHE_HEADINGS) if _has_cache(block) else _HEADINGS


def _has_cache(block: Block) -> bool:
    return any(line.estimates["cache_peak_rows"] is not None for line in block.lines)


CAPTION = (
    "Means over n seeds, ± half of the 95 % confidence interval (Student's t; ? with one seed). "
    "ΔAUC to none is paired by seed. Save to total: overhead emulated by the profile, % of the job. "
    "Stall: seconds measured on this machine."
)


def footnotes(blocks: Sequence[Block]) -> list[str]:
    """What the marks and the columns of caches in the table of ``blocks`` mean; empty without either."""
    marks = [MORE_THAN_THE_JOB] if any("†" in _total(line) for block in blocks for line in block.lines) else []
    return [*marks, *([_CACHE_CAPTION] if any(map(_has_cache, blocks)) else [])]


def table(frame: "pd.DataFrame") -> RenderableType:
    """The table per strategy for the console, one for each setting; then what is missing from it and why."""
    cells = cells_of(frame)
    blocks = summarise(cells)
    parts: list[RenderableType] = [_rich(block) for block in blocks]
    if blocks:
        parts += [Text(line, style="dim") for line in (CAPTION, *footnotes(blocks))]
    parts += [Text(line, style="red") for line in missing(cells)]
    return Group(*parts)


def _rich(block: Block) -> Table:
    headings = _headings(block)
    columns = [Column(heading.short, justify="right" if i else "left") for i, heading in enumerate(headings)]
    shown = Table(*columns, title=block.title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for line in block.lines:
        shown.add_row(*(heading.show(line) for heading in headings))
    return shown


def missing(cells: Sequence[Cell]) -> list[str]:
    """One line for each cell that is not done, and for each record that contradicts itself."""
    lines = [
        f"{cell['status']}: {cell['cell']}" + (f": {cell['failure']}" if cell["failure"] else "")
        for cell in cells
        if cell["status"] != "done"
    ]
    return lines + [f"disagrees: {cell['cell']}: {cell['disagreement']}" for cell in cells if cell["disagreement"]]


def table_html(blocks: Sequence[Block]) -> str:
    """The same table as HTML, one for each setting."""
    parts: list[str] = []
    for block in blocks:
        headings = _headings(block)
        rows = "".join(_html_row(line, headings) for line in block.lines)
        caption = f"<caption>{escape(block.title)}</caption>" if block.title else ""
        parts.append(f'<div class="wide"><table>{caption}{_html_head(headings)}<tbody>{rows}</tbody></table></div>')
    return "\n".join(parts)


def _html_head(headings: Sequence[_Heading]) -> str:
    groups: list[list[Any]] = []
    for heading in headings:
        if groups and groups[-1][0] == heading.group:
            groups[-1][1] += 1
        else:
            groups.append([heading.group, 1])
    top = "".join(f'<th colspan="{span}" scope="colgroup">{escape(name)}</th>' for name, span in groups)
    names = "".join(f'<th scope="col">{escape(heading.title)}</th>' for heading in headings)
    return f"<thead><tr>{top}</tr><tr>{names}</tr></thead>"


def _html_row(line: Line, headings: Sequence[_Heading]) -> str:
    first, *rest = (escape(heading.show(line)) for heading in headings)
    return f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"


def shown_setting(block: Block) -> str:
    """Engine, trace, profile and ranks of a block, in words."""
    words = [f"{key} {block.setting[key] if block.setting[key] is not None else 'none'}" for key in SETTING]
    return ", ".join(words)
