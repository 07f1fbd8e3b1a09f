"""What failures cost under each strategy at the shape of Criteo Kaggle: real strategies and ledgers, no training.

    python benchmarks/cpr56.py [--profile cpr56|poster50] [--schedules 20000] [--seed 0]
                               [--num-tracked 7] [--json FILE]

`cpr56`: exactly two failures of one rank each, uniform over 56 h, independent. `poster50`: exactly five of four ranks
each over 50 h, with and without k in the interval. Every strategy meets the same schedules. Emulated hours throughout.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from harness.config.costs import job_costs
from harness.config.model import Config, MetricsConfig
from harness.config.profiles import PROFILES
from harness.core.criteo import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES
from harness.core.placement import Placement, tracked_tables
from harness.core.plans import PlannedKill, ps_rank
from harness.core.pls import rank_weights
from harness.core.seeds import generator
from harness.core.strategies import CprPriority, StrategyOptions, make_strategy, options_of
from harness.model.sizes import SIZES
from harness.planning.simulate import Job, Outcome, due_saves, save_sizes, simulate
from harness.traces.schedule import schedule
from harness.traces.trace import Entry, Trace

BATCH_SIZE = 128
METRICS = MetricsConfig()
STRATEGIES = ("never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of the table: a strategy over all schedules. ``_se`` is the standard error of the mean above it."""

    label: str
    interval_h: float | None
    num_saves: float
    save_frac: float
    load_frac: float
    lost_frac: float
    reschedule_frac: float
    overhead_frac: float
    overhead_sd: float
    pls: float
    pls_sd: float
    pls_se: float


def kaggle_job(profile: str, strategy: StrategyOptions, metrics: MetricsConfig = METRICS) -> Job:
    """Kaggle's tables, dense network and one epoch (the last partial batch dropped) under ``profile``."""
    config = Config(profile=profile, strategy=strategy, metrics=metrics)
    placement = Placement("row", KAGGLE_CARDINALITIES, config.num_ps)
    size = SIZES["kaggle"]
    num_steps = KAGGLE_TRAIN_SAMPLES // BATCH_SIZE
    return Job(
        costs=job_costs(config, num_steps * BATCH_SIZE),
        batch_size=BATCH_SIZE,
        num_steps=num_steps,
        weights=rank_weights(placement),
        sizes=save_sizes(
            placement,
            dim=size.embedding_dim,
            dense_bytes=size.dense_bytes,
            tracked=tracked_tables(KAGGLE_CARDINALITIES, metrics.num_tracked),
            r=strategy.r if isinstance(strategy, CprPriority.Options) else 1.0,
        ),
        pls_since=metrics.pls_since,
    )


def draw_schedules(job: Job, num_schedules: int, seed: int) -> list[tuple[PlannedKill, ...]]:
    """Schedules of exactly ``job_h / mtbf_h`` failures at independent uniform hours, each of k ranks at random."""
    costs = job.costs
    num_failures = round(costs.job_h / costs.mtbf_h)
    rng = generator(seed, "schedules")
    schedules: list[tuple[PlannedKill, ...]] = []
    for _ in range(num_schedules):
        hours = sorted(rng.uniform(0, costs.job_h, num_failures).tolist())
        entries = tuple(
            Entry(hour=hour, who=ps_rank(index), line=line)
            for line, hour in enumerate(hours, start=1)
            for index in rng.permutation(costs.num_ps)[: costs.ranks_per_failure].tolist()
        )
        trace = Trace(source="drawn", entries=entries, header={})
        schedules.append(
            schedule(
                trace,
                job_h=costs.job_h,
                total_samples=costs.total_samples,
                batch_size=job.batch_size,
                num_steps=job.num_steps,
                num_ps=costs.num_ps,
                seed=seed,
            )
        )
    return schedules


def run_all(options: StrategyOptions, job: Job, schedules: Sequence[Sequence[PlannedKill]]) -> list[Outcome]:
    """One outcome per schedule."""
    strategy = make_strategy(options, job.costs)
    saves = due_saves(strategy, job)
    return [simulate(strategy, job, planned_kills, saves) for planned_kills in schedules]


