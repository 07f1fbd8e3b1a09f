"""Paired differences between folders, or between strategies of one folder: runs with equal keys are paired."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from analysis.load import CONTENTS, Frame, content_notes, load, plain, swept_keys
from analysis.stats import (
    AUC,
    BASELINE,
    DRAWN,
    SETTING,
    Estimate,
    Measure,
    cells_text,
    conditions,
    draws,
    estimate_pairs,
    numbers,
    relevant_to_none,
    seeds_text,
    setting_text,
    strategy_order,
)
from analysis.tables.builder import (
    HINT,
    Heading,
    Shown,
    chosen,
    latex_table,
    markdown_table,
    of_some,
    rich_table,
    show_interval,
)
from analysis.tables.columns import COLUMNS
from analysis.tables.notes import copies, damaged_cells
from analysis.tables.strategies import Format
from harness.core.errors import StoreError, UserError
from harness.record.rundir import differing_keys, find_runs, read_config

if TYPE_CHECKING:
    import pandas as pd

METRICS: dict[str, tuple[str, float, int]] = {
    "auc": ("ΔAUC\n10⁻³", 1e3, 3),
    "drop": ("Δdrop\n10⁻³", 1e3, 3),
    "log_loss": ("Δlog loss\n10⁻³", 1e3, 3),
    "pls": ("ΔPLS\n%", 100, 2),
    "update_pls": ("Δupdates lost\n%", 100, 2),
    "update_pls_tracked": ("…of tracked\n%", 100, 2),
    "payload_bytes": ("Δwritten\nMB", 1e-6, 1),
    "overhead_frac": ("Δoverhead\nemulated, %", 100, 2),
    "stall_s": ("Δstall\nmeasured, s", 1, 2),
}
"""By column of ``load``: heading, factor and digits of the difference."""
_ON_REQUEST = {
    "movement": ("Δmovement", 1, 4),
    "ne": ("ΔNE\n10⁻³", 1e3, 3),
    "hours_to_samples": ("Δhours to\nsamples", 1, 2),
    "hours_to_auc": ("Δhours to\nAUC", 1, 2),
}
"""As ``METRICS``, of measures that are compared only on request."""

_NAMES = {column.of: column.name for column in COLUMNS if column.of}
"""The name of a difference on the command line, that of its column in the table of strategies."""

_MAX_RATIO = 99  # a larger ratio is no evidence but a constant: the difference hardly depends on the seed
_LEGEND = (
    "Paired by seed; ± half of the 95 % confidence interval (Student's t; ? with one pair), also for new traces where "
    "there are several; below it the mean in standard errors. No spread: all pairs have about the same difference, so "
    "that a standard error is below 1 % of the mean."
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Paired differences of the cells of one group: ``other`` less ``base``, by column of ``METRICS``.

    ``base``, ``other``: the two folders; or, for strategies of one folder, ``STRATEGY in FOLDER`` and the folder.
    ``group``: strategy and values of the keys that vary, as text. ``pairs``: a row for each pair, with the columns of
    ``load`` of the other cell, and with the base cell's columns under names that end in `` base``.
    """

    base: str
    other: str
    group: str
    pairs: Frame
    differences: dict[str, Estimate | None]
    num_equal: int
    """Number of pairs whose final models are equal to the bit: all parameters, and AUC."""


def _equal(found: Sequence[Comparison]) -> Iterator[Text]:
    """A line on the pairs with equal final models, if there are any."""
    if parts := [f"{item.group or 'pairs'} {item.num_equal} of {len(item.pairs)}" for item in found if item.num_equal]:
        yield Text(f"Final models equal to the bit: {'; '.join(parts)}.")


