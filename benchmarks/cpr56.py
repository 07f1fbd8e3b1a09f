"""What failures cost under each strategy at the shape of Criteo Kaggle: real strategies and ledgers, no training.

`cpr56`: exactly two failures of one rank each, uniform over 56 h, independent. `poster50`: exactly five of four ranks
each over 50 h, with and without k in the interval. Every strategy meets the same schedules. Emulated hours throughout.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import parser, report, table
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


Cell = dict[str, Any]
"""A strategy over all schedules: means, ``_sd`` their standard deviations, ``_se`` the standard error of the mean."""


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
            width=size.embedding_dim,
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
            for index in rng.permutation(costs.num_ps)[: round(costs.ranks_per_failure)].tolist()
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


def summarise(options: StrategyOptions, job: Job, outcomes: Sequence[Outcome]) -> Cell:
    """Means and spreads of one strategy; ``_frac`` is of the failure-free job."""
    interval, job_h = make_strategy(options, job.costs).interval.samples, job.costs.job_h
    pls = [outcome.pls for outcome in outcomes]
    overhead_frac = [outcome.overhead_frac for outcome in outcomes]
    return {
        "interval_h": None if interval is None else interval / job.costs.total_samples * job_h,
        "num_saves": statistics.fmean(outcome.num_saves for outcome in outcomes),
        **{
            f"{part}_frac": statistics.fmean(getattr(outcome, f"{part}_h") for outcome in outcomes) / job_h
            for part in ("save", "load", "lost", "reschedule")
        },
        "overhead_frac": statistics.fmean(overhead_frac),
        "overhead_sd": statistics.stdev(overhead_frac),
        "pls": statistics.fmean(pls),
        "pls_sd": statistics.stdev(pls),
        "pls_se": statistics.stdev(pls) / len(pls) ** 0.5,
    }


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


HEAD = ("strategy", "interval h", "saves", "save", "load", "lost", "reschedule", "overhead", "removed", "PLS")


def row_of(label: str, cell: Cell, full: Cell) -> tuple[str, ...]:
    """Cells of the table; overheads in percent of the job, with the standard deviation over schedules."""
    interval_h, overhead_frac = cell["interval_h"], cell["overhead_frac"]
    return (
        *(label, "–" if interval_h is None else f"{interval_h:.2f}", f"{cell['num_saves']:g}"),
        *(f"{100 * cell[f'{part}_frac']:.3f}" for part in ("save", "load", "lost", "reschedule")),
        f"{100 * overhead_frac:.3f} ± {100 * cell['overhead_sd']:.3f}",
        f"{100 * (1 - overhead_frac / full['overhead_frac']):.1f} %",
        f"{cell['pls']:.5f} ± {cell['pls_sd']:.5f} (se {cell['pls_se']:.5f})",
    )


def main() -> None:
    """Simulate, print the table, write it as JSON if asked."""
    made = parser(__doc__)
    made.add_argument("--profile", choices=("cpr56", "poster50"), default="cpr56")
    made.add_argument("--schedules", type=int, default=20_000, help="how many schedules to draw")
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args()
    if options.schedules < 2:
        made.error("--schedules: a spread needs at least 2")
    schedules = draw_schedules(kaggle_job(options.profile, options_of("full")), options.schedules, options.seed)
    cells: dict[str, Cell] = {}
    for label, strategy in cases(options.profile):
        job = kaggle_job(options.profile, strategy)
        cells[label] = summarise(strategy, job, run_all(strategy, job, schedules))
    note = f"profile {options.profile}, {options.schedules} schedules, seed {options.seed}"
    note += "; overheads in % of the failure-free job, ± standard deviation over schedules"
    rows = [row_of(label, cell, cells["full"]) for label, cell in cells.items()]
    report(
        options, [note, "", *table(HEAD, rows)], {"cells": [{"label": name, **cell} for name, cell in cells.items()]}
    )


if __name__ == "__main__":
    main()
