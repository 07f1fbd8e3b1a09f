"""How costs grow with the number of ranks: worlds that do next to nothing, and with --trainers runs that train.

For each number of PS ranks one world on engine rpc, without a model: ``--messages`` rounds in which every rank gets its
part of ``--rows`` gradients and as many lookups, then ``--kills`` deaths of one rank, each followed by a regroup.

    round       one message to every rank, until all have answered
    trainer     processor time of the trainer for a message: encode, send, receive, decode
    PS rank     the same at ps0, with the update and the lookup
    regroup     the trainer asks for a replacement and is a member of the new world
    supervisor  its processor time for one regroup and the reaping before
    survivor    processor time of a surviving rank for one regroup
    memory      of a PS rank, shared pages in proportion

All processes share the cores of this machine. On hosts of their own ranks work at once, and the trainer and the
supervisor remain serial: the last table extrapolates the two to more ranks by straight lines.

``--trainers 1,2,4,8``: instead, for each number of trainers and of PS ranks ``--rounds`` runs on engine rpc, with
Kaggle's dense network and nothing saved. Each process has one thread, and a process spins on each core, so that all
runs meet the same contention. Processor time of a step: of a trainer and of a PS rank, means of all; and the trainer
that takes least by the one that takes most (evenness). A trainer of T with N PS ranks is taken apart by least squares
of relative errors:

    messages    in proportion to N / T: it asks so many ranks
    requests    to N: it plans the requests to all ranks, and reads all replies
    samples     to 1 / T: forward and backward of its part of the batch, less the parts of others that it takes in;
                below 0 where these cost more
    trainers    to T - 1: it gives its part to so many, and takes theirs
    whole       what each trainer does for the whole batch: plan, merge, the step of the dense network

A PS rank has a message, and its part of the rows: a + b / N, of the runs with the most trainers. Last, jobs of other
sizes (``--jobs``), whose step on hosts of their own takes at least what one trainer and one PS rank take.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch

from benchmarks._common import Spread, config_of, numbers_of, parser, report, settings_of, table
from benchmarks._processes import busy_cores, processor_s, pss_bytes
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Exchange, Initialise, Push
from harness.cluster.supervisor import Supervisor
from harness.config.model import Config
from harness.core.errors import RankLost
from harness.core.events import Started
from harness.core.faults import PlannedFault, Strike
from harness.core.model_options import CRITEO
from harness.core.plans import is_ps, is_trainer, ps_rank
from harness.model.compiled_backend import TeamPass
from harness.model.models import SIZES
from harness.record.event_log import read_events
from harness.run.assemble import RunStatus, make_world, run
from harness.run.spec import RunSpec
from harness.store import CheckpointStore

_WARM_UP = 50  # rounds or steps that are not timed
_DIM = 16

# --- worlds -----------------------------------------------------------------------------------------------------------


def exercise(num_rows: int, num_messages: int, num_kills: int, cluster: Cluster, effects: Effects) -> None:
    """The trainer's job: messages, then kills; what it measured is recorded as one mapping.

    Other mappings are recorded when the timed messages begin, when they end, and after each regroup.
    """
    ranks = cluster.ranks
    cluster.call({rank: Initialise(step=0) for rank in ranks})
    rows_N = torch.arange(max(1, num_rows // len(ranks)))

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
    effects.record({})
    own_s = time.process_time()
    for step in range(num_messages):
        began_s = time.monotonic()
        send(_WARM_UP + step + 1)
        rounds_s.append(time.monotonic() - began_s)
    trainer_s = (time.process_time() - own_s) / num_messages / len(ranks)
    effects.record({})
    for number in range(num_kills):
        step = _WARM_UP + num_messages + number + 1
        cluster.expect_losses()
        effects.inject(step, step, [number])
        try:
            send(step)
        except RankLost as lost:
            began_s = time.monotonic()
            effects.replace(lost.detail, step, step, 0.0)
            cluster.replace(lost.ranks)
            regroups_s.append(time.monotonic() - began_s)
            cluster.call({rank: Initialise(step=step) for rank in lost.ranks})
        effects.record({})
    effects.record(
        {
            "round_ms": 1e3 * float(np.median(rounds_s)),
            "trainer_us": 1e6 * trainer_s,
            "regroup_ms": 1e3 * float(np.median(regroups_s)),
            "longest_ms": 1e3 * max(regroups_s),
        }
    )


def measure_world(config: Config, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    spec = RunSpec(config).rank_spec(folder / "checkpoints")
    world = make_world(config, spec, partial(exercise, options.rows, options.messages, options.kills))
    survives = config.num_ps > 1  # ps0, whose processor time is that of a survivor
    victims = [ps_rank(1 + number % (config.num_ps - 1) if survives else 0) for number in range(options.kills)]
    kills = [PlannedFault(step=0, strikes={rank: Strike(0.0, 0)}) for rank in victims]
    found: dict[str, float] = {"num_ps": config.num_ps}
    marks: list[tuple[float, float]] = []  # processor times of this process and of ps0, at each mapping

    def sink(event: Any) -> None:
        if isinstance(event, dict):
            marks.append((time.process_time(), processor_s(world.pids["ps0"])))
            found.update(event)

    store = CheckpointStore(folder / "checkpoints", fsync=False)
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


def of_worlds(options: argparse.Namespace, folder: Path) -> None:
    base = settings_of(folder, [2000] * 26, 1)
    results: list[dict[str, float]] = []
    for num_ps in map(int, options.ps or (1, 2, 4, 8, 16, 32, 63)):
        config = config_of(base, {"engine": "rpc", "cluster": {"num_ps": num_ps}})
        results.append(measure_world(config, folder / str(num_ps), options))
    rows = [
        [shape.format(each[key]) if key in each else "" for key, (_, shape) in _COLUMNS.items()] for each in results
    ]
    lines = [*table([head for head, _ in _COLUMNS.values()], rows), "", *extrapolated(results, options.at)]
    report(options, lines, {"results": results})


def extrapolated(results: Sequence[dict[str, float]], sizes: Sequence[float]) -> list[str]:
    """The serial parts at other numbers of ranks, by straight lines through the figures of at least four ranks."""
    known = [found for found in results if found["num_ps"] >= 4]
    if len(known) < 2:
        return []
    ranks = [found["num_ps"] for found in known]
    trainer = np.polyfit(ranks, [found["trainer_us"] * found["num_ps"] / 1e3 for found in known], 1)
    regroup = np.polyfit(ranks, [found["supervisor_ms"] for found in known], 1)
    rows = [(f"{size:g}", f"{np.polyval(trainer, size):.1f}", f"{np.polyval(regroup, size):.0f}") for size in sizes]
    return table(("PS ranks", "trainer, ms of processor a step", "supervisor, ms of processor a regroup"), rows)


# --- runs with several trainers ---------------------------------------------------------------------------------------

PARTS = ("messages", "requests", "samples", "trainers", "whole")
_CHUNK = 10  # steps between two looks
Shape = tuple[int, int]  # numbers of trainers and of PS ranks
Found = Mapping[str, float]
"""Milliseconds of processor time a step, of a ``trainer`` and of a ``PS rank``; ``evenness`` of the trainers."""


def measure_run(config: Config, folder: Path, num_steps: int) -> Found:
    """Run once; what the processes take from step ``_WARM_UP`` on, for ``num_steps``."""
    looks: list[tuple[int, dict[str, float]]] = []

    def look(status: RunStatus) -> None:
        is_due = status.step >= (_WARM_UP if not looks else looks[0][0] + num_steps)
        if status.phase == "train" and is_due and len(looks) < 2:
            started = next(event for event in read_events(folder / "events.jsonl") if isinstance(event, Started))
            looks.append((status.step, {rank: processor_s(pid) for rank, pid in started.machine["pids"].items()}))

    run(config, folder, on_status=look)
    (first, before), (last, after) = looks
    trainers_ms, ps_ms = (
        [1e3 * (after[rank] - before[rank]) / (last - first) for rank in filter(is_one, after)]
        for is_one in (is_trainer, is_ps)
    )
    return {
        "trainer": sum(trainers_ms) / len(trainers_ms),
        "PS rank": sum(ps_ms) / len(ps_ms),
        "evenness": min(trainers_ms) / max(trainers_ms),
    }


def terms(shape: Shape) -> list[float]:
    """What each of ``PARTS`` is in proportion to."""
    num_trainers, num_ps = shape
    return [num_ps / num_trainers, num_ps, 1 / num_trainers, num_trainers - 1, 1]


def fit(found: Mapping[Shape, Found]) -> np.ndarray:
    """Milliseconds of each of ``PARTS`` for one unit, (5,) float64; all relative errors count alike."""
    wanted = np.array([each["trainer"] for each in found.values()])
    factors = np.array([terms(shape) for shape in found])
    return np.linalg.lstsq(factors / wanted[:, None], np.ones(len(wanted)), rcond=None)[0]


def at_sizes(found: Mapping[Shape, Found], shapes: Sequence[Shape], batch_size: int) -> list[str]:
    units = fit(found)
    most = max(num_trainers for num_trainers, _ in found)
    of_most = {1 / num_ps: each["PS rank"] for (trainers, num_ps), each in found.items() if trainers == most}
    all_rows, a_message = (
        np.polyfit([*of_most], [*of_most.values()], 1) if len(of_most) > 1 else (0.0, min(of_most.values()))
    )
    rows: list[tuple[str, ...]] = []
    for shape in shapes:
        parts = [unit * term for unit, term in zip(units, terms(shape), strict=True)]
        sent_mb = _sample_bytes() * batch_size * (shape[0] - 1) / shape[0] / 1e6
        whole = (sum(parts), a_message + all_rows / shape[1], sent_mb)
        rows.append((" + ".join(map(str, shape)), *(f"{each:.2f}" for each in (*parts, *whole))))
    head = ("trainers + PS ranks", *PARTS, "trainer, ms a step", "PS rank, ms a step", "MB that a trainer sends a step")
    return table(head, rows)


def _sample_bytes() -> int:
    size = SIZES["kaggle"]
    bottom, top = (
        [torch.zeros(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(widths)]
        for widths in ((CRITEO.num_dense, *size.bottom_mlp), (size.top_inputs, *size.top_mlp))
    )
    return TeamPass(bottom, top, num_samples=1, learning_rate=0.1, is_eager=False).sample_bytes


def shape(text: str) -> Shape:
    num_trainers, num_ps = map(int, text.split("+"))
    return num_trainers, num_ps


def of_trainers(options: argparse.Namespace, folder: Path) -> None:
    shapes = [(int(trainers), int(ps)) for trainers in options.trainers for ps in options.ps or (2, 8, 16)]
    seen: dict[Shape, list[Found]] = {shape: [] for shape in shapes}
    num_steps = _WARM_UP + options.steps + 2 * _CHUNK
    base = settings_of(folder, options.rows_scale, num_steps, batch_size=options.batch_size, backend="compiled")
    base |= {"engine": "rpc", "metrics": {"log_every_steps": _CHUNK}}
    with busy_cores():
        for number, shape in product(range(options.rounds), shapes):
            config = config_of(base, {"cluster": {"num_trainers": shape[0], "num_ps": shape[1]}})
            seen[shape].append(measure_run(config, folder / f"{number}-{shape[0]}-{shape[1]}", options.steps))
    spreads = {shape: {kind: Spread.of(each[kind] for each in of) for kind in of[0]} for shape, of in seen.items()}
    lines = table(
        ("trainers + PS ranks", "trainer, ms of processor a step", "PS rank, ms of processor a step", "evenness"),
        [(" + ".join(map(str, shape)), *(spread.show() for spread in of.values())) for shape, of in spreads.items()],
    )
    found = {shape: {kind: spread.median for kind, spread in of.items()} for shape, of in spreads.items()}
    if len(found) > len(PARTS):
        units = zip(PARTS, fit(found), strict=True)
        lines += ["", *table(("part of a trainer", "ms a unit"), [(part, f"{unit:.3f}") for part, unit in units])]
        lines += ["", *at_sizes(found, options.jobs, options.batch_size)]
    results = [{"trainers": shape[0], "num_ps": shape[1], "runs": of} for shape, of in seen.items()]
    report(options, lines, {"results": results})


def main() -> None:
    made = parser(__doc__, rounds=2, steps=300, rows_scale=0.1, batch_size=128)
    made.add_argument("--ps", type=numbers_of, help="numbers of PS ranks (default: 1 to 63; with --trainers 2,8,16)")
    made.add_argument("--messages", type=int, default=300, help="rounds of a world that are timed")
    made.add_argument("--kills", type=int, default=10, help="deaths of one rank of a world")
    made.add_argument("--rows", type=int, default=1160, help="rows of a world's batch, of all ranks together")
    made.add_argument("--at", type=numbers_of, default="18,64,128", help="numbers of ranks to extrapolate worlds to")
    made.add_argument("--trainers", type=numbers_of, help="numbers of trainers, to measure runs")
    made.add_argument("--jobs", type=shape, nargs="+", default=[(20, 18), (64, 128)], help="to foretell: 20+18 64+128")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        (of_trainers if options.trainers else of_worlds)(options, Path(name))


if __name__ == "__main__":
    main()
