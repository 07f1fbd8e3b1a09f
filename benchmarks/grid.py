"""Cells of a grid in a minute, one at a time and several at once, and what a cell costs before it trains.

    python benchmarks/grid.py [--cells 8] [--steps 200] [--kinds local1,local2,rpc] [--rounds 3] [--json FILE]

``run.py grid`` as a user starts it: cells of ``--steps`` steps of the tiny model with 400,000 rows, and cells of one
step, whose time is start-up and little else. The same command once more, with nothing left to do, gives the seconds of
the command itself (starting, checking, table and report), which are taken off the time per cell. Kinds are ``local``
with a number of jobs, and ``rpc`` with two PS ranks, whose cells run one at a time.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import (
    KAGGLE_CARDINALITIES,
    Spread,
    kaggle_tables,
    machine,
    make_data,
    parser,
    report,
    settings_of,
    table,
)

RUN = Path(__file__).resolve().parents[1] / "run.py"
NUM_ROWS = 400_000
BATCH_SIZE = 128


def experiment(folder: Path, engine: str, num_cells: int, num_steps: int) -> Path:
    """A grid of ``num_cells`` seeds without failures."""
    values = settings_of(folder / "data", num_steps, batch_size=BATCH_SIZE)
    values |= {"name": f"steps{num_steps}", "engine": engine, "cluster": {"num_ps": 2}, "model": {"size": "tiny"}}
    values |= {"eval": {"max_samples": 1024}, "grids": [{"seed": list(range(num_cells))}]}
    path = folder / f"{engine}_steps{num_steps}.yaml"
    path.write_text(json.dumps(values))  # which is YAML
    return path


def seconds_of(path: Path, out: Path, jobs: int) -> float:
    """Wall time of ``run.py grid``."""
    command = [sys.executable, str(RUN), "grid", str(path), f"out={out}", "--jobs", str(jobs)]
    began_s = time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - began_s
    if done.returncode != 0:
        sys.exit(f"{path.name} failed:\n{done.stderr}")
    return seconds


def one_round(folder: Path, engine: str, jobs: int, num_cells: int, num_steps: int) -> tuple[float, float, float]:
    """Seconds of the grid of long cells, of that of one-step cells, and of one in which nothing is left to do."""
    out = folder / "out"
    long, short = (experiment(folder, engine, num_cells, steps) for steps in (num_steps, 1))
    try:
        long_s, short_s = (seconds_of(path, out / path.stem, jobs) for path in (long, short))
        return long_s, short_s, seconds_of(short, out / short.stem, jobs)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    """Measure, print, write as JSON if asked."""
    made = parser(__doc__, rounds=3, steps=200)
    made.add_argument("--cells", type=int, default=8)
    made.add_argument("--kinds", default="local1,local2,rpc")
    options = made.parse_args()
    kinds = options.kinds.split(",")
    for name in kinds:
        if re.fullmatch(r"local[1-9][0-9]*|rpc", name) is None:
            made.error(f"--kinds: expected rpc, or local with a number of jobs, got {name!r}")
    facts, rounds = machine(), {name: list[tuple[float, float, float]]() for name in kinds}
    with tempfile.TemporaryDirectory(prefix="grid-") as temporary:
        folder, num_train = Path(temporary), options.steps * BATCH_SIZE + 6 * 1024
        make_data(folder / "data", kaggle_tables(NUM_ROWS / sum(KAGGLE_CARDINALITIES)), num_train)
        for _ in range(options.rounds):
            for name in kinds:
                engine, jobs = ("rpc", 1) if name == "rpc" else ("local", int(name.removeprefix("local")))
                rounds[name].append(one_round(folder, engine, jobs, options.cells, options.steps))
    figures = {
        name: {
            "cells_per_minute": Spread.of(60 * options.cells / (long_s - idle_s) for long_s, _, idle_s in seen),
            "cell_s": Spread.of((long_s - idle_s) / options.cells for long_s, _, idle_s in seen),
            "start_up_s": Spread.of((short_s - idle_s) / options.cells for _, short_s, idle_s in seen),
            "command_s": Spread.of(idle_s for _, _, idle_s in seen),
        }
        for name, seen in rounds.items()
    }
    head = ("cells, jobs", "cells a minute", "s a cell", "s of start-up a cell", "s of the command")
    rows = [(name, *(spread.show() for spread in values.values())) for name, values in figures.items()]
    report(options, facts, table(head, rows), {"kinds": figures})


if __name__ == "__main__":
    main()