def show_comparison(
    dirs: Sequence[Path | str],
    to: str | None = None,
    *,
    measure: Measure = AUC,
    columns: Sequence[str] = (),
    explain: bool = False,
) -> Shown:
    """:func:`comparisons` as tables; of folders each with the config keys in which the two differ.

    ``columns``: names of the differences to show, in order; empty for all that have room. Raises as ``comparisons``,
    UserError for an unknown name, and StoreError if a config cannot be read.
    """
    frames = [load(path, copies=True, targets=measure.targets) for path in dirs]
    found = comparisons(dirs, to, frames, measure)
    parts: list[RenderableType] = []
    for other in dict.fromkeys(item.other for item in found):
        items = [item for item in found if item.other == other]
        title = f"{other} less {found[0].base}" if to is None else f"strategies of {other} less {to}"
        parts += [rich_table(*_rounded(items, _with_ratio, columns), title), *_equal(items)]
        if to is not None:
            parts += map(Text, _alone(_done(frames[0]), items, to))
            continue
        parts.append(Text(_config_difference(items), style="dim"))
        of_both = zip((found[0].base, other), (frames[0], frames[[*map(str, dirs)].index(other, 1)]), strict=True)
        for column, (folder, frame) in zip(("path base", "path"), of_both, strict=True):
            done = _done(frame)
            alone = done[~done["path"].isin([path for item in items for path in item.pairs[column]])]
            if len(alone):
                parts.append(Text(f"{folder}: {len(alone)} of {len(done)} cells have no partner: {cells_text(alone)}."))
    return Shown(*parts, Text(_LEGEND if explain else HINT, style="dim"), *_left_out(frames))


def comparison_text(found: Sequence[Comparison], kind: Format, *, columns: Sequence[str] = ()) -> str:
    """Comparisons as text: :func:`compare` as CSV, or a LaTeX or Markdown table of rounded means with intervals.

    ``columns``: names of the differences of such a table, in order; empty for all. Raises UserError for an unknown one.
    A table of strategies of one folder does not name the folder; its column ``base`` has the strategy alone.
    """
    if kind == "csv":
        if columns:
            raise UserError("--columns: expected --format latex or markdown, or none; a CSV file has all columns")
        return _frame(found).to_csv(index=False)
    headings, rows = _rounded(found, show_interval, columns)
    sides = {"base": [item.base for item in found], "other": [item.other for item in found]}
    if all(item.base.endswith(f" in {item.other}") for item in found):
        sides = {"base": [item.base.removesuffix(f" in {item.other}") for item in found]}
    headings = [*(Heading(side, is_text=True) for side in sides), *headings]
    rows = [[*own, *row] for *own, row in zip(*sides.values(), rows, strict=True)]
    return markdown_table(headings, rows) if kind == "markdown" else latex_table(headings, rows)


def _rounded(
    found: Sequence[Comparison], text_of: Callable[..., str], names: Sequence[str] = ()
) -> tuple[list[Heading], list[list[str]]]:
    """Headings and rows of a table: group, number of pairs, and each difference as ``text_of`` shows it.

    A number in brackets: the pairs that have the difference, if not all pairs have it.

    ``names``: of the differences to show (``_NAMES``), in order; empty for all. Raises UserError for an unknown one.
    """
    known = [name for name in (found[0].differences if found else METRICS) if any(e.differences[name] for e in found)]
    metrics = {column: (METRICS | _ON_REQUEST)[column] for column in known}
    kept = {*known[:1], "overhead_frac"}  # longest, on a narrow console
    by_name = {_NAMES.get(column, column): column for column in metrics}
    own = chosen(
        [Heading(metrics[each][0], key=name, order=2 - (each in kept)) for name, each in by_name.items()], names
    )
    shown = [(column, *metrics[column][1:]) for column in (by_name[heading.name] for heading in own)]
    rows = [
        [
            *(item.group or "seed", str(len(item.pairs))),
            *(
                of_some(
                    text_of(item.differences[each], scale=scale, digits=digits, signed=True),
                    int((item.pairs[each].notna() & item.pairs[f"{each} base"].notna()).sum()),
                    len(item.pairs),
                )
                for each, scale, digits in shown
            ),
        ]
        for item in found
    ]
    return [Heading("pairs of", is_text=True), Heading("n"), *own], rows


