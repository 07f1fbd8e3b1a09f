"""From SIGKILL to the next answered request and step, on the rpc engine, split into what takes the time.

    python benchmarks/recovery.py [--ps 8] [--single 10] [--multiple 3] [--at-once 4] [--rows 400000]
                                  [--strategy partial] [--json FILE]

One run of the real trainer and the real supervisor on made-up clicks: ``--single`` kills of one rank, then
``--multiple`` of ``--at-once`` ranks at the same boundary. The clock starts right before the first ``os.kill``.

    detect   the kill, the reaping, the trainer's next request, and its failure
    spawn    the supervisor starts the replacements and calls the survivors
    join     everybody leaves the old world and meets in the next generation
    restore  the replacements read their rows from the newest checkpoint
    answer   the request that had failed is answered
    step     forward, backward, and gradients applied by every rank: after the total
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import (
    KAGGLE_CARDINALITIES,
    Spread,
    heading,
    machine,
    make_data,
    write_json,
    write_trace,
)
from benchmarks._timeline import Failure, KeptStamps, TimedRanks, timed_train
from harness.cluster.supervisor import Supervisor
from harness.config.model import Config
from harness.run.assemble import make_world, services_of
from harness.run.spec import RunSpec
from harness.store import CheckpointStore

PARTS = ("detect", "spawn", "join", "restore", "answer", "total", "step")
STEPS_PER_KILL = 12
BATCH_SIZE = 128


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """One failure; seconds. ``total``: SIGKILL to the first answer, the sum of the five before it."""

    num_ranks: int
    detect: float
    spawn: float
    join: float
    restore: float
    answer: float
    total: float
    step: float  # from SIGKILL, so at least the total


def configure(options: argparse.Namespace, folder: Path) -> Config:
    """Make the data and the trace in ``folder``; the run's config."""
    num_steps = STEPS_PER_KILL * (options.single + options.multiple + 1)
    scale = options.rows / sum(KAGGLE_CARDINALITIES)
    cardinalities = [max(3, round(cardinality * scale)) for cardinality in KAGGLE_CARDINALITIES]
    num_train = num_steps * BATCH_SIZE
    make_data(folder / "data", cardinalities, num_train * 7 // 6 + 14, seed=1)
    chance = random.Random(1)
    whom = [f"ps{chance.randrange(options.ps)}" for _ in range(options.single)]
    whom += [str(options.at_once)] * options.multiple
    job_h = 56.0
    interval = {"interval_samples": STEPS_PER_KILL * BATCH_SIZE - BATCH_SIZE // 2}
    hours = [STEPS_PER_KILL * number / num_steps * job_h for number in range(1, len(whom) + 1)]
    write_trace(folder / "trace.csv", zip(hours, whom, strict=True))
    return Config.model_validate(
        {
            "engine": "rpc",
            "profile": {"base": "cpr56", "job_h": job_h},
            "data": {"path": str(folder / "data"), "max_train_samples": num_train},
            "model": {"size": "kaggle"},
            "trainer": {"batch_size": BATCH_SIZE},
            "eval": {"max_samples": 256},
            "cluster": {"num_ps": options.ps},
            # A save between every two kills, so that what is restored is never what the ranks started from.
            "strategy": {"name": options.strategy, **({} if options.strategy == "never_save" else interval)},
            "trace": {"path": str(folder / "trace.csv")},
            "wandb": {"mode": "disabled"},
        }
    )


def measure(config: Config, folder: Path) -> list[Recovery]:
    """Run once; one entry per kill, in order."""
    run_spec = RunSpec(config)
    run_spec.validate()
    store = CheckpointStore(folder / "checkpoints", fsync=config.store.fsync)
    kill_steps = frozenset(planned_kill.step for planned_kill in run_spec.planned_kills)
    job = partial(timed_train, config, store.root, kill_steps)
    world = make_world(config, run_spec.rank_spec(store.root), job)
    ranks, sink = TimedRanks(world), KeptStamps()
    try:
        world.start()
        supervisor = Supervisor(
            ranks=ranks, sink=sink, store=store, planned_kills=run_spec.planned_kills, on_status=lambda **_: None
        )
        world.serve(services_of(supervisor))
    finally:
        world.close()
    assert sink.stamps is not None, "the trainer's last words"
    assert [failure.ranks for failure in sink.stamps.failures] == [
        planned_kill.ranks for planned_kill in run_spec.planned_kills
    ]
    return [_split(failure, ranks, index) for index, failure in enumerate(sink.stamps.failures)]


def _split(failure: Failure, ranks: TimedRanks, index: int) -> Recovery:
    killed_s = ranks.kills[index].began_s
    spawned_s = ranks.replacements[index].ended_s
    return Recovery(
        num_ranks=len(failure.ranks),
        detect=failure.lost_s - killed_s,
        spawn=spawned_s - failure.lost_s,
        join=failure.joined_s - spawned_s,
        restore=failure.restored_s - failure.joined_s,
        answer=failure.answered_s - failure.restored_s,
        total=failure.answered_s - killed_s,
        step=failure.stepped_s - killed_s,
    )


def table(recoveries: Sequence[Recovery]) -> str:
    """Milliseconds: one line per failure, then the median and the range of all with as many ranks."""
    lines = ["| ranks killed | " + " | ".join(f"{part} ms" for part in PARTS) + " |"]
    lines.append("|---" * (len(PARTS) + 1) + "|")
    lines += [_line(str(each.num_ranks), [f"{1e3 * getattr(each, p):.1f}" for p in PARTS]) for each in recoveries]
    for num_ranks in sorted({each.num_ranks for each in recoveries}):
        alike = [each for each in recoveries if each.num_ranks == num_ranks]
        spreads = [Spread.of(1e3 * getattr(each, part) for each in alike) for part in PARTS]
        cells = [f"**{spread.median:.1f}** ({spread.low:.1f}–{spread.high:.1f})" for spread in spreads]
        lines.append(_line(f"{num_ranks}, median of {len(alike)}", cells))
    return "\n".join(lines)


def _line(label: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([label, *cells])} |"


def main() -> None:
    """Measure, print the table, perhaps write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ps", type=int, default=8, help="PS ranks")
    parser.add_argument("--single", type=int, default=10, help="kills of one rank")
    parser.add_argument("--multiple", type=int, default=3, help="kills of several ranks at once")
    parser.add_argument("--at-once", type=int, default=4, help="how many those take")
    parser.add_argument("--rows", type=int, default=400_000, help="embedding rows of all tables, about")
    parser.add_argument("--strategy", choices=("partial", "full", "cpr_mfu", "never_save"), default="partial")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if options.at_once > options.ps:
        parser.error(f"--at-once: {options.at_once} of {options.ps} ranks cannot die")
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        recoveries = measure(configure(options, Path(folder)), Path(folder))
    facts["load_average_after"] = os.getloadavg()
    sys.stdout.write(f"{table(recoveries)}\n\n{heading(facts)}\n")
    setting = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, {"machine": facts, "setting": setting, "recoveries": [asdict(r) for r in recoveries]})


if __name__ == "__main__":
    main()
