"""What choosing rows costs: MFU and SSU per step of training, their choice spread over the interval between saves.

    python benchmarks/trackers.py [--rounds 7] [--steps 192] [--lead 64] [--threads 2] [--ps 8] [--batch-size 128]
                                  [--rows-scale 1] [--intervals 100,1000,10000] [--save-steps N]
                                  [--run-rows-scale 0.25] [--json FILE]

Kaggle's 26 tables and its dense network on engine local, skewed made-up clicks. Three things are measured:

    step    the time that a PS rank with a tracker takes beyond one without, summed over all ranks: shadows beside the
            ranks of a real run (strategy none) serve the same messages in turn, so all meet the same machine. They have
            tracked half an interval when the run begins. Against the step of that run, shadows left out.
    save    choose, clear and saved of all tracked tables on all ranks, after as many steps as lie between two priority
            saves: r times the interval of ``cpr56`` at Kaggle's size, and ``--intervals``. Divided by those steps.
    run     whole runs of cpr_vanilla, cpr_mfu and cpr_ssu in turn, from save to save: metrics.update_pls=false, tables
            of ``--run-rows-scale``; 0 leaves them out.

What a priority save writes is not in it: that is benchmarks/store.py's, and no more than a full save writes in the
same time. Aim: MFU at most 4 % of a step, SSU at most 3 % and below MFU.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch

from benchmarks._common import Spread, heading, machine, write_json
from benchmarks._shadows import KINDS, NONE, fill, shadowed_trainer, tracking
from benchmarks._workers import Parts, trainer
from benchmarks.cpr56 import kaggle_job
from benchmarks.throughput import Variant, configure, start
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.strategies import make_strategy, options_of
from harness.run.spec import RunSpec

RUNS = ("cpr_vanilla", "cpr_mfu", "cpr_ssu")


def steps_between_saves(batch_size: int) -> int:
    """Steps from one priority save to the next, under ``cpr56`` at Kaggle's size."""
    options = options_of("cpr_mfu")
    interval = make_strategy(options, kaggle_job("cpr56", options).costs).interval
    assert interval.samples is not None
    return round(interval.samples / interval.divisor / batch_size)


def measure_steps(base: Config, options: argparse.Namespace, fill_steps: int, folder: Path) -> list[Parts]:
    """Milliseconds of each round: the ``step``, and what each tracker added to it."""
    rounds: list[Parts] = []
    variant = Variant(partial(shadowed_trainer, fill_steps), {"cluster": {"num_ps": options.ps}})
    worker = start(variant, base, folder / "shadowed")
    try:
        worker.wait_ready()
        for _ in range(options.rounds + 1):
            seconds, parts = worker.run(options.lead, options.steps)
            step_s = seconds - parts["all"] + parts[NONE]
            extra_s = {kind: parts[kind] - parts[NONE] for kind in KINDS}
            rounds.append({name: 1e3 * s / options.steps for name, s in {"step": step_s, **extra_s}.items()})
    finally:
        worker.close()
    return rounds[1:]


@dataclass(frozen=True, kw_only=True)
class SaveCost:
    """Of one priority save, all ranks together: milliseconds, and rows chosen."""

    choose_ms: float
    clear_ms: float
    num_rows: int


def measure_saves(base: Config, num_ps: int, num_steps: int, folder: Path) -> dict[str, SaveCost]:
    """What a save costs each tracker when ``num_steps`` steps have been taken in since the last."""
    config = base.model_copy(update={"cluster": base.cluster.model_copy(update={"num_ps": num_ps})})
    run_spec = RunSpec(config)
    spec = replace(run_spec.rank_spec(folder), embedding_dim=1)  # choosing looks at no row
    ranks = [[tracking(spec, kind, f"ps{k}") for kind in KINDS] for k in range(num_ps)]
    fill(ranks, run_spec.placement, num_steps, config)
    return {
        kind: _together([_save(servers[i], spec.tracker.tables, num_steps) for servers in ranks])
        for i, kind in enumerate(KINDS)
    }


def _save(server: RankServer, tables: Sequence[int], step: int) -> SaveCost:
    """What ``RankServer`` does around the writing of a priority save."""
    tracker, shard = server._tracker, server.shard
    began_s = time.perf_counter()
    chosen = {table: tracker.choose(table, step) for table in tables}
    chose_s = time.perf_counter()
    for table, rows_K in chosen.items():
        shard.take_pending(rows_K)
        tracker.saved(table, rows_K)
    cleared_s = time.perf_counter()
    num_rows = sum(len(rows_K) for rows_K in chosen.values())
    return SaveCost(choose_ms=1e3 * (chose_s - began_s), clear_ms=1e3 * (cleared_s - chose_s), num_rows=num_rows)


def _together(costs: Sequence[SaveCost]) -> SaveCost:
    return SaveCost(
        choose_ms=sum(cost.choose_ms for cost in costs),
        clear_ms=sum(cost.clear_ms for cost in costs),
        num_rows=sum(cost.num_rows for cost in costs),
    )


