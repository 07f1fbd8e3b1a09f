"""What failures cost under each strategy at the shape of Criteo Kaggle: real strategies and ledgers, no training.

`cpr56`: exactly two failures of one rank each, uniform over 56 h, independent. `poster50`: exactly five of four ranks
each over 50 h, with and without k in the interval. Every strategy meets the same schedules. Emulated hours throughout.
`cpr56_priced`, `poster50_priced`: the same jobs under the prices of docs/CPR.md, every strategy, some with a spare, and
a second table in hours, node-hours and bytes, with the exact expectation of the hours. Trackers use their whole budget.
How much a differential save writes depends on the data: here each is as large as a base, so its line is an upper bound.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import parser, report, table
from harness.cluster.server import num_copied_bytes
from harness.config.derived import job_costs
from harness.config.model import ClusterConfig, Config, MetricsConfig, SaveConfig
from harness.config.profiles import PROFILES
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, KAGGLE_TRAIN_SAMPLES
from harness.core.faults import PlannedFault
from harness.core.overhead import load_price, save_price
from harness.core.placement import MIRROR_INDEX_BYTES, Placement, num_mirrored, tracked_tables
from harness.core.plans import Progress, ps_rank
from harness.core.pls import rank_weights
from harness.core.seeds import generator
from harness.core.strategies import CprMirror, CprPriority, Strategy, StrategyOptions, make_strategy, options_of
from harness.core.trackers import TrackerSpec, tracker_bytes
from harness.model.models import SIZES
from harness.planning.simulate import DueSaves, Job, Outcome, due_saves, save_sizes, simulate
from harness.recovery.recoveries import RECOVERIES, rolls_back
from harness.traces.schedule import schedule
from harness.traces.trace import Entry, Trace

BATCH_SIZE = 128
METRICS = MetricsConfig()
STRATEGIES = ("never_save", "full", "partial", "cpr_vanilla", "cpr_random", "cpr_mfu", "cpr_ssu", "cpr_mirror")
PRICED_STRATEGIES = (*STRATEGIES, "cpr_mass", "cpr_scar", "differential", "buddy")
SPARED_STRATEGIES = ("full", "cpr_vanilla", "cpr_mfu", "cpr_mirror", "buddy")

Cell = dict[str, Any]
"""A strategy over all schedules: means, ``_sd`` their standard deviations, ``_se`` the standard error of the mean."""


def kaggle_job(
    profile: str,
    strategy: StrategyOptions,
    metrics: MetricsConfig = METRICS,
    mode: Literal["sync", "async"] = "sync",
    spares: int = 0,
) -> Job:
    """Kaggle's tables, dense network and one epoch (the last partial batch dropped) under ``profile``."""
    config = Config(
        profile=profile,
        strategy=strategy,
        metrics=metrics,
        save=SaveConfig(mode=mode),
        cluster=ClusterConfig(spares=spares),
    )
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
            dense_bytes=4 * size.num_parameters,
            tracked=tracked_tables(KAGGLE_CARDINALITIES, metrics.num_tracked),
            r=strategy.r if isinstance(strategy, CprPriority.Options) else 1.0,
            share=strategy.share if isinstance(strategy, CprMirror.Options) else 0.0,
        ),
        pls_since=metrics.pls_since,
    )


def draw_schedules(job: Job, num_schedules: int, seed: int) -> list[tuple[PlannedFault, ...]]:
    """Schedules of exactly ``job_h / mtbf_h`` failures at independent uniform hours, each of k ranks at random."""
    costs = job.costs
    num_failures = round(costs.job_h / costs.mtbf_h)
    rng = generator(seed, "schedules")
    schedules: list[tuple[PlannedFault, ...]] = []
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


def run_all(options: StrategyOptions, job: Job, schedules: Sequence[Sequence[PlannedFault]]) -> list[Outcome]:
    strategy = make_strategy(options, job.costs)
    saves = due_saves(strategy, job)
    return [simulate(strategy, job, planned_kills, saves) for planned_kills in schedules]


