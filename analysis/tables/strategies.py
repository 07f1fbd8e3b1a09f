"""The table of strategies: on the console, as a frame, and as text for papers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from rich.text import Text

from analysis.stats import (
    AUC,
    BASELINE,
    SETTING,
    Block,
    Measure,
    blocks_of,
    equal_runs,
    numbers,
    sample_equivalent,
    strategy_order,
)
from analysis.tables.builder import HINT, Heading, Shown, chosen, latex_table, markdown_table, rich_table
from analysis.tables.columns import COLUMNS, content, is_swept
from analysis.tables.notes import footnotes, missing
from harness.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "latex", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)
_MOST_AXES = 2  # of a sweep that have a column each


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
    usual = [blocks[0].measure.name, *usual] if blocks[0].measure.in_hours else usual
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
