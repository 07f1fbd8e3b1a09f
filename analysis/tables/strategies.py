"""The table of strategies: quality, losses and costs, in columns that are either emulated or measured.

A new column is one entry of ``COLUMNS``, from which every form of the table (console, CSV, LaTeX, Markdown, HTML) is
made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.text import Text

from analysis.load import Frame, content_notes, plain
from analysis.stats import (
    AUC,
    BASELINE,
    DROP,
    SETTING,
    Block,
    Line,
    Measure,
    blocks_of,
    equal_runs,
    measures_of,
    numbers,
    own_options,
    rounding_text,
    sample_equivalent,
    seeds_text,
    strategy_order,
)
from analysis.tables.builder import (
    HINT,
    UNKNOWN,
    Heading,
    Shown,
    chosen,
    latex_table,
    markdown_table,
    of_some,
    rich_table,
    show_interval,
    show_mean,
)
from harness.core.errors import UserError
from harness.core.events import BUCKETS, STALLS
from harness.core.operators import BADPUT, OTHER_BADPUT, WORDS

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "latex", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)

CAPTION = (
    "Means over n runs, ± half of the 95 % confidence interval (Student's t; ? with one seed). "
    "ΔAUC to none is paired by seed. Save to total: overhead emulated by the profile, % of the job. "
    "Stall: seconds measured on this machine."
)
_MOST_AXES = 2  # of a sweep that have a column each
_MOST_COPIES = 3  # that have a line of their own
MORE_THAN_THE_JOB = (
    "† The profile's overhead is longer than the job itself, which no real job would accept. See "
    "strategy.interval_samples, the profile and the trace."
)
_STEPS = "Steps: what every step pays for trackers, replicas and mirrors; a dash, and so no total, if it has no price."
_DENSE = "Dense network: samples that it lacks, of all, where all trainers died at once."
DROP_NOTE = (
    "Drop of AUC at failures: the AUC right before each failure less that right after the recovery, on the same test "
    "samples, summed over a run's failures; healing and later effects are in the final AUC alone."
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
    f"Google's names: {', '.join(f'{BADPUT.get(bucket, OTHER_BADPUT)} ({bucket})' for bucket in BUCKETS)}. RPO: what "
    "a failure lost, in updates and samples, or samples and hours to train again. RTO: hours, and seconds of this "
    "machine, until training was as far as before the failure. Means over the failures of a run; max: of its worst."
)
_ON_REQUEST = 4  # order of columns that are shown only where they are named


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
    return show_mean(line.estimate(column.of), scale=column.scale) + " †" * _is_longer_than_the_job(line)


def _is_longer_than_the_job(line: Line) -> bool:
    return bool((line.cells["overhead_frac"] > 1).any())


_recorded: dict[str, Any] = {"group": "quality", "where": partial(_is_known, "ne"), "note": _ENTROPY}
_lost = partial(Column, group="lost, %", scale=100)
_emulated = partial(Column, group="emulated overhead, % of job", scale=100)
_cache = partial(Column, group="cache", where=partial(_is_known, "cache_peak_rows"), note=_CACHE)


def _resource(title: str, short: str, of: str, **values: Any) -> Column:
    return Column(
        title=title, short=short, of=of, group="resources", where=partial(_is_priced, of), note=_RESOURCES, **values
    )


def _hours(of: str, *, is_measure: bool) -> Column:
    """The column of hours to a target: of the measure that was asked for, or of another one, for those who name it."""
    words = of.replace("_", " ").replace("auc", "AUC")
    return Column(
        title=words,
        short=words.replace(" to ", "\nto "),
        key=of,
        group="emulated hours",
        of=of,
        show=_interval,
        order=1 if is_measure else _ON_REQUEST,
        where=lambda block: (block.measure.column == of) == is_measure,
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
        order=_ON_REQUEST,
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
        title="loss, 10⁻³",
        short="loss\n10⁻³",
        group="quality",
        scale=1e3,
        show=_loss,
        key="loss",
        order=1,
        where=lambda block: block.measure not in (AUC, DROP) and not block.measure.in_hours,
        note=_LOSS,
    ),
    *(_hours(of, is_measure=is_measure) for of in ("hours_to_samples", "hours_to_auc") for is_measure in (True, False)),
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
    _emulated(title="steps", short="steps\n%", of="steps_frac", where=partial(_is_known, "steps_frac"), note=_STEPS),
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


def content(block: Block, names: Sequence[str] = (), order: int = 3) -> tuple[list[Column], list[list[str]]]:
    """The columns of a block's table, and the text of each line's cells.

    ``names``: names of the columns to show, in order; empty for all up to ``order``. Raises UserError for a column the
    table lacks.
    """
    columns = chosen([column for column in COLUMNS if column.where(block)], names, order)
    return columns, [[column.show(column, line) for column in columns] for line in block.lines]


def operators_content(block: Block) -> tuple[list[Column], list[list[str]]]:
    """:func:`content` of strategies and all of operators' words that are known."""
    words = [column for column in COLUMNS if column.order == _ON_REQUEST and column.where(block)]
    names = [column.name for column in words if _is_known(column.of, block)]
    return content(block, [COLUMNS[0].name, *names])


