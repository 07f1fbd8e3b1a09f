"""The columns of the table of strategies: quality, losses and costs, each either emulated or measured.

A new column is one entry of ``COLUMNS``, from which every form of the table (console, CSV, LaTeX, Markdown, HTML) is
made.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from analysis.stats import AUC, BASELINE, DROP, MOVEMENT, Block, Line
from analysis.tables.builder import UNKNOWN, Heading, chosen, of_some, show_interval, show_mean
from harness.core.events import STALLS
from harness.core.operators import BADPUT, WORDS

_STEPS = "Steps: what every step pays for trackers, replicas and mirrors; a dash, and so no total, if it has no price."
_DENSE = "Dense network: samples that it lacks, of all, where all trainers died at once."
DROP_NOTE = (
    "Drop of AUC at failures: the AUC right before each failure less that right after the recovery, on the same test "
    "samples, summed over a run's failures; healing and later effects are in the final AUC alone."
)
_MOVEMENT = (
    "Movement: the L2 distance of all values of the lost shards after the recovery from those before the failure, "
    "summed over a run's failures."
)
_LOSS = "Loss: by how much the measure that was asked for is worse than that of none, paired by seed."
_HOURS = (
    "Hours to samples, to AUC: emulated hours, overhead included, until the run first had trained so many samples "
    "(--target; by default all), or an evaluation had such an AUC."
)
_ENTROPY = (
    "NE: normalised entropy, log loss over the entropy of the mean label. Cal.: calibration, mean prediction over mean "
    "label."
)
_CACHE = (
    "Cache: hits are rows not fetched, of the distinct rows of all batches; saved are bytes not sent (both ways), of "
    "those of a run without a cache; peak is the largest number of rows cached or in flight."
)
_RESOURCES = (
    "Resources: node-hours are overhead times the nodes of the emulated cluster; sent are bytes of saves, loads "
    "and replicas of this run's model; memory is that of tracker and replica in the PS rank that needs most, or of the "
    "trainer's mirror if that is more."
)
OPERATORS_NOTE = (
    "Goodput (ETTR): hours of the job without overhead, of its hours with it. Badput: hours of a bucket, of the same; "
    f"Google's names: {', '.join(f'{name} ({bucket})' for bucket, name in BADPUT.items())}. RPO: what "
    "a failure lost, in updates and samples, or samples and hours to train again. RTO: hours, and seconds of this "
    "machine, until training was as far as before the failure. Means over the failures of a run; max: of its worst."
)
ON_REQUEST = 4  # order of columns that are shown only where they are named


@dataclass(frozen=True, kw_only=True)
class Column(Heading):
    """A column of the table of strategies: a heading, and the text of its cells.

    ``of``: the column of ``load`` whose mean, times ``scale``, is shown with ``digits`` digits. ``show``: a function
    that makes the text of a cell in another way. ``where``: whether a block has the column. ``note``: its explanation
    below the table. ``order``: at most 2 for a column that a LaTeX table has too, unless others are named; 4 for one
    that no table has unless it is named.
    """

    order: int = 3
    of: str = ""
    scale: float = 1
    digits: int = 2
    show: "Callable[[Column, Line], str]" = lambda column, line: show_mean(
        line.estimate(column.of), scale=column.scale, digits=column.digits
    )
    where: Callable[[Block], bool] = lambda _: True
    note: str = ""


def _is_known(name: str, block: Block) -> bool:
    """Whether some strategy of the block has a value in column ``name``."""
    return any(line.estimate(name) is not None for line in block.lines)


def _has_steps(block: Block) -> bool:
    """Whether the profile prices steps: some strategy has their cost, or lacks a total for want of a price."""
    return _is_known("steps_frac", block) or any(line.estimate("overhead_frac") is None for line in block.lines)


def _is_priced(name: str, block: Block) -> bool:
    """Whether node-hours are known, as the profile has a number of trainers, and some mean of ``name`` is not 0."""
    return _is_known("node_h", block) and any(line.mean(name) for line in block.lines)


def _difference(column: Column, line: Line) -> str:
    """The AUC difference to ``none``, with the number of pairs in brackets if some cells have no partner."""
    if line.strategy == BASELINE:
        return UNKNOWN
    num = f" ({len(line.pairs)})" if line.unpaired and len(line.pairs) else ""
    return show_interval(line.auc_difference, scale=column.scale, signed=True) + num


def _interval(column: Column, line: Line) -> str:
    """The estimate with its interval, and the number of cells in brackets if the record of some lacks the value."""
    text = show_interval(line.estimate(column.of), scale=column.scale, digits=column.digits)
    return of_some(text, int(line.cells[column.of].notna().sum()), len(line.cells))


def _loss(column: Column, line: Line) -> str:
    return UNKNOWN if line.strategy == BASELINE else show_interval(line.loss, scale=column.scale, signed=True)


def _shared(column: Column, line: Line) -> str:
    """The AUC difference over the pairs of seed and trace that all strategies share; a dash for one that lacks some."""
    shared = None if line.strategy == BASELINE else line.shared
    return show_interval(shared and shared.auc_difference, scale=column.scale, signed=True)


def has_shared(block: Block) -> bool:
    """Whether strategies have unequal pairs of seed and trace, so that their means are not comparable."""
    return any(line.shared_keys is not None for line in block.lines)


def _total(column: Column, line: Line) -> str:
    """The overhead, with a dagger if it is longer than the job in some cell."""
    return show_mean(line.estimate(column.of), scale=column.scale) + " †" * is_longer_than_the_job(line)


def is_longer_than_the_job(line: Line) -> bool:
    return bool((line.cells["overhead_frac"] > 1).any())


_recorded: dict[str, Any] = {"group": "quality", "where": partial(_is_known, "ne"), "note": _ENTROPY}
_lost = partial(Column, group="lost, %", scale=100)
_emulated = partial(Column, group="emulated overhead, % of job", scale=100)
_cache = partial(Column, group="cache", where=partial(_is_known, "cache_peak_rows"), note=_CACHE)


def _resource(title: str, short: str, of: str, **values: Any) -> Column:
    return Column(
        title=title, short=short, of=of, group="resources", where=partial(_is_priced, of), note=_RESOURCES, **values
    )


def _hours(of: str) -> Column:
    """The column of hours to a target."""
    words = of.replace("_", " ").replace("auc", "AUC")
    return Column(
        title=words,
        short=words.replace(" to ", "\nto "),
        key=of,
        group="emulated hours",
        of=of,
        show=_interval,
        order=ON_REQUEST,
        note=_HOURS,
    )


def _operators(of: str) -> Column:
    """The column of one of operators' words; emulated hours and measured seconds are in groups of their own."""
    name, unit = (of.removesuffix("_frac"), "%") if of.endswith("_frac") else of.rpartition("_")[::2]
    words = name.replace("_", " ").replace("rpo", "RPO").replace("rto", "RTO")
    return Column(
        title=f"{words}, {unit}",
        short=f"{words}\n{unit}",
        key=of.removesuffix("_frac"),
        group="operators' words, measured" if unit == "s" else "operators' words, emulated",
        of=of,
        scale=100 if unit == "%" else 1,
        digits={"updates": 0, "samples": 0, "s": 3}.get(unit, 2),
        show=_interval,
        order=ON_REQUEST,
        note=OPERATORS_NOTE,
    )


