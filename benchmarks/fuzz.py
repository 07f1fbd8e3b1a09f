"""Damaged inputs of every parser (tests/parsers.py), as many as one likes; a table, and what was wrong with which.

An input is right if it is read as what it says, or refused by messages of one printable line a mistake. What is
accepted is written and read again as the same. Wrong: a traceback, another message, over a second of CPU time.

    python benchmarks/fuzz.py --inputs 100000 --seed 1
    python benchmarks/fuzz.py --inputs 0 --store 1000 --seed 1             crashes of the store (tests/store/lives.py)
    python benchmarks/fuzz.py --only manifest --first 4711 --inputs 1      one input again, by its number
"""

import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import booleans

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import names_of, parser, report, table
from harness.core.seeds import generator
from tests.damage import mutate
from tests.parsers import PARSERS, Verdict, judge
from tests.store.lives import LIVES, Life, live

MOST_SECONDS = 1.0
_SHOWN = 5  # wrong inputs that are shown, of each parser


def main() -> None:
    """Try the inputs, print the table and what was wrong; exit code 1 if anything was."""
    made = parser(__doc__)
    made.add_argument("--inputs", type=int, default=100_000, help="inputs, of all parsers together")
    made.add_argument("--seed", type=int, default=1, help="of the inputs (default: 1)")
    made.add_argument("--first", type=int, default=0, help="number of the first input of each parser (default: 0)")
    made.add_argument("--only", type=names_of(PARSERS), default=list(PARSERS), help="parsers, comma-separated")
    made.add_argument("--store", type=int, default=0, help="sequences of saves and crashes of the store (default: 0)")
    options = made.parse_args()
    rows: list[Sequence[str]] = []
    results: list[dict[str, object]] = []
    shown: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for place, each in enumerate(options.only):
            num_inputs = (options.inputs + place) // len(options.only)
            numbers = range(options.first, options.first + num_inputs)
            verdicts = {number: tried(each, options.seed, number, Path(name)) for number in numbers}
            wrong = {number: words for number, verdict in verdicts.items() if (words := fault(verdict)) is not None}
            num_accepted = sum(verdict.accepted for verdict in verdicts.values())
            slowest_s = max((verdict.seconds for verdict in verdicts.values()), default=0.0)
            counts = {"inputs": num_inputs, "accepted": num_accepted, "wrong": len(wrong)}
            results.append({"parser": each, **counts, "slowest_s": slowest_s})
            rows.append([each, *(f"{count:,}" for count in counts.values()), f"{1000 * slowest_s:.0f}"])
            kinds = Counter(words[:80] for words in wrong.values())
            first = {kind: next(n for n, words in wrong.items() if words.startswith(kind)) for kind in kinds}
            shown += [
                f"{each}, input {first[kind]} ({count} like it): {wrong[first[kind]]}"
                for kind, count in kinds.most_common(_SHOWN)
            ]
            sys.stderr.write(f"{each}: {num_inputs:,} inputs, {len(wrong)} wrong\n")
    if options.store:
        wrong_store = try_store(options.store, options.seed)
        shown += wrong_store
        rows.append(["store", f"{options.store:,}", "", str(len(wrong_store)), ""])
        results.append({"parser": "store", "inputs": options.store, "wrong": len(wrong_store)})
    lines = table(("parser", "inputs", "accepted", "wrong", "slowest, ms"), rows)
    report(options, [*lines, *shown], {"results": results, "wrong": shown})
    sys.exit(1 if shown else 0)


def tried(name: str, seed: int, number: int, folder: Path) -> Verdict:
    """The verdict on an input, which its parser's name, the seed and its number decide."""
    rng = generator(seed, name, number)
    return judge(name, folder, mutate(PARSERS[name].sound(rng), rng))


def try_store(num_sequences: int, seed: int) -> list[str]:
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


def fault(verdict: Verdict) -> str | None:
    """What is wrong, in words; None if nothing is."""
    if verdict.wrong is None and verdict.seconds > MOST_SECONDS:
        return f"took {verdict.seconds:.1f} s of CPU time"
    return verdict.wrong


if __name__ == "__main__":
    main()