def compare(dirs: Sequence[Path | str], to: str | None = None) -> "pd.DataFrame":
    """:func:`comparisons` as a frame, a row for each. Raises the same errors.

    A difference has its mean under the name of its column of ``load``, the rest under ``*_half_width`` and
    ``*_standard_error``.
    """
    return _frame(comparisons(dirs, to))


def _frame(found: Sequence[Comparison]) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    rows = [
        {
            "base": item.base,
            "other": item.other,
            "group": item.group,
            "num": len(item.pairs),
            "num_equal": item.num_equal,
        }
        | numbers(item.differences, has_error=True)
        for item in found
    ]
    return pd.DataFrame(rows)


def _alone(cells: Frame, found: Sequence[Comparison], baseline: str) -> Iterator[str]:
    """A line for each strategy with unpaired cells, or without a seed that ``baseline`` has, with these seeds."""
    is_paired = cells["path"].isin([path for item in found for path in item.pairs["path"]])
    base_seeds = {*cells.loc[cells["strategy"] == baseline, "seed"]}
    for strategy in sorted({*cells["strategy"]} - {baseline}, key=strategy_order):
        own = cells[cells["strategy"] == strategy]
        alone = [*own.loc[~is_paired, "seed"]]
        parts = [f"{baseline} has no result, or several, of the same setting for {seeds_text(alone)}"] if alone else []
        if lacking := base_seeds - {*own["seed"]}:
            parts.append(f"{strategy} has no result for {seeds_text(lacking)}")
        if parts:
            yield f"{strategy}: {len(own) - len(alone)} of {len(own)} cells have a partner: {'; '.join(parts)}."


def comparisons(
    dirs: Sequence[Path | str],
    to: str | None = None,
    frames: "Sequence[pd.DataFrame] | None" = None,
    measure: Measure = AUC,
) -> list[Comparison]:
    """Compare the first folder with each other one; or, with ``to``, the other strategies of one folder with this one.

    Of folders, the cells of a pair have equal seeds, and equal values of the keys that vary inside a folder. A swept
    key that does not vary in the first folder is not matched: each of its values is compared with the first folder.

    Of strategies, the cells of a pair have equal seed, engine, trace, profile and number of PS ranks; with ``none``,
    which does not depend on engine, trace and profile, these may differ. If ``to`` ran with several values of another
    key, the cell with most values in common is the partner. If there are several such cells with different AUC, each
    one is a partner if they differ in options that the other strategy lacks (``group`` names these), else none is.

    ``frames``: the folders' frames, if already loaded. ``measure``: the first of the differences.

    Raises:
        UserError: fewer than two folders, or two without a pair of finished cells; with ``to`` several folders, or one
            where ``to``, or every other strategy, has no finished cell.
        StoreError: a folder without a run; or no such cells, and there are damaged ones: the first is named.
    """
    if to is not None and len(dirs) != 1:
        raise UserError(f"--to: expected one folder, whose strategies are compared; got {len(dirs)}")
    if to is None and len(dirs) < 2:
        raise UserError(f"compare: expected two or more folders, or one folder and --to STRATEGY; got {len(dirs)}")
    frames = frames or [load(path, copies=True, targets=measure.targets) for path in dirs]
    return _of_folders(dirs, frames, measure) if to is None else _of_strategies(dirs[0], to, frames[0], measure)


def _of_folders(dirs: Sequence[Path | str], frames: "Sequence[pd.DataFrame]", measure: Measure) -> list[Comparison]:
    keys = _matched_keys(frames)
    base, *others = (_done(frame) for frame in frames)
    matched = [key for key in keys if key in base]
    found: list[Comparison] = []
    for path, frame, cells in zip(dirs[1:], frames[1:], others, strict=True):
        pairs = _merged(base, cells, matched)
        if pairs.empty:
            _refuse_damaged(frames[0], frame)
            raise UserError(
                f"{dirs[0]} and {path}: expected finished cells with equal {', '.join(keys)}; found no pair"
            )
        pairs["group"] = [*conditions(pairs, keys[1:]).fillna("null").astype(str).itertuples(index=False, name=None)]
        groups = [(group, own) for group, own in pairs.groupby("group", sort=False)]
        groups.sort(key=lambda item: (strategy_order(item[1]["strategy base"].iloc[0]), item[0]))
        found += [_compare(str(dirs[0]), str(path), words, own, measure) for words, own in groups]
    return found