COLUMNS = (
    Column(title="strategy", is_text=True, order=0, show=lambda _, line: line.label),
    Column(title="n", order=1, show=lambda _, line: str(len(line.cells))),
    Column(
        title="AUC",
        group="quality",
        of="auc",
        show=lambda column, line: show_interval(line.estimate(column.of), digits=5),
    ),
    Column(
        title="ΔAUC to none, 10⁻³",
        short="ΔAUC\n10⁻³",
        group="quality",
        scale=1e3,
        show=_difference,
        key="delta_auc",
        order=1,
    ),
    Column(
        title="ΔAUC over shared seeds, 10⁻³",
        short="shared\n10⁻³",
        group="quality",
        scale=1e3,
        show=_shared,
        key="delta_auc_shared",
        order=2,
        where=has_shared,
    ),
    Column(
        title="drop of AUC, 10⁻³",
        short="drop\n10⁻³",
        group="quality",
        of="drop",
        scale=1e3,
        show=_interval,
        key="drop",
        order=1,
        where=lambda block: any(line.mean("num_failures") and line.estimate("drop") for line in block.lines),
        note=DROP_NOTE,
    ),
    Column(
        title="movement",
        group="quality",
        of="movement",
        digits=4,
        show=_interval,
        where=lambda block: any(line.mean("num_failures") and line.estimate("movement") for line in block.lines),
        note=_MOVEMENT,
    ),
    Column(
        title="loss, 10⁻³",
        short="loss\n10⁻³",
        group="quality",
        scale=1e3,
        show=_loss,
        key="loss",
        order=1,
        where=lambda block: block.measure not in (AUC, DROP, MOVEMENT) and not block.measure.in_hours,
        note=_LOSS,
    ),
    *map(_hours, ("hours_to_samples", "hours_to_auc")),
    Column(
        title="loss, h",
        short="loss\nh",
        group="emulated hours",
        show=_loss,
        key="loss",
        order=1,
        where=lambda block: block.measure.in_hours,
        note=_LOSS,
    ),
    Column(title="log loss", short="log\nloss", group="quality", of="log_loss", digits=5, key="log_loss", order=2),
    Column(title="normalised entropy", short="NE", of="ne", digits=4, key="ne", **_recorded),
    Column(title="calibration", short="cal.", of="calibration", digits=3, key="calibration", **_recorded),
    _lost(title="PLS", short="PLS\n%", of="pls", order=2),
    _lost(title="updates", short="upd.\nlost %", of="update_pls", order=2),
    _lost(title="updates, tracked", short="tracked\nlost %", of="update_pls_tracked", key="tracked"),
    *(
        _emulated(title=bucket, short=f"{short}\n%", of=f"{bucket}_frac")
        for bucket, short in zip(STALLS, ("save", "load", "lost", "resch."), strict=True)
    ),
    _emulated(title="steps", short="steps\n%", of="steps_frac", where=_has_steps, note=_STEPS),
    _emulated(title="total", short="total\n%", is_key=True, of="overhead_frac", show=_total, order=1),
    Column(title="written, MB", short="written\nMB", of="payload_bytes", scale=1e-6, digits=1, key="written", order=2),
    Column(title="stall, s", short="stall\ns", group="measured", of="stall_s", key="stall"),
    Column(
        title="dense network",
        short="dense\nlost %",
        of="lost_dense_frac",
        scale=100,
        key="dense_lost",
        where=partial(_is_known, "lost_dense_frac"),
        note=_DENSE,
    ),
    _cache(title="hits, %", short="hits\n%", of="cache_hit_rate", scale=100, digits=1, key="hits"),
    _cache(title="traffic saved, %", short="saved\n%", of="cache_saved_frac", scale=100, digits=1, key="traffic_saved"),
    _cache(title="peak rows", short="peak\nrows", of="cache_peak_rows", digits=0, key="peak_rows"),
    _resource("node-hours", "node\nh", "node_h", key="node_h"),
    _resource("sent, MB", "sent\nMB", "wire_bytes", scale=1e-6, digits=1, key="sent"),
    _resource("memory, MB", "memory\nMB", "memory_bytes", scale=1e-6, key="memory"),
    *map(_operators, WORDS),
)


