"""Few combinations of settings in which each pair of values stands together."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations

Row = dict[str, str]
_Pair = frozenset[tuple[str, str]]


def covering(
    settings: Mapping[str, Sequence[str]],
    is_allowed: Callable[[Row], bool],
    is_wanted: Callable[[Row], bool] | None = None,
    cheap: Collection[str] = (),
    dear: Sequence[str] = (),
) -> list[Row]:
    """Rows with a value of each setting: each pair of values of two settings that ``is_wanted`` is in one, at least.

    By default these are the pairs that are allowed.
    ``is_allowed`` is asked of rows that lack settings too. The same arguments give the same rows. Each row begins with
    the first pair that is left, and each further value is the one that covers most pairs; of equals, one of ``cheap``,
    then the rarest one so far. Pairs with a value of ``dear`` are covered first and count most, so that few rows have
    such a value.
    """

    def is_dear(pair: _Pair) -> bool:
        return any(value in dear for _, value in pair)

    pairs = (
        frozenset({(one, value), (other, another)})
        for one, other in combinations(settings, 2)
        for value in settings[one]
        for another in settings[other]
        if (is_wanted or is_allowed)({one: value, other: another})
    )
    left = dict.fromkeys(sorted(pairs, key=lambda pair: [all(value != each for _, value in pair) for each in dear]))
    rows, uses = list[Row](), Counter[tuple[str, str]]()
    while left:
        row = dict(next(iter(left)))
        for name in sorted((name for name in settings if name not in row), key=lambda name: -len(settings[name])):
            allowed = [value for value in settings[name] if is_allowed({**row, name: value})]
            new = {value: [pair for pair in _pairs(row, name, value) if pair in left] for value in allowed}
            worth = {value: (sum(map(is_dear, pairs)), len(pairs)) for value, pairs in new.items()}
            row[name] = max(allowed, key=lambda value: (worth[value], value in cheap, -uses[name, value]))
        rows.append({name: row[name] for name in settings})
        uses.update(row.items())
        for pair in pairs_of(row):
            left.pop(pair, None)
    return rows


def pairs_of(row: Row) -> Iterator[_Pair]:
    """All pairs of settings with their values."""
    return map(frozenset, combinations(row.items(), 2))


def _pairs(row: Row, name: str, value: str) -> Iterator[_Pair]:
    return (frozenset({each, (name, value)}) for each in row.items())
