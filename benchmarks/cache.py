"""What the lookahead cache moves, against a run without one and against the least possible; how much it holds.

    python benchmarks/cache.py [--lookahead 10,25,50,100,200,400] [--steps 2000] [--batch-size 128] [--rows-scale 1]
                               [--ps 2] [--max-rows N] [--recover] [--data FOLDER] [--json FILE]

The real cache, planned from real batches: Kaggle's 26 tables with log-uniform ids, which is Zipf's law with exponent 1,
or the prepared clicks in FOLDER. Nothing is trained: ranks answer with zeros, since what moves does not depend on
values. Bytes are those of all tensors both ways, ids and counts included; no boundary but the last, where all is told.

    without    one message a step and rank, rows deduplicated: ids, rows, gradients, counts
    least      what no cache can do without that knows this window and the next (harness/client/oracle.py, least_rows)
    sliding    a cache that drops a row as soon as none of the next L steps needs it: windows hold rows somewhat longer

What the cache takes of a step's time is told by benchmarks/step.py.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import KAGGLE_CARDINALITIES, heading, machine, make_data, write_json
from harness.client.direct import Batches
from harness.client.lookahead import COUNT_BYTES, ID_BYTES, VALUE_BYTES, LookaheadPath
from harness.client.oracle import Keys
from harness.cluster.protocol import Counted, Exchange, Several
from harness.core.placement import Placement
from harness.core.plans import Progress, Rank, ps_rank
from harness.core.pls import UpdateCounter
from harness.data.dataset import Dataset
from harness.recovery.failover import Recovery

DIM = 16


class ZeroRanks:
    """What a data path asks of its recovery, on ranks whose rows are zeros."""

    is_saving = False

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.save_listeners: list[Any] = []

    def start(self, requests: Mapping[Rank, Several]) -> dict[Rank, tuple[Tensor | Counted]]:
        """Answer at once."""
        return {rank: (_zeros(request.exchanges[0]),) for rank, request in requests.items()}

    def finish(self, replies: dict[Rank, Tensor | Counted], progress: Progress) -> dict[Rank, Tensor | Counted]:
        """Answered already."""
        return replies


def _zeros(request: Exchange) -> Tensor | Counted:
    assert request.pull_N is not None
    rows_ND = torch.zeros(len(request.pull_N), DIM)
    if request.unsaved_M is None:
        return rows_ND
    return Counted(rows_ND, torch.zeros(len(request.pull_N) + len(request.unsaved_M), dtype=torch.int32))


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of one lookahead. ``saved_frac`` of the bytes without a cache, ``over_minimum_frac`` of the least ones."""

    lookahead: int
    hit_rate: float
    bytes: float
    uncached_bytes: float
    minimum_bytes: float
    saved_frac: float
    over_minimum_frac: float
    sliding_bytes: float
    evicted_rows: float
    peak_rows: float
    buffer_bytes: int


def measure(batches: Batches, options: argparse.Namespace, lookahead: int) -> Result:
    """All steps through the real cache."""
    ranks = tuple(ps_rank(k) for k in range(options.ps))
    path = LookaheadPath(
        cast("Recovery", ZeroRanks()),
        batches,
        ranks,
        dim=DIM,
        learning_rate=0.1,
        num_steps=options.steps,
        lookahead=lookahead,
        max_rows=options.max_rows,
        is_boundary=lambda step: step == options.steps,
        recovers_from_cache=options.recover,
        count_updates=UpdateCounter(batches.placement, ()),
        tells_samples=False,
    )
    steps_K: list[Keys] = []
    for step in range(options.steps):
        progress = Progress(step=step, samples=0, previous_samples=0, total_samples=0)
        fetched = path.fetch(progress)
        plan, rows_ND = fetched.plan, fetched.rows_ND
        is_last = step + 1 == options.steps
        path.push(plan, torch.zeros_like(rows_ND), progress, is_boundary=is_last, meanwhile=lambda: None)
        steps_K.append(plan.keys_N)
    cache = path.summary()
    row_bytes = ID_BYTES + VALUE_BYTES * DIM
    once = 2 * row_bytes + COUNT_BYTES + (COUNT_BYTES if options.recover else 0)
    return Result(
        lookahead=lookahead,
        **{key: cache[key] for key in ("hit_rate", "bytes", "uncached_bytes", "minimum_bytes")},
        saved_frac=1 - cache["bytes"] / cache["uncached_bytes"],
        over_minimum_frac=cache["bytes"] / cache["minimum_bytes"] - 1,
        sliding_bytes=num_runs(steps_K, lookahead) * once,
        evicted_rows=cache["evicted_rows"],
        peak_rows=cache["peak_rows"],
        buffer_bytes=path.buffer_bytes,
    )


