"""From SIGKILL to the next finished step on engine rpc, split into what takes the time.

One run on synthetic clicks: ``--single`` kills of one PS rank, or with ``--trainers`` of one compute rank, then
``--multiple`` of four PS ranks at the same boundary. Figures are seconds of the run's events, and moments at which its
status reaches the supervisor, which is this process. The clock starts right before the first ``os.kill``.

    detect   the kill, the reaping, the trainer's next request, and its failure
    spawn    the supervisor starts the replacements and calls the survivors
    join     all ranks leave the old world and meet in the next generation; a spare only takes over the name
    restore  the replacements read their rows from the newest checkpoint, with ``buddy`` from a replica
    step     the request that had failed is answered, forward, backward, and the step is on record
    total    the sum
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, config_of, parser, report, settings_of, table, write_trace
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.events import Event, Lost, Recovered, Regrouped
from harness.core.plans import all_ranks, is_compute, is_ps
from harness.record.event_log import read_events
from harness.run import assemble

STEPS_PER_KILL = 12
BATCH_SIZE = 128
AT_ONCE = 4
JOB_H = 56.0
PARTS = ("detect", "spawn", "join", "restore", "step", "total")

Recovery = dict[str, float]
"""One failure: ``num_ranks``, the number of spares that took over, and the seconds of PARTS."""


def configure(options: argparse.Namespace, folder: Path) -> Config:
    """Make the data and the trace in ``folder``; a run with each step on record, and a save between every two kills."""
    num_steps = STEPS_PER_KILL * (options.single + options.multiple + 1)
    chance = random.Random(1)
    ranks = all_ranks(options.ps, options.trainers)
    named = [*filter(is_compute, ranks)] or [*filter(is_ps, ranks)]
    whom = [chance.choice(named) for _ in range(options.single)]
    whom += [str(min(AT_ONCE, options.ps))] * options.multiple
    hours = [STEPS_PER_KILL * number / num_steps * JOB_H for number in range(1, len(whom) + 1)]
    write_trace(folder / "trace.csv", zip(hours, whom, strict=True))
    # So that what is restored is never what the ranks started from.
    interval_samples = int((STEPS_PER_KILL - 0.5) * BATCH_SIZE)
    return config_of(
        settings_of(folder, options.rows_scale, num_steps, batch_size=BATCH_SIZE),
        {
            "engine": "rpc",
            "profile": {"base": "cpr56", "job_h": JOB_H},
            "trace": {"path": str(folder / "trace.csv")},
            "cluster": {"num_ps": options.ps, "num_trainers": options.trainers, "spares": options.spares},
            "strategy": {"name": options.strategy, "interval_samples": interval_samples},
            "metrics": {"log_every_steps": 1},
        },
    )


def measure(config: Config, run_dir: Path) -> list[Recovery]:
    moments: list[tuple[str, int, float]] = []
    assemble.run(
        config,
        run_dir,
        on_status=lambda status: moments.append((status.phase, status.step, time.monotonic())),
    )
    events = read_events(run_dir / "events.jsonl")
    failures = [i for i, (phase, _, _) in enumerate(moments) if phase == "recover"]
    recovered = [event for event in events if isinstance(event, Recovered)]
    assert len(failures) == len(recovered)
    return [_split(moments, i, event, events) for i, event in zip(failures, recovered, strict=True)]


def _split(
    moments: Sequence[tuple[str, int, float]], i: int, recovered: Recovered, events: Sequence[Event]
) -> Recovery:
    """``moments[i]``: the failure was found. The status before it precedes the kill in the supervisor's queue."""
    killed_s, found_s = moments[i - 1][2], moments[i][2]
    stepped_s = next(at_s for phase, step, at_s in moments[i:] if phase == "train" and step > recovered.step)
    lost = next(event for event in events if isinstance(event, Lost) and event.step == recovered.step)
    regrouped = next(event for event in events if isinstance(event, Regrouped) and event.step == recovered.step)
    spawn = regrouped.machine["seconds"]
    join = recovered.machine["reschedule_seconds"] - lost.machine["seconds"] - spawn
    restore, total = recovered.machine["seconds"], stepped_s - killed_s
    parts = {"detect": found_s - killed_s, "spawn": spawn, "join": join, "restore": restore}
    counts = {"num_ranks": len(recovered.ranks), "num_spares": len(regrouped.machine.get("spares", ()))}
    return {**counts, **parts, "step": total - sum(parts.values()), "total": total}


def rows_of(recoveries: Sequence[Recovery]) -> list[list[str]]:
    """Milliseconds: one row per failure, then the median and the range of all with as many ranks."""
    rows = [[_ranks(each), *(f"{1e3 * each[part]:.1f}" for part in PARTS)] for each in recoveries]
    for ranks in sorted({_ranks(each) for each in recoveries}):
        alike = [each for each in recoveries if _ranks(each) == ranks]
        spreads = [Spread.of(1e3 * each[part] for each in alike) for part in PARTS]
        rows.append([f"{ranks}, median of {len(alike)}", *(spread.show(1) for spread in spreads)])
    return rows


def _ranks(recovery: Recovery) -> str:
    spares = recovery["num_spares"]
    return f"{recovery['num_ranks']:g}" + (f" ({spares:g} by spares)" if spares else "")


def main() -> None:
    made = parser(__doc__, ps=8, rows_scale=400_000 / sum(KAGGLE_CARDINALITIES))
    made.add_argument("--single", type=int, default=10, help="kills of one rank")
    made.add_argument("--multiple", type=int, default=3, help="kills of several ranks at once")
    made.add_argument("--strategy", choices=("partial", "buddy"), default="partial")
    made.add_argument("--trainers", type=int, default=1, help="with several, single kills are of a compute rank")
    made.add_argument("--spares", type=int, default=0, help="cluster.spares")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        recoveries = measure(configure(options, Path(name)), Path(name) / "run")
    lines = table(("ranks killed", *(f"{part} ms" for part in PARTS)), rows_of(recoveries))
    report(options, lines, {"recoveries": recoveries})


if __name__ == "__main__":
    main()
