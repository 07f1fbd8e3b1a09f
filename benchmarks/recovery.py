"""From SIGKILL to the next finished step on engine rpc, split into what takes the time; and lost hosts.

One run on synthetic clicks: ``--single`` kills of one PS rank, or with ``--trainers`` of one compute rank, then
``--multiple`` of ``--at-once`` PS ranks at the same boundary. Figures are seconds of the run's events, and moments at
which its status reaches the supervisor, which is this process. The clock starts right before the first ``os.kill``.

    detect   the kill, the reaping, the trainer's next request, and its failure
    spawn    the supervisor starts the replacements and calls the survivors
    join     all ranks leave the old world and meet in the next generation; a spare only takes over the name
    restore  the replacements read their rows from the newest checkpoint, with ``buddy`` from a replica
    step     the request that had failed is answered, forward, backward, and the step is on record
    total    the sum

``--lost-hosts 3``: instead, three rounds of what a lost host of three costs. Hosts are emulated
(``tests/hosts/emulated.py``): namespaces of this machine, joined by a bridge. Needs to be root.

    killed      all processes of a host get SIGKILL; seconds until the next step is done. Two hosts in turn;
                ``trainer0`` is on the third.
    cut         the cable of a host is taken out; the same, less ``cluster.dead_after_s``. The same two hosts.
    orphaned    the supervisor gets SIGKILL; seconds until nothing of the run is left on any host
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, config_of, parser, report, settings_of, table, write_trace
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.events import Event, Lost, Recovered, Regrouped
from harness.core.plans import CHIEF, all_ranks, is_compute, is_ps
from harness.processes.spawn import fork_server
from harness.record.event_log import read_events
from harness.run import assemble
from tests.hosts import host_runs
from tests.hosts.emulated import Emulation, NotAllowed, emulated, processes

STEPS_PER_KILL = 12
BATCH_SIZE = 128
JOB_H = 56.0
LOST_AT, LOST_STEPS = (30, 60), 90  # steps at which hosts are lost, and of the run
PARTS = ("detect", "spawn", "join", "restore", "step", "total")

Recovery = dict[str, float]
"""One failure: ``num_ranks``, the number of spares that took over, and the seconds of PARTS."""


def base_config(options: argparse.Namespace, folder: Path, num_steps: int, interval: float, **more: Any) -> Config:
    """Make the data in ``folder``; a run of so many steps, each on record, with a save every ``interval`` steps."""
    cluster = {"num_ps": options.ps, "num_trainers": options.trainers, **more.pop("cluster")}
    return config_of(
        settings_of(folder, options.rows / sum(KAGGLE_CARDINALITIES), num_steps, batch_size=BATCH_SIZE),
        {
            "engine": "rpc",
            "cluster": cluster,
            "strategy": {"name": options.strategy, "interval_samples": int(interval * BATCH_SIZE)},
            "metrics": {"log_every_steps": 1},
            **more,
        },
    )


# --- lost ranks -------------------------------------------------------------------------------------------------------


def configure(options: argparse.Namespace, folder: Path) -> Config:
    num_steps = STEPS_PER_KILL * (options.single + options.multiple + 1)
    chance = random.Random(1)
    ranks = all_ranks(options.ps, options.trainers)
    named = [*filter(is_compute, ranks)] or [*filter(is_ps, ranks)]
    whom = [chance.choice(named) for _ in range(options.single)]
    whom += [str(options.at_once)] * options.multiple
    hours = [STEPS_PER_KILL * number / num_steps * JOB_H for number in range(1, len(whom) + 1)]
    write_trace(folder / "trace.csv", zip(hours, whom, strict=True))
    # A save between every two kills, so that what is restored is never what the ranks started from.
    profile, trace = {"base": "cpr56", "job_h": JOB_H}, {"path": str(folder / "trace.csv")}
    return base_config(
        *(options, folder, num_steps, STEPS_PER_KILL - 0.5),
        cluster={"spares": options.spares},
        profile=profile,
        trace=trace,
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


# --- lost hosts -------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Calls each of ``acts`` at its step, once the one before is over; ``seconds`` from each to the next step done."""

    acts: list[tuple[int, Callable[[], None]]]
    seconds: list[float] = field(default_factory=list)
    _acted_s: float | None = None
    _recovers: bool = False

    def __call__(self, status: assemble.RunStatus) -> None:
        self._recovers |= status.phase == "recover" and self._acted_s is not None
        if status.phase != "train":
            return
        if self._acted_s is not None and self._recovers and status.loss is not None and status.step > self._step:
            self.seconds.append(time.monotonic() - self._acted_s)
            self._acted_s, self._recovers = None, False
        elif self._acted_s is None and self.acts and status.step >= self.acts[0][0]:
            _, act = self.acts.pop(0)
            self._step, self._acted_s = status.step, time.monotonic()
            act()


