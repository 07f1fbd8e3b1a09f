"""How fast the checkpoint store is against the plainest way to write the same bytes, and what saves cost the steps.

    python benchmarks/store.py [--rows 8000000] [--dim 16] [--repeats 5] [--json FILE]
                               [--rounds 3] [--rows-scale 0.1] [--ps 2] [--steps-per-save 200] [--strategy full]
                               [--engine rpc]

Each round runs every case once, in turn, so that a machine that slows down slows all of them: compare the medians and
the ratios, which are taken round by round. ``extra_mb`` is the peak of resident memory above what was resident before.

The second table is of real runs on ``rpc``, Kaggle's dense network and ``--rows-scale`` of its rows, a save every
``--steps-per-save`` steps (``--rounds 0`` leaves it out). *Stall* is what a save was charged as measured save time.
*Wall* is all that it cost: by how much the steps from a save to its commit last longer than the same steps without
saves. A save that is not written when the next one is due makes that one wait, and the figures say so.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, heading, machine, write_json
from benchmarks._saves import SaveCosts, Setting, measure_saves
from harness.store import ChosenRows, FileRecord, ShardStore

R_FRAC = 0.125  # CPR's share of rows per priority save
NUM_DELTAS = 7  # as many as fit before a compaction is due


@dataclass(frozen=True)
class Measure:
    """One case in one round."""

    seconds: float
    extra_bytes: int


def memory_bytes(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(action: Callable[[], object]) -> Measure:
    """Wall time of ``action`` and the rise of resident memory at its peak."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before_bytes = memory_bytes("VmRSS")
    start_s = time.perf_counter()
    action()
    return Measure(time.perf_counter() - start_s, max(0, memory_bytes("VmHWM") - before_bytes))


def tofile_fsync(path: Path, rows_ND: Tensor) -> None:
    """The floor: the same bytes, no header, no checksum, no rename."""
    with path.open("wb") as file:
        rows_ND.numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())


def chosen_rows(num_rows: int, seed: int) -> ChosenRows:
    """12.5 % of the rows, drawn at random."""
    order_N = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return ChosenRows(order_N[: int(num_rows * R_FRAC)].sort().values)


def one_round(root: Path, rows_ND: Tensor, read_ND: Tensor, choices: list[ChosenRows]) -> dict[str, Measure]:
    """Every case once, in a folder of its own."""
    store = ShardStore(root, "ps0", fsync=True)
    records: list[FileRecord] = []
    cases: dict[str, Callable[[], object]] = {
        "tofile + fsync": lambda: tofile_fsync(root / "plain.bin", rows_ND),
        "base": lambda: records.append(store.write_base(0, 0, rows_ND)),
        "delta 12.5 %": lambda: records.append(store.write_delta(1, 1, rows_ND, [choices[0]])),
        "restore base": lambda: store.read_into(records[:1], read_ND),
    }
    measures = {name: measure(action) for name, action in cases.items()}
    for number, choice in enumerate(choices[1:], start=2):
        records.append(store.write_delta(number, number, rows_ND, [choice]))
    measures["restore base + 7 deltas"] = measure(lambda: store.read_into(records, read_ND))
    measures["compact base + 7 deltas"] = measure(lambda: store.compact(records, 99))
    assert torch.equal(rows_ND, read_ND)
    return measures


def summarise(rounds: list[dict[str, Measure]], num_bytes: int) -> dict[str, dict[str, float]]:
    """Per case: median, spread, rate in bytes of the shard, ratio to the floor round by round, peak memory."""
    floor = [each["tofile + fsync"].seconds for each in rounds]
    table: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        seconds = [each[name].seconds for each in rounds]
        table[name] = {
            "median_s": statistics.median(seconds),
            "min_s": min(seconds),
            "max_s": max(seconds),
            "shard_gb_per_s": num_bytes / 1e9 / statistics.median(seconds),
            "ratio_to_tofile": statistics.median(a / b for a, b in zip(seconds, floor, strict=True)),
            "extra_mb": max(each[name].extra_bytes for each in rounds) / 1e6,
        }
    return table


