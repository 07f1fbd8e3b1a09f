"""How the cost of messages and of regroups grows with the number of PS ranks, in worlds that do next to nothing.

For each number of PS ranks one world on engine rpc, without a model: ``--messages`` rounds in which every rank gets its
part of ``--rows`` gradients and as many lookups, then ``--kills`` deaths of one rank, each followed by a regroup.

    round       one message to every rank, until all have answered
    trainer     processor time of the trainer for a message: encode, send, receive, decode
    PS rank     the same at ps0, with the update and the lookup
    regroup     the trainer asks for a replacement and is a member of the new world
    supervisor  its processor time for one regroup and the reaping before
    survivor    processor time of a surviving rank for one regroup
    memory      of a PS rank, shared pages in proportion

All processes share the cores of this machine, so a round and a regroup are at least the sum of processor times over the
cores. On hosts of their own ranks work at once; what remains serial is the trainer and the supervisor. The last table
is an extrapolation: straight lines through the measured figures of the two, at more ranks than this machine holds.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch

from benchmarks._common import config_of, numbers_of, parser, report, settings_of, table
from benchmarks._processes import processor_s
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Exchange, Initialise, Push
from harness.cluster.supervisor import Supervisor
from harness.config.model import Config
from harness.core.errors import RankLost
from harness.core.faults import PlannedFault, Strike, Struck
from harness.core.plans import Rank, ps_rank
from harness.run.assemble import make_world
from harness.run.spec import RunSpec
from harness.store import CheckpointStore

_WARM_UP = 50  # rounds that are not timed


def memory_mb(pid: int) -> float:
    """Memory of a process, pages that it shares in proportion, MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e3


