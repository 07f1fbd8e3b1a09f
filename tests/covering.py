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
) -> list[Row]:
    """Rows with a value of each setting: each pair of values of two settings that ``is_wanted`` is in one, at least.

    By default these are the pairs that are allowed.
    ``is_allowed`` is asked of rows that lack settings too. The same arguments give the same rows. Each row begins with
    the first pair that is left, and each further value is that which covers most; of equals, one of ``cheap``, then the
    rarest one so far.
    """
    left = dict.fromkeys(
        frozenset({(one, value), (other, another)})
        for one, other in combinations(settings, 2)
        for value in settings[one]
        for another in settings[other]
        if (is_wanted or is_allowed)({one: value, other: another})
    )
    rows, uses = list[Row](), Counter[tuple[str, str]]()
    while left:
        row = dict(next(iter(left)))
        for name in sorted((name for name in settings if name not in row), key=lambda name: -len(settings[name])):
            allowed = [value for value in settings[name] if is_allowed({**row, name: value})]
            new = {value: sum(pair in left for pair in _pairs(row, name, value)) for value in allowed}
            row[name] = max(allowed, key=lambda value: (new[value], value in cheap, -uses[name, value]))
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
