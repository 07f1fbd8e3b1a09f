"""A claim of a paper or of this project, and what it rests on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.claims.figures import Draw
from analysis.claims.rows import Row
from analysis.load import Cell


@dataclass(frozen=True)
class Benchmark:
    """A script, its arguments, and the key of the list of results in the JSON file that it writes."""

    script: Path
    arguments: tuple[str, ...] = ()
    key: str = "results"


@dataclass(frozen=True)
class Claim:
    """A claim, and how it is judged. ``note``: one paragraph for the reader.

    ``experiment``: an experiment file, or a benchmark. ``judge`` is given the finished cells of the one, or the results
    of the other; ``draw`` likewise.
    """

    title: str
    source: str
    experiment: Path | Benchmark
    judge: Callable[[Sequence[Cell]], list[Row]]
    note: str
    draw: Draw | None = None
    caption: str = ""


FOLDER = Path("experiments") / "claims"
BENCHMARKS = Path("benchmarks")