def expected_h(strategy: Strategy, job: Job, saves: DueSaves) -> float | None:
    """The exact expectation of ``Outcome`` hours over ``draw_schedules``; None with spares, or if saves may wait.

    Each of n failures strikes boundary s with probability m_s and takes a given rank with probability k / N; failures
    at one boundary are one. So a failure happens at s with probability 1 - (1 - m_s)^n, and takes a given rank with it
    with probability 1 - (1 - m_s k / N)^n. Saves do not depend on failures.
    """
    costs, num_steps = job.costs, job.num_steps
    if costs.num_spares:
        return None
    prices = [save_price(costs, size, job.sizes.full) for size in saves.sizes]
    if costs.snapshot_frac is not None:
        between_h = np.diff(saves.steps) * job.batch_size / costs.total_samples * costs.job_h
        if any(price.write_h - price.stall_h > gap_h for price, gap_h in zip(prices, between_h.tolist(), strict=False)):
            return None
    num_failures = round(costs.job_h / costs.mtbf_h)
    mass_S = np.full(num_steps, 1 / num_steps)  # hours are uniform, and rounded up to boundaries
    mass_S[0], mass_S[-1] = 0, 2 / num_steps  # the last boundary's are moved to the one before
    fails_S = 1 - (1 - mass_S) ** num_failures
    plan = strategy.plan_recovery(frozenset([ps_rank(0)]), _AT_START)
    lost_h = load_frac = 0.0
    if rolls_back(plan):
        bounds, steps_S = np.array([0, *saves.steps]), np.arange(num_steps)
        since_S = steps_S - bounds[np.searchsorted(bounds, steps_S, side="right") - 1]
        lost_h = float(fails_S @ since_S) / num_steps * costs.job_h
        load_frac = float(fails_S.sum())
    elif any(RECOVERIES[kind].reads_rows for kind in plan.kinds.values()):
        takes = float((1 - (1 - mass_S * round(costs.ranks_per_failure) / costs.num_ps) ** num_failures).sum())
        load_frac = takes * sum(job.sizes.shards.values()) / job.sizes.full
    loads_h = fails_S.sum() * costs.o_load_h if costs.load == "whole" else load_price(costs, load_frac)
    return sum(price.stall_h for price in prices) + float(loads_h + fails_S.sum() * costs.o_res_h) + lost_h


_AT_START = Progress(step=1, samples=1, previous_samples=0, total_samples=2, saved_step=0, saved_samples=0)


def memory_bytes(strategy: Strategy, num_ps: int) -> int:
    """Memory of the strategy's tracker, replica or mirror, in the rank that needs most."""
    tracked, dim = tracked_tables(KAGGLE_CARDINALITIES, METRICS.num_tracked), SIZES["kaggle"].embedding_dim
    placement = Placement("row", KAGGLE_CARDINALITIES, num_ps)
    ranks = range(num_ps)
    if "replica" in strategy.recoveries:
        return max(num_copied_bytes(placement.num_rows(k), dim, has_counts=True) for k in ranks)
    num_bytes = tracker_bytes(TrackerSpec(strategy.tracker, tracked, strategy.tracker_options), placement, dim) or 0
    if strategy.mirror is None:
        return num_bytes
    num_rows = sum(
        num_mirrored(placement.num_local_rows(k, table), strategy.mirror.share, is_tracked=table in tracked)
        for k in ranks
        for table in range(len(KAGGLE_CARDINALITIES))
    )
    return max(num_bytes, num_rows * (4 * dim + MIRROR_INDEX_BYTES))


def summarise(options: StrategyOptions, job: Job, outcomes: Sequence[Outcome]) -> Cell:
    """Means and spreads of one strategy; ``_frac`` is of the failure-free job."""
    strategy = make_strategy(options, job.costs)
    interval, job_h = strategy.interval.samples, job.costs.job_h
    node_h = [outcome.node_h for outcome in outcomes if outcome.node_h is not None]
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
        "expected_h": expected_h(strategy, job, due_saves(strategy, job)),
        "node_h": statistics.fmean(node_h) if node_h else None,
        "payload_bytes": statistics.fmean(outcome.payload_bytes for outcome in outcomes),
        "load_bytes": statistics.fmean(outcome.load_bytes for outcome in outcomes),
        "memory_bytes": memory_bytes(strategy, job.costs.num_ps),
        "pls": statistics.fmean(pls),
        "pls_sd": statistics.stdev(pls),
        "pls_se": statistics.stdev(pls) / len(pls) ** 0.5,
    }