def is_swept(blocks: Sequence[Block]) -> bool:
    """Whether ``blocks`` differ in another key than the engine, so that they have one table (:func:`swept`)."""
    return bool(blocks) and any(key != "engine" for key in blocks[0].axes)


def swept(
    blocks: Sequence[Block], names: Sequence[str] = (), labels: Mapping[str, str] | None = None
) -> tuple[list[Heading], list[list[str]]]:
    """The table of several settings: for each of some columns a row per setting, with a cell per strategy.

    ``names``: of the columns (``COLUMNS``); empty for loss and overhead, and n if it varies. A strategy that has the
    same cells under all settings, as one without the swept option, has a cell in a first row alone. ``labels``: other
    names of strategies. Raises UserError for a column that the table lacks.
    """
    known = [column for column in COLUMNS[1:] if any(map(column.where, blocks))]
    names = [name for name in names if name != COLUMNS[0].name]  # strategies stand across
    found = [{line.label: line for line in block.lines} for block in blocks]
    every = sorted((line for lines in found for line in lines.values()), key=lambda line: strategy_order(line.strategy))
    there = {column.name for column in known}
    usual = [name for name in ("loss" if "loss" in there else "delta_auc", "drop", "total") if name in there]
    usual = [blocks[0].measure.column, *usual] if blocks[0].measure.in_hours else usual
    usual = ["n", *usual] if len({len(line.cells) for line in every}) > 1 else usual
    shown = [*dict.fromkeys(line.label for line in every if names or line.strategy != BASELINE)]
    cells = {label: {(*lines[label].cells.index,) if label in lines else () for lines in found} for label in shown}
    is_same = {label: len(own) == 1 for label, own in cells.items()}
    axes = [Heading(key) for key in blocks[0].axes]
    values = [block.values for block in blocks]
    if len(axes) > _MOST_AXES:
        axes, values = [Heading("setting", is_text=True)], [(block.title,) for block in blocks]
    rows: list[list[str]] = []
    for column in chosen(known, names or usual):
        settings = [(own, lines, False) for own, lines in zip(values, found, strict=True)]
        if any(is_same.values()):
            settings = [(("all",) * len(axes), found[0], True), *settings]
        for place, (setting, lines, are_same) in enumerate(settings):
            own = [label in lines and is_same[label] == are_same for label in shown]
            texts = [column.show(column, lines[label]) if has else "" for label, has in zip(shown, own, strict=True)]
            rows.append(["" if place else column.line, *setting, *texts])
    across = [Heading((labels or {}).get(label, label), order=1) for label in shown]
    return [Heading("", is_text=True), *axes, *across], rows


def show_table(
    frame: "pd.DataFrame", *, measure: Measure = AUC, columns: Sequence[str] = (), explain: bool = False
) -> Shown:
    """The table of strategies for the console, one for each engine; then the cells that are left out, and why.

    Settings that differ in another key have one table (:func:`swept`). ``columns``: names of the columns to show, in
    order; empty for all that have room. ``explain``: adds notes on how the numbers are computed. Raises UserError for a
    column that the table lacks.
    """
    blocks = blocks_of(frame, measure)
    if is_swept(blocks):
        tables = [rich_table(*swept(blocks, columns), folds=True)]
    else:
        tables = [rich_table(*content(block, columns), block.title) for block in blocks]
    lines = [*footnotes(blocks, columns, explain=explain), *([] if explain else [HINT])] if blocks else []
    notes = (Text(line, style="dim") for line in lines)
    return Shown(*tables, *notes, *(Text(line, style="red") for line in missing(frame)))


