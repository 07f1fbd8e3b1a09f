"""The table per strategy: quality, losses and costs, in columns that are either emulated or measured."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from analysis.load import Cell, cells_of, content_notes
from analysis.stats import BASELINE, Block, Line, own_options, rounding_text, seeds_text, summarise
from analysis.tables.builder import UNKNOWN, Heading, html_table, rich_table, show_interval, show_mean
from harness.core.errors import UserError
from harness.core.events import BUCKETS

if TYPE_CHECKING:
    import pandas as pd

CAPTION = (
    "Means over n seeds, ± half of the 95 % confidence interval (Student's t; ? with one seed). "
    "ΔAUC to none is paired by seed. Save to total: overhead emulated by the profile, % of the job. "
    "Stall: seconds measured on this machine."
)
_MOST_COPIES = 3  # that have a line of their own
MORE_THAN_THE_JOB = (
    "† The profile's overhead is longer than the job itself, which no real job would accept. See "
    "strategy.interval_samples, the profile and the trace."
)
_RESOURCES_CAPTION = (
    "Resources: node-hours are overhead times the nodes of the emulated cluster; sent are bytes of saves, loads "
    "and replicas of this run's model; memory is that of tracker and replica in the PS rank that needs most, or of the "
    "trainer's mirror if that is more."
)
_CACHE_CAPTION = (
    "Cache: hits are rows not fetched, of the distinct rows of all batches; saved are bytes not sent (both ways), of "
    "those of a run without a cache; peak is the largest number of rows cached or in flight."
)


@dataclass(frozen=True)
class _Column(Heading):
    """A heading, and the text of its cell in a line. ``key``: its name on the command line, if not the title's."""

    show: Callable[[Line], str] = lambda line: line.label
    key: str = ""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        return self.key or self.title.lower()


def _mean(name: str, scale: float, digits: int) -> Callable[[Line], str]:
    return lambda line: show_mean(line.estimates[name], scale=scale, digits=digits)


def _difference(line: Line) -> str:
    """The difference to none; in brackets the number of pairs, where it is not that of the cells."""
    if line.strategy == BASELINE:
        return UNKNOWN
    num = f" ({len(line.pairs)})" if line.unpaired and line.pairs else ""
    return show_interval(line.auc_difference, scale=1e3, signed=True) + num


def _total(line: Line) -> str:
    """The overhead, marked if it is longer than the job in some cell."""
    mark = " †" if any((cell["overhead_frac"] or 0) > 1 for cell in line.cells) else ""
    return show_mean(line.estimates["overhead_frac"], scale=100) + mark


_LOST, _EMULATED = "lost, %", "emulated overhead, % of job"
_COLUMNS = (
    _Column("strategy", is_text=True),
    _Column("n", show=lambda line: str(len(line.cells))),
    _Column("AUC", group="quality", show=lambda line: show_interval(line.estimates["auc"], digits=5)),
    _Column("ΔAUC to none, 10⁻³", "ΔAUC\n10⁻³", "quality", show=_difference, key="delta_auc"),
    _Column("log loss", "log\nloss", "quality", show=_mean("log_loss", 1, 5), key="log_loss"),
    _Column("PLS", "PLS\n%", _LOST, show=_mean("pls", 100, 2)),
    _Column("updates", "upd.\nlost %", _LOST, show=_mean("update_pls", 100, 2)),
    _Column("updates, tracked", "tracked\nlost %", _LOST, show=_mean("update_pls_tracked", 100, 2), key="tracked"),
    *(
        _Column(bucket, f"{short}\n%", _EMULATED, show=_mean(f"{bucket}_frac", 100, 2))
        for bucket, short in zip(BUCKETS, ("save", "load", "lost", "resch."), strict=True)
    ),
    _Column("total", "total\n%", _EMULATED, is_key=True, show=_total),
    _Column("written, MB", "written\nMB", show=_mean("payload_bytes", 1e-6, 1), key="written"),
    _Column("stall, s", "stall\ns", "measured", show=_mean("stall_s", 1, 2), key="stall"),
)
_CACHE_COLUMNS = (
    _Column("hits, %", "hits\n%", "cache", show=_mean("cache_hit_rate", 100, 1), key="hits"),
    _Column("traffic saved, %", "saved\n%", "cache", show=_mean("cache_saved_frac", 100, 1), key="traffic_saved"),
    _Column("peak rows", "peak\nrows", "cache", show=_mean("cache_peak_rows", 1, 0), key="peak_rows"),
)
"""Columns of a cache's statistics, shown if a run of the block has a cache."""
_DENSE_CAPTION = "Dense network: samples that it lacks, of all, where all trainers died at once."
_DENSE_COLUMNS = (_Column("dense network", "dense\nlost %", show=_mean("lost_dense_frac", 100, 2), key="dense_lost"),)
"""Shown if all trainers of a run of the block have died at once."""
_RESOURCE_COLUMNS = {
    "node_h": _Column("node-hours", "node\nh", "resources", show=_mean("node_h", 1, 2), key="node_h"),
    "wire_bytes": _Column("sent, MB", "sent\nMB", "resources", show=_mean("wire_bytes", 1e-6, 1), key="sent"),
    "memory_bytes": _Column("memory, MB", "memory\nMB", "resources", show=_mean("memory_bytes", 1e-6, 2), key="memory"),
}
"""Columns of ``Block.resources``."""


