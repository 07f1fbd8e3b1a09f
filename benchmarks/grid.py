"""Cells of a grid in a minute, one at a time and several at once, and what a cell costs before it trains.

``run.py grid`` as a user starts it, on engine local: cells of ``--steps`` steps of the tiny model with 400,000 rows,
and cells of one step, whose time is start-up and little else. The same command once more, with nothing left to do,
gives the seconds of the command itself (starting, checking, table and report), which are taken off the time per cell.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, numbers_of, parser, report, settings_of, table
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES

RUN = Path(__file__).resolve().parents[1] / "run.py"
NUM_ROWS = 400_000
BATCH_SIZE = 128


Start = Callable[[list[str]], "subprocess.CompletedProcess[str]"]
"""Runs ``run.py`` with these words."""


def by_path(words: list[str]) -> "subprocess.CompletedProcess[str]":
    """As a user starts it."""
    return subprocess.run([sys.executable, str(RUN), *words], check=False, capture_output=True, text=True)


def seconds_of(path: Path, out: Path, jobs: int, start: Start) -> float:
    """Wall time of ``run.py grid``."""
    began_s = time.perf_counter()
    done = start(["grid", str(path), f"out={out}", "--jobs", str(jobs)])
    seconds = time.perf_counter() - began_s
    if done.returncode != 0:
        sys.exit(f"{path.name} failed:\n{done.stderr}")
    return seconds


def one_round(folder: Path, jobs: int, start: Start) -> tuple[float, float, float]:
    """Seconds of the grid of long cells, of that of one-step cells, and of one in which nothing is left to do."""
    out = folder / "out"
    try:
        long_s, short_s = (seconds_of(folder / f"{name}.yaml", out / name, jobs, start) for name in ("long", "short"))
        return long_s, short_s, seconds_of(folder / "short.yaml", out / "short", jobs, start)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def main(start: Start = by_path) -> None:
    """Measure, print, write as JSON if asked."""
    made = parser(__doc__, rounds=3, steps=200)
    made.add_argument("--cells", type=int, default=8)
    made.add_argument("--jobs", type=numbers_of, default="1,2", help="numbers of cells at once")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="grid-") as name:
        folder, tables = Path(name), NUM_ROWS / sum(KAGGLE_CARDINALITIES)
        values = settings_of(folder, tables, options.steps, batch_size=BATCH_SIZE)
        values |= {"model": {"size": "tiny"}, "grids": [{"seed": list(range(options.cells))}]}
        for length, steps in (("long", options.steps), ("short", 1)):
            data = {**values["data"], "max_train_samples": steps * BATCH_SIZE}
            cells = {**values, "name": length, "data": data}
            (folder / f"{length}.yaml").write_text(json.dumps(cells))  # which is YAML
        rounds = [[one_round(folder, int(jobs), start) for jobs in options.jobs] for _ in range(options.rounds)]
    figures = {
        f"{jobs:g}": {
            "cells_per_minute": Spread.of(60 * options.cells / (long_s - idle_s) for long_s, _, idle_s in seen),
            "cell_s": Spread.of((long_s - idle_s) / options.cells for long_s, _, idle_s in seen),
            "start_up_s": Spread.of((short_s - idle_s) / options.cells for _, short_s, idle_s in seen),
            "command_s": Spread.of(idle_s for _, _, idle_s in seen),
        }
        for jobs, seen in zip(options.jobs, zip(*rounds, strict=True), strict=True)
    }
    head = ("jobs", "cells a minute", "s a cell", "s of start-up a cell", "s of the command")
    rows = [(jobs, *(spread.show() for spread in values.values())) for jobs, values in figures.items()]
    report(options, table(head, rows), {"jobs": figures})


if __name__ == "__main__":
    main()