def measure_runs(options: argparse.Namespace, folder: Path) -> list[Parts]:
    """Milliseconds of a step, by strategy, of each round."""
    num_steps = (options.rounds + 2) * (options.lead + options.steps) + 1000
    scaled = argparse.Namespace(**{**vars(options), "rows_scale": options.run_rows_scale})
    base = configure(scaled, folder, num_steps)
    settings: dict[str, Any] = {
        "cluster": {"num_ps": options.ps},
        "metrics": {"update_pls": False},
        "store": {"fsync": False},
    }
    rounds: list[Parts] = []
    with ExitStack() as stack:
        workers = {}
        for name in RUNS:
            strategy = {"name": name, "interval_samples": 16 * num_steps * options.batch_size}  # none within the run
            workers[name] = start(Variant(trainer, {**settings, "strategy": strategy}), base, folder / name)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.wait_ready()
        order = list(workers)
        for _ in range(options.rounds + 1):
            seconds = {name: workers[name].run(options.lead, options.steps)[0] for name in order}
            rounds.append({name: 1e3 * seconds[name] / options.steps for name in RUNS})
            order = [*order[1:], order[0]]
    return rounds[1:]


def step_lines(rounds: Sequence[Parts]) -> list[str]:
    """What a step costs, and what each tracker adds to it."""
    step_ms = Spread.of(each["step"] for each in rounds)
    lines = [f"step of strategy none: {_shown(step_ms)} ms"]
    for kind in KINDS:
        extra_us = Spread.of(1e3 * each[kind] for each in rounds)
        lines.append(f"{kind}: {_shown(extra_us, 1)} us a step more, {_shown(_shares(rounds, kind))} % of it")
    return lines


def _shares(rounds: Sequence[Parts], kind: str) -> Spread:
    """Percent of a step that ``kind`` takes beside it."""
    return Spread.of(100 * each[kind] / each["step"] for each in rounds)


def _shown(spread: Spread, digits: int = 2) -> str:
    return f"**{spread.median:.{digits}f}** ({spread.low:.{digits}f}–{spread.high:.{digits}f})"


def save_table(
    rounds: Sequence[Parts], saves: Mapping[int, Mapping[str, SaveCost]]
) -> tuple[str, list[dict[str, Any]]]:
    """One line per interval and tracker: what a save costs, and the whole in percent of a step."""
    step_ms = statistics.median(each["step"] for each in rounds)
    lines = [
        "| steps between saves | tracker | rows | choose ms | clear ms | % of a step | with touching % |",
        "|---" * 7 + "|",
    ]
    values: list[dict[str, Any]] = []
    for num_steps, costs in saves.items():
        for kind, cost in costs.items():
            share = 100 * (cost.choose_ms + cost.clear_ms) / num_steps / step_ms
            whole = share + _shares(rounds, kind).median
            values.append({"steps": num_steps, "tracker": kind, **asdict(cost), "save_pct": share, "whole_pct": whole})
            cells = f"{cost.num_rows:,} | {cost.choose_ms:.1f} | {cost.clear_ms:.1f} | {share:.2f} | **{whole:.2f}**"
            lines.append(f"| {num_steps:,} | {kind} | {cells} |")
    return "\n".join(lines), values


def run_lines(rounds: Sequence[Parts]) -> list[str]:
    """The step of whole runs, against vanilla's."""
    lines: list[str] = []
    for name in RUNS if rounds else ():
        more_pct = Spread.of(100 * (each[name] / each[RUNS[0]] - 1) for each in rounds)
        ms = Spread.of(each[name] for each in rounds)
        lines.append(f"run {name}: {_shown(ms)} ms a step, {_shown(more_pct)} % more than {RUNS[0]}")
    return lines


def main() -> None:
    """Measure, print, perhaps write as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--steps", type=int, default=192, help="timed, in each round; SSU works every 64th, orders turn by 3"
    )
    parser.add_argument("--lead", type=int, default=64, help="steps before those, untimed")
    parser.add_argument("--threads", type=int, default=2, help="trainer.num_threads")
    parser.add_argument("--ps", type=int, default=8, help="PS ranks")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rows-scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--intervals", default="100,1000,10000", help="more numbers of steps between priority saves")
    parser.add_argument("--save-steps", type=int, help="steps between saves (default: of cpr56 at Kaggle's size)")
    parser.add_argument("--run-rows-scale", type=float, default=0.25, help="of the tables of the whole runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    facts = machine(options.threads)
    interval = options.save_steps or steps_between_saves(options.batch_size)
    intervals = [*(int(steps) for steps in options.intervals.split(",") if steps), interval]
    with tempfile.TemporaryDirectory(prefix="trackers-") as name:
        folder = Path(name)
        base = configure(options, folder, (options.rounds + 2) * (options.lead + options.steps) + 1000)
        rounds = measure_steps(base, options, interval // 2, folder)
        torch.set_num_threads(1)
        saves = {steps: measure_saves(base, options.ps, steps, folder) for steps in intervals}
        (folder / "runs").mkdir()
        runs = measure_runs(options, folder / "runs") if options.run_rows_scale else []
    facts["load_average_after"] = os.getloadavg()
    table, values = save_table(rounds, saves)
    lines = [*step_lines(rounds), "", table, "", *run_lines(runs), "", heading(facts)]
    sys.stdout.write("\n".join([*lines, ""]))
    setting = {key: value for key, value in vars(options).items() if key != "json"}
    figures = {"steps": rounds, "saves": values, "runs": runs, "interval": interval}
    write_json(options.json, {"machine": facts, "setting": setting, **figures})


if __name__ == "__main__":
    main()