def cases(profile: str) -> list[tuple[str, StrategyOptions, int]]:
    """What the table of ``profile`` compares: label, options, spares.

    Where a failure takes several ranks, there are lines without k in the interval, and as many spares.
    """
    is_priced, k = PROFILES[profile].num_trainers is not None, round(PROFILES[profile].ranks_per_failure)
    plain = [(name, options_of(name), 0) for name in (PRICED_STRATEGIES if is_priced else STRATEGIES)]
    without_k = [
        (f"{name}, k left out", options.model_copy(update={"interval_counts_ranks": False}), 0)
        for name, options, _ in plain
        if name.startswith("cpr_") and k > 1
    ]
    spares = "1 spare" if k == 1 else f"{k} spares"
    spared = [(f"{name}, {spares}", options_of(name), k) for name in SPARED_STRATEGIES if is_priced]
    return plain + without_k + spared


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


PRICED_HEAD = (
    *("strategy", "overhead h", "exact h", "standard errors off", "node-hours", "written GB", "loaded GB"),
    "memory MB a rank",
)


def priced_row_of(label: str, cell: Cell, job_h: float, num_schedules: int) -> tuple[str, ...]:
    """Cells of the second table: hours with the standard deviation over schedules, and the other currencies."""
    mean_h, sd_h, exact_h = cell["overhead_frac"] * job_h, cell["overhead_sd"] * job_h, cell["expected_h"]
    error_h = sd_h / num_schedules**0.5
    is_random = exact_h is not None and sd_h > 1e-6 * mean_h  # not the few bytes by which shards differ
    return (
        *(label, f"{mean_h:.4f} ± {sd_h:.4f}", "–" if exact_h is None else f"{exact_h:.4f}"),
        f"{abs(mean_h - exact_h) / error_h:.1f}" if is_random else "–",
        f"{cell['node_h']:.2f}",
        f"{cell['payload_bytes'] / 1e9:.2f}",
        f"{cell['load_bytes'] / 1e9:.2f}",
        f"{cell['memory_bytes'] / 1e6:.1f}",
    )


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--profile", choices=("cpr56", "poster50", "cpr56_priced", "poster50_priced"), default="cpr56")
    made.add_argument("--save-mode", choices=("sync", "async"), default="sync", help="save.mode")
    made.add_argument("--schedules", type=int, default=20_000, help="how many schedules to draw")
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args()
    if options.schedules < 2:
        made.error("--schedules: a spread needs at least 2")
    schedules = draw_schedules(kaggle_job(options.profile, options_of("full")), options.schedules, options.seed)
    cells: dict[str, Cell] = {}
    for label, strategy, spares in cases(options.profile):
        job = kaggle_job(options.profile, strategy, mode=options.save_mode, spares=spares)
        cells[label] = summarise(strategy, job, run_all(strategy, job, schedules))
    note = f"profile {options.profile}, {options.schedules} schedules, seed {options.seed}"
    note += "; overheads in % of the failure-free job, ± standard deviation over schedules"
    rows = [row_of(label, cell, cells["full"]) for label, cell in cells.items()]
    lines = [note, "", *table(HEAD, rows)]
    if PROFILES[options.profile].num_trainers is not None:
        job_h = PROFILES[options.profile].job_h
        priced = [priced_row_of(label, cell, job_h, options.schedules) for label, cell in cells.items()]
        lines += ["", f"the same by resources, save.mode={options.save_mode}", "", *table(PRICED_HEAD, priced)]
    report(options, lines, {"cells": [{"label": name, **cell} for name, cell in cells.items()]})


if __name__ == "__main__":
    main()