_EQUIVALENT = tuple(f"sample_equivalent_{name}" for name in ("frac", "low", "high"))


def table(frame: "pd.DataFrame", measure: Measure = AUC) -> "pd.DataFrame":
    """A row per setting and strategy of a frame made by ``load``: the setting, numbers of cells and pairs, estimates.

    An estimate has its mean over seeds under the name of the column of ``load``, in the unit of ``load``, and half of
    its 95 % confidence interval under ``*_half_width``. ``auc_difference``: AUC minus the AUC of ``none``, paired by
    seed. ``loss``: the paired difference in ``measure``; positive is worse. ``loss_shared``: the same over the pairs of
    seed and trace that all strategies have (:attr:`analysis.stats.Line.shared`). ``equal_to``: the strategy whose final
    model is equal to the bit, with the number of such cells. ``sample_equivalent_*``:
    :func:`analysis.stats.sample_equivalent` of the loss, with the ends of its interval. ``test_set_error``:
    :attr:`analysis.stats.Line.test_set_error`. Unknown is NaN. Node-hours, bytes on the wire and memory have columns if
    a profile has a number of trainers and some mean is not 0. Without a finished cell there are the columns alone.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    blocks = blocks_of(frame, measure)
    equal = {
        id(line): f"{other.label} ({num} of {of})" for block in blocks for line, other, num, of in equal_runs(block)
    }
    names = [
        column.of
        for column in COLUMNS
        if column.of and (column.group != "resources" or any(column.where(block) for block in blocks))
    ]
    rows = [
        {
            **block.setting,
            "strategy": line.label,
            "num": len(line.cells),
            "num_pairs": len(line.pairs),
            "equal_to": equal.get(id(line), float("nan")),
            **dict(
                zip(_EQUIVALENT, (line.loss and sample_equivalent(block, line.loss)) or [float("nan")] * 3, strict=True)
            ),
            "test_set_error": line.test_set_error,
            **numbers(
                {
                    "auc_difference": line.auc_difference,
                    "loss": line.loss,
                    "loss_shared": line.shared and line.shared.loss,
                    **{name: line.estimate(name) for name in names},
                }
            ),
        }
        for block in blocks
        for line in block.lines
    ]
    facts = (*SETTING, "strategy", "num", "num_pairs", "equal_to", *_EQUIVALENT, "test_set_error")
    estimates = numbers(dict.fromkeys(("auc_difference", "loss", "loss_shared", *names)))
    return pd.DataFrame(rows, columns=None if rows else [*facts, *estimates])


def table_text(
    frame: "pd.DataFrame",
    kind: Format,
    *,
    measure: Measure = AUC,
    columns: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    caption: str | None = None,
) -> str:
    """The table of strategies as text: :func:`table` as CSV, or the console's table as LaTeX or Markdown.

    ``columns``: names of the columns to show, in order (default: all; for LaTeX those of order up to 2). ``labels``:
    other names of strategies. ``caption``: makes a LaTeX table a float; may have a label.

    Raises UserError for a column or a strategy that the table lacks, or an option that the format does not take.
    """
    if kind == "csv" and (columns or labels):
        raise UserError("--columns, --labels: expected --format latex or markdown; a CSV file has all columns")
    if kind != "latex" and caption is not None:
        raise UserError("--caption: expected --format latex")
    if kind == "csv":
        return table(frame, measure).to_csv(index=False)
    blocks = blocks_of(frame, measure)
    there = {line.label for block in blocks for line in block.lines}
    if unknown := sorted({*(labels or {})} - there):
        raise UserError(f"--labels: expected some of {', '.join(sorted(there))}, got {unknown[0]}")
    headings, texts = swept(blocks, columns, labels) if is_swept(blocks) else _long(blocks, kind, columns, labels or {})
    return markdown_table(headings, texts) if kind == "markdown" else latex_table(headings, texts, caption)


def _long(
    blocks: Sequence[Block], kind: Format, names: Sequence[str], labels: Mapping[str, str]
) -> tuple[list[Heading], list[list[str]]]:
    """The tables of ``blocks`` below each other, as one; of several blocks with a first column for the setting."""
    headings: dict[str, Heading] = {"setting": Heading("setting", is_text=True)} if len(blocks) > 1 else {}
    rows: list[dict[str, str]] = []
    for block in blocks:
        own, lines = content(block, names, 2 if kind == "latex" else 3)
        headings |= {column.name: column for column in own}
        for cells in lines:
            row = dict(zip((column.name for column in own), cells, strict=True))
            strategy = row.get("strategy", "")
            rows.append({"setting": block.title, **row, "strategy": labels.get(strategy, strategy)})
    return [*headings.values()], [[row.get(name, "") for name in headings] for row in rows]


def footnotes(blocks: Sequence[Block], names: Sequence[str] = (), *, explain: bool = True) -> list[str]:
    """Lines below the table: cells without a partner, differing options, the effect of rounding if known, the mark †.

    ``explain``: adds how the numbers are computed, and the meaning of columns that only some tables have. ``names``: of
    the columns that were asked for.
    """
    rounded: dict[str, list[str]] = {}
    for block in blocks:
        if block.rounding:
            rounded.setdefault(rounding_text(block.rounding, block.measure), []).append(block.title)
    rounding = [f"{', '.join(titles)}: {text}" if len(rounded) > 1 else text for text, titles in rounded.items()]
    is_marked = any(_is_longer_than_the_job(line) for block in blocks for line in block.lines)
    there = [column for column in COLUMNS if any(column.where(block) for block in blocks)]
    shown = (each.note for each in there if each.note and (each.order < _ON_REQUEST or each.name in names))
    found = [
        *(_sweep_notes(blocks) if is_swept(blocks) else ()),
        *_partner_notes(blocks),
        *(f"{block.title}: {line}" if block.title else line for block in blocks for line in comparable(block)),
        *_measure_notes(blocks),
        *_option_notes(blocks),
        *rounding,
        *([MORE_THAN_THE_JOB] if is_marked else []),
    ]
    return [CAPTION, *found, *dict.fromkeys(shown)] if explain else found


def comparable(block: Block) -> list[str]:
    """Lines on what a table compares: the pairs that unequal strategies share, and runs that are equal to the bit."""
    notes: list[str] = []
    if has_shared(block):
        shared = next(line.shared_keys for line in block.lines if line.shared_keys is not None)
        lacking = [line.label for line in block.lines if line.shared is None]
        others = f" but {', '.join(lacking)}" if lacking else ""
        over = f"{len(shared)} pairs of seed and trace that all{others} have ({seeds_text(seed for seed, _ in shared)})"
        what = (
            f"compare them by the column shared, over the {over}" if shared else "none is common to all: compare none"
        )
        notes.append(f"Strategies have unequal seeds or traces; {what}.")
    for line, other, num, of in equal_runs(block):
        binds = ": the budget never binds" * (line.has_budget and other.has_budget)
        cells = f"all {num} cells that both have{binds}" if num == of else f"{num} of {of} cells"
        notes.append(f"{line.label} is equal to {other.label} to the bit in {cells}.")
    return notes


def _sweep_notes(blocks: Sequence[Block]) -> Iterator[str]:
    """Lines on what is equal in all cells of the table of a sweep: the AUC of ``none``, and the number of runs."""
    aucs: dict[str, list[str]] = {}
    for block in blocks:
        for line in block.lines:
            if line.strategy == BASELINE:
                aucs.setdefault(show_interval(line.estimate("auc"), digits=5), []).append(block.title)
    for auc, titles in aucs.items():
        where = f" ({'; '.join(titles)})" if len(aucs) > 1 else ""
        yield f"AUC of {BASELINE}, the runs without failures{where}: {auc}."
    nums = {len(line.cells) for block in blocks for line in block.lines}
    each = f"n = {nums.pop()} runs in each cell. " if len(nums) == 1 else ""
    yield f"{each}ΔAUC: difference to {BASELINE}; total: overhead in % of the job; --columns shows other columns."


def _measure_notes(blocks: Sequence[Block]) -> list[str]:
    """Lines on cells whose record lacks a measure that is shown."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    if not blocks:
        return []
    cells: Frame = pd.concat([line.cells for block in blocks for line in block.lines])
    notes: list[str] = []
    for each in dict.fromkeys((blocks[0].measure, *measures_of(cells))):
        if each is not AUC and (lacking := int(cells[each.column].isna().sum())):
            why = ": of some failure no drop was recorded" if each is DROP else ""
            why = ": they never got there, and means are of the others" if each.in_hours else why
            notes.append(f"{each.title} is not on record for {lacking} of {len(cells)} cells{why}.")
    return notes


