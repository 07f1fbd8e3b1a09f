"""Finished cells by setting and strategy, with estimates over their seeds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.load import CONTENTS, Cell, cells_of
from analysis.stats.estimates import (
    BASELINE,
    Estimate,
    Pair,
    Split,
    condition,
    estimate,
    estimate_pairs,
    setting_keys,
    split,
)
from analysis.stats.partners import Partners, reason
from analysis.stats.rounding import Rounding, rounding_of, without_replicates
from harness.core import strategies

if TYPE_CHECKING:
    import pandas as pd

STRATEGIES = strategies.BUILT_IN

_DIGESTS = {key: key.partition(".")[0] for key in CONTENTS}
"""Keys of a setting whose values are digests, and what they are digests of."""


@dataclass(frozen=True)
class Line:
    """One strategy under one setting: its finished cells, and estimates over their seeds by column.

    ``label`` is the strategy, followed by the engine in brackets if its cells ran on another engine than the block's.
    """

    strategy: str
    label: str
    cells: list[Cell]
    auc_difference: Estimate | None
    estimates: Mapping[str, Estimate | None]
    split: Split | None = None
    """Spread of the differences of AUC between traces and between seeds, where it can be told."""
    pairs: Sequence[Pair] = ()
    """The differences of AUC: one for each cell that has a partner."""
    unpaired: Sequence[tuple[int, str]] = ()
    """Seed of each cell without a pair, and why it has none."""

    def mean(self, name: str) -> float:
        """Mean of column ``name`` over the line's cells; 0 if the column has no estimate."""
        value = self.estimates[name]
        return 0.0 if value is None else value.mean


@dataclass(frozen=True)
class Block:
    """All strategies under one setting. ``title``: the values in which it differs from the other blocks, or empty."""

    setting: dict[str, Any]
    title: str
    lines: list[Line]
    rounding: Rounding | None = None
    """The floor of rounding; None if it is unknown."""


def strategy_order(strategy: str) -> tuple[int, str]:
    """The sort key of a strategy: its place in ``harness.core.strategies.STRATEGIES``, then its name."""
    names = [*strategies.STRATEGIES]
    return (names.index(strategy) if strategy in names else len(names), strategy)


def blocks_of(frame: "pd.DataFrame") -> list[Block]:
    """The finished cells of a frame by setting (engine, trace, profile, swept keys) and strategy."""
    return summarise(cells_of(frame))


def regimes_of(frame: "pd.DataFrame") -> list[Block]:
    """As ``blocks_of``, but without a split by engine: copies of a cell on several engines are one result."""
    return regimes(cells_of(frame))


def summarise(cells: Sequence[Cell]) -> list[Block]:
    """As ``blocks_of``. A block also holds the reference cells (strategy ``none``) that its cells are paired with.

    A block of reference cells only, all of which appear in other blocks, is left out; so are replicates of references
    (``analysis.stats.rounding``). Cells that differ only in the draw of their trace are in one block. A strategy
    without a swept option stands in every setting of that option.
    """
    return _blocks(cells, setting_keys(cells))


def regimes(cells: Sequence[Cell]) -> list[Block]:
    """As ``regimes_of``."""
    keys = [key for key in setting_keys(cells) if key != "engine"]
    results: dict[tuple[Any, ...], Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell["engine"] or ""):
        if cell["status"] == "done":
            results.setdefault((cell["strategy"], cell["seed"], *(cell[key] for key in keys)), cell)
    return _blocks([*results.values()], keys)


def _blocks(cells: Sequence[Cell], keys: Sequence[str]) -> list[Block]:
    done = without_replicates([cell for cell in cells if cell["status"] == "done"])
    partners = Partners(done)
    own = _grouped(done, lambda cell: tuple(condition(cell, key) for key in keys))
    whole = {values: [*group, *_guests(values, own, keys)] for values, group in own.items()}
    groups = _without_repeated({values: _with_references(group, partners) for values, group in whole.items()}, own)
    differing = [place for place in range(len(keys)) if len({values[place] for values in groups}) > 1]
    blocks: list[Block] = []
    for values in sorted(groups, key=lambda values: [str(value) for value in values]):
        setting = dict(zip(keys, values, strict=True))
        title = setting_text({keys[place]: values[place] for place in differing})
        references = [cell for cell in groups[values] if cell["strategy"] == BASELINE]
        lines = _lines(setting, groups[values], partners, cells)
        blocks.append(Block(setting, title, lines, rounding_of(references, cells)))
    return blocks


