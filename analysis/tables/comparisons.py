"""Paired differences between folders: keys that vary inside the folders are matched."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from analysis.load import CONTENTS, Cell, cells_of, content_notes, contents_agree, load, swept_keys
from analysis.stats import SETTING, Estimate, cells_text, condition, estimate, seeds_text, setting_text, strategy_order
from analysis.tables.builder import HINT, Heading, Shown, latex_table, markdown_table, rich_table, show_interval
from analysis.tables.strategies import Format, damaged_cells, numbers
from harness.core.errors import StoreError, UserError
from harness.record.rundir import differing_keys, find_runs, read_config

if TYPE_CHECKING:
    import pandas as pd

METRICS: dict[str, tuple[str, float, int]] = {
    "auc": ("ΔAUC\n10⁻³", 1e3, 3),
    "log_loss": ("Δlog loss\n10⁻³", 1e3, 3),
    "pls": ("ΔPLS\n%", 100, 2),
    "update_pls": ("Δupdates lost\n%", 100, 2),
    "update_pls_tracked": ("…of tracked\n%", 100, 2),
    "payload_bytes": ("Δwritten\nMB", 1e-6, 1),
    "overhead_frac": ("Δoverhead\nemulated, %", 100, 2),
    "stall_s": ("Δstall\nmeasured, s", 1, 2),
}
"""Column: heading, scale and digits."""

_EQUAL = ("seed", *SETTING)  # columns in which a cell and its partner in the same folder are equal
_MAX_RATIO = 99  # larger ratios are not shown: the difference hardly depends on the seed
_LEGEND = (
    "Paired by seed; ± half of the 95 % confidence interval (Student's t; ? with one pair); below it the mean in "
    "standard errors."
)

Pair = tuple[Cell, Cell]


@dataclass(frozen=True)
class Comparison:
    """Differences of folder ``other`` from folder ``base``: a pair is a cell of each with equal seed and ``group``.

    ``group``: the strategy, and the values of the other keys that vary in the folders.
    """

    base: str
    other: str
    group: str
    num_pairs: int
    differences: dict[str, Estimate | None]
    pairs: tuple[Pair, ...] = ()


def show_comparison(dirs: Sequence[Path | str], *, explain: bool = False) -> Shown:
    """:func:`comparisons` as tables, each with the config keys in which the two folders differ; same errors."""
    frames = [load(path) for path in dirs]
    found = comparisons(dirs, frames)
    parts: list[RenderableType] = []
    for other in dict.fromkeys(item.other for item in found):
        title = f"{other} less {found[0].base}"
        items = [item for item in found if item.other == other]
        parts.append(_table(items, title))
        parts.append(Text(_config_difference(items), style="dim"))
        of_both = zip((found[0].base, other), (frames[0], frames[[*map(str, dirs)].index(other, 1)]), strict=True)
        pairs = [pair for item in items for pair in item.pairs]
        for place, (folder, frame) in enumerate(of_both):
            paired = {pair[place]["path"] for pair in pairs}
            done = _done(frame)
            if alone := [cell for cell in done if cell["path"] not in paired]:
                parts.append(Text(f"{folder}: {len(alone)} of {len(done)} cells have no partner: {cells_text(alone)}."))
    return Shown(*parts, _legend(explain), *_left_out(frames))


def show_comparison_to(path: Path | str, baseline: str, *, explain: bool = False) -> Shown:
    """:func:`comparisons_to` as a table; same errors."""
    frame = load(path)
    found = comparisons_to(path, baseline, frame)
    table = _table(found, f"strategies of {path} less {baseline}")
    return Shown(table, *map(Text, _alone(_done(frame), found, baseline)), _legend(explain), *_left_out([frame]))


def _legend(explain: bool) -> Text:
    return Text(_LEGEND if explain else HINT, style="dim")


def comparison_text(found: Sequence[Comparison], kind: Format) -> str:
    """Comparisons: as CSV the frame of :func:`compare`, else mean ± half of the 95 % interval, rounded."""
    if kind == "csv":
        return _frame(found).to_csv(index=False)
    texts = [Heading(name, is_text=True) for name in ("base", "other", "pairs of")]
    headings = [*texts, Heading("n"), *(Heading(title) for title, _, _ in METRICS.values())]
    rows = [
        [
            *(item.base, item.other, item.group or "seed", str(item.num_pairs)),
            *(
                show_interval(item.differences[name], scale=scale, digits=digits, signed=True)
                for name, (_, scale, digits) in METRICS.items()
            ),
        ]
        for item in found
    ]
    return markdown_table(headings, rows) if kind == "markdown" else latex_table(headings, rows)


def compare(dirs: Sequence[Path | str]) -> "pd.DataFrame":
    """A row per Comparison of ``comparisons``, with ``*_half_width`` and ``*_standard_error``; same errors."""
    return _frame(comparisons(dirs))


def compare_to(path: Path | str, baseline: str) -> "pd.DataFrame":
    """The frame of ``comparisons_to``, with the columns and errors of :func:`compare`."""
    return _frame(comparisons_to(path, baseline))


def _frame(found: Sequence[Comparison]) -> "pd.DataFrame":
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    rows = [
        {"base": item.base, "other": item.other, "group": item.group, "num": item.num_pairs}
        | numbers(item.differences, has_error=True)
        for item in found
    ]
    return pd.DataFrame(rows)


def _alone(cells: Sequence[Cell], found: Sequence[Comparison], baseline: str) -> Iterator[str]:
    """A line for each strategy that lacks pairs with ``baseline``: the seeds that either has alone."""
    pairs = [pair for item in found for pair in item.pairs]
    base_seeds = {cell["seed"] for cell in cells if cell["strategy"] == baseline}
    for strategy in sorted({cell["strategy"] for cell in cells} - {baseline}, key=strategy_order):
        own = [cell for cell in cells if cell["strategy"] == strategy]
        paired = {cell["path"] for _, cell in pairs}
        alone = [cell["seed"] for cell in own if cell["path"] not in paired]
        parts = [f"{baseline} has no result, or several, of the same setting for {seeds_text(alone)}"] if alone else []
        if lacking := base_seeds - {cell["seed"] for cell in own}:
            parts.append(f"{strategy} has no result for {seeds_text(lacking)}")
        if parts:
            yield f"{strategy}: {len(own) - len(alone)} of {len(own)} cells have a partner: {'; '.join(parts)}."


def comparisons(dirs: Sequence[Path | str], frames: "Sequence[pd.DataFrame] | None" = None) -> list[Comparison]:
    """The first folder against each other one, in pairs of equal seed and equal values of the keys that vary inside.

    A config key that varies only in the other folder is not matched: the first folder is compared with each value.
    ``frames``: the folders' frames, if already loaded.

    Raises:
        UserError: fewer than two folders, or two without a pair of finished cells.
        StoreError: a folder without a run; or no pair, and there are damaged cells: the first is named.
    """
    if len(dirs) < 2:
        raise UserError(f"compare: expected two or more folders, or one folder and --to STRATEGY; got {len(dirs)}")
    frames = frames or [load(path) for path in dirs]
    keys = _matched_keys(frames)
    base, *others = (_done(frame) for frame in frames)
    found: list[Comparison] = []
    for path, frame, cells in zip(dirs[1:], frames[1:], others, strict=True):
        groups: dict[tuple[str, ...], list[Pair]] = {}
        by_seed = _grouped(cells, "seed")
        for left in base:
            for right in by_seed.get((left["seed"],), ()):
                if contents_agree(left, right) and all(left[key] == right.get(key) for key in keys if key in left):
                    group = tuple(_text(condition(right, key)) for key in keys if key != "seed")
                    groups.setdefault(group, []).append((left, right))
        if not groups:
            _refuse_damaged(frames[0], frame)
            raise UserError(
                f"{dirs[0]} and {path}: expected finished cells with equal {', '.join(keys)}; found no pair"
            )
        named = sorted(groups.items(), key=lambda item: (strategy_order(item[1][0][1]["strategy"]), item[0]))
        found += [_compare(str(dirs[0]), str(path), words, pairs) for words, pairs in named]
    return found


def comparisons_to(path: Path | str, baseline: str, frame: "pd.DataFrame | None" = None) -> list[Comparison]:
    """Every other strategy of one folder against ``baseline``, in pairs of equal seed, engine, trace and profile.

    Keys that vary for only one of the two strategies are not matched; if the baseline ran with several values of such a
    key, the cell with most values in common is the partner. Of several such cells with other results each is, where
    they differ in options that the other strategy lacks, and the group says in which; otherwise none is.
    ``frame``: the folder's frame, if already loaded.

    Raises UserError if ``baseline``, or every other strategy, has no finished cell; StoreError if there are damaged
    cells then, which names the first, and for a folder without a run.
    """
    frame = load(path) if frame is None else frame
    cells = _done(frame)
    bases = [cell for cell in cells if cell["strategy"] == baseline]
    if not bases:
        _refuse_damaged(frame)
        there = ", ".join(sorted({cell["strategy"] for cell in cells}, key=strategy_order)) or "none"
        raise UserError(f"{path}: no finished cell of strategy {baseline}; finished there: {there}")
    if len(bases) == len(cells):
        _refuse_damaged(frame)
        raise UserError(f"{path}: expected a finished cell of another strategy than {baseline}, got none")
    swept = [key for key in cells[0] if "." in key]
    has_engines = len({cell["engine"] for cell in cells}) > 1
    groups: dict[tuple[str, ...], list[Pair]] = {}
    by_setting = _grouped(bases, *_EQUAL)
    for cell in cells:
        candidates = by_setting.get(tuple(cell[key] for key in _EQUAL), ())
        partners = [base for base in candidates if contents_agree(base, cell)]
        for partner, option in _nearest(cell, partners, swept) if cell["strategy"] != baseline else ():
            own = ({key: cell[key]} for key in swept if cell[key] is not None)
            words = [cell["strategy"], *map(setting_text, own), *option]
            groups.setdefault((*words, *([cell["engine"]] * has_engines)), []).append((partner, cell))
    ordered = sorted(groups.items(), key=lambda item: (strategy_order(item[0][0]), item[0]))
    return [_compare(f"{baseline} in {path}", str(path), words, pairs) for words, pairs in ordered]


def _nearest(cell: Cell, partners: Sequence[Cell], keys: Sequence[str]) -> Iterator[tuple[Cell, list[str]]]:
    """The partner with most values of ``keys`` in common; several if they differ in options, with these in words."""
    common = [sum(partner[key] == cell[key] for key in keys) for partner in partners]
    nearest = [partner for partner, num in zip(partners, common, strict=True) if num == max(common)]
    options: list[str] = []
    if len({partner["auc"] for partner in nearest}) > 1:
        options = [key for key in keys if key.startswith("strategy.") and cell[key] is None]
    for same in _grouped(nearest, *options).values():
        if len({partner["auc"] for partner in same}) == 1:
            values = {key: same[0][key] for key in options if len({partner[key] for partner in nearest}) > 1}
            yield same[0], [f"to {setting_text(values)}"] if values else []


def _grouped(cells: Sequence[Cell], *keys: str) -> dict[tuple[Any, ...], list[Cell]]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    return groups


def _text(value: object) -> str:
    return "null" if value is None else str(value)


def _done(frame: "pd.DataFrame") -> list[Cell]:
    return [cell for cell in cells_of(frame) if cell["status"] == "done"]


def _refuse_damaged(*frames: "pd.DataFrame") -> None:
    if lines := damaged_cells(*frames):
        more = f" (and {len(lines) - 1} more damaged cells)" if len(lines) > 1 else ""
        raise StoreError(lines[0] + more)


def _matched_keys(frames: "Sequence[pd.DataFrame]") -> list[str]:
    """The seed, and every column or config key that takes several values inside one of the folders."""
    keys = [key for key in ("strategy", *SETTING) if any(frame[key].nunique(dropna=False) > 1 for frame in frames)]
    swept = dict.fromkeys(key for frame in frames for key in frame.columns if "." in key and key not in CONTENTS)
    return ["seed", *keys, *swept]


def _compare(base: str, other: str, group: Sequence[str], pairs: Sequence[Pair]) -> Comparison:
    differences = {
        metric: estimate(
            right[metric] - left[metric]
            for left, right in pairs
            if left[metric] is not None and right[metric] is not None
        )
        for metric in METRICS
    }
    return Comparison(base, other, ", ".join(group), len(pairs), differences, tuple(pairs))


def _left_out(frames: "Sequence[pd.DataFrame]") -> list[Text]:
    notes = [line for frame in frames for line in content_notes(frame)]
    lines = [f"left out, damaged: {line}" for line in damaged_cells(*frames)]
    copies = [cell for frame in frames for cell in cells_of(frame) if cell["status"] == "copy"]
    lines += [f"left out, copy: {cell['path']}: {cell['failure']}" for cell in copies]
    return [Text(line, style="red") for line in (*lines, *notes)]


def _table(found: Sequence[Comparison], title: str) -> Table:
    headings = [Heading("pairs of", is_text=True), Heading("n"), *(Heading(name) for name, _, _ in METRICS.values())]
    rows = (
        [
            item.group or "seed",
            str(item.num_pairs),
            *(_with_ratio(item.differences[name], scale, digits) for name, (_, scale, digits) in METRICS.items()),
        ]
        for item in found
    )
    return rich_table(headings, rows, title)


def _with_ratio(value: Estimate | None, scale: float, digits: int) -> str:
    interval = show_interval(value, scale=scale, digits=digits, signed=True)
    if value is None or value.ratio is None:
        return interval
    is_shown = abs(value.ratio) < _MAX_RATIO
    ratio = f"{value.ratio:+.1f}" if is_shown else f"beyond {math.copysign(_MAX_RATIO, value.ratio):+g}"
    return f"{interval}\n{ratio.replace('-', '−')} se"


def _config_difference(found: Sequence[Comparison]) -> str:
    """The config keys in which the cells of pairs differ, except those that vary inside one of the folders."""
    left, right = (_configs(Path(folder)) for folder in (found[0].base, found[0].other))
    inside = {*swept_keys(left), *swept_keys(right), "seed"}
    pairs = [item.pairs[0] for item in found]
    both = [[read_config(Path(cell["path"])) for cell in pair] for pair in pairs]
    keys = dict.fromkeys(key for one, other in both for key in differing_keys(one, other) if key not in inside)
    names = [*keys, *_changed_contents(pairs)]
    return f"Config keys that differ: {', '.join(names)}." if names else "Their configs are equal."


def _changed_contents(pairs: Sequence[Pair]) -> Iterator[str]:
    """The inputs (data, trace) that have another content under the same name in some pair."""
    for name in ("data", "trace"):
        digest = f"{name}_digest"
        if any(one[name] == other[name] and len({one[digest], other[digest]} - {None}) == 2 for one, other in pairs):
            yield f"the content of {name} (under the same path)"


def _configs(folder: Path) -> list[dict[str, Any]]:
    """The configs of the runs in a folder that can be read."""
    configs: list[dict[str, Any]] = []
    for path in find_runs(folder):
        with suppress(StoreError):
            configs.append(read_config(path))
    return configs