def _option_notes(blocks: Sequence[Block]) -> list[str]:
    """A line for each strategy option whose value differs between strategies."""
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    cells = plain(pd.concat([line.cells for block in blocks for line in block.lines])) if blocks else pd.DataFrame()
    notes: list[str] = []
    for key in own_options(cells):
        values = cells[["strategy", key]].dropna().set_index("strategy")[key].to_dict()
        if len(set(values.values())) > 1:
            words = (f"{value} for {strategy}" for strategy, value in values.items())
            notes.append(f"{key} differs between strategies: {', '.join(words)}.")
    return notes


def _partner_notes(blocks: Sequence[Block]) -> list[str]:
    """A line for each strategy with cells that have no partner of strategy ``none``, with the reasons."""
    lines = [(block, line) for block in blocks for line in block.lines if line.unpaired and line.strategy != BASELINE]
    if lines and not any(line.strategy == BASELINE for block in blocks for line in block.lines):
        hint = f"the same grid with strategy.name={BASELINE} adds them"
        return [f"ΔAUC is unknown: there is no finished cell of {BASELINE}; {hint}."]
    return [_partner_note(block.title if len(blocks) > 1 else "", line) for block, line in lines]


def _partner_note(title: str, line: Line) -> str:
    where, num = f"{title}: " if title else "", len(line.cells)
    reasons: dict[str, list[int]] = {}
    for seed, why in line.unpaired:
        reasons.setdefault(why, []).append(seed)
    parts = "; ".join(f"{why} for {seeds_text(seeds)}" for why, seeds in reasons.items())
    kept = f"is over {num - len(line.unpaired)} of {num} cells" if len(line.unpaired) < num else "is unknown"
    return f"{where}ΔAUC of {line.label} {kept}: {parts}."


