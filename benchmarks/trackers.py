"""What choosing rows costs: each tracker per step of training, its choice spread over the interval between saves.

    step    what shards with a tracker take for a step's updates and lookups beyond shards without one, over all ranks.
            All serve the same batches, in an order that turns from rank to rank; before each batch the matrix products
            of a step are computed, so that caches are as training leaves them. It is divided by the step of a run on
            engine local, measured in turn.
    save    choose, clear and saved of all tables that the tracker chooses from, on all ranks, after as many steps as
            lie between two priority saves: ``--save-steps`` (by default those of profile cpr56 at Kaggle's size) and
            ``--intervals``. Writing is not in it: see store.py.

Memory is arithmetic (harness/core/trackers.py), in parts of the tracked tables of Kaggle's log.

`--trackers` names those that are measured together; each has the shards of all ranks (2.16 GB at Kaggle's size, scar
twice that), so measure mass, changed and scar apart from mfu and ssu. Aim: at most 4 % of a step, scar excepted.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import Spread, config_of, names_of, numbers_of, parser, report, settings_of, skewed_ids, table
from benchmarks._plain import multiply, products
from benchmarks._turns import Worker, harness_run, num_steps, ratio
from harness.client.embedding_client import make_pushes
from harness.config.model import Config, MetricsConfig
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.lookup import plan_batch
from harness.core.placement import Placement, tracked_tables
from harness.core.seeds import generator
from harness.core.shard import Shard
from harness.core.trackers import TRACKERS, TrackerSpec
from harness.model.models import model_size
from harness.run.spec import RunSpec
from harness.store import MemoryStore

STRATEGIES = {
    "none": "none",
    "mfu": "cpr_mfu",
    "ssu": "cpr_ssu",
    "mass": "cpr_mass",
    "scar": "cpr_scar",
    "changed": "differential",
}
KINDS = [*STRATEGIES][1:]
SAVE_STEPS = 30_697
"""Steps between the priority saves of profile cpr56 at Kaggle's size and batch 128: r times the interval."""
SAMPLE_PERIOD = 2
_CHUNK_STEPS = 64
DIMS = (16, 32, 64, 128)
R = 0.125  # CPR's choice, and the default here

Parts = dict[str, float]


class Tracked:
    """The shard of a PS rank with the tracker that a strategy asks for; counters only where the tracker needs them."""

    def __init__(self, config: Config, k: int, dim: int) -> None:
        spec = RunSpec(config).rank_spec(MemoryStore())
        make_tracker = TRACKERS[spec.tracker.kind]
        self.shard = Shard(spec.placement, k, dim, seed=spec.seed, counts_updates=make_tracker.needs_counts)
        self.shard.rows_MD.zero_()  # so that the system has given all pages
        self.tracker = make_tracker(self.shard, spec.tracker)
        every_table = range(len(spec.placement.cardinalities))
        self.tables = every_table if spec.tracker.kind == "changed" else spec.tracker.tables

    def fill(self, step: int, rows_N: Tensor, counts_N: Tensor, sampled_N: Tensor) -> None:
        """Count and track what a step touched; each value grows by the number of its row's updates."""
        self.shard.write(step, rows_N, self.shard.gather(rows_N) + counts_N[:, None], counts_N)
        if self.tracker.needs_norms:
            self.tracker.moved(step, rows_N, counts_N.float())
        self._track(step, rows_N, counts_N, sampled_N)

    def serve(self, step: int, rows_N: Tensor, grads_ND: Tensor, counts_N: Tensor, sampled_N: Tensor) -> None:
        """Apply the updates of a step, make the calls that the tracker needs, look the rows up: a rank's work."""
        norms_N = torch.empty(len(rows_N)) if self.tracker.needs_norms else None
        self.shard.apply(step, rows_N, grads_ND, counts_N, 0.1, norms_N=norms_N)
        if norms_N is not None:
            self.tracker.moved(step, rows_N, norms_N)
        self._track(step, rows_N, counts_N, sampled_N)
        self.shard.gather(rows_N)

    def _track(self, step: int, rows_N: Tensor, counts_N: Tensor, sampled_N: Tensor) -> None:
        if self.tracker.needs_touches:
            self.tracker.touched(step, rows_N, counts_N)
        if self.tracker.needs_samples:
            self.tracker.sampled(step, rows_N, sampled_N)