def _of_strategies(path: Path | str, baseline: str, frame: "pd.DataFrame", measure: Measure) -> list[Comparison]:
    cells = _done(frame)
    bases = cells[cells["strategy"] == baseline]
    if bases.empty:
        _refuse_damaged(frame)
        there = ", ".join(sorted({*cells["strategy"]}, key=strategy_order)) or "none"
        raise UserError(f"{path}: no finished cell of strategy {baseline}; finished there: {there}")
    if len(bases) == len(cells):
        _refuse_damaged(frame)
        raise UserError(f"{path}: expected a finished cell of another strategy than {baseline}, got none")
    swept = [key for key in cells if "." in key]
    options = [key for key in swept if key.startswith("strategy.")]
    relevant = relevant_to_none if baseline == BASELINE else list[str]
    pairs = _merged(bases, cells[cells["strategy"] != baseline], ["seed", *relevant(SETTING)], relevant(CONTENTS))
    pairs = _nearest(pairs, [*SETTING, *swept], options)
    has_engines = cells["engine"].nunique() > 1
    pairs["group"] = [
        (
            cell["strategy"],
            *(setting_text({key: cell[key]}) for key in swept if key not in DRAWN and cell[key] is not None),
            *([cell["option"]] if cell["option"] else []),
            *([cell["engine"]] * has_engines),
        )
        for cell in pairs.to_dict("records")
    ]
    groups = sorted(pairs.groupby("group"), key=lambda item: (strategy_order(item[0][0]), item[0]))
    return [_compare(f"{baseline} in {path}", str(path), words, own, measure) for words, own in groups]


def _merged(base: Frame, other: Frame, keys: Sequence[str], contents: Collection[str] = CONTENTS) -> Frame:
    """Pairs of a ``base`` and an ``other`` cell with equal ``keys``, as in ``Comparison.pairs``.

    Pairs whose digests differ are left out if a column of ``contents`` has a value for one of the two cells.
    """
    right = other.reindex(columns=[*dict.fromkeys((*other, *base))])
    pairs = plain(
        base.astype(object)
        .add_suffix(" base")
        .merge(right.astype(object), left_on=[f"{key} base" for key in keys], right_on=[*keys])
    )
    for key, column in CONTENTS.items():
        told = [name for name in (key, f"{key} base") if key in contents and name in pairs]
        is_equal = pairs[column].fillna("") == pairs[f"{column} base"].fillna("")
        pairs = pairs[is_equal | pairs[told].isna().all(axis=1)]
    return pairs.copy()  # in one piece


def _nearest(pairs: Frame, keys: Sequence[str], options: Sequence[str]) -> Frame:
    """For each cell, the pair with most values of ``keys`` in common; a new column ``option`` is empty.

    If a cell has several such pairs with different AUC, all stay if they differ in ``options`` that the cell lacks, and
    ``option`` names these; otherwise none stays.
    """
    pairs = pairs.assign(common=0)
    for key in keys:
        pairs["common"] += pairs[key].eq(pairs[f"{key} base"]) | pairs[[key, f"{key} base"]].isna().all(axis=1)
    pairs = pairs[pairs["common"] == pairs.groupby("path")["common"].transform("max")]
    bases = ["auc base", *(f"{key} base" for key in options)]
    several = pairs.groupby("path")[bases].transform("nunique", dropna=False) > 1
    told = (
        several[bases[1:]].to_numpy(bool) & several[["auc base"]].to_numpy() & pairs[[*options]].isna().to_numpy(bool)
    )
    values = zip(told.tolist(), pairs[bases[1:]].to_numpy().tolist(), strict=True)
    words = [
        setting_text({key: value for key, is_told, value in zip(options, *row, strict=True) if is_told})
        for row in values
    ]
    pairs = pairs.assign(option=[text and f"to {text}" for text in words])
    same = pairs.groupby(["path", "option"], sort=False)
    return pairs[(same["auc base"].transform("nunique", dropna=False) == 1) & (same.cumcount() == 0)]