def missing(frame: Frame) -> list[str]:
    """Lines on cells that are not done, results of different code, data or trace, and records with a contradiction.

    Of many copies the first three have a line of their own.
    """
    named = frame[~frame["status"].isin(["done", "copy"])]
    rows = named[["status", "cell", "failure"]].astype(object).fillna("").itertuples(index=False)
    lines = [f"{status}: {cell}" + (f": {failure}" if failure else "") for status, cell, failure in rows]
    lines += copies(frame)
    codes = frame.loc[frame["status"] == "done", "code"].fillna("code not recorded").value_counts(sort=False)
    if len(codes) > 1:
        counts = ", ".join(
            f"{count} by {code}" for code, count in codes.sort_values(ascending=False, kind="stable").items()
        )
        lines.append(
            f"mixed: {counts}: these results were computed by different code; the grid's command, with `plugins` and "
            "all strategies, makes them equal"
        )
    lines += content_notes(frame)
    disagreeing = frame.loc[frame["disagreement"].notna(), ["cell", "disagreement"]]
    return lines + [f"disagrees: {cell}: {problem}" for cell, problem in disagreeing.itertuples(index=False)]


def copies(*frames: "pd.DataFrame") -> list[str]:
    """Lines on older runs of cells, which do not count: the first three are named, the others counted."""
    each = [frame.loc[frame["status"] == "copy", ["cell", "failure"]] for frame in frames]
    lines = [f"copy: {cell}: {why}" for own in each for cell, why in own.itertuples(index=False)]
    num_more = len(lines) - _MOST_COPIES
    more = [f"copy: {num_more} more older runs of cells that have a newer result"] if num_more > 0 else []
    return lines[:_MOST_COPIES] + more


def damaged_cells(*frames: "pd.DataFrame") -> list[str]:
    """One line for each damaged cell: the file, and what is wrong with it."""
    return [failure for frame in frames for failure in frame.loc[frame["status"] == "damaged", "failure"]]
