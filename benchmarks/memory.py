"""Peak memory of the Kaggle-size model in training, against the bytes of its tables.

Two runs, alike in all but the size of the tables: Kaggle's 26 (33,762,577 rows x 16, 2.16 GB), and tables of a few
rows. Each is saved whole, trains with ten saves of the strategy (``buddy`` makes none), loses a rank and recovers it. A
process apart sums the PSS of the supervisor, the fork server and every rank, by the phase of the run. The figure is the
difference between the peaks of the two runs, over the bytes of the tables. VmHWM, each process's own peak, misses no
spike between two looks.

So short a run touches few rows. The worst case, every row of a shard touched before every save until its deltas are
compacted, is measured on one rank alone. Checkpoints take 2.5 times the tables on disk and are written without fsync.
"""

import argparse
import shutil
import sys
import tempfile
import time
from functools import reduce
from multiprocessing.connection import Connection
from operator import or_
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import ROW_BYTES, config_of, kaggle_tables, parser, report, settings_of, table, write_trace
from benchmarks._processes import Memory, cost_of, memory_of_tree, resident_bytes, start_empty
from harness.config.model import Config
from harness.core.errors import HarnessError
from harness.processes.spawn import fork_own_server

TINY_ROWS = 64
EVERY_S = 0.05
NUM_SAVES = 10
LIMIT = 1.35
STRATEGIES = ("cpr_mfu", "cpr_ssu", "cpr_mass", "cpr_scar", "cpr_mirror", "differential", "buddy")
_CHUNK_ROWS = 1 << 16


Looks = dict[str, list[tuple[float, Memory]]]
"""By phase of a run: seconds since the look before, and the memory that was seen."""


