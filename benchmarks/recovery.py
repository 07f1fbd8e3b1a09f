"""From SIGKILL to the next finished step on engine rpc, split into what takes the time.

One run on synthetic clicks: ``--single`` kills of one rank (with ``--trainers`` of one trainer), then ``--multiple`` of
``--at-once`` PS ranks at the same boundary. All figures are the run's own: seconds of its events, and the moments at
which its status reaches the supervisor, which is this process. The clock starts right before the first ``os.kill``.

    detect   the kill, the reaping, the trainer's next request, and its failure
    spawn    the supervisor starts the replacements and calls the survivors
    join     all ranks leave the old world and meet in the next generation; a spare only takes over the name
    restore  the replacements read their rows from the newest checkpoint, with ``buddy`` from a replica
    step     the request that had failed is answered, forward, backward, and the step is on record
    total    the sum
    after    the kill, until the step after that one is on record too: new trainers take part in it
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, config_of, parser, report, settings_of, table, write_trace
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.events import Event, Lost, Recovered, Regrouped
from harness.record.event_log import read_events
from harness.run import assemble

STEPS_PER_KILL = 12
BATCH_SIZE = 128
JOB_H = 56.0


_LAUNCHERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "fork": lambda num: {},
    "hosts": lambda num: {
        "launcher": "hosts",
        "hosts": tuple(f"host{index}" for index in range(num)),
        "start_agent": "{command}",
        "network": "open",
    },
}
"""Keys of ``cluster`` by launcher, from the number of hosts: all are this machine."""

PARTS = ("detect", "spawn", "join", "restore", "step", "total", "after")

Recovery = dict[str, float]
"""One failure: ``num_ranks``, the number of spares that took over, and the seconds of PARTS."""


def configure(options: argparse.Namespace, folder: Path) -> Config:
    """Make the data and the trace in ``folder``; the run's config."""
    num_steps = STEPS_PER_KILL * (options.single + options.multiple + 1)
    chance = random.Random(1)
    of, num = ("ps", options.ps) if options.trainers == 1 else ("trainer", options.trainers)
    whom = [f"{of}{chance.randrange(num)}" for _ in range(options.single)]
    whom += [str(options.at_once)] * options.multiple
    hours = [STEPS_PER_KILL * number / num_steps * JOB_H for number in range(1, len(whom) + 1)]
    write_trace(folder / "trace.csv", zip(hours, whom, strict=True))
    # A save between every two kills, so that what is restored is never what the ranks started from.
    strategy = {"name": options.strategy, "interval_samples": int((STEPS_PER_KILL - 0.5) * BATCH_SIZE)}
    return config_of(
        settings_of(folder, options.rows / sum(KAGGLE_CARDINALITIES), num_steps, batch_size=BATCH_SIZE),
        {
            "engine": "rpc",
            "profile": {"base": "cpr56", "job_h": JOB_H},
            "cluster": {
                "num_ps": options.ps,
                "num_trainers": options.trainers,
                "spares": options.spares,
                "spare_trainers": options.spare_trainers,
                **_LAUNCHERS[options.launcher](options.hosts),
            },
            "strategy": strategy,
            "trace": {"path": str(folder / "trace.csv")},
            "metrics": {"log_every_steps": 1},
        },
    )


def measure(config: Config, run_dir: Path) -> list[Recovery]:
    """Run once; one entry for each failure, in order."""
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
    stepped_s, after_s = (
        next(at_s for phase, step, at_s in moments[i:] if phase == "train" and step > recovered.step + later)
        for later in (0, 1)
    )
    lost = next(event for event in events if isinstance(event, Lost) and event.step == recovered.step)
    regrouped = next(event for event in events if isinstance(event, Regrouped) and event.step == recovered.step)
    spawn = regrouped.machine["seconds"]
    join = recovered.machine["reschedule_seconds"] - lost.machine["seconds"] - spawn
    restore, total = recovered.machine["seconds"], stepped_s - killed_s
    parts = {"detect": found_s - killed_s, "spawn": spawn, "join": join, "restore": restore}
    counts = {"num_ranks": len(recovered.ranks), "num_spares": len(regrouped.machine.get("spares", ()))}
    return {**counts, **parts, "step": total - sum(parts.values()), "total": total, "after": after_s - killed_s}


def rows_of(recoveries: Sequence[Recovery]) -> list[list[str]]:
    """Milliseconds: one row per failure, then the median and the range of all with as many ranks."""
    rows = [[_ranks(each), *(f"{1e3 * each[part]:.1f}" for part in PARTS)] for each in recoveries]
    for ranks in sorted({_ranks(each) for each in recoveries}):
        alike = [each for each in recoveries if _ranks(each) == ranks]
        spreads = [Spread.of(1e3 * each[part] for each in alike) for part in PARTS]
        rows.append([f"{ranks}, median of {len(alike)}", *(spread.show(1) for spread in spreads)])
    return rows


def _ranks(recovery: Recovery) -> str:
    """Ranks killed, and how many of them spares took over."""
    spares = recovery["num_spares"]
    return f"{recovery['num_ranks']:g}" + (f" ({spares:g} by spares)" if spares else "")


def main() -> None:
    """Measure, print the table, write it as JSON if asked."""
    made = parser(__doc__, ps=8)
    made.add_argument("--single", type=int, default=10, help="kills of one rank")
    made.add_argument("--multiple", type=int, default=3, help="kills of several ranks at once")
    made.add_argument("--at-once", type=int, default=4, help="ranks that such a kill takes")
    made.add_argument("--rows", type=int, default=400_000, help="embedding rows of all tables, about")
    made.add_argument("--strategy", choices=("partial", "full", "cpr_mfu", "buddy"), default="partial")
    made.add_argument("--trainers", type=int, default=1, help="with several, single kills are of one of them")
    made.add_argument("--spares", type=int, default=0, help="cluster.spares")
    made.add_argument("--spare-trainers", type=int, default=0, help="cluster.spare_trainers")
    made.add_argument("--launcher", choices=("fork", "hosts"), default="fork", help="hosts: agents on this machine")
    made.add_argument("--hosts", type=int, default=3, help="number of agents of launcher hosts")
    options = made.parse_args()
    if options.at_once > options.ps:
        made.error(f"--at-once: expected at most --ps {options.ps}, got {options.at_once}")
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        recoveries = measure(configure(options, Path(name)), Path(name) / "run")
    lines = table(("ranks killed", *(f"{part} ms" for part in PARTS)), rows_of(recoveries))
    report(options, lines, {"recoveries": recoveries})


if __name__ == "__main__":
    main()
