"""The checkpoint store against the plainest way to write the same bytes, and what saves cost the steps.

The first table is of one shard; its cases run in turn, and ratios are taken round by round. The second is of runs with
a save every ``--steps-per-save`` steps, by ``save.mode=sync`` and ``async``, and of a run without saves, in turn.
*Stall* is what a save was charged. *Wall* is by how much the steps from a save to the next last longer than as many
steps without saves.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch
from torch import Tensor

from benchmarks._common import Spread, config_of, parser, report, table
from benchmarks._turns import chunked, harness_run, in_turn
from harness.core.events import Saved
from harness.record.event_log import read_events
from harness.store import FileStore, RowSource

DIM = 16
R_FRAC = 0.125  # CPR's share of rows per priority save
SAVES_PER_ROUND = 3
MODES = ("sync", "async")
TOFILE, BASE, DELTA = "tofile + fsync", "base", "delta 12.5 %"

Round = dict[str, float]
"""Seconds by case."""


# --- one shard --------------------------------------------------------------------------------------------------------


def tofile_fsync(path: Path, rows_ND: Tensor) -> None:
    """The floor: the same bytes, no header, no checksum, no rename."""
    with path.open("wb") as file:
        rows_ND.numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())


def one_round(root: Path, rows_ND: Tensor, choice_K: Tensor) -> Round:
    store, rows = FileStore(root, fsync=True), RowSource(rows_ND)
    cases: dict[str, Callable[[], object]] = {
        TOFILE: lambda: tofile_fsync(root / "plain.bin", rows_ND),
        BASE: lambda: store.write_base("ps0", 0, 0, rows),
        DELTA: lambda: store.write_delta("ps0", 1, 1, rows, [choice_K]),
    }
    found: Round = {}
    for name, case in cases.items():
        began_s = time.perf_counter()
        case()
        found[name] = time.perf_counter() - began_s
    return found


def one_shard(options: argparse.Namespace) -> list[Round]:
    chance = torch.Generator().manual_seed(0)
    rows_ND = torch.randn((options.rows, DIM), generator=chance)
    order_N = torch.randperm(options.rows, generator=chance, dtype=torch.int32)
    choice_K = order_N[: int(options.rows * R_FRAC)].sort().values
    rounds: list[Round] = []
    for _ in range(options.repeats + 1):
        with tempfile.TemporaryDirectory(prefix="store-", dir=options.folder) as root:
            rounds.append(one_round(Path(root), rows_ND, choice_K))
    return rounds[1:]


def shard_lines(rounds: list[Round], num_bytes: int) -> list[str]:
    rows: list[tuple[str, ...]] = []
    seconds = {name: [each[name] for each in rounds] for name in rounds[0]}
    for name, own in seconds.items():
        spread, over = Spread.of(own), Spread.ratio(own, seconds[TOFILE])
        rows.append((name, spread.show(3), f"{num_bytes / 1e9 / spread.median:.2f}", over.show()))
    bandwidth = Spread.ratio(seconds[TOFILE], seconds[BASE])
    return [
        *table((f"one shard, {num_bytes / 1e9:.3f} GB", "s", "GB/s", "x tofile"), rows),
        *("", f"bandwidth of a full save over {TOFILE}: {bandwidth.show()} (aim: at least 0.8)"),
        f"time of {DELTA} over a full save: {Spread.ratio(seconds[DELTA], seconds[BASE]).show()} (aim: at most 0.3)",
    ]


# --- runs -------------------------------------------------------------------------------------------------------------


def measure_saves(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Spread]]:
    """Seconds a save, by save mode: ``stall`` as charged, ``wall`` by which steps with saves last longer.

    All variants in turn. A chunk is half the steps between two saves, and a save falls at every other end of one, so
    that what is timed begins and ends in the middle between two saves.
    """
    half = options.steps_per_save // 2
    base = chunked(folder, options.rows_scale, half, 2 + 2 * SAVES_PER_ROUND)
    base |= {"engine": "rpc", "cluster": {"num_ps": 2}, "store": {"keep_finished": False}}
    strategy = {"name": "full", "interval_samples": 2 * half * 128}
    configs = {"none": config_of(base)}
    configs |= {mode: config_of(base, {"strategy": strategy, "save": {"mode": mode}}) for mode in MODES}
    found = in_turn({name: (harness_run, config) for name, config in configs.items()}, folder, options.rounds)
    ms = {name: [each["step"] for each in rounds] for name, rounds in found.items()}
    more = {mode: [own - none for own, none in zip(ms[mode], ms["none"], strict=True)] for mode in MODES}
    return {
        "stall": {mode: Spread.of(_stalls(folder.glob(f"{mode}-*"))) for mode in MODES},
        "wall": {mode: Spread.of(2 * half / 1e3 * each for each in more[mode]) for mode in MODES},
        "step_ms": {"none": Spread.of(ms["none"])},
    }


def _stalls(run_dirs: Iterable[Path]) -> Iterator[float]:
    """Seconds that the runs were charged for each save."""
    for event in (event for run_dir in run_dirs for event in read_events(run_dir / "events.jsonl")):
        if isinstance(event, Saved) and event.charged:
            yield event.machine["seconds"]


def save_lines(options: argparse.Namespace, costs: dict[str, dict[str, Spread]]) -> list[str]:
    rows = [(mode, costs["stall"][mode].show(3), costs["wall"][mode].show(3)) for mode in MODES]
    sync_s, step_ms = costs["stall"]["sync"].median, costs["step_ms"]["none"].median
    stall, wall = (costs[key]["async"].median / sync_s for key in ("stall", "wall"))
    every = f"a save every {options.steps_per_save} steps of {step_ms:.2f} ms"
    return [
        *("", f"full, 2 PS ranks, {options.rows_scale:g} of Kaggle's rows, {every}", ""),
        *table(("seconds a save", "stall", "wall"), rows),
        *("", f"async over the stall of sync: stall {stall:.2f} (aim: at most 0.25), wall {wall:.2f}"),
    ]


def main() -> None:
    made = parser(__doc__, rounds=3, rows_scale=0.1, folder=None)
    made.add_argument("--rows", type=int, default=8_000_000, help="of the one shard")
    made.add_argument("--repeats", type=int, default=5, help="rounds of the one shard")
    made.add_argument("--steps-per-save", type=int, default=200)
    options = made.parse_args()
    torch.set_num_threads(1)  # as in a PS rank
    shard = one_shard(options)
    with tempfile.TemporaryDirectory(prefix="saves-", dir=options.folder) as folder:
        costs = measure_saves(options, Path(folder))
    lines = [*shard_lines(shard, options.rows * DIM * 4), *save_lines(options, costs)]
    report(options, lines, {"shard": shard, "saves": costs})


if __name__ == "__main__":
    main()
