"""Damaged inputs of every parser (tests/parsers.py), as many as one likes; a table, and what was wrong with which.

An input is right if it is read as what it says, or refused by messages of one printable line a mistake. What is
accepted is written and read again as the same. Wrong: a traceback, another message, over a second of CPU time.

    python -m tests.soak.fuzz --inputs 100000 --seed 1
    python -m tests.soak.fuzz --inputs 0 --store 1000 --seed 1       crashes (tests/store/test_crashes.py)
    python -m tests.soak.fuzz --only manifest --first 4711 --inputs 1      one input again, by its number
"""

import argparse
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans

from benchmarks._common import table
from harness.core.seeds import generator
from tests.damage import mutate
from tests.parsers import PARSERS, judge
from tests.store.test_crashes import LIVES, Life, live

_MOST_SECONDS = 1.0
_SHOWN = 5  # wrong inputs that are shown, of each parser


def main() -> None:
    """Try the inputs, print the table and what was wrong; exit code 1 if anything was."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--inputs", type=int, default=100_000, help="inputs, of all parsers together")
    made.add_argument("--seed", type=int, default=1, help="of the inputs (default: 1)")
    made.add_argument("--first", type=int, default=0, help="number of the first input of each parser (default: 0)")
    made.add_argument("--only", nargs="+", choices=PARSERS, default=list(PARSERS), metavar="PARSER", help="parsers")
    made.add_argument("--store", type=int, default=0, help="sequences of saves and crashes of the store (default: 0)")
    options = made.parse_args()
    rows: list[tuple[object, ...]] = []
    shown: list[str] = []
    for place, name in enumerate(options.only):
        numbers = range(options.first, options.first + (options.inputs + place) // len(options.only))
        row, wrong = tried(name, options.seed, numbers)
        rows.append(row)
        shown += wrong
        sys.stderr.write(f"{name}: {len(numbers):,} inputs, {row[3]} wrong\n")
    if options.store:
        wrong = tried_store(options.store, options.seed)
        rows.append(("store", f"{options.store:,}", "", len(wrong), ""))
        shown += wrong
    sys.stdout.write("\n".join([*table(("parser", "inputs", "accepted", "wrong", "slowest, ms"), rows), *shown, ""]))
    sys.exit(1 if shown else 0)


def tried(name: str, seed: int, numbers: range) -> tuple[tuple[object, ...], list[str]]:
    """The row of a parser, and its wrong inputs of each kind; name, seed and number decide an input."""
    wrong: dict[int, str] = {}
    num_accepted, slowest_s = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            rng = generator(seed, name, number)
            verdict = judge(name, Path(folder), mutate(PARSERS[name].sound(rng), rng))
            num_accepted += verdict.accepted
            slowest_s = max(slowest_s, verdict.seconds)
            if verdict.wrong is not None:
                wrong[number] = verdict.wrong
            elif verdict.seconds > _MOST_SECONDS:
                wrong[number] = f"took {verdict.seconds:.1f} s of CPU time"
    first: dict[str, int] = {}
    for number, words in wrong.items():
        first.setdefault(words[:80], number)
    kinds = Counter(words[:80] for words in wrong.values()).most_common(_SHOWN)
    lines = [f"{name}, input {first[kind]} ({count} like it): {wrong[first[kind]]}" for kind, count in kinds]
    return (name, f"{len(numbers):,}", f"{num_accepted:,}", len(wrong), f"{1000 * slowest_s:.0f}"), lines


def tried_store(num_sequences: int, seed: int) -> list[str]:
    """The first sequence of saves and crashes after which a store lacks its last commit, made short; else nothing."""

    @hypothesis.seed(seed)
    @settings(max_examples=num_sequences, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(lives=LIVES, fsync=booleans())
    def tried(lives: list[Life], *, fsync: bool) -> None:
        live(lives, fsync=fsync)

    try:
        tried()
    except Exception as error:  # noqa: BLE001 - the finding
        return ["store: " + "".join(traceback.format_exception_only(error))]
    return []


if __name__ == "__main__":
    main()
