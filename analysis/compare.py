"""Paired differences between folders: what varies inside a folder is matched, what varies between them is compared."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from analysis.cells import Cell, cells_of, load, swept_keys
from analysis.stats import Estimate, estimate
from analysis.table import show_interval, strategy_order
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


@dataclass(frozen=True)
class Comparison:
    """``other`` less ``base`` for the pairs of one group (strategy and what else varies inside the folders)."""

    base: str
    other: str
    group: str
    num_pairs: int
    differences: dict[str, Estimate | None]


def comparisons(dirs: Sequence[Path | str]) -> list[Comparison]:
    """The first folder against each other one, in pairs of equal seed and of equal value in all that varies inside.

    A config key that varies in the others alone need not be equal: the first folder is compared with every value of it.

    Raises:
        UserError: fewer than two folders, or two that share no pair of finished cells.
        StoreError: a folder without a run; or no pair is left, and there are damaged cells: the first is named.
    """
    return _comparisons(dirs, [load(path) for path in dirs])


def _comparisons(dirs: Sequence[Path | str], frames: "Sequence[pd.DataFrame]") -> list[Comparison]:
    if len(dirs) < 2:
        raise UserError("compare takes two folders or more, the first is the base; or one folder and --to STRATEGY")
    keys = _matched_keys(frames)
    base, *others = (_done(frame) for frame in frames)
    found: list[Comparison] = []
    for path, frame, cells in zip(dirs[1:], frames[1:], others, strict=True):
        pairs = [(left, right) for left in base for right in cells if _is_pair(left, right, keys)]
        if not pairs:
            _refuse_damaged(frames[0], frame)
            raise UserError(
                f"{dirs[0]} and {path} share no finished cells of equal {', '.join(keys)}: nothing to compare in pairs"
            )
        groups: dict[tuple[str, ...], list[tuple[Cell, Cell]]] = {}
        for left, right in pairs:
            groups.setdefault(tuple(str(right.get(key)) for key in keys if key != "seed"), []).append((left, right))
        named = sorted(groups.items(), key=lambda item: (strategy_order(item[1][0][1]["strategy"]), item[0]))
        found += [_compare(str(dirs[0]), str(path), ", ".join(words), group) for words, group in named]
    return found


def comparisons_to(path: Path | str, baseline: str) -> list[Comparison]:
    """Every other strategy of one folder against ``baseline``, in pairs of equal seed, engine, trace and profile.

    Keys that only one of the two sweeps (an interval of its own, say) need not be equal; where the baseline ran with
    several values of such a key, the pair with most keys in common is taken.

    Raises UserError if ``baseline`` has no finished cell there, StoreError for a folder without a run, or where there
    are damaged cells instead.
    """
    return _comparisons_to(path, load(path), baseline)


def _comparisons_to(path: Path | str, frame: "pd.DataFrame", baseline: str) -> list[Comparison]:
    cells = _done(frame)
    bases = [cell for cell in cells if cell["strategy"] == baseline]
    if not bases:
        _refuse_damaged(frame)
        there = ", ".join(sorted({cell["strategy"] for cell in cells}, key=strategy_order)) or "none"
        raise UserError(f"{path}: no finished cell of strategy {baseline}; finished there: {there}")
    swept = [key for key in cells[0] if "." in key]
    groups: dict[tuple[str, ...], list[tuple[Cell, Cell]]] = {}
    for cell in cells:
        must = ("seed", "engine", "trace", "profile", "num_ps")
        partners = [base for base in bases if all(base[key] == cell[key] for key in must)]
        if cell["strategy"] != baseline and partners:
            partner = max(partners, key=lambda base: sum(base[key] == cell[key] for key in swept))
            named = [cell["strategy"], *(f"{key} {_plain(cell[key])}" for key in swept if cell[key] is not None)]
            engines = {other["engine"] for other in cells}
            groups.setdefault(tuple(named + ([cell["engine"]] if len(engines) > 1 else [])), []).append((partner, cell))
    ordered = sorted(groups.items(), key=lambda item: (strategy_order(item[0][0]), item[0]))
    return [_compare(f"{baseline} in {path}", str(path), ", ".join(words), pairs) for words, pairs in ordered]


def _done(frame: "pd.DataFrame") -> list[Cell]:
    return [cell for cell in cells_of(frame) if cell["status"] == "done"]


def _damaged(frames: "Sequence[pd.DataFrame]") -> list[str]:
    """What is wrong with the damaged cells of ``frames``, one line each, which names the file."""
    return [str(cell["failure"]) for frame in frames for cell in cells_of(frame) if cell["status"] == "damaged"]


def _refuse_damaged(*frames: "pd.DataFrame") -> None:
    if lines := _damaged(frames):
        more = f" (and {len(lines) - 1} more damaged cells)" if len(lines) > 1 else ""
        raise StoreError(lines[0] + more)


def _plain(value: object) -> str:
    """A swept value as a config has it: a column with gaps makes floats of whole numbers."""
    return f"{value:g}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def compare_to(path: Path | str, baseline: str) -> RenderableType:
    """``comparisons_to`` as a table. Raises as that does."""
    frame = load(path)
    found = _comparisons_to(path, frame, baseline)
    return Group(_table(found, f"strategies of {path} less {baseline}"), _LEGEND, *_left_out([frame]))


def _matched_keys(frames: "Sequence[pd.DataFrame]") -> list[str]:
    """The seed, and every column or config key that takes several values inside one of the folders."""
    given = ("strategy", "engine", "trace", "profile", "num_ps")
    keys = [key for key in given if any(frame[key].nunique(dropna=False) > 1 for frame in frames)]
    swept = dict.fromkeys(key for frame in frames for key in frame.columns if "." in key)
    return ["seed", *keys, *swept]


def _is_pair(left: Cell, right: Cell, keys: Sequence[str]) -> bool:
    return all(left[key] == right.get(key) for key in keys if key in left)


def _compare(base: str, other: str, group: str, pairs: Sequence[tuple[Cell, Cell]]) -> Comparison:
    differences = {
        metric: estimate(
            right[metric] - left[metric]
            for left, right in pairs
            if left[metric] is not None and right[metric] is not None
        )
        for metric in METRICS
    }
    return Comparison(base, other, group, len(pairs), differences)


def compare(dirs: Sequence[Path | str]) -> RenderableType:
    """``comparisons`` as a table, with the config keys that differ between the folders. Raises as that does."""
    frames = [load(path) for path in dirs]
    found = _comparisons(dirs, frames)
    parts: list[RenderableType] = []
    for other in dict.fromkeys(item.other for item in found):
        title = f"{other} less {found[0].base}"
        parts.append(_table([item for item in found if item.other == other], title))
        parts.append(Text(_difference_of_configs(found[0].base, other), style="dim"))
    return Group(*parts, _LEGEND, *_left_out(frames))


def _left_out(frames: "Sequence[pd.DataFrame]") -> list[Text]:
    return [Text(f"left out, damaged: {line}", style="red") for line in _damaged(frames)]


_MOST_RATIO = 99  # beyond, the spread says only that the difference hardly depends on the seed

_LEGEND = Text(
    "Paired by seed; ± half of the 95 % confidence interval (Student's t; ? with one pair); below it the mean in "
    "standard errors.",
    style="dim",
)


def _table(found: Sequence[Comparison], title: str) -> Table:
    columns = [Column("pairs of"), Column("n", justify="right")]
    columns += [Column(heading, justify="right") for heading, _, _ in METRICS.values()]
    shown = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for item in found:
        values = (_with_ratio(item.differences[name], scale, digits) for name, (_, scale, digits) in METRICS.items())
        shown.add_row(item.group or "seed", str(item.num_pairs), *values)
    return shown


def _with_ratio(value: Estimate | None, scale: float, digits: int) -> str:
    interval = show_interval(value, scale=scale, digits=digits, signed=True)
    if value is None or value.ratio is None:
        return interval
    ratio = (
        f"{value.ratio:+.1f}"
        if abs(value.ratio) < _MOST_RATIO
        else f"beyond {math.copysign(_MOST_RATIO, value.ratio):+g}"
    )
    return f"{interval}\n{ratio.replace('-', '−')} se"


def _difference_of_configs(base: str, other: str) -> str:
    """Which config keys set the folders apart, beside those that vary inside them."""
    left, right = ([read_config(path) for path in find_runs(Path(folder))] for folder in (base, other))
    inside = {*swept_keys(left), *swept_keys(right), "seed"}
    keys = [key for key in differing_keys(left[0], right[0]) if key not in inside]
    return f"Config keys that differ: {', '.join(keys)}." if keys else "Their configs are equal."
