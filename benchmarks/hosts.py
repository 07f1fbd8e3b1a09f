"""Ranks on three hosts: how long a lost host stops training, what a step costs there, and whether stalls are forgiven.

Hosts are emulated (``tests/hosts/emulated.py``): namespaces of this machine, joined by a bridge. Needs to be root.

    killed      all processes of a host get SIGKILL; seconds until the next step is done. Two hosts in turn, of several
                trainers (--trainers) that of trainer0 too
    cut         the cable of a host is taken out; the same, less ``cluster.dead_after_s``. Two hosts in turn.
    orphaned    the supervisor gets SIGKILL; seconds until nothing of the run is left on any host
    step        milliseconds of a step: three agents by loopback, and on three hosts, in turn
    stalled     a rank is stopped for most of the shorter deadline while all cores are busy; how often it is given up
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, config_of, parser, report, settings_of, table
from benchmarks._processes import busy_cores
from harness.config.model import Config
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.events import Lost, Trained
from harness.processes.spawn import fork_server
from harness.record.event_log import read_events
from harness.run import assemble
from tests.hosts import host_runs
from tests.hosts.emulated import Emulation, NotAllowed, emulated, processes

BATCH_SIZE = 128
LOST_AT = (30, 60)  # steps
NUM_STEPS = 90
STALL_FRAC = 0.7  # of the time after which connections to a rank that takes nothing in are given up

Act = Callable[[], None]


@dataclass
class Watch:
    """Calls each of ``acts`` at its step, once the one before is over; ``seconds`` from each to the next step done."""

    acts: list[tuple[int, Act]]
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
    """Everything on a host ends at once."""
    for pid in processes(host).values():
        with suppress(ProcessLookupError):  # it has ended with the one before
            os.kill(pid, signal.SIGKILL)


def configure(options: argparse.Namespace, folder: Path, num_steps: int, **cluster: Any) -> Config:
    """A run of so many steps, each on record, with a save every dozen."""
    return config_of(
        settings_of(folder, options.rows / sum(KAGGLE_CARDINALITIES), num_steps, batch_size=BATCH_SIZE),
        {
            "engine": "rpc",
            "cluster": {
                "num_ps": options.ps,
                "num_trainers": options.trainers,
                "dead_after_s": options.dead_after,
                **cluster,
            },
            "strategy": {"name": "partial", "interval_samples": 12 * BATCH_SIZE},
            "trace": {"allow_unplanned": True},
            "metrics": {"log_every_steps": 1},
        },
    )


def lose_two(hosts: Emulation, config: Config, folder: Path, lose: Callable[[str], None]) -> list[float]:
    """Seconds from the loss of each of two hosts to the next step."""
    lost = hosts.hosts[:2] if config.cluster.num_trainers > 1 else hosts.hosts[1:]
    watch = Watch([(step, lambda host=host: lose(host)) for step, host in zip(LOST_AT, lost, strict=True)])
    assemble.run(hosts.config(config), folder, on_status=watch)
    return watch.seconds


def orphan(hosts: Emulation, config: Config, folder: Path) -> float:
    """Seconds from the end of a supervisor that is killed to that of the last process on its hosts."""
    arguments = (hosts, hosts.config(config), folder / "run", host_runs.end_supervisor)
    process = fork_server().Process(target=host_runs.run_and, args=arguments)
    process.start()
    process.join()
    ended_s = time.monotonic()
    while any(map(processes, hosts.hosts)):
        time.sleep(0.002)
    return time.monotonic() - ended_s


def step_seconds(config: Config, folder: Path) -> float:
    """Median of the seconds of a step, the first tenth left out."""
    assemble.run(config, folder)
    steps = [event.machine["seconds"] for event in read_events(folder / "events.jsonl") if isinstance(event, Trained)]
    return Spread.of(steps[len(steps) // 10 :]).median


def stall(hosts: Emulation, config: Config, folder: Path, num: int) -> tuple[int, int]:
    """Number of stalls, and of failures that came of them."""
    chance, stall_s = random.Random(1), STALL_FRAC * config.cluster.dead_after_s / 2
    num_stalled = 0

    def stop_one() -> None:
        nonlocal num_stalled
        ranks = [pid for host in hosts.hosts for _, pid in sorted(processes(host).items())[2:]]  # agent and fork server
        pid = chance.choice(ranks)
        os.kill(pid, signal.SIGSTOP)
        Timer(stall_s, os.kill, (pid, signal.SIGCONT)).start()
        num_stalled += 1

    next_s = 0.0

    def on_status(status: assemble.RunStatus) -> None:
        nonlocal next_s
        if status.phase == "train" and num_stalled < num and time.monotonic() >= next_s:
            stop_one()
            next_s = time.monotonic() + 1.2 * stall_s

    with busy_cores():
        assemble.run(hosts.config(config), folder, on_status=on_status)
    return num_stalled, sum(isinstance(event, Lost) for event in read_events(folder / "events.jsonl"))


def measure(options: argparse.Namespace, hosts: Emulation, folder: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """Rows of the table, and all figures."""
    figures: dict[str, Any] = {}
    rows: list[list[str]] = []
    lost = configure(options, folder / "lost", NUM_STEPS)
    steps = configure(options, folder / "steps", options.steps)
    apart = {"loopback": hosts.near(steps), "hosts": hosts.config(steps)}
    by_kind: dict[str, list[float]] = {"killed": [], "cut": [], "orphaned": [], "loopback": [], "hosts": []}
    for number in range(options.rounds):
        by_kind["killed"] += lose_two(hosts, lost, folder / f"killed-{number}", kill_host)
        cut = lose_two(hosts, lost, folder / f"cut-{number}", hosts.cut)
        by_kind["cut"] += [seconds - options.dead_after for seconds in cut]
        for host in hosts.hosts:
            hosts.mend(host)
        by_kind["orphaned"].append(orphan(hosts, lost, folder / f"orphaned-{number}"))
        for kind, config in apart.items():
            by_kind[kind].append(step_seconds(config, folder / f"{kind}-{number}"))
    for kind in ("killed", "cut", "orphaned"):
        rows.append([f"{kind}, s", Spread.of(by_kind[kind]).show(2)])
    ratios = [far / near for far, near in zip(by_kind["hosts"], by_kind["loopback"], strict=True)]
    rows += [[f"step, {kind}, ms", Spread.of(1e3 * s for s in by_kind[kind]).show(2)] for kind in apart]
    rows.append(["step, hosts / loopback", Spread.of(ratios).show(3)])
    figures |= by_kind
    if options.stalls:
        config = configure(options, folder / "stalls", options.steps + 20 * options.stalls)
        figures["stalls"], figures["given_up"] = stall(hosts, config, folder / "stalled", options.stalls)
        rows.append(["stalled, given up", f"{figures['given_up']} of {figures['stalls']}"])
    return rows, figures


def main() -> None:
    """Measure, print the table, write it as JSON if asked."""
    made = parser(__doc__, rounds=3, steps=400, ps=6)
    made.add_argument("--rows", type=int, default=400_000, help="embedding rows of all tables, about")
    made.add_argument("--trainers", type=int, default=1, help="trainers, on the hosts in turn")
    made.add_argument("--stalls", type=int, default=50, help="stalls of a rank")
    made.add_argument("--dead-after", type=float, default=2.0, help="cluster.dead_after_s")
    options = made.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hosts-") as name, emulated(3, Path(name)) as hosts:
            hosts.enter()
            rows, figures = measure(options, hosts, Path(name))
    except NotAllowed as error:
        made.error(f"no emulated hosts here: {error}")
    report(options, table(("what", "median (range)"), rows), figures)


if __name__ == "__main__":
    main()