def kill_host(host: str) -> None:
    for pid in processes(host).values():
        with suppress(ProcessLookupError):  # it has ended with the one before
            os.kill(pid, signal.SIGKILL)


def lose_two(hosts: Emulation, config: Config, folder: Path, lose: Callable[[str], None]) -> list[float]:
    """Seconds from the loss of each of two hosts to the next step. ``trainer0`` is on the third."""
    acts = [(step, lambda host=host: lose(host)) for step, host in zip(LOST_AT, hosts.hosts[1:], strict=True)]
    watch = Watch(acts)
    assemble.run(hosts.config(config, place={CHIEF: hosts.hosts[0]}), folder, on_status=watch)
    return watch.seconds


def orphan(hosts: Emulation, config: Config, folder: Path) -> float:
    """Seconds from the end of a supervisor that is killed to that of the last process on its hosts."""
    arguments = (hosts, hosts.config(config), folder / "run", host_runs.end_supervisor)
    process = fork_server().fork(host_runs.run_and, *arguments)
    process.join()
    ended_s = time.monotonic()
    assert process.exitcode == -signal.SIGKILL, "the run has not come so far"
    while any(map(processes, hosts.hosts)):
        time.sleep(0.002)
    return time.monotonic() - ended_s


def measure_hosts(options: argparse.Namespace, hosts: Emulation, folder: Path) -> dict[str, list[float]]:
    more = {"cluster": {"dead_after_s": options.dead_after}, "trace": {"allow_unplanned": True}}
    config = base_config(options, folder / "lost", LOST_STEPS, STEPS_PER_KILL, **more)
    seconds: dict[str, list[float]] = {"killed": [], "cut": [], "orphaned": []}
    for number in range(options.lost_hosts):
        seconds["killed"] += lose_two(hosts, config, folder / f"killed-{number}", kill_host)
        cut = lose_two(hosts, config, folder / f"cut-{number}", hosts.cut)
        seconds["cut"] += [each - options.dead_after for each in cut]
        for host in hosts.hosts:
            hosts.mend(host)
        seconds["orphaned"].append(orphan(hosts, config, folder / f"orphaned-{number}"))
    return seconds


def main() -> None:
    made = parser(__doc__, ps=8)
    made.add_argument("--single", type=int, default=10, help="kills of one rank")
    made.add_argument("--multiple", type=int, default=3, help="kills of several ranks at once")
    made.add_argument("--at-once", type=int, default=4, help="ranks that such a kill takes")
    made.add_argument("--rows", type=int, default=400_000, help="embedding rows of all tables, about")
    made.add_argument("--strategy", choices=("partial", "full", "cpr_mfu", "buddy"), default="partial")
    made.add_argument("--trainers", type=int, default=1, help="with several, single kills are of a compute rank")
    made.add_argument("--spares", type=int, default=0, help="cluster.spares")
    made.add_argument("--lost-hosts", type=int, metavar="ROUNDS", help="measure lost hosts of three, in so many rounds")
    made.add_argument("--dead-after", type=float, default=2.0, help="cluster.dead_after_s of lost hosts")
    options = made.parse_args()
    if not options.lost_hosts and options.at_once > options.ps:
        made.error(f"--at-once: expected at most --ps {options.ps}, got {options.at_once}")
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        if options.lost_hosts:
            try:
                with emulated(3, folder) as hosts:
                    hosts.enter()
                    figures: dict[str, Any] = measure_hosts(options, hosts, folder)
            except NotAllowed as error:
                made.error(f"no emulated hosts here: {error}")
            rows = [(f"{kind}, s", Spread.of(values).show()) for kind, values in figures.items()]
            lines = table(("what", "median (range)"), rows)
        else:
            figures = {"recoveries": measure(configure(options, folder), folder / "run")}
            lines = table(("ranks killed", *(f"{part} ms" for part in PARTS)), rows_of(figures["recoveries"]))
    report(options, lines, figures)


if __name__ == "__main__":
    main()
