"""How costs grow with the number of PS ranks: worlds that do next to nothing.

For each number of PS ranks one world on engine rpc, without a model: ``--messages`` rounds in which every rank gets its
part of 1,160 gradients and as many lookups, then ``--kills`` deaths of one rank, each followed by a regroup.

    round       one message to every rank, until all have answered
    trainer     processor time of the trainer for a message: encode, send, receive, decode
    PS rank     the same at ps0, with the update and the lookup
    regroup     the trainer asks for a replacement and is a member of the new world
    supervisor  its processor time for one regroup and the reaping before
    survivor    processor time of a surviving rank for one regroup
    memory      of a PS rank, shared pages in proportion

All processes share the cores of this machine. On hosts of their own ranks work at once, and the trainer and the
supervisor remain serial: the last table extrapolates the two to more ranks by straight lines.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch

from benchmarks._common import config_of, numbers_of, parser, report, settings_of, table
from benchmarks._processes import processor_s, pss_bytes
from harness.cluster.protocol import Cluster, Exchange, Initialise, Push
from harness.cluster.supervisor import Supervisor
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import Config
from harness.core.errors import RankLost
from harness.core.faults import PlannedFault, Strike
from harness.core.plans import ps_rank
from harness.run.assemble import make_world
from harness.run.spec import RunSpec
from harness.store import FileStore

ROWS = 1160  # of a world's batch, of all ranks together
SIZES = (18, 64, 128)  # PS ranks to which worlds are extrapolated
_WARM_UP = 50  # rounds that are not timed
_DIM = 16


def exercise(num_messages: int, num_kills: int, cluster: Cluster, supervisor: SupervisorClient) -> None:
    """The trainer's job: messages, then kills; what it measured is recorded as one mapping.

    Other mappings are recorded when the timed messages begin, when they end, and after each regroup.
    """
    ranks = cluster.ranks
    cluster.call({rank: Initialise(step=0) for rank in ranks})
    rows_N = torch.arange(ROWS // len(ranks))

    def send(step: int) -> None:
        push = Push(
            step=step,
            rows_N=rows_N,
            grads_ND=torch.zeros(len(rows_N), _DIM),
            counts_N=torch.ones(len(rows_N), dtype=torch.int32),
            sampled_N=torch.zeros(len(rows_N), dtype=torch.bool),
            learning_rate=0.1,
        )
        cluster.call({rank: Exchange(push=push, pull_N=rows_N) for rank in ranks})

    for step in range(_WARM_UP):
        send(step + 1)
    rounds_s, regroups_s = list[float](), list[float]()
    supervisor.record({})
    own_s = time.process_time()
    for step in range(num_messages):
        began_s = time.monotonic()
        send(_WARM_UP + step + 1)
        rounds_s.append(time.monotonic() - began_s)
    trainer_s = (time.process_time() - own_s) / num_messages / len(ranks)
    supervisor.record({})
    for number in range(num_kills):
        step = _WARM_UP + num_messages + number + 1
        cluster.expect_losses()
        supervisor.inject(step, step, [number])
        try:
            send(step)
        except RankLost as lost:
            began_s = time.monotonic()
            supervisor.replace(lost.detail, step, step, 0.0)
            cluster.replace(lost.ranks)
            regroups_s.append(time.monotonic() - began_s)
            cluster.call({rank: Initialise(step=step) for rank in lost.ranks})
        supervisor.record({})
    supervisor.record(
        {
            "round_ms": 1e3 * float(np.median(rounds_s)),
            "trainer_us": 1e6 * trainer_s,
            "regroup_ms": 1e3 * float(np.median(regroups_s)),
            "longest_ms": 1e3 * max(regroups_s),
        }
    )


def measure_world(config: Config, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    store = FileStore(folder / "checkpoints", fsync=False)
    store.open()
    spec = RunSpec(config).rank_spec(store)
    world = make_world(config, spec, partial(exercise, options.messages, options.kills))
    survives = config.num_ps > 1  # ps0, whose processor time is that of a survivor
    kills = [PlannedFault(step=0, strikes={ps_rank(config.num_ps - 1): Strike(0.0, 0)})] * options.kills
    found: dict[str, float] = {"num_ps": config.num_ps}
    marks: list[tuple[float, float]] = []  # processor times of this process and of ps0, at each mapping

    def sink(event: Any) -> None:
        if isinstance(event, dict):
            marks.append((time.process_time(), processor_s(world.pids["ps0"])))
            found.update(event)

    supervisor = Supervisor(ranks=world, sink=sink, store=store, planned_faults=kills, on_status=lambda **_: None)
    try:
        world.start()
        world.serve(supervisor)
        found["memory_mb"] = pss_bytes(world.pids["ps0"]) / 1e6
    finally:
        world.close()
    began, sent, ended = marks[0], marks[1], marks[1 + options.kills]
    found["ps_us"] = 1e6 * (sent[1] - began[1]) / options.messages
    found["supervisor_ms"] = 1e3 * (ended[0] - sent[0]) / options.kills
    if survives:
        found["survivor_ms"] = 1e3 * (ended[1] - sent[1]) / options.kills
    return found


_COLUMNS = {
    "num_ps": ("PS ranks", "{:g}"),
    "round_ms": ("round ms", "{:.2f}"),
    "trainer_us": ("trainer µs a message", "{:.0f}"),
    "ps_us": ("PS rank µs a message", "{:.0f}"),
    "regroup_ms": ("regroup ms", "{:.0f}"),
    "longest_ms": ("the longest", "{:.0f}"),
    "supervisor_ms": ("supervisor ms", "{:.1f}"),
    "survivor_ms": ("survivor ms", "{:.1f}"),
    "memory_mb": ("MB a rank", "{:.0f}"),
}


def extrapolated(results: Sequence[dict[str, float]]) -> list[str]:
    """The serial parts at other numbers of ranks, by straight lines through the figures of at least four ranks."""
    known = [found for found in results if found["num_ps"] >= 4]
    if len(known) < 2:
        return []
    ranks = [found["num_ps"] for found in known]
    trainer = np.polyfit(ranks, [found["trainer_us"] * found["num_ps"] / 1e3 for found in known], 1)
    regroup = np.polyfit(ranks, [found["supervisor_ms"] for found in known], 1)
    rows = [(size, f"{np.polyval(trainer, size):.1f}", f"{np.polyval(regroup, size):.0f}") for size in SIZES]
    return table(("PS ranks", "trainer, ms of processor a step", "supervisor, ms of processor a regroup"), rows)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--ps", type=numbers_of, default="1,2,4,8,16,32,63", help="numbers of PS ranks")
    made.add_argument("--messages", type=int, default=300, help="rounds of a world that are timed")
    made.add_argument("--kills", type=int, default=10, help="deaths of one rank of a world")
    options = made.parse_args()
    results: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        base = settings_of(Path(name), [2000] * 26, 1)
        for num_ps in map(int, options.ps):
            config = config_of(base, {"engine": "rpc", "cluster": {"num_ps": num_ps}})
            results.append(measure_world(config, Path(name) / str(num_ps), options))
    rows = [
        [shape.format(each[key]) if key in each else "" for key, (_, shape) in _COLUMNS.items()] for each in results
    ]
    lines = [*table([head for head, _ in _COLUMNS.values()], rows), "", *extrapolated(results)]
    report(options, lines, {"results": results})


if __name__ == "__main__":
    main()