def setting_text(setting: Mapping[str, Any]) -> str:
    """A setting as text: ``key value`` of every entry, None as ``null``.

    A digest is in brackets, and left out where it is None.
    """
    return ", ".join(
        f"{name} (digest {value})" if (name := _DIGESTS.get(key)) else f"{key} {'null' if value is None else value}"
        for key, value in setting.items()
        if value is not None or key not in _DIGESTS
    )


def _grouped(cells: Sequence[Cell], key: Callable[[Cell], Any]) -> dict[Any, list[Cell]]:
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return groups


_Groups = Mapping[tuple[Any, ...], list[Cell]]
"""Cells by the values of a setting."""


def _guests(setting: tuple[Any, ...], groups: _Groups, keys: Sequence[str]) -> Iterator[Cell]:
    """Cells of other groups whose strategies lack the options in which their setting differs from ``setting``."""
    options = {place for place, key in enumerate(keys) if key.startswith("strategy.")}
    for values, group in groups.items():
        differing = {place for place in range(len(keys)) if values[place] != setting[place]}
        if differing and differing <= options and all(values[place] is None for place in differing):
            others = [cells for each, cells in groups.items() if any(each[place] is not None for place in differing)]
            has_option = {BASELINE, *(cell["strategy"] for cells in others for cell in cells)}
            yield from (cell for cell in group if cell["strategy"] not in has_option)


def _without_repeated(groups: _Groups, own: _Groups) -> _Groups:
    """The groups without those whose ``own`` cells all stand in others, as references or for want of an option."""

    def order(values: tuple[Any, ...]) -> tuple[bool, int]:
        return _has_references_only(own[values]), values.count(None)

    kept: dict[tuple[Any, ...], list[Cell]] = {}
    seen: set[int] = set()
    for values in sorted(groups, key=order):
        if any(id(cell) not in seen for cell in own[values]):
            kept[values] = groups[values]
            seen.update(map(id, groups[values]))
    return kept


def _with_references(group: list[Cell], partners: Partners) -> list[Cell]:
    """``group``, and those reference cells of other settings that its cells are paired with."""
    references = [partner for cell in group if (partner := partners.of(cell)) is not None]
    return [*{id(cell): cell for cell in (*group, *references)}.values()]


def _has_references_only(group: Sequence[Cell]) -> bool:
    return all(cell["strategy"] == BASELINE for cell in group)


def _lines(setting: Mapping[str, Any], group: Sequence[Cell], partners: Partners, cells: Sequence[Cell]) -> list[Line]:
    """``cells``: all, also those that are not finished."""
    lines: list[Line] = []
    by_strategy = _grouped(group, lambda cell: cell["strategy"])
    for strategy in sorted(by_strategy, key=strategy_order):
        own = by_strategy[strategy]
        paired = [(cell, partners.pairs([cell], "auc")) for cell in own]
        pairs = [pair for _, found in paired for pair in found]
        others = sorted({cell["engine"] for cell in own} - {setting["engine"]}) if "engine" in setting else []
        lines.append(
            Line(
                strategy=strategy,
                label=" ".join([strategy, *(f"({engine})" for engine in others)]),
                cells=own,
                auc_difference=estimate_pairs(pairs),
                estimates=_Estimates(own),
                split=split(pairs),
                pairs=pairs,
                unpaired=[(cell["seed"], reason(cell, cells)) for cell, found in paired if not found],
            )
        )
    return lines


class _Estimates(dict[str, Estimate | None]):
    """Estimates over cells by column, made when they are first asked for."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__()
        self._cells = cells

    def __missing__(self, name: str) -> Estimate | None:
        self[name] = estimate(cell[name] for cell in self._cells)
        return self[name]