def exercise(num_rows: int, num_messages: int, num_kills: int, cluster: Cluster, effects: Effects) -> None:
    """The trainer's job: messages, then kills; what it measured is recorded as one mapping."""
    ranks = cluster.ranks
    cluster.call({rank: Initialise(step=0) for rank in ranks})
    dim = 16

    def send(step: int, who: Sequence[Rank] = ranks) -> None:
        rows_N = torch.arange(max(1, num_rows // len(ranks)))
        count = len(rows_N)
        push = Push(
            step=step,
            rows_N=rows_N,
            grads_ND=torch.zeros(count, dim),
            counts_N=torch.ones(count, dtype=torch.int32),
            sampled_N=torch.zeros(count, dtype=torch.bool),
            learning_rate=0.1,
        )
        cluster.call({rank: Exchange(push=push, pull_N=rows_N) for rank in who})

    for step in range(_WARM_UP):
        send(step + 1)
    rounds_s: list[float] = []
    effects.record({"messages": "begin"})
    own_s = time.process_time()
    for step in range(num_messages):
        began_s = time.monotonic()
        send(_WARM_UP + step + 1)
        rounds_s.append(time.monotonic() - began_s)
    trainer_s = (time.process_time() - own_s) / num_messages / len(ranks)
    effects.record({"messages": "end"})
    regroups_s: list[float] = []
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
    effects.record(
        {
            "round_ms": 1e3 * float(np.median(rounds_s)),
            "trainer_us": 1e6 * trainer_s,
            "regroup_ms": 1e3 * float(np.median(regroups_s)),
            "longest_ms": 1e3 * max(regroups_s),
        }
    )


class Notes:
    """A sink that keeps the trainer's figures.

    ``used`` gives processor times of the supervisor and of ps0, seconds; they are read when the timed messages begin
    and end, at each kill, and last.
    """

    def __init__(self, used: Callable[[], tuple[float, float]]) -> None:
        self._used = used
        self.found: dict[str, float] = {}
        self.marks: list[tuple[float, float]] = []
        self.messages_s: list[float] = []  # of ps0, before the timed messages and after them

    def record(self, event: Any) -> None:
        """Keep a mapping, and drop events."""
        if not isinstance(event, dict):
            return
        if "messages" in event:
            self.messages_s.append(self._used()[1])
        else:
            self.mark()
            self.found |= event

    def mark(self) -> None:
        """Read the processor times."""
        self.marks.append(self._used())

    def between_ms(self, which: int) -> float:
        """Processor time between two kills, milliseconds."""
        return 1e3 * (self.marks[-1][which] - self.marks[0][which]) / (len(self.marks) - 1)


class Marking(Supervisor):
    """Reads the processor times before each kill."""

    def __init__(self, notes: Notes, **settings: Any) -> None:
        super().__init__(**settings)
        self._notes = notes

    def inject(self, *args: Any, **values: Any) -> Struck:
        """See Supervisor."""
        self._notes.mark()
        return super().inject(*args, **values)


def measure(config: Config, folder: Path, num_rows: int, num_messages: int, num_kills: int) -> dict[str, float]:
    """Form a world of the config, exercise it, and end it."""
    spec = RunSpec(config).rank_spec(folder / "checkpoints")
    world = make_world(config, spec, partial(exercise, num_rows, num_messages, num_kills))
    survives = config.num_ps > 1  # ps0, whose processor time is that of a survivor
    notes = Notes(lambda: (time.process_time(), processor_s(world.pids["ps0"])))
    victims = [ps_rank(1 + number % (config.num_ps - 1) if survives else 0) for number in range(num_kills)]
    kills = [PlannedFault(step=0, strikes={rank: Strike(0.0, 0)}) for rank in victims]
    store = CheckpointStore(folder / "checkpoints", fsync=False)
    supervisor = Marking(
        notes, ranks=world, sink=notes.record, store=store, planned_faults=kills, on_status=lambda **_: None
    )

    try:
        world.start()
        world.serve(supervisor)
        found = {"num_ps": config.num_ps, **notes.found, "memory_mb": memory_mb(world.pids["ps0"])}
        found["supervisor_ms"] = notes.between_ms(0)
        found["ps_us"] = 1e6 * (notes.messages_s[1] - notes.messages_s[0]) / num_messages
        return {**found, "survivor_ms": notes.between_ms(1)} if survives else found
    finally:
        world.close()


def main() -> None:
    """Measure each number of ranks, print both tables."""
    made = parser(__doc__)
    made.add_argument("--ps", type=numbers_of, default="1,2,4,8,16,32,63", help="numbers of PS ranks")
    made.add_argument("--messages", type=int, default=300, help="rounds that are timed")
    made.add_argument("--kills", type=int, default=10, help="deaths of one rank")
    made.add_argument("--rows", type=int, default=1160, help="rows of a batch, of all ranks together")
    made.add_argument("--at", type=numbers_of, default="18,64,128", help="numbers of ranks to extrapolate to")
    options = made.parse_args()
    results: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="scale-") as name:
        base = settings_of(Path(name), [2000] * 26, 1)
        for num_ps in map(int, options.ps):
            config = config_of(base, {"engine": "rpc", "cluster": {"num_ps": num_ps}})
            results.append(measure(config, Path(name) / str(num_ps), options.rows, options.messages, options.kills))
    head = (
        "PS ranks",
        "round ms",
        "trainer µs a message",
        "PS rank µs a message",
        "regroup ms (longest)",
        "supervisor ms",
        "survivor ms",
        "MB a rank",
    )
    rows = [
        (
            f"{found['num_ps']:g}",
            f"{found['round_ms']:.2f}",
            f"{found['trainer_us']:.0f}",
            f"{found['ps_us']:.0f}",
            f"{found['regroup_ms']:.0f} ({found['longest_ms']:.0f})",
            f"{found['supervisor_ms']:.1f}",
            f"{found['survivor_ms']:.1f}" if "survivor_ms" in found else "",
            f"{found['memory_mb']:.0f}",
        )
        for found in results
    ]
    lines = [*table(head, rows), "", *extrapolated(results, options.at)]
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


if __name__ == "__main__":
    main()