def columns_of(block: Block) -> list[Column]:
    """The columns that a block has; hours that are its measure are shown without being named."""
    own = [column for column in COLUMNS if column.where(block)]
    is_asked = [column.order == ON_REQUEST and column.of == block.measure.name for column in own]
    return [replace(column, order=1) if asked else column for column, asked in zip(own, is_asked, strict=True)]


def content(block: Block, names: Sequence[str] = (), order: int = 3) -> tuple[list[Column], list[list[str]]]:
    """The columns of a block's table, and the text of each line's cells.

    ``names``: names of the columns to show, in order; empty for all up to ``order``. Raises UserError for a column the
    table lacks.
    """
    columns = chosen(columns_of(block), names, order)
    return columns, [[column.show(column, line) for column in columns] for line in block.lines]


def operators_content(block: Block) -> tuple[list[Column], list[list[str]]]:
    """:func:`content` of strategies and all of operators' words that are known."""
    names = [each.name for each in columns_of(block) if each.order == ON_REQUEST and _is_known(each.of, block)]
    return content(block, [COLUMNS[0].name, *names])


def is_swept(blocks: Sequence[Block]) -> bool:
    """Whether ``blocks`` differ in another key than the engine, so that they have one table (:func:`swept`)."""
    return bool(blocks) and any(key != "engine" for key in blocks[0].axes)
