"""Peak memory of the Kaggle-size model in training, against the bytes of its tables.

    python benchmarks/memory.py [--ps 4] [--steps 80] [--batch-size 128] [--strategy cpr_mfu] [--scale 1]
                                [--save-mode sync] [--max-rows N] [--folder DIR] [--json FILE]

Two runs of the real thing on made-up clicks, alike in all but the size of the tables: Kaggle's 26 (33,762,577 rows
x 16, 2.16 GB), and tables of a few rows. Each is saved whole, trains with ten priority saves, loses a rank and recovers
it. A process apart sums the PSS of the supervisor, the fork server and every rank, every 50 ms or as often as the
kernel can count, and sorts it by what the trainer was doing. The figure is the difference between the peaks of the two
runs, over the bytes of the tables. Beside it stands the sum of VmHWM, the peaks that the kernel itself noted
for each process: no spike is missed, but peaks add up that were not at the same moment.

So short a run touches few rows. What one rank takes at worst, every row of its shard touched before every save, until
its deltas are compacted, is measured on one rank alone and printed below.

With ``--max-rows`` both runs have a lookahead cache of that bound; how many rows it held at most, those under way and
those of the next window included, is printed against the bound.

Checkpoints take about 2.5 times the tables on disk, in the system's temporary folder unless ``--folder`` names another,
and are removed at the end. They are written without fsync, which decides when pages reach the disk and not who holds
memory.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import KAGGLE_CARDINALITIES, heading, machine, make_data, write_json, write_trace
from benchmarks._one_rank import one_rank
from harness.cluster.spawn import own_fork_server
from harness.config.model import Config
from harness.core.errors import HarnessError

TINY_ROWS = 64
ROW_BYTES = 16 * 4
EVERY_S = 0.05
NUM_SAVES = 10
LIMIT = 1.35


@dataclass
class Phase:
    """What was seen while the trainer was at one thing."""

    seconds: float = 0.0
    num_looks: int = 0
    pss_bytes: int = 0  # at its peak
    high_water_bytes: int = 0  # sum of VmHWM

    def add(self, seconds: float, seen: Sequence["Memory"]) -> None:
        """One look at all processes, ``seconds`` after the last."""
        self.seconds += seconds
        self.num_looks += 1
        self.pss_bytes = max(self.pss_bytes, sum(memory.pss_bytes for memory in seen))
        self.high_water_bytes = max(self.high_water_bytes, sum(memory.high_water_bytes for memory in seen))


@dataclass(frozen=True)
class Memory:
    """Of one process."""

    pss_bytes: int
    high_water_bytes: int  # VmHWM: its highest resident memory so far, shared pages in full


def configure(options: argparse.Namespace, folder: Path, cardinalities: Sequence[int]) -> Config:
    """Make the data and the trace in ``folder``; the run's config."""
    num_train = options.steps * options.batch_size
    make_data(folder / "data", cardinalities, num_train * 7 // 6 + 14, seed=1)
    write_trace(folder / "trace.csv", [(56 * 0.55, "ps1")])
    return Config.model_validate(
        {
            "engine": "rpc",
            "data": {"path": str(folder / "data"), "max_train_samples": num_train},
            "trainer": {"batch_size": options.batch_size},
            "eval": {"max_samples": 4096},
            "cluster": {"num_ps": options.ps},
            "cache": {"mode": "lookahead", "max_rows": options.max_rows} if options.max_rows else {},
            "strategy": {
                "name": options.strategy,
                "interval_samples": max(1, num_train * 8 // (NUM_SAVES + 1)),
            },
            "trace": {"path": str(folder / "trace.csv")},
            "store": {"fsync": False},
            "save": {"mode": options.save_mode},
            "wandb": {"mode": "disabled"},
        }
    )


def _supervise(config: Config, run_dir: Path, pipe: Connection) -> None:
    """Body of the supervisor's process: a run, as run.py makes one."""
    from harness.run import assemble  # noqa: PLC0415 - here, so that the process that looks on needs no torch

    own_fork_server()
    num_saves = 0
    last = ""

    def tell(status: assemble.RunStatus) -> None:
        nonlocal num_saves, last
        if status.phase == last:
            return
        last, phase = status.phase, str(status.phase)
        if phase == "save":
            phase = "priority save" if num_saves else "initial save"
            num_saves += 1
        pipe.send(phase)

    try:
        pipe.send(assemble.run(config, run_dir, on_status=tell).cache or {})
    except HarnessError as error:
        pipe.send(error)
    pipe.close()


@dataclass
class Seen:
    """Of one run: memory by phase, and what its cache says of itself."""

    phases: dict[str, Phase] = field(default_factory=dict)
    cache: dict[str, float] = field(default_factory=dict)


def watch(config: Config, run_dir: Path) -> Seen:
    """Carry out a run in processes of its own and look at their memory all the while.

    Raises the HarnessError that ended the run.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_supervise, args=(config, run_dir, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    result = Seen()
    phase, seen_s = "start", time.monotonic()
    try:
        while True:
            if ours.poll(EVERY_S):
                message = ours.recv()
                if isinstance(message, HarnessError):
                    raise message
                if isinstance(message, dict):
                    result.cache = message
                    continue
                phase = message
            if phase == "done":
                continue  # ranks are leaving: what is seen of them now is some part of the world
            seen = memory_of_tree(process.pid)
            now_s = time.monotonic()
            result.phases.setdefault(phase, Phase()).add(now_s - seen_s, seen)
            seen_s = now_s
    except EOFError:
        process.join()
    return result


def memory_of_tree(root: int) -> list[Memory]:
    """Memory of process ``root`` and of all its sgd_stepants; those that end meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    tree = [root]
    for pid in tree:  # grows as it goes
        tree += children.get(pid, [])
    seen: list[Memory] = []
    for pid in tree:
        with suppress(FileNotFoundError, ProcessLookupError):
            seen.append(Memory(_proc_bytes(pid, "smaps_rollup", "Pss:"), _proc_bytes(pid, "status", "VmHWM:")))
    return seen


def _proc_bytes(pid: int, name: str, field: str) -> int:
    lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))  # none of a zombie