def show_table(frame: "pd.DataFrame") -> RenderableType:
    """The table per strategy for the console, one for each setting; then the cells that are not in it, and why."""
    cells = cells_of(frame)
    blocks = summarise(cells)
    parts: list[RenderableType] = [rich_table(*content(block), block.title) for block in blocks]
    if blocks:
        parts += [Text(line, style="dim") for line in (CAPTION, *footnotes(blocks))]
    parts += [Text(line, style="red") for line in missing(cells)]
    return Group(*parts)


def table_html(block: Block) -> str:
    """The table of one setting as HTML, without a title."""
    return html_table(*content(block))


def footnotes(blocks: Sequence[Block]) -> list[str]:
    """Cells without a partner; the floor of rounding; the mark † and columns that only some tables have, explained."""
    floors = dict.fromkeys(rounding_text(block.rounding) for block in blocks)
    is_marked = any("†" in _total(line) for block in blocks for line in block.lines)
    captions = {
        MORE_THAN_THE_JOB: is_marked,
        _DENSE_CAPTION: any(_has(block, "lost_dense_frac") for block in blocks),
        _CACHE_CAPTION: any(_has(block, "cache_peak_rows") for block in blocks),
        _RESOURCES_CAPTION: any(block.resources for block in blocks),
    }
    shown = [caption for caption, is_shown in captions.items() if is_shown]
    return [*_partner_notes(blocks), *_option_notes(blocks), *floors, *shown]


def _option_notes(blocks: Sequence[Block]) -> list[str]:
    """Options in which strategies of one table differ."""
    cells = [cell for block in blocks for line in block.lines for cell in line.cells]
    notes: list[str] = []
    for key in own_options(cells) if cells else []:
        values = {cell["strategy"]: cell[key] for cell in cells if cell[key] is not None}
        if len(set(values.values())) > 1:
            words = (f"{value} for {strategy}" for strategy, value in values.items())
            notes.append(f"{key} differs between strategies: {', '.join(words)}.")
    return notes


def _partner_notes(blocks: Sequence[Block]) -> list[str]:
    """A line for each strategy of which not every cell has a partner of strategy ``none``."""
    lines = [(block, line) for block in blocks for line in block.lines if line.unpaired and line.strategy != BASELINE]
    if lines and not any(line.strategy == BASELINE for block in blocks for line in block.lines):
        return [f"ΔAUC is unknown: there is no finished cell of {BASELINE}."]
    return [_partner_note(block.title if len(blocks) > 1 else "", line) for block, line in lines]


def _partner_note(title: str, line: Line) -> str:
    where, num = f"{title}: " if title else "", len(line.cells)
    reasons: dict[str, list[int]] = {}
    for seed, why in line.unpaired:
        reasons.setdefault(why, []).append(seed)
    parts = "; ".join(f"{why} for {seeds_text(seeds)}" for why, seeds in reasons.items())
    kept = f"is over {num - len(line.unpaired)} of {num} cells" if len(line.unpaired) < num else "is unknown"
    return f"{where}ΔAUC of {line.label} {kept}: {parts}."


def missing(cells: Sequence[Cell]) -> list[str]:
    """One line for each cell that is not done, for each record that contradicts itself, and for cells of other code,
    data or trace."""
    left_out = [cell for cell in cells if cell["status"] == "copy"]
    many = left_out[_MOST_COPIES:]
    lines = [
        f"{cell['status']}: {cell['cell']}" + (f": {cell['failure']}" if cell["failure"] else "")
        for cell in cells
        if cell["status"] != "done" and cell not in many
    ]
    if many:
        lines.append(f"copy: {len(many)} more older runs of cells that have a newer result")
    codes = Counter(cell["code"] for cell in cells if cell["status"] == "done")
    if len(codes) > 1:
        counts = ", ".join(f"{count} by {code or 'code not recorded'}" for code, count in codes.most_common())
        lines.append(
            f"mixed: {counts}: these results were computed by different code; the grid's command makes them equal"
        )
    lines += content_notes(cells)
    return lines + [f"disagrees: {cell['cell']}: {cell['disagreement']}" for cell in cells if cell["disagreement"]]


def content(block: Block, names: Sequence[str] = ()) -> tuple[tuple[_Column, ...], list[list[str]]]:
    """The headings, and the text of each line's cells. ``names``: of the columns to show, in order; none: all.

    Raises UserError for a column that the table has not.
    """
    dense = _DENSE_COLUMNS if _has(block, "lost_dense_frac") else ()
    cache = _CACHE_COLUMNS if _has(block, "cache_peak_rows") else ()
    columns = (*_COLUMNS, *dense, *cache, *(_RESOURCE_COLUMNS[name] for name in block.resources))
    known = {column.name: column for column in columns}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"--columns: expected some of {', '.join(known)}; got {', '.join(unknown)}")
    columns = tuple(known[name] for name in names) or columns
    return columns, [[column.show(line) for column in columns] for line in block.lines]


def _has(block: Block, name: str) -> bool:
    """Whether some strategy of the block has a value in a column."""
    return any(line.estimates[name] is not None for line in block.lines)