def fill(ranks: Sequence[Sequence[Tracked]], config: Config, steps: int) -> None:
    """Let the trackers of every rank see what ``steps`` steps of skewed accesses touch, 64 steps at once."""
    rng, placement = generator(config.seed, "touches"), RunSpec(config).placement
    for first in range(0, steps, _CHUNK_STEPS):
        step = min(first + _CHUNK_STEPS, steps)
        num_samples = (step - first) * config.trainer.batch_size
        ids_BF = np.stack([skewed_ids(rng, rows, num_samples) for rows in placement.cardinalities], axis=1)
        plan = plan_batch(ids_BF, placement, np.arange(num_samples) % SAMPLE_PERIOD == 0)
        for push, kinds in zip(make_pushes(plan, torch.empty(len(plan.keys_N), 0), step, 0.0), ranks, strict=True):
            for tracked in kinds:
                tracked.fill(step, push.rows_N, push.counts_N, push.sampled_N)


def measure_steps(config: Config, options: argparse.Namespace, folder: Path) -> list[Parts]:
    """Milliseconds of each round: the ``step``, and what each tracker adds to it."""
    spec, size, batch_size = RunSpec(config), model_size(config.model), config.trainer.batch_size
    names = ("none", *options.trackers)
    ranks = [[(name, Tracked(_of(config, name), k, size.embedding_dim)) for name in names] for k in range(options.ps)]
    fill([[tracked for _, tracked in kinds[1:]] for kinds in ranks], config, options.save_steps // 2)
    for _, tracked in (each for kinds in ranks for each in kinds):
        tracked.shard.applied_step = 0
    torch.set_num_threads(options.threads)
    found, rounds, number = products(size, batch_size), [], 0
    grads_AD = torch.full((batch_size * len(spec.placement.cardinalities), size.embedding_dim), 1e-6)
    worker = Worker(harness_run, config, folder / "run")
    try:
        worker.wait_ready()
        for _ in range(options.rounds + 1):
            step_s, spent_s = worker.run(lead=1, timed=1), dict.fromkeys(names, 0.0)
            for _ in range(options.steps):
                batch = spec.dataset.train_batch(number, batch_size)
                plan = plan_batch(batch.ids_BF, spec.placement, np.arange(batch_size) % SAMPLE_PERIOD == 0)
                number += 1
                multiply(found)
                pushes = make_pushes(plan, grads_AD, number, 0.0)
                for k, (push, kinds) in enumerate(zip(pushes, ranks, strict=True)):
                    for i in range(len(kinds)):
                        name, tracked = kinds[(i + k + number) % len(kinds)]
                        began_s = time.perf_counter()
                        tracked.serve(number, push.rows_N, push.grads_ND, push.counts_N, push.sampled_N)
                        spent_s[name] += time.perf_counter() - began_s
            parts = {"step": step_s} | {kind: spent_s[kind] - spent_s["none"] for kind in options.trackers}
            rounds.append({name: 1e3 * seconds / options.steps for name, seconds in parts.items()})
    finally:
        worker.close()
    return rounds[1:]


def _of(config: Config, name: str) -> Config:
    return Config.model_validate({**config.model_dump(), "strategy": {"name": STRATEGIES[name]}})


def measure_saves(config: Config, options: argparse.Namespace, steps: int) -> dict[str, Parts]:
    """What a save costs each tracker on all ranks when it has seen ``steps`` steps since the last."""
    dims = {kind: model_size(config.model).embedding_dim if kind == "scar" else 1 for kind in options.trackers}
    # Only scar looks at rows.
    ranks = [[Tracked(_of(config, kind), k, dim) for kind, dim in dims.items()] for k in range(options.ps)]
    fill(ranks, config, steps)
    costs = {kind: [_save(kinds[i], steps) for kinds in ranks] for i, kind in enumerate(options.trackers)}
    return {kind: {part: sum(cost[part] for cost in each) for part in each[0]} for kind, each in costs.items()}


def _save(tracked: Tracked, step: int) -> Parts:
    """The work of a PS rank around the writing of a priority save: milliseconds, and rows chosen."""
    began_s = time.perf_counter()
    chosen = {number: tracked.tracker.choose(number, step) for number in tracked.tables}
    chose_s = time.perf_counter()
    for number, rows_K in chosen.items():
        tracked.shard.reset_pending(rows_K)
        tracked.tracker.saved(number, rows_K)
    cleared_s = time.perf_counter()
    num_rows = sum(len(rows_K) for rows_K in chosen.values())
    return {"choose_ms": 1e3 * (chose_s - began_s), "clear_ms": 1e3 * (cleared_s - chose_s), "num_rows": num_rows}


def memory_fracs(kind: str, num_ps: int) -> dict[int, float]:
    """Bytes of a tracker over all ranks, as a part of the tables that it chooses from, by embedding dim."""
    placement = Placement("row", KAGGLE_CARDINALITIES, num_ps)
    tables = tracked_tables(KAGGLE_CARDINALITIES, MetricsConfig().num_tracked)
    spec = TrackerSpec(kind, tables, {"r": R})
    num_rows = sum(KAGGLE_CARDINALITIES[number] for number in tables)
    size = TRACKERS[kind].num_bytes
    return {dim: sum(size(spec, placement, k, dim) or 0 for k in range(num_ps)) / (4 * dim * num_rows) for dim in DIMS}


def main() -> None:
    made = parser(__doc__, rounds=7, steps=192, threads=2, ps=8, rows_scale=1.0)
    made.add_argument("--intervals", type=numbers_of, default="1000,10000", help="more numbers of steps between saves")
    made.add_argument("--save-steps", type=int, default=SAVE_STEPS, help="steps between priority saves")
    made.add_argument("--trackers", type=names_of(KINDS), default=["mfu", "ssu"], help=", ".join(KINDS))
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="trackers-") as name:
        steps = num_steps(options.rounds, options.steps)
        base = settings_of(Path(name), options.rows_scale, steps, threads=options.threads)
        metrics = {"log_every_steps": options.steps, "update_pls": False}
        config = config_of(base, {"cluster": {"num_ps": options.ps}, "metrics": metrics})
        rounds = measure_steps(config, options, Path(name))
        torch.set_num_threads(1)
        intervals = [*map(int, options.intervals), options.save_steps]
        saves = {each: measure_saves(config, options, each) for each in intervals}
    step_ms = Spread.of(each["step"] for each in rounds)
    lines = [f"step of strategy none: {step_ms.show()} ms"]
    rows, values, results = [], list[dict[str, Any]](), list[dict[str, Any]]()
    for kind in options.trackers:
        more_us, share = Spread.of(1e3 * each[kind] for each in rounds), ratio(rounds, kind, "step", unit=0.01)
        lines.append(f"{kind}: {more_us.show(1)} us a step more, {share.show()} % of it")
        saves_pct: dict[int, float] = {}
        for num in intervals:
            cost = saves[num][kind]
            saves_pct[num] = 100 * (cost["choose_ms"] + cost["clear_ms"]) / num / step_ms.median
            whole_pct = saves_pct[num] + share.median
            values.append({"steps": num, "tracker": kind, **cost, "save_pct": saves_pct[num], "whole_pct": whole_pct})
            times = (f"{cost['num_rows']:,}", f"{cost['choose_ms']:.1f}", f"{cost['clear_ms']:.1f}")
            rows.append((kind, f"{num:,}", *times, f"{saves_pct[num]:.2f}", f"**{whole_pct:.2f}**"))
        results.append(
            {
                "tracker": kind,
                "steps_pct": [100 * each[kind] / each["step"] for each in rounds],
                "saves_pct": saves_pct,
                "memory_fracs": memory_fracs(kind, options.ps),
            }
        )
    head = ("tracker", "steps between saves", "rows", "choose ms", "clear ms", "% of a step", "with touching %")
    report(options, [*lines, "", *table(head, rows)], {"steps": rounds, "saves": values, "results": results})


if __name__ == "__main__":
    main()
