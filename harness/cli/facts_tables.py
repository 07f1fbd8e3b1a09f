"""Tables of the facts of a click log, alone or beside the facts of another log."""

import math
from collections.abc import Callable, Iterator, Sequence

from rich.box import SIMPLE
from rich.table import Column, Table

from harness.data.facts import COUNT_BINS, Facts, TableFacts

_NUM_PAIRS = 8
_LARGE = 7  # tables by number of ids that the summary judges by themselves

_Number = Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


_COLUMNS: tuple[tuple[str, str, _Number], ...] = (
    ("ids", "distinct", _whole),
    ("top 1 %\n%", "top_1_percent_share", _percent),
    ("ids once\n%", "seen_once_frac_of_ids", _percent),
    ("accesses\nto them, %", "accesses_to_seen_once_frac", _percent),
    ("ids in a\nbatch", "distinct_per_batch_of_128", _one),
    ("re-use\n%", "reuse_within_1280_rows_in_file_order", _percent),
)
"""Heading, field of TableFacts, and format of each column of the table of tables."""


def facts_tables(facts: Facts, other: Facts | None) -> Iterator[Table]:
    """Tables of ``facts``; if ``other`` is given, its value follows each value, and a table has the differences."""
    yield _table(
        "access",
        ["table", *(heading for heading, _, _ in _COLUMNS)],
        [
            [own.column, *(_beside(form, _field(own, name), _field(its, name)) for _, name, form in _COLUMNS)]
            for own, its in _pairs_of_tables(facts, other)
        ],
    )
    numbers = _growth_rows(facts, other)
    yield _table(
        "distinct ids after so many samples",
        ["table", *(f"{number:,}" for number in numbers)],
        [
            [
                own.column,
                *(
                    _beside(_whole, own.distinct_after_rows.get(n), its and its.distinct_after_rows.get(n))
                    for n in numbers
                ),
            ]
            for own, its in _pairs_of_tables(facts, other)
        ],
    )
    yield _table(
        "spread (sd) of click rates between ids, by their number of accesses",
        ["table", *(f"{first}+" if last is None else f"{first}–{last}" for first, last in COUNT_BINS[1:])],
        [
            [
                own.column,
                *(_beside(_three, mine, theirs) for mine, theirs in zip(_spreads(own), _spreads(its), strict=True)),
            ]
            for own, its in _pairs_of_tables(facts, other)
        ],
    )
    if len(facts.tables) > 1:
        yield _table("strongest pairs of tables", ["pair", "mutual information"], _strongest(facts, other))
    yield _table("all tables as one", ["", "value"], _pooled(facts, other))
    if other is not None:
        yield _table("largest differences", ["of", "difference", "in"], _differences(facts, other))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*(Column(column, justify="right") for column in columns), title=title, box=SIMPLE)
    for row in rows:
        table.add_row(*row)
    return table


def _beside(form: _Number, own: float | None, other: float | None) -> str:
    texts = ["–" if value is None else form(value) for value in (own, other)]
    return texts[0] if other is None else " | ".join(texts)


def _pairs_of_tables(facts: Facts, other: Facts | None) -> Iterator[tuple[TableFacts, TableFacts | None]]:
    yield from zip(facts.tables, other.tables if other else [None] * len(facts.tables), strict=True)


def _field(table: TableFacts | None, name: str) -> float | None:
    return None if table is None else getattr(table, name)


def _spreads(table: TableFacts | None) -> list[float | None]:
    return [None] * (len(COUNT_BINS) - 1) if table is None else [part.ctr_sd_between_ids for part in table.by_count[1:]]


def _growth_rows(facts: Facts, other: Facts | None) -> list[int]:
    own = {*facts.tables[0].distinct_after_rows}
    return sorted(own if other is None else own & {*other.tables[0].distinct_after_rows})


def _strongest(facts: Facts, other: Facts | None) -> list[list[str]]:
    pairs = [(value, f, g) for f, row in enumerate(facts.pairs.matrix) for g, value in enumerate(row) if f < g]
    return [
        [
            f"{facts.tables[f].column}, {facts.tables[g].column}",
            _beside(_three, value, other and other.pairs.matrix[f][g]),
        ]
        for value, f, g in sorted(pairs, reverse=True)[:_NUM_PAIRS]
    ]


def _once_accesses(facts: Facts) -> float:
    largest = _largest(facts)
    return sum(table.accesses_to_seen_once_frac for table in largest) / len(largest)


def _largest(facts: Facts) -> list[TableFacts]:
    return sorted(facts.tables, key=lambda table: table.distinct)[-_LARGE:]


_POOLED: tuple[tuple[str, Callable[[Facts], float], _Number], ...] = (
    ("samples", lambda facts: facts.rows, _whole),
    ("positive, %", lambda facts: facts.positives_frac, _percent),
    ("ids", lambda facts: facts.pooled.distinct, _whole),
    ("accesses of the top 0.1 % of ids, %", lambda facts: facts.pooled.top_01_percent_share, _percent),
    ("accesses of the top 1 % of ids, %", lambda facts: facts.pooled.top_1_percent_share, _percent),
    ("accesses of the top 10 % of ids, %", lambda facts: facts.pooled.top_10_percent_share, _percent),
    ("ids seen once, %", lambda facts: facts.pooled.seen_once_frac_of_ids, _percent),
    ("accesses to those, seven largest tables, %", _once_accesses, _percent),
    ("ids in a batch of 128", lambda facts: facts.pooled.distinct_rows_per_batch_of_128, _one),
    ("pairs with mutual information above 0.1, %", lambda facts: facts.pairs.frac_above_01, _percent),
    ("pairs with mutual information above 0.5, %", lambda facts: facts.pairs.frac_above_05, _percent),
)


def _pooled(facts: Facts, other: Facts | None) -> list[list[str]]:
    return [[name, _beside(form, value(facts), other and value(other))] for name, value, form in _POOLED]


def _differences(facts: Facts, other: Facts) -> list[list[str]]:
    """A row for each measure: its name, its largest difference over all tables, and the table.

    The differences of numbers of ids are relative, all others absolute.
    """
    large = {table.column for table in _largest(other)}
    both = [(own, its) for own, its in _pairs_of_tables(facts, other) if its is not None]
    ratios = {
        **{
            f"ids after {last:,} samples": [
                (own.distinct_after_rows[last] / its.distinct_after_rows[last] - 1, own.column) for own, its in both
            ]
            for last in _growth_rows(facts, other)[-1:]
        },
        "ids in a batch": [
            (own.distinct_per_batch_of_128 / its.distinct_per_batch_of_128 - 1, own.column) for own, its in both
        ],
    }
    amounts = {
        heading.partition("\n")[0]: [(getattr(own, name) - getattr(its, name), own.column) for own, its in both]
        for heading, name, form in _COLUMNS
        if form is _percent
    }
    amounts["spread of click rates, seven largest tables"] = [
        (mine - theirs, f"{own.column}, {first}{'+' if last is None else f'–{last}'}")
        for own, its in both
        if own.column in large
        for (first, last), mine, theirs in zip(COUNT_BINS[1:], _spreads(own), _spreads(its), strict=True)
        if mine is not None and theirs is not None
    ]
    found: list[list[str]] = []
    for form, group in ((lambda value: f"{100 * value:+.1f} %", ratios), (lambda value: f"{value:+.3f}", amounts)):
        for name, differences in group.items():
            largest, where = max(differences, key=lambda each: abs(each[0]), default=(math.nan, ""))
            found.append([name, form(largest), where])
    return found
