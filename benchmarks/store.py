"""The checkpoint store against the plainest way to write the same bytes, and what saves cost the steps.

The first table is of one shard; its cases run in turn, and ratios are taken round by round. ``extra MB`` is the peak of
resident memory above what was resident before. The second (``--rounds 0`` leaves it out) is of runs with a save every
``--steps-per-save`` steps, by ``save.mode=sync`` and ``async``, and of a run without saves, in turn. *Stall* is what a
save was charged. *Wall* is by how much the steps from a save to the next last longer than as many steps without saves.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch
from torch import Tensor

from benchmarks._common import Spread, config_of, parser, report, settings_of, table
from benchmarks._processes import Cost, cost_of
from benchmarks._turns import harness_run, in_turn, num_steps, ratio
from harness.core.events import Saved
from harness.record.event_log import read_events
from harness.store import FileStore, RowSource

DIM = 16
R_FRAC = 0.125  # CPR's share of rows per priority save
SAVES_PER_ROUND = 3
MODES = ("sync", "async")

Round = dict[str, Cost]


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
        "tofile + fsync": lambda: tofile_fsync(root / "plain.bin", rows_ND),
        "base": lambda: store.write_base("ps0", 0, 0, rows),
        "delta 12.5 %": lambda: store.write_delta("ps0", 1, 1, rows, [choice_K]),
    }
    return {name: cost_of(case)[1] for name, case in cases.items()}


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


def shard_lines(rounds: list[Round], num_bytes: int) -> tuple[list[str], dict[str, dict[str, float]]]:
    rows, cases = [], {}
    times = [{name: cost.seconds for name, cost in each.items()} for each in rounds]
    for name in times[0]:
        seconds, over = Spread.of(each[name] for each in times), ratio(times, name, "tofile + fsync")
        extra_mb = max(each[name].extra_bytes for each in rounds) / 1e6
        rate = num_bytes / 1e9 / seconds.median
        cases[name] = {"median_s": seconds.median, "ratio_to_tofile": over.median, "extra_mb": extra_mb}
        rows.append((name, seconds.show(3), f"{rate:.2f}", over.show(), f"{extra_mb:.1f}"))
    bandwidth, delta = ratio(times, "tofile + fsync", "base"), ratio(times, "delta 12.5 %", "base")
    return [
        *table((f"one shard, {num_bytes / 1e9:.3f} GB", "s", "GB/s", "x tofile", "extra MB"), rows),
        *("", f"bandwidth of a full save over tofile + fsync: {bandwidth.show()} (aim: at least 0.8)"),
        f"time of a save of 12.5 % over a full one: {delta.show()} (aim: at most 0.3)",
    ], cases


# --- runs -------------------------------------------------------------------------------------------------------------


def measure_saves(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Spread]]:
    """Seconds a save, by save mode: ``stall_s`` as charged, ``wall_s`` by which steps with saves last longer.

    All variants in turn. A chunk is half the steps between two saves, and a save falls at every other end of one. A run
    is stopped in the middle between two saves; the first half thereafter is not timed.
    """
    half = options.steps_per_save // 2
    turn = {"lead": 1, "timed": 2 * SAVES_PER_ROUND, "tail": 1}
    steps = num_steps(options.rounds, half, **turn)
    base = settings_of(folder, options.rows_scale, steps)
    base |= {"engine": options.engine, "cluster": {"num_ps": options.ps}, "metrics": {"log_every_steps": half}}
    strategy = {"name": "full", "interval_samples": 2 * half * 128}
    configs = {"none": config_of(base)}
    configs |= {mode: config_of(base, {"strategy": strategy, "save": {"mode": mode}}) for mode in MODES}
    variants = {name: (harness_run, config) for name, config in configs.items()}
    rounds = in_turn(variants, folder, options.rounds, **turn)
    more_s = {mode: [(each[mode] - each["none"]) * 2 * half / 1e3 for each in rounds] for mode in MODES}
    return {
        "stall_s": {mode: Spread.of(_stalls(folder / mode)) for mode in MODES},
        "wall_s": {mode: Spread.of(more_s[mode]) for mode in MODES},
        "step_ms": {"none": Spread.of(each["none"] for each in rounds)},
    }


def _stalls(run_dir: Path) -> list[float]:
    """Seconds that the run was charged for each save, those of the first round left out."""
    saves = [event for event in read_events(run_dir / "events.jsonl") if isinstance(event, Saved) and event.charged]
    return [event.machine["seconds"] for event in saves[SAVES_PER_ROUND + 1 :]]


def save_lines(options: argparse.Namespace, costs: dict[str, dict[str, Spread]]) -> list[str]:
    rows = [(mode, costs["stall_s"][mode].show(3), costs["wall_s"][mode].show(3)) for mode in MODES]
    sync_s, step_ms = costs["stall_s"]["sync"].median, costs["step_ms"]["none"].median
    stall, wall = (costs[key]["async"].median / sync_s for key in ("stall_s", "wall_s"))
    every = f"a save every {options.steps_per_save} steps of {step_ms:.2f} ms"
    return [
        *("", f"full, {options.ps} PS ranks, {options.rows_scale:g} of Kaggle's rows, {every}", ""),
        *table(("seconds a save", "stall", "wall"), rows),
        *("", f"async over the stall of sync: stall {stall:.2f} (aim: at most 0.25), wall {wall:.2f}"),
    ]


def main() -> None:
    made = parser(__doc__, rounds=3, rows_scale=0.1, ps=2, folder=None)
    made.add_argument("--rows", type=int, default=8_000_000, help="of the one shard")
    made.add_argument("--repeats", type=int, default=5, help="rounds of the one shard")
    made.add_argument("--steps-per-save", type=int, default=200)
    made.add_argument("--engine", choices=("rpc", "local"), default="rpc")
    options = made.parse_args()
    torch.set_num_threads(1)  # as in a PS rank
    costs = None
    lines, cases = shard_lines(one_shard(options), options.rows * DIM * 4)
    if options.rounds:
        with tempfile.TemporaryDirectory(prefix="saves-", dir=options.folder) as folder:
            costs = measure_saves(options, Path(folder))
        lines += save_lines(options, costs)
    report(options, lines, {"cases": cases, "saves": costs})


if __name__ == "__main__":
    main()
