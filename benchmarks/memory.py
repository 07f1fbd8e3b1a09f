"""Peak memory of the Kaggle-size model in training, against the bytes of its tables.

Two runs, alike in all but the size of the tables: Kaggle's 26 (33,762,577 rows x 16, 2.16 GB), and tables of a few
rows. Each is saved whole, trains with ten saves of the strategy (``buddy`` makes none), loses a rank and recovers it. A
process apart sums the PSS of the supervisor, the fork server and every rank, 20 times a second. The figure is the
difference between the peaks of the two runs, over the bytes of the tables. VmHWM, each process's own peak, misses no
spike between two looks.

So short a run touches few rows. The worst case, every row of a shard touched before every save until its deltas are
compacted, is measured on one rank alone. Checkpoints take 2.5 times the tables on disk and are written without fsync.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch

from benchmarks._common import ROW_BYTES, config_of, parser, report, settings_of, write_trace
from benchmarks._processes import extra_bytes_of, memory_of_tree, resident_bytes, start
from harness.cluster.protocol import Exchange, Failure, Initialise, Restore, Save, WriteBack
from harness.cluster.server import RankServer
from harness.config.model import Config
from harness.core.criteo_sizes import scaled_cardinalities
from harness.core.errors import HarnessError
from harness.core.plans import SavePlan
from harness.processes.spawn import fork_own_server
from harness.run import assemble
from harness.run.spec import RunSpec
from harness.store import FileStore

TINY_ROWS = 64
NUM_PS = 4
EVERY_S = 0.05
NUM_SAVES = 10
NUM_STEPS = 88
LIMIT = 1.35
STRATEGIES = ("cpr_mfu", "cpr_ssu", "cpr_mass", "cpr_scar", "cpr_mirror", "differential", "buddy")
_CHUNK_ROWS = 1 << 16


def configure(options: argparse.Namespace, folder: Path, cardinalities: Sequence[int]) -> Config:
    settings = settings_of(folder, cardinalities, NUM_STEPS)
    write_trace(folder / "trace.csv", [(56 * 0.55, "ps1")])
    interval_samples = NUM_STEPS * 128 * 8 // (NUM_SAVES + 1)
    return config_of(
        settings,
        {
            "engine": "rpc",
            "eval": {"max_samples": 4096, "points": 0},
            "cluster": {"num_ps": NUM_PS},
            "strategy": {"name": options.strategy, "interval_samples": interval_samples},
            "trace": {"path": str(folder / "trace.csv")},
            "store": {"fsync": False},
            "save": {"mode": options.save_mode},
        },
    )


# --- a run, watched ---------------------------------------------------------------------------------------------------


def _supervise(config: Config, run_dir: Path, pipe: Connection) -> None:
    """Body of the supervisor's process: a run as run.py makes one. Sends the error that ended it, or None."""
    fork_own_server()
    try:
        assemble.run(config, run_dir)
    except HarnessError as error:
        pipe.send(error)
    else:
        pipe.send(None)


def watch(config: Config, run_dir: Path) -> tuple[int, int]:
    """Carry out a run in processes of its own: the peaks of PSS and of VmHWM. Raises what ended the run."""
    process, pipe = start(_supervise, config, run_dir)
    pss = high_water = 0
    while not pipe.poll(EVERY_S):
        seen = memory_of_tree(process.pid)
        pss, high_water = max(pss, seen[0]), max(high_water, seen[1])
    if (error := pipe.recv()) is not None:
        raise error
    process.join()
    return pss, high_water


# --- one rank at worst ------------------------------------------------------------------------------------------------


def one_rank(config: Config, folder: Path) -> dict[str, float]:
    """Peak of resident memory in each action of ``ps0``, beyond what this process held before, over its rows' bytes."""
    run_spec = RunSpec(config)
    spec = run_spec.rank_spec(FileStore(folder))
    folder.mkdir()
    held_bytes = resident_bytes()
    server, num_rows = RankServer(spec, "ps0"), spec.placement.num_rows(0)

    def act(request: Initialise | Save | Restore) -> tuple[Any, float]:
        before_bytes = resident_bytes() - held_bytes
        reply, extra_bytes = extra_bytes_of(lambda: server.handle(request))
        assert not isinstance(reply, Failure), reply.error
        return reply, (before_bytes + extra_bytes) / (num_rows * ROW_BYTES)

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
    return peaks


def main() -> None:
    made = parser(__doc__, rows_scale=1.0, folder=None)
    made.add_argument("--save-mode", choices=("sync", "async"), default="sync")
    made.add_argument("--strategy", choices=STRATEGIES, default="cpr_mfu")
    options = made.parse_args()
    cardinalities = scaled_cardinalities(options.rows_scale)
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
        # Not in a forked process, where pages of libraries become resident only once they are touched.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            worst = pool.submit(one_rank, config, folder / "rank").result()
    ratio, high_water_ratio = ((peak - tiny) / table_bytes for peak, tiny in zip(big, small, strict=True))
    lines = [
        f"tables {table_bytes / 1e6:.0f} MB; peak {big[0] / 1e6:.0f} MB, of tiny tables {small[0] / 1e6:.0f} MB",
        f"peak beyond that {ratio:.3f} x tables (VmHWM {high_water_ratio:.3f}), limit {LIMIT} (buddy: 1 more)",
        f"one rank, every row touched: {', '.join(f'{action} {peak:.3f}' for action, peak in worst.items())}",
    ]
    report(options, lines, {"ratio": ratio, "high_water_ratio": high_water_ratio, "one_rank": worst})


if __name__ == "__main__":
    main()
