"""Cells of a grid in a minute, one at a time and several at once, and what a cell costs before it trains.

    python benchmarks/grid.py [--cells 8] [--steps 200] [--kinds local1,local2,rpc] [--rounds 3] [--json FILE]

``run.py grid`` as a user starts it: cells of ``--steps`` steps of the tiny model with 400,000 rows, and cells of one
step, whose time is start-up and little else. The same command once more, with nothing left to do, tells what the
command itself takes (starting, checking, table and report); it is taken off the time per cell. Kinds are ``local`` with
so many jobs, and ``rpc`` with two PS ranks, whose cells run one at a time.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import KAGGLE_CARDINALITIES, Spread, heading, machine, make_data, write_json

RUN = Path(__file__).resolve().parents[1] / "run.py"
NUM_ROWS = 400_000
BATCH_SIZE = 128


def experiment(folder: Path, engine: str, num_cells: int, num_steps: int) -> Path:
    """A grid of ``num_cells`` seeds without failures."""
    path = folder / f"{engine}_steps{num_steps}.yaml"
    lines = [
        f"name: steps{num_steps}",
        f"engine: {engine}",
        "cluster: {num_ps: 2}",
        f"data: {{path: {folder / 'data'}, max_train_samples: {num_steps * BATCH_SIZE}}}",
        "model: {size: tiny}",
        "eval: {max_samples: 1024}",
        "strategy: {name: none}",
        "wandb: {mode: disabled}",
        f"grids: [{{seed: [{', '.join(map(str, range(num_cells)))}]}}]",
        "",
    ]
    path.write_text("\n".join(lines))
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


def kind_of(name: str) -> tuple[str, int]:
    """(engine, jobs) of ``local1``, ``local2``, ``rpc``. Raises ArgumentTypeError."""
    match = re.fullmatch(r"local([1-9][0-9]*)|rpc", name)
    if match is None:
        raise argparse.ArgumentTypeError(f"no kind {name!r}; there are rpc, and local with a number of jobs")
    return ("rpc", 1) if name == "rpc" else ("local", int(match[1]))


def one_round(folder: Path, paths: list[Path], jobs: int) -> tuple[float, float, float]:
    """Seconds of the grid of long cells, of that of one-step cells, and of one in which nothing is left to do."""
    out = folder / "out"
    try:
        long_s, short_s = (seconds_of(path, out / path.stem, jobs) for path in paths)
        return long_s, short_s, seconds_of(paths[1], out / paths[1].stem, jobs)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def main() -> None:
    """Measure, print, perhaps write as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200, help="of a cell")
    parser.add_argument("--kinds", default="local1,local2,rpc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    try:
        kinds = {name: kind_of(name) for name in options.kinds.split(",")}
    except argparse.ArgumentTypeError as error:
        parser.error(f"--kinds: {error}")
    facts = machine()
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory(prefix="grid-") as temporary:
        folder = Path(temporary)
        scale = NUM_ROWS / sum(KAGGLE_CARDINALITIES)
        cardinalities = [max(3, round(cardinality * scale)) for cardinality in KAGGLE_CARDINALITIES]
        make_data(folder / "data", cardinalities, options.steps * BATCH_SIZE * 7 // 6 + 7 * 1024, seed=1)
        for _ in range(options.rounds):
            for name, (engine, jobs) in kinds.items():
                paths = [experiment(folder, engine, options.cells, steps) for steps in (options.steps, 1)]
                rounds[name].append(one_round(folder, paths, jobs))
    facts["load_average_after"] = os.getloadavg()
    lines = ["| cells, jobs | cells a minute | s a cell | s of start-up a cell | s of the command |", "|---" * 5 + "|"]
    figures: dict[str, dict[str, object]] = {}
    for name, seen in rounds.items():
        values = {
            "cells_per_minute": Spread.of(60 * options.cells / (long_s - idle_s) for long_s, _, idle_s in seen),
            "cell_s": Spread.of((long_s - idle_s) / options.cells for long_s, _, idle_s in seen),
            "start_up_s": Spread.of((short_s - idle_s) / options.cells for _, short_s, idle_s in seen),
            "command_s": Spread.of(idle_s for _, _, idle_s in seen),
        }
        cells = [f"**{s.median:.2f}** ({s.low:.2f}–{s.high:.2f})" for s in values.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        figures[name] = {key: asdict(spread) for key, spread in values.items()}
    sys.stdout.write("\n".join([*lines, "", heading(facts), ""]))
    setting = {"cells": options.cells, "steps": options.steps, "rounds": options.rounds}
    write_json(options.json, {"machine": facts, "setting": setting, "kinds": figures})


if __name__ == "__main__":
    main()