def summarise(label: str, options: StrategyOptions, job: Job, outcomes: Sequence[Outcome]) -> Cell:
    """Means and spreads of one strategy."""
    interval = make_strategy(options, job.costs).interval.samples
    job_h = job.costs.job_h
    pls_sd = statistics.stdev(outcome.pls for outcome in outcomes)
    return Cell(
        label=label,
        interval_h=None if interval is None else interval / job.costs.total_samples * job_h,
        num_saves=statistics.fmean(outcome.num_saves for outcome in outcomes),
        save_frac=statistics.fmean(outcome.save_h for outcome in outcomes) / job_h,
        load_frac=statistics.fmean(outcome.load_h for outcome in outcomes) / job_h,
        lost_frac=statistics.fmean(outcome.lost_h for outcome in outcomes) / job_h,
        reschedule_frac=statistics.fmean(outcome.reschedule_h for outcome in outcomes) / job_h,
        overhead_frac=statistics.fmean(outcome.overhead_frac for outcome in outcomes),
        overhead_sd=statistics.stdev(outcome.overhead_frac for outcome in outcomes),
        pls=statistics.fmean(outcome.pls for outcome in outcomes),
        pls_sd=pls_sd,
        pls_se=pls_sd / len(outcomes) ** 0.5,
    )


def cases(profile: str) -> list[tuple[str, StrategyOptions]]:
    """What the table of ``profile`` compares; where a failure takes several ranks, also without k in the interval."""
    plain = [(name, options_of(name)) for name in STRATEGIES]
    if PROFILES[profile].ranks_per_failure == 1:
        return plain
    without_k = [
        (f"{name}, k left out", options.model_copy(update={"interval_counts_ranks": False}))
        for name, options in plain
        if name.startswith("cpr_")
    ]
    return plain + without_k


def table(profile: str, cells: Sequence[Cell]) -> str:
    """A Markdown table; overheads in percent of the job, with the standard deviation over schedules."""
    full = next(cell for cell in cells if cell.label == "full")
    lines = [
        f"profile {profile}; overheads in % of the failure-free job, ± standard deviation over schedules",
        "",
        "| strategy | interval h | saves | save | load | lost | reschedule | overhead | removed | PLS |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        buckets = (cell.save_frac, cell.load_frac, cell.lost_frac, cell.reschedule_frac)
        values = [
            cell.label,
            "–" if cell.interval_h is None else f"{cell.interval_h:.2f}",
            f"{cell.num_saves:g}",
            *(f"{100 * bucket:.3f}" for bucket in buckets),
            f"{100 * cell.overhead_frac:.3f} ± {100 * cell.overhead_sd:.3f}",
            f"{100 * (1 - cell.overhead_frac / full.overhead_frac):.1f} %",
            f"{cell.pls:.5f} ± {cell.pls_sd:.5f} (se {cell.pls_se:.5f})",
        ]
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print the table, perhaps write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=("cpr56", "poster50"), default="cpr56")
    parser.add_argument("--schedules", type=int, default=20_000, help="how many schedules to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-tracked", type=int, default=METRICS.num_tracked)
    parser.add_argument("--json", type=Path, help="also write the table here")
    options = parser.parse_args()
    if options.schedules < 2:
        parser.error("--schedules: a spread needs at least 2")
    start_s = time.perf_counter()
    metrics = MetricsConfig(num_tracked=options.num_tracked)
    schedules = draw_schedules(kaggle_job(options.profile, options_of("full")), options.schedules, options.seed)
    cells = []
    for label, strategy in cases(options.profile):
        job = kaggle_job(options.profile, strategy, metrics)
        cells.append(summarise(label, strategy, job, run_all(strategy, job, schedules)))
    seconds = time.perf_counter() - start_s
    note = f"{options.schedules} schedules, seed {options.seed}, {options.num_tracked} tracked tables, {seconds:.1f} s"
    sys.stdout.write(f"{table(options.profile, cells)}\n\n{note}\n")
    if options.json:
        values = {"profile": options.profile, "schedules": options.schedules, "seed": options.seed}
        values["num_tracked"] = options.num_tracked
        options.json.write_text(json.dumps({**values, "cells": [asdict(cell) for cell in cells]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