def _done(frame: Frame) -> Frame:
    return frame[frame["status"] == "done"]


def _refuse_damaged(*frames: "pd.DataFrame") -> None:
    if lines := damaged_cells(*frames):
        more = f" (and {len(lines) - 1} more damaged cells)" if len(lines) > 1 else ""
        raise StoreError(lines[0] + more)


def _matched_keys(frames: "Sequence[pd.DataFrame]") -> list[str]:
    """The seed, and the strategy, columns of ``SETTING`` and swept keys that have several values inside a folder."""
    keys = [key for key in ("strategy", *SETTING) if any(frame[key].nunique(dropna=False) > 1 for frame in frames)]
    swept = dict.fromkeys(key for frame in frames for key in frame.columns if "." in key and key not in CONTENTS)
    return ["seed", *keys, *swept]


def _compare(base: str, other: str, group: Sequence[str], pairs: Frame, measure: Measure) -> Comparison:
    metrics = dict.fromkeys((measure.name, *METRICS))
    if measure.in_hours:  # jobs of unequal hours have no difference
        is_known = pairs["job_h"] == pairs["job_h base"]
        pairs = pairs.assign(**{measure.name: pairs[measure.name].where(is_known)})
    of_pairs = pairs[["seed"]].assign(draw=draws(pairs))
    each = {metric: of_pairs.assign(difference=pairs[metric] - pairs[f"{metric} base"]) for metric in metrics}
    differences = {
        metric: estimate_pairs(own.dropna(subset="difference"), "difference") for metric, own in each.items()
    }
    is_equal = pairs["model_digest"].eq(pairs["model_digest base"]) & pairs["auc"].eq(pairs["auc base"])
    return Comparison(base, other, ", ".join(group), pairs, differences, int(is_equal.sum()))


def _left_out(frames: "Sequence[pd.DataFrame]") -> list[Text]:
    notes = [line for frame in frames for line in content_notes(frame)]
    lines = [f"left out, damaged: {line}" for line in damaged_cells(*frames)]
    lines += [f"left out, {line}" for line in copies(*frames)]
    return [Text(line, style="red") for line in (*lines, *notes)]


def _with_ratio(value: Estimate | None, **look: Any) -> str:
    interval = show_interval(value, **look)
    if value is None or value.ratio is None:
        return interval
    ratio = f"{value.ratio:+.1f} se".replace("-", "−") if abs(value.ratio) < _MAX_RATIO else "no spread"
    return f"{interval}\n{ratio}"


def _config_difference(found: Sequence[Comparison]) -> str:
    """A sentence: the config keys in which the cells of pairs differ, except those that vary inside a folder."""
    left, right = (_configs(Path(folder)) for folder in (found[0].base, found[0].other))
    inside = {*swept_keys(left), *swept_keys(right), "seed"}
    pairs = [item.pairs.iloc[0] for item in found]
    both = [[read_config(Path(pair[column])) for column in ("path base", "path")] for pair in pairs]
    keys = dict.fromkeys(key for one, other in both for key in differing_keys(one, other) if key not in inside)
    names = [*keys, *_changed_contents(pairs)]
    return f"Config keys that differ: {', '.join(names)}." if names else "Their configs are equal."


def _changed_contents(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Words for the inputs (data, trace) that have different contents under one name in some pair."""
    for name in ("data", "trace"):
        digests = f"{name}_digest", f"{name}_digest base"
        if any(p[name] == p[f"{name} base"] and len({p[each] for each in digests} - {None}) == 2 for p in pairs):
            yield f"the content of {name} (under the same path)"


def _configs(folder: Path) -> list[dict[str, Any]]:
    """The readable configs of the runs in a folder."""
    configs: list[dict[str, Any]] = []
    for path in find_runs(folder):
        with suppress(StoreError):
            configs.append(read_config(path))
    return configs