def num_runs(steps_K: Sequence[Keys], lookahead: int) -> int:
    """Rows times their stays in a cache that drops a row when none of the next ``lookahead`` steps needs it."""
    keys = np.concatenate(steps_K)
    steps = np.repeat(np.arange(len(steps_K)), [len(keys_K) for keys_K in steps_K])
    order = np.lexsort((steps, keys))
    keys, steps = keys[order], steps[order]
    is_same_row = keys[1:] == keys[:-1]
    return len(keys) - int(np.count_nonzero(is_same_row & (np.diff(steps) <= lookahead)))


def table(results: Sequence[Result]) -> str:
    """One line per lookahead."""
    names = ("lookahead", "hits", "MB", "least", "over least", "sliding", "without", "saved", "peak rows", "buffer MB")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for each in results:
        sizes = [f"{size / 1e6:,.1f}" for size in (each.minimum_bytes, each.sliding_bytes, each.uncached_bytes)]
        lines.append(
            f"| {each.lookahead} | {each.hit_rate:.1%} | {each.bytes / 1e6:,.1f} | {sizes[0]} "
            f"| {each.over_minimum_frac:.2%} | {sizes[1]} | {sizes[2]} | **{each.saved_frac:.1%}** "
            f"| {each.peak_rows:,.0f} | {each.buffer_bytes / 1e6:,.1f} |"
        )
    return "\n".join(lines)


def open_clicks(options: argparse.Namespace, folder: Path) -> Dataset:
    """Clicks to read."""
    if options.data is not None:
        return Dataset.open(options.data, split="dlrm", seed=0)
    cardinalities = [max(3, round(cardinality * options.rows_scale)) for cardinality in KAGGLE_CARDINALITIES]
    make_data(folder / "data", cardinalities, options.steps * options.batch_size * 7 // 6 + 14, seed=1)
    return Dataset.open(folder / "data", split="dlrm", seed=0)


def main() -> None:
    """Measure, print the table, perhaps write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lookahead", default="10,25,50,100,200,400", help="steps that the oracle sees")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rows-scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--ps", type=int, default=2, help="PS ranks")
    parser.add_argument("--max-rows", type=int, help="bound on the cache (cache.max_rows)")
    parser.add_argument("--recover", action="store_true", help="with cache.recover_from_cache: counts travel along")
    parser.add_argument("--data", type=Path, help="prepared clicks to read instead of made-up ones")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="cache-") as folder:
        dataset = open_clicks(options, Path(folder))
        num_steps = dataset.num_train // options.batch_size
        if num_steps < options.steps:
            parser.error(f"--steps: {options.steps}, but there are clicks for {num_steps}")
        placement = Placement("row", dataset.cardinalities, options.ps)
        batches = Batches(dataset, placement, batch_size=options.batch_size, ssu_period=2)
        results = [measure(batches, options, int(lookahead)) for lookahead in options.lookahead.split(",")]
    sys.stdout.write(f"{table(results)}\n\n{heading(facts)}\n")
    setting = {key: str(value) for key, value in vars(options).items() if key != "json"}
    write_json(options.json, {"machine": facts, "setting": setting, "results": [asdict(each) for each in results]})


if __name__ == "__main__":
    main()