def peak(phases: Mapping[str, Phase]) -> Phase:
    """The highest of everything over a run."""
    return Phase(
        seconds=sum(phase.seconds for phase in phases.values()),
        num_looks=sum(phase.num_looks for phase in phases.values()),
        pss_bytes=max(phase.pss_bytes for phase in phases.values()),
        high_water_bytes=max(phase.high_water_bytes for phase in phases.values()),
    )


def table(big: Mapping[str, Phase], small: Mapping[str, Phase], table_bytes: int) -> str:
    """One line per phase: seconds, looks, peak, and what it is beyond the peak of the run with tiny tables."""
    lines = ["| phase | seconds | looks | PSS MB | beyond / tables | VmHWM beyond / tables |", "|---" * 6 + "|"]
    tiny = peak(small)
    for name, phase in [*big.items(), ("**whole run**", peak(big))]:
        values = (
            name,
            f"{phase.seconds:.1f}",
            str(phase.num_looks),
            f"{phase.pss_bytes / 1e6:.0f}",
            f"{(phase.pss_bytes - tiny.pss_bytes) / table_bytes:.3f}",
            f"{(phase.high_water_bytes - tiny.high_water_bytes) / table_bytes:.3f}",
        )
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def cardinalities_of(scale: float) -> list[int]:
    """Kaggle's tables, scaled."""
    return [max(3, round(cardinality * scale)) for cardinality in KAGGLE_CARDINALITIES]


def run(options: argparse.Namespace, folder: Path) -> tuple[Seen, Seen, int]:
    """What was seen with large and with tiny tables, and the bytes of the large ones."""
    cardinalities = cardinalities_of(options.scale)
    seen: list[Seen] = []
    for name, sizes in (("small", [min(c, TINY_ROWS) for c in cardinalities]), ("big", cardinalities)):
        config = configure(options, folder / name, sizes)
        seen.append(watch(config, folder / name / "run"))
        shutil.rmtree(folder / name)
    return seen[1], seen[0], sum(cardinalities) * ROW_BYTES


def main() -> None:
    """Measure, print the table, perhaps write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ps", type=int, default=4, help="PS ranks")
    parser.add_argument("--steps", type=int, default=88)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--strategy", choices=("cpr_mfu", "cpr_ssu", "cpr_random", "partial"), default="cpr_mfu")
    parser.add_argument("--save-mode", choices=("sync", "async"), default="sync")
    parser.add_argument("--scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--max-rows", type=int, help="with a lookahead cache of so many rows (cache.max_rows)")
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="memory-", dir=options.folder) as name:
        needed_bytes = int(4 * sum(KAGGLE_CARDINALITIES) * ROW_BYTES * options.scale)
        free_bytes = shutil.disk_usage(name).free
        if free_bytes < needed_bytes:
            parser.error(f"{name}: {free_bytes / 1e9:.1f} GB free, {needed_bytes / 1e9:.1f} GB needed (--folder)")
        big, small, table_bytes = run(options, Path(name))
        rank = one_rank(cardinalities_of(options.scale), options.ps, Path(name))
    whole, tiny = peak(big.phases), peak(small.phases)
    ratio = (whole.pss_bytes - tiny.pss_bytes) / table_bytes
    high_water_ratio = (whole.high_water_bytes - tiny.high_water_bytes) / table_bytes
    verdict = (
        f"tables {table_bytes / 1e6:.0f} MB, tiny ones peak at {tiny.pss_bytes / 1e6:.0f} MB; "
        f"peak beyond that {ratio:.3f} x tables, limit {LIMIT}"
    )
    worst = ", ".join(f"{action} {peak:.3f}" for action, peak in rank.items())
    sys.stdout.write(
        f"{table(big.phases, small.phases, table_bytes)}\n\n{verdict}\none rank, every row touched: {worst}\n"
    )
    if options.max_rows:
        rows = int(big.cache["peak_rows"])
        sys.stdout.write(f"cache: {rows:,} rows at most, {rows / options.max_rows:.3f} of its bound\n")
    sys.stdout.write(f"{heading(facts)}\n")
    setting = {key: str(value) for key, value in vars(options).items() if key != "json"}
    seen: dict[str, Any] = {
        name: {phase: asdict(values) for phase, values in each.phases.items()}
        for name, each in (("big", big), ("small", small))
    }
    seen["cache"] = big.cache
    ratios = {"ratio": ratio, "high_water_ratio": high_water_ratio, "one_rank": rank}
    write_json(options.json, {"machine": facts, "setting": setting, "table_bytes": table_bytes, **ratios, **seen})


if __name__ == "__main__":
    main()
