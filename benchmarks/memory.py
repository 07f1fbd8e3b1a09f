"""Peak memory of the Kaggle-size model in training, against the bytes of its tables.

    python benchmarks/memory.py [--ps 4] [--steps 88] [--batch-size 128] [--strategy cpr_mfu] [--rows-scale 1]
                                [--save-mode sync] [--max-rows N] [--folder DIR] [--json FILE]

Two runs on synthetic clicks, alike in all but the size of the tables: Kaggle's 26 (33,762,577 rows x 16, 2.16 GB), and
tables of a few rows. Each is saved whole, trains with ten priority saves, loses a rank and recovers it. A process apart
sums the PSS of the supervisor, the fork server and every rank, every 50 ms or as often as the kernel can count, and
sorts it by the phase of the run. The figure is the difference between the peaks of the two runs, over the bytes of the
tables. Beside it stands the sum of VmHWM, the peaks that the kernel itself notes for each process: no spike is missed,
but peaks add up that were not at the same moment.

So short a run touches few rows. The worst case of one rank, every row of its shard touched before every save, until its
deltas are compacted, is measured on one rank alone and printed below.

With ``--max-rows`` both runs have a lookahead cache of that bound; the most rows that it held is printed against the
bound.

Checkpoints take about 2.5 times the tables on disk and are removed at the end. They are written without fsync, which
decides when pages reach the disk and not which process holds memory.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import or_
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import (
    ROW_BYTES,
    config_of,
    kaggle_tables,
    machine,
    make_data,
    parser,
    report,
    settings_of,
    table,
    write_trace,
)
from benchmarks._memory import Memory, cost_of, memory_of_tree, resident_bytes
from harness.cluster.spawn import own_fork_server
from harness.config.model import Config
from harness.core.errors import HarnessError

TINY_ROWS = 64
EVERY_S = 0.05
NUM_SAVES = 10
LIMIT = 1.35
_CHUNK_ROWS = 1 << 16


@dataclass
class Phase:
    """What was seen in one phase of a run. ``memory``: at its peak."""

    seconds: float = 0.0
    num_looks: int = 0
    memory: Memory = field(default_factory=Memory)


@dataclass
class Seen:
    """Of one run: memory by phase, and the figures of its cache."""

    phases: dict[str, Phase] = field(default_factory=dict)
    cache: dict[str, float] = field(default_factory=dict)

    def peak(self) -> Phase:
        """The whole run."""
        phases = self.phases.values()
        return Phase(
            seconds=sum(phase.seconds for phase in phases),
            num_looks=sum(phase.num_looks for phase in phases),
            memory=reduce(or_, (phase.memory for phase in phases)),
        )


def configure(options: argparse.Namespace, folder: Path, cardinalities: list[int]) -> Config:
    """Make the data and the trace in ``folder``; the run's config."""
    num_train = options.steps * options.batch_size
    make_data(folder / "data", cardinalities, num_train)
    write_trace(folder / "trace.csv", [(56 * 0.55, "ps1")])
    return config_of(
        settings_of(folder / "data", options.steps, batch_size=options.batch_size),
        {
            "engine": "rpc",
            "eval": {"max_samples": 4096},
            "cluster": {"num_ps": options.ps},
            "cache": {"mode": "lookahead", "max_rows": options.max_rows} if options.max_rows else {},
            "strategy": {"name": options.strategy, "interval_samples": max(1, num_train * 8 // (NUM_SAVES + 1))},
            "trace": {"path": str(folder / "trace.csv")},
            "store": {"fsync": False},
            "save": {"mode": options.save_mode},
        },
    )


# --- a run, watched ---------------------------------------------------------------------------------------------------


def _supervise(config: Config, run_dir: Path, pipe: Connection) -> None:
    """Body of the supervisor's process: a run as run.py makes one, that reports its phases."""
    from harness.run import assemble  # noqa: PLC0415 - here, so that the process that looks on needs no torch

    own_fork_server()
    num_saves, last = 0, ""

    def on_status(status: assemble.RunStatus) -> None:
        nonlocal num_saves, last
        if status.phase == last:
            return
        last = status.phase
        if last == "save":
            num_saves += 1
            pipe.send("initial save" if num_saves == 1 else "priority save")
        else:
            pipe.send(last)

    try:
        pipe.send(assemble.run(config, run_dir, on_status=on_status).cache or {})
    except HarnessError as error:
        pipe.send(error)
    pipe.close()


def watch(config: Config, run_dir: Path) -> Seen:
    """Carry out a run in processes of its own and sample their memory. Raises the HarnessError that ended the run."""
    process, ours = _start(_supervise, config, run_dir)
    assert process.pid is not None
    seen = Seen()
    name, seen_s = "start", time.monotonic()
    try:
        while True:
            if ours.poll(EVERY_S):
                message = ours.recv()
                if isinstance(message, HarnessError):
                    raise message
                if isinstance(message, dict):
                    seen.cache = message
                    continue
                name = message
            if name == "done":
                continue  # ranks are leaving: a sample would hold only some of them
            memory, now_s = memory_of_tree(process.pid), time.monotonic()
            phase = seen.phases.setdefault(name, Phase())
            phase.seconds, phase.num_looks = phase.seconds + now_s - seen_s, phase.num_looks + 1
            phase.memory |= memory
            seen_s = now_s
    except EOFError:
        process.join()
    return seen


def _start(body: Callable[..., None], *args: Any) -> tuple[BaseProcess, Any]:
    """A process that is empty at first, and the end of the pipe that is its last argument."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = context.Process(target=body, args=(*args, theirs))
    process.start()
    theirs.close()
    return process, ours


# --- one rank at worst ------------------------------------------------------------------------------------------------


def one_rank(config: Config, folder: Path) -> dict[str, float]:
    """Peak of resident memory in each action of ``ps0``, beyond what its process held before, over its rows' bytes."""
    process, ours = _start(_measure_rank, config, folder)
    peaks = ours.recv()
    process.join()
    return peaks


def _measure_rank(config: Config, folder: Path, pipe: Connection) -> None:
    import torch  # noqa: PLC0415 - here, so that the process that looks on needs no torch

    from harness.cluster.protocol import Exchange, Failure, Initialise, Restore, Save, WriteBack  # noqa: PLC0415
    from harness.cluster.server import RankServer  # noqa: PLC0415
    from harness.core.plans import SavePlan  # noqa: PLC0415
    from harness.run.spec import RunSpec  # noqa: PLC0415

    spec = RunSpec(config).rank_spec(folder)
    folder.mkdir()
    held_bytes = resident_bytes()
    server, num_rows = RankServer(spec, "ps0"), spec.placement.num_rows(0)

    def act(request: Initialise | Save | Restore) -> tuple[Any, float]:
        before_bytes = resident_bytes() - held_bytes
        reply, cost = cost_of(lambda: server.handle(request))
        assert not isinstance(reply, Failure), reply.error
        return reply, (before_bytes + cost.extra_bytes) / (num_rows * ROW_BYTES)

    def touch_all(step: int) -> int:
        for first in range(0, num_rows, _CHUNK_ROWS):
            rows_N = torch.arange(first, min(first + _CHUNK_ROWS, num_rows))
            values_ND = server.handle(Exchange(pull_N=rows_N))
            counts_N = torch.randint(1, 100, (len(rows_N),), dtype=torch.int32)
            step += 1
            back = WriteBack(step=step, rows_N=rows_N, values_ND=values_ND, counts_N=counts_N)
            server.handle(Exchange(push=back))
        return step

    _, peak = act(Initialise(step=0))
    peaks, records, sequence, step, is_compacted = {"initialise": peak}, (), 0, 0, False
    while not is_compacted:
        step = touch_all(step)
        plan = SavePlan(kind="priority" if sequence else "full")
        written, peak = act(Save(plan=plan, sequence=sequence, step=step, records=records))
        records, is_compacted, sequence = written.records, written.compacted, sequence + 1
        name = "compaction" if is_compacted else f"{plan.kind} save"
        peaks[name] = max(peaks.get(name, 0.0), peak)
    _, peaks["restore"] = act(Restore(records=records, step=step))
    pipe.send(peaks)


# --- figures ----------------------------------------------------------------------------------------------------------


def rows_of(phases: Mapping[str, Phase], tiny: Memory, table_bytes: int) -> list[tuple[str, ...]]:
    """A row per phase: seconds, looks, peak, and how far it is beyond the peak of the run with tiny tables."""
    return [
        (
            *(name, f"{phase.seconds:.1f}", str(phase.num_looks), f"{phase.memory.pss_bytes / 1e6:.0f}"),
            f"{(phase.memory.pss_bytes - tiny.pss_bytes) / table_bytes:.3f}",
            f"{(phase.memory.high_water_bytes - tiny.high_water_bytes) / table_bytes:.3f}",
        )
        for name, phase in phases.items()
    ]


def main() -> None:
    """Measure, print the table, write it as JSON if asked."""
    made = parser(__doc__, ps=4, steps=88, batch_size=128, rows_scale=1.0, folder=None)
    made.add_argument("--strategy", choices=("cpr_mfu", "cpr_ssu", "cpr_random", "partial"), default="cpr_mfu")
    made.add_argument("--save-mode", choices=("sync", "async"), default="sync")
    made.add_argument("--max-rows", type=int, help="with a lookahead cache of so many rows (cache.max_rows)")
    options = made.parse_args()
    cardinalities = kaggle_tables(options.rows_scale)
    table_bytes = sum(cardinalities) * ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="memory-", dir=options.folder) as name:
        free_bytes, needed_bytes = shutil.disk_usage(name).free, 4 * table_bytes
        if free_bytes < needed_bytes:
            made.error(f"{name}: expected {needed_bytes / 1e9:.1f} GB free, got {free_bytes / 1e9:.1f} (see --folder)")
        folder, seen = Path(name), dict[str, Seen]()
        for size, tables in (("small", [min(rows, TINY_ROWS) for rows in cardinalities]), ("big", cardinalities)):
            config = configure(options, folder / size, tables)
            seen[size] = watch(config, folder / size / "run")
            shutil.rmtree(folder / size / "run")
        worst = one_rank(config_of(config.model_dump(), {"strategy": {"name": "cpr_mfu"}}), folder / "rank")
    big, whole, tiny = seen["big"], seen["big"].peak(), seen["small"].peak().memory
    ratio = (whole.memory.pss_bytes - tiny.pss_bytes) / table_bytes
    high_water_ratio = (whole.memory.high_water_bytes - tiny.high_water_bytes) / table_bytes
    head = ("phase", "seconds", "looks", "PSS MB", "beyond / tables", "VmHWM beyond / tables")
    lines = [
        *table(head, rows_of({**big.phases, "**whole run**": whole}, tiny, table_bytes)),
        "",
        f"tables {table_bytes / 1e6:.0f} MB, tiny ones peak at {tiny.pss_bytes / 1e6:.0f} MB",
        f"peak beyond that {ratio:.3f} x tables, limit {LIMIT}",
        f"one rank, every row touched: {', '.join(f'{action} {peak:.3f}' for action, peak in worst.items())}",
    ]
    if options.max_rows:
        rows = int(big.cache["peak_rows"])
        lines.append(f"cache: {rows:,} rows at most, {rows / options.max_rows:.3f} of its bound")
    phases = {size: {phase: asdict(values) for phase, values in each.phases.items()} for size, each in seen.items()}
    ratios = {"ratio": ratio, "high_water_ratio": high_water_ratio, "one_rank": worst, "table_bytes": table_bytes}
    facts = machine()  # last: it imports torch, whose pages the runs would share
    report(options, facts, lines, {**ratios, **phases, "cache": big.cache})


if __name__ == "__main__":
    main()
