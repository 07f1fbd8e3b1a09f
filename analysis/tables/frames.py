"""The table of strategies and comparisons as pandas frames: numbers for further work, and text for papers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from analysis.stats import RESOURCES, SETTING, Estimate, blocks_of
from analysis.tables.builder import show_interval
from analysis.tables.comparisons import METRICS, Comparison, comparisons, comparisons_to
from analysis.tables.strategies import content
from harness.core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "latex", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)


def table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """A row per setting and strategy of a frame made by ``load``: the setting, numbers of cells and pairs, estimates.

    An estimate has the mean over seeds under its column of ``load`` (``auc_difference``: AUC minus that of ``none``,
    paired by seed; ``save_frac``: hours by ``job_h``), and half of its 95 % confidence interval under
    ``*_half_width``. Units are those of ``load``. Unknown is NaN. Node-hours, bytes on the wire and memory have columns
    where a profile has prices.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    rows: list[dict[str, Any]] = []
    blocks = blocks_of(frame)
    left_out = set(RESOURCES).difference(*(block.resources for block in blocks))
    for block in blocks:
        for line in block.lines:
            shown = {name: value for name, value in line.estimates.items() if name not in left_out}
            estimates = {"auc_difference": line.auc_difference, **shown}
            rows.append(
                {
                    **block.setting,
                    "strategy": line.label,
                    "num": len(line.cells),
                    "num_pairs": len(line.pairs),
                    **_numbers(estimates),
                }
            )
    return pd.DataFrame(rows, columns=None if rows else [*SETTING, "strategy", "num", "num_pairs"])


def compare(dirs: Sequence[Path | str]) -> "pd.DataFrame":
    """A row per Comparison of ``comparisons``, with ``*_half_width`` and ``*_standard_error``; same errors."""
    return _comparison_frame(comparisons(dirs))


def compare_to(path: Path | str, baseline: str) -> "pd.DataFrame":
    """As :func:`compare`, of ``comparisons_to``; same errors."""
    return _comparison_frame(comparisons_to(path, baseline))


IN_A_PAPER = ("strategy", "n", "delta_auc", "log_loss", "pls", "updates", "total", "written")
"""Columns of the console's table that a LaTeX table has, unless others are named."""


def table_text(
    frame: "pd.DataFrame",
    kind: Format,
    *,
    columns: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    caption: str | None = None,
) -> str:
    """The table of strategies: as CSV :func:`table`, else the console's table with its rounded numbers.

    ``columns``: names of the columns to show, in order (default: all; of a LaTeX table ``IN_A_PAPER``). ``labels``:
    what strategies are called. ``caption``: of a LaTeX table, which is then a float with the label ``tab:strategies``.

    Raises UserError for a column that the table has not, or an option that the format has not.
    """
    if kind == "csv" and (columns or labels):
        raise UserError("--columns, --labels: expected --format latex or markdown; a CSV file has all columns")
    if kind != "latex" and caption is not None:
        raise UserError("--caption: expected --format latex")
    if kind == "csv":
        return table(frame).to_csv(index=False)
    import pandas as pd  # noqa: PLC0415 - as above

    blocks = blocks_of(frame)
    rows: list[dict[str, str]] = []
    for block in blocks:
        headings, lines = content(block, columns or (IN_A_PAPER if kind == "latex" else ()))
        names = [(each.short or each.title).replace("\n", " ") for each in headings]
        setting = {"setting": block.title} if len(blocks) > 1 else {}
        rows += [setting | dict(zip(names, cells, strict=True)) for cells in lines]
    shown = pd.DataFrame(rows).fillna("").replace({"strategy": labels or {}})
    return _markdown(shown) if kind == "markdown" else _latex(shown, caption)


def comparison_text(found: Sequence[Comparison], kind: Format) -> str:
    """Comparisons: as CSV the frame of :func:`compare`, else mean ± half of the 95 % interval, rounded."""
    if kind == "csv":
        return _comparison_frame(found).to_csv(index=False)
    import pandas as pd  # noqa: PLC0415 - as above

    rows: list[dict[str, str]] = []
    for item in found:
        row = {"base": item.base, "other": item.other, "pairs of": item.group or "seed", "n": str(item.num_pairs)}
        for name, (title, scale, digits) in METRICS.items():
            row[title.replace("\n", " ")] = show_interval(
                item.differences[name], scale=scale, digits=digits, signed=True
            )
        rows.append(row)
    return _TEXTS[kind](pd.DataFrame(rows))


_COMPARED = ["base", "other", "group", "num"]


def _comparison_frame(found: Sequence[Comparison]) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415 - as above

    rows = [
        {
            **dict(zip(_COMPARED, (item.base, item.other, item.group, item.num_pairs), strict=True)),
            **_numbers(item.differences, has_error=True),
        }
        for item in found
    ]
    return pd.DataFrame(rows, columns=None if rows else _COMPARED)


def _numbers(estimates: Mapping[str, Estimate | None], *, has_error: bool = False) -> dict[str, float]:
    nan = float("nan")
    numbers: dict[str, float] = {}
    for name, value in estimates.items():
        numbers[name] = nan if value is None else value.mean
        numbers[f"{name}_half_width"] = nan if value is None or value.half_width is None else value.half_width
        if has_error:
            error = None if value is None else value.standard_error
            numbers[f"{name}_standard_error"] = nan if error is None else error
    return numbers


_TEXT_COLUMNS = ("setting", "strategy", "base", "other", "pairs of")


def _markdown(frame: "pd.DataFrame") -> str:
    rule = ["---" if name in _TEXT_COLUMNS else "---:" for name in frame.columns]
    rows = [list(frame.columns), rule, *frame.to_numpy().tolist()]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


_SYMBOLS = {
    "±": r"$\pm$",
    "−": "$-$",
    "Δ": r"$\Delta$",
    "10⁻³": "$10^{-3}$",
    "–": "--",
    "†": r"\dag{}",
    "…": r"\ldots{}",
}


def _latex(frame: "pd.DataFrame", caption: str | None = None) -> str:
    """For the package booktabs; plain ASCII where the cells have no other letters. ``caption`` is LaTeX."""
    alignment = "".join("l" if name in _TEXT_COLUMNS else "r" for name in frame.columns)
    label = None if caption is None else "tab:strategies"
    text = frame.to_latex(index=False, escape=True, column_format=alignment, caption=caption, label=label)
    for symbol, command in _SYMBOLS.items():
        text = text.replace(symbol, command)
    return text


_TEXTS: dict[str, Callable[["pd.DataFrame"], str]] = {"markdown": _markdown, "latex": _latex}