def report(table: Mapping[str, Mapping[str, float]]) -> str:
    """The table as text."""
    lines = [f"{'case':26}{'median s':>10}{'min':>8}{'max':>8}{'GB/s':>8}{'x tofile':>10}{'extra MB':>10}"]
    for name, row in table.items():
        spread = f"{row['median_s']:10.3f}{row['min_s']:8.3f}{row['max_s']:8.3f}"
        rate = f"{row['shard_gb_per_s']:8.2f}{row['ratio_to_tofile']:10.2f}{row['extra_mb']:10.1f}"
        lines.append(f"{name:26}{spread}{rate}")
    return "\n".join(lines)


def judge(rounds: list[dict[str, Measure]]) -> str:
    """The two figures that have an aim."""

    def ratio(upper: str, lower: str) -> float:
        return statistics.median(each[upper].seconds / each[lower].seconds for each in rounds)

    return (
        f"bandwidth of a full save over tofile + fsync: {ratio('tofile + fsync', 'base'):.2f} (aim: at least 0.8)\n"
        f"time of a save of 12.5 % over a full one: {ratio('delta 12.5 %', 'base'):.2f} (aim: at most 0.3)"
    )


def report_saves(setting: Setting, costs: SaveCosts) -> str:
    """The second table as text."""

    def told(spread: Spread) -> str:
        return f"{spread.median:10.3f} ({spread.low:.3f}-{spread.high:.3f})"

    every = f"a save every {setting.steps_per_save} steps of {costs.step_ms.median:.2f} ms"
    rows = f"{setting.strategy}, {setting.num_ps} PS ranks, {setting.rows_scale:g} of Kaggle's rows"
    lines = [f"{rows}, {every}; seconds a save, median (least-most)"]
    lines += [f"{name:7} stall {told(costs.stall_s[name])}   wall {told(costs.wall_s[name])}" for name in costs.stall_s]
    stall, wall = costs.over_sync(costs.stall_s), costs.over_sync(costs.wall_s)
    lines.append(f"in the background over the stall of sync: stall {stall:.2f} (aim: at most 0.25), wall {wall:.2f}")
    return "\n".join(lines)


def one_shard(args: argparse.Namespace) -> list[dict[str, Measure]]:
    """All rounds of the first table, after one to warm up."""
    rows_ND = torch.randn((args.rows, args.dim), generator=torch.Generator().manual_seed(0))
    read_ND = torch.zeros_like(rows_ND)
    choices = [chosen_rows(args.rows, seed) for seed in range(NUM_DELTAS)]
    rounds: list[dict[str, Measure]] = []
    for _ in range(args.repeats + 1):
        root = Path(tempfile.mkdtemp(prefix="store-", dir=args.folder))
        try:
            rounds.append(one_round(root, rows_ND, read_ND, choices))
        finally:
            shutil.rmtree(root)
    return rounds[1:]


def main() -> None:
    """Measure, print both tables, perhaps write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="of the runs with saves; 0 leaves them out")
    parser.add_argument("--rows-scale", type=float, default=0.1)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--steps-per-save", type=int, default=200)
    parser.add_argument("--strategy", default="full")
    parser.add_argument("--engine", choices=("rpc", "local"), default="rpc")
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as in a PS rank
    facts = machine()
    num_bytes = args.rows * args.dim * 4
    rounds = one_shard(args)
    table = summarise(rounds, num_bytes)
    sys.stdout.write(f"{num_bytes / 1e9:.3f} GB per shard\n{report(table)}\n{judge(rounds)}\n")
    costs = None
    if args.rounds:
        setting = Setting(
            rows_scale=args.rows_scale,
            num_ps=args.ps,
            steps_per_save=args.steps_per_save,
            num_rounds=args.rounds,
            strategy=args.strategy,
            engine=args.engine,
        )
        with tempfile.TemporaryDirectory(prefix="saves-", dir=args.folder) as folder:
            costs = measure_saves(setting, Path(folder))
        sys.stdout.write(f"\n{report_saves(setting, costs)}\n")
    sys.stdout.write(f"{heading(facts)}\n")
    options = {key: str(value) for key, value in vars(args).items() if key != "json"}
    saves = costs and asdict(costs)
    write_json(args.json, {"machine": facts, "setting": options, "cases": table, "saves": saves})


if __name__ == "__main__":
    main()
