"""Which strategy costs and which loses least under each trace, and how far the next one is from it."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.claims.measures import LOST, OVERHEAD, Measure
from analysis.claims.rows import Row, shown
from analysis.load import Cell
from analysis.stats import Estimate, condition

_COPIES = {"buddy"}
"""Strategies whose price is memory, which neither of the two measures has."""


def by_trace(cells: Sequence[Cell]) -> Mapping[str, list[Cell]]:
    """Finished cells by trace, without its draw."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell["status"] == "done":
            found.setdefault(condition(cell, "trace"), []).append(cell)
    return found


def traces(cells: Sequence[Cell]) -> list[Row]:
    """Two rows for each trace: the least overhead of strategies that save, and the least lost updates of the lossy."""
    rows: list[Row] = []
    for trace, own in by_trace(cells).items():
        arms: dict[str, list[Cell]] = {}
        for cell in own:
            if cell["strategy"] not in _COPIES:
                arms.setdefault(cell["strategy"], []).append(cell)
        lossy = {name: each for name, each in arms.items() if any(LOST.read(cell) for cell in each)}
        rows += [*_best(f"`{trace}`: least", arms, OVERHEAD), *_best(f"`{trace}`: fewest", lossy, LOST)]
    return rows


def _best(text: str, arms: Mapping[str, Sequence[Cell]], measure: Measure) -> Iterator[Row]:
    means = {name: value for name, own in arms.items() if (value := measure.mean(own, own)) is not None}
    if len(means) < 2:
        return
    first, *others = sorted(means, key=lambda name: means[name].mean)
    margins = {other: measure.difference(arms[other], arms[first]) for other in others}
    equal = [other for other, margin in margins.items() if not _is_above(margin)]
    why = f"`{others[0]}` more by {_text(margins[others[0]])}"
    if equal:
        why += f"; not shown to be less than {', '.join(f'`{name}`' for name in equal)}"
    what = f"{text} {measure.title}, %"
    yield Row(what, "–", f"`{first}` {shown(means[first], digits=3)}", len(arms[first]), "ours", why)


def _is_above(value: Estimate | None) -> bool:
    return value is not None and value.interval is not None and value.interval[0] > 0


def _text(value: Estimate | None) -> str:
    return "–" if value is None else shown(value, digits=3)