def configure(options: argparse.Namespace, folder: Path, cardinalities: list[int]) -> Config:
    settings = settings_of(folder, cardinalities, options.steps)
    write_trace(folder / "trace.csv", [(56 * 0.55, "ps1")])
    interval_samples = max(1, options.steps * 128 * 8 // (NUM_SAVES + 1))
    return config_of(
        settings,
        {
            "engine": "rpc",
            "eval": {"max_samples": 4096, "points": 0},
            "cluster": {"num_ps": options.ps},
            "strategy": {"name": options.strategy, "interval_samples": interval_samples},
            "trace": {"path": str(folder / "trace.csv")},
            "store": {"fsync": False},
            "save": {"mode": options.save_mode},
        },
    )


# --- a run, watched ---------------------------------------------------------------------------------------------------


def _supervise(config: Config, run_dir: Path, pipe: Connection) -> None:
    """Body of the supervisor's process: a run as run.py makes one, that reports its phases."""
    from harness.run import assemble  # noqa: PLC0415 - here, so that the process that looks on needs no torch

    fork_own_server()
    num_saves, last = 0, ""

    def on_status(status: assemble.RunStatus) -> None:
        nonlocal num_saves, last
        if status.phase == last:
            return
        last = status.phase
        if last == "save":
            num_saves += 1
            pipe.send("initial save" if num_saves == 1 else "save")
        else:
            pipe.send(last)

    try:
        assemble.run(config, run_dir, on_status=on_status)
    except HarnessError as error:
        pipe.send(error)
    pipe.close()


def watch(config: Config, run_dir: Path) -> Looks:
    """Carry out a run in processes of its own: memory by phase. Raises what ended the run."""
    process, ours = start_empty(_supervise, config, run_dir)
    assert process.pid is not None
    looks, name, seen_s = Looks(), "start", time.monotonic()
    try:
        while True:
            if ours.poll(EVERY_S):
                message = ours.recv()
                if isinstance(message, HarnessError):
                    raise message
                name = message
            if name == "done":
                continue  # ranks are leaving: a sample would hold only some of them
            memory, now_s = memory_of_tree(process.pid), time.monotonic()
            looks.setdefault(name, []).append((now_s - seen_s, memory))
            seen_s = now_s
    except EOFError:
        process.join()
    return looks


# --- one rank at worst ------------------------------------------------------------------------------------------------


def one_rank(config: Config, folder: Path) -> dict[str, float]:
    """Peak of resident memory in each action of ``ps0``, beyond what its process held before, over its rows' bytes."""
    process, ours = start_empty(_measure_rank, config, folder)
    peaks = ours.recv()
    process.join()
    return peaks


def _measure_rank(config: Config, folder: Path, pipe: Connection) -> None:
    import torch  # noqa: PLC0415 - here, so that the process that looks on needs no torch

    from harness.cluster.protocol import Exchange, Failure, Initialise, Restore, Save, WriteBack  # noqa: PLC0415
    from harness.cluster.server import RankServer  # noqa: PLC0415
    from harness.core.plans import SavePlan  # noqa: PLC0415
    from harness.run.spec import RunSpec  # noqa: PLC0415
    from harness.store import FileStore  # noqa: PLC0415

    run_spec = RunSpec(config)
    spec = run_spec.rank_spec(FileStore(folder))
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
    while not is_compacted and not (sequence and run_spec.keeps_replicas):
        step = touch_all(step)
        plan = SavePlan(kind="priority" if sequence else "full")
        written, peak = act(Save(plan=plan, sequence=sequence, step=step, records=records))
        records, is_compacted, sequence = written.records, written.compacted, sequence + 1
        name = "compaction" if is_compacted else f"{plan.kind} save"
        peaks[name] = max(peaks.get(name, 0.0), peak)
    _, peaks["restore"] = act(Restore(records=records, step=step))
    pipe.send(peaks)


# --- figures ----------------------------------------------------------------------------------------------------------


def ratios_of(peak: Memory, tiny: Memory, num_bytes: int) -> tuple[float, float]:
    """How far PSS and VmHWM are beyond the peaks of the run with tiny tables, over the bytes of the tables."""
    pss_ratio = (peak.pss_bytes - tiny.pss_bytes) / num_bytes
    return pss_ratio, (peak.high_water_bytes - tiny.high_water_bytes) / num_bytes


def main() -> None:
    made = parser(__doc__, ps=4, steps=88, rows_scale=1.0, folder=None)
    made.add_argument("--save-mode", choices=("sync", "async"), default="sync")
    made.add_argument("--strategy", choices=STRATEGIES, default="cpr_mfu")
    options = made.parse_args()
    cardinalities = kaggle_tables(options.rows_scale)
    table_bytes = sum(cardinalities) * ROW_BYTES
    with tempfile.TemporaryDirectory(prefix="memory-", dir=options.folder) as name:
        free_bytes, needed_bytes = shutil.disk_usage(name).free, 4 * table_bytes
        if free_bytes < needed_bytes:
            made.error(f"{name}: expected {needed_bytes / 1e9:.1f} GB free, got {free_bytes / 1e9:.1f} (see --folder)")
        folder = Path(name)
        small = watch(configure(options, folder / "small", [min(n, TINY_ROWS) for n in cardinalities]), folder / "a")
        config = configure(options, folder / "big", cardinalities)
        big = watch(config, folder / "b")
        shutil.rmtree(folder / "b")
        worst = one_rank(config, folder / "rank")
    all_small, all_big = ([each for looks in run.values() for each in looks] for run in (small, big))
    tiny = reduce(or_, (memory for _, memory in all_small))
    rows, ratios = [], {}
    for name, looks in {**big, "**whole run**": all_big}.items():
        peak = reduce(or_, (memory for _, memory in looks))
        ratios[name] = ratios_of(peak, tiny, table_bytes)
        shown = (f"{sum(seconds for seconds, _ in looks):.1f}", len(looks), f"{peak.pss_bytes / 1e6:.0f}")
        rows.append((name, *shown, *(f"{each:.3f}" for each in ratios[name])))
    ratio, high_water_ratio = ratios["**whole run**"]
    lines = [
        *table(("phase", "seconds", "looks", "PSS MB", "beyond / tables", "VmHWM beyond / tables"), rows),
        *("", f"tables {table_bytes / 1e6:.0f} MB, tiny ones peak at {tiny.pss_bytes / 1e6:.0f} MB"),
        f"peak beyond that {ratio:.3f} x tables, limit {LIMIT} (buddy: 1 more)",
        f"one rank, every row touched: {', '.join(f'{action} {peak:.3f}' for action, peak in worst.items())}",
    ]
    figures = {"ratio": ratio, "high_water_ratio": high_water_ratio, "one_rank": worst, "table_bytes": table_bytes}
    report(options, lines, {**figures, "small": small, "big": big})


if __name__ == "__main__":
    main()
