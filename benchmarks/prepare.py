"""Rows per second of ``run.py data prepare`` on one core, and the memory it takes.

A synthetic click log at Kaggle's cardinalities in Criteo's text format, about 240 bytes a row on disk, is made once and
not timed; the packed records take 160 more. Each round prepares it in a process of its own that may run on one core
only. Beside it, in turn, a process that only reads the text and hashes it: nothing can be faster.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, parser, report, table
from benchmarks._memory import Cost, cost_of, start_empty
from harness.data.prepare import prepare
from harness.data.sources import SourceReader
from harness.data.synth import synth

ID_BYTES = 12


def read(source: Path, out: Path) -> int:
    """The floor: every byte of the text, in chunks of whole lines, hashed."""
    for _ in SourceReader(source, lambda num_bytes: None).chunks():
        pass
    return 0


def pack(source: Path, out: Path) -> int:
    """The work of ``run.py data prepare``; the number of distinct ids."""
    try:
        return sum(prepare([source], out).cardinalities)
    finally:
        shutil.rmtree(out, ignore_errors=True)


Action = Callable[[Path, Path], int]


def _body(action: Action, source: Path, out: Path, pipe: Connection) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pipe.send(cost_of(lambda: action(source, out)))


def alone(action: Action, source: Path, out: Path) -> tuple[int, Cost]:
    """``action`` in a process of its own, on one core: its result, and what it took."""
    process, ours = start_empty(_body, action, source, out)
    seen = ours.recv()
    process.join()
    return seen


def main() -> None:
    """Measure, print, write as JSON if asked."""
    made = parser(__doc__, rounds=3, rows_scale=1.0, folder=None)
    made.add_argument("--rows", type=int, default=5_000_000)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=options.folder) as name:
        source = Path(name) / "clicks.tsv"
        num_bytes = synth(options.rows, source, seed=1, scale=options.rows_scale).num_bytes
        rounds = [(alone(read, source, source), alone(pack, source, Path(name) / "out")) for _ in range(options.rounds)]
    reading = Spread.of(options.rows / cost.seconds for (_, cost), _ in rounds)
    packing = Spread.of(options.rows / cost.seconds for _, (_, cost) in rounds)
    num_ids = rounds[0][1][0]
    extra_bytes = max(cost.extra_bytes for _, (_, cost) in rounds)
    beyond_bytes = extra_bytes - ID_BYTES * num_ids
    text_mb = num_bytes / options.rows / 1e6
    rows = [
        (label, speed.show(0), f"{speed.median * text_mb:.0f}")
        for label, speed in (("read and hash", reading), ("prepare", packing))
    ]
    memory = (
        f"{options.rows:,} rows, {num_bytes / 1e6:,.0f} MB, {num_ids:,} distinct ids: {extra_bytes / 1e6:.0f} MB of "
        f"memory, {beyond_bytes / 1e6:.0f} MB beyond {ID_BYTES} bytes an id"
    )
    figures = {"prepare_rows_per_s": packing, "read_rows_per_s": reading, "num_bytes": num_bytes}
    figures |= {"num_ids": num_ids, "extra_bytes": extra_bytes, "beyond_bytes": beyond_bytes}
    report(options, [*table(("on one core", "rows/s", "MB/s of text"), rows), "", memory], figures)


if __name__ == "__main__":
    main()
