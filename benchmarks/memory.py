"""Peak memory of the Kaggle-size model in training, against the bytes of its tables.

    python benchmarks/memory.py [--ps 4] [--steps 80] [--batch-size 128] [--strategy cpr_mfu] [--scale 1]
                                [--folder DIR] [--json FILE]

Two runs of the real thing on made-up clicks, alike in all but the size of the tables: Kaggle's 26 (33,762,577 rows x 16,
2.16 GB), and tables of a few rows. Each is saved whole, trains with ten priority saves, loses a rank and recovers it.
A process apart sums the PSS of the supervisor, the fork server and every rank, all that they have in common counted once,
as often as it can, every 50 ms at most, and sorts it by what the trainer was doing. The figure is the largest
difference between the two runs in any phase, over the bytes of the tables.

Checkpoints take about 2.5 times the tables on disk, in the system's temporary folder unless ``--folder`` names another, and
are removed at the end. They are written without fsync, which changes when pages reach the disk and not who holds memory.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import KAGGLE_CARDINALITIES, heading, machine, make_data, write_json, write_trace
from harness.core.config import Config
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
    num_samples: int = 0
    peak_bytes: int = 0
    peak_by_process: dict[str, int] = field(default_factory=dict)

    def add(self, seconds: float, pss_bytes: Mapping[str, int]) -> None:
        """One look at all processes, ``seconds`` after the last."""
        self.seconds += seconds
        self.num_samples += 1
        if (total := sum(pss_bytes.values())) > self.peak_bytes:
            self.peak_bytes, self.peak_by_process = total, dict(pss_bytes)


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
            "strategy": {
                "name": options.strategy,
                "r": 0.125,
                "interval_samples": max(1, num_train * 8 // (NUM_SAVES + 1)),
            },
            "trace": {"path": str(folder / "trace.csv")},
            "store": {"fsync": False},
            "wandb": {"mode": "disabled"},
        }
    )


def _supervise(config: Config, run_dir: Path, pipe: Connection) -> None:
    """Body of the supervisor's process: a run, as run.py makes one."""
    from harness import assemble  # noqa: PLC0415 - here, so that the process that looks on needs no torch

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
        assemble.run(config, run_dir, on_status=tell)
    except HarnessError as error:
        pipe.send(error)
    pipe.close()


def watch(config: Config, run_dir: Path) -> dict[str, Phase]:
    """Carry out a run in processes of its own and look at their memory all the while; what was seen, by phase.

    Raises the HarnessError that ended the run.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_supervise, args=(config, run_dir, theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    phases: dict[str, Phase] = {}
    phase, seen_s = "start", time.monotonic()
    try:
        while True:
            if ours.poll(EVERY_S):
                message = ours.recv()
                if isinstance(message, HarnessError):
                    raise message
                phase = message
            pss_bytes = pss_of_tree(process.pid)
            now_s = time.monotonic()
            phases.setdefault(phase, Phase()).add(now_s - seen_s, pss_bytes)
            seen_s = now_s
    except EOFError:
        process.join()
    return phases


def pss_of_tree(root: int) -> dict[str, int]:
    """Bytes of PSS of process ``root`` and all its descendants, by pid; those that end meanwhile are left out."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    tree = [root]
    for pid in tree:  # grows as it goes
        tree += children.get(pid, [])
    return {str(pid): pss for pid in tree if (pss := _pss_bytes(pid))}


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def table(big: Mapping[str, Phase], small: Mapping[str, Phase], table_bytes: int) -> str:
    """One line per phase: seconds, looks, peaks, and the difference over the bytes of the tables."""
    lines = ["| phase | seconds | looks | PSS peak MB | with tiny tables MB | beyond / tables |", "|---" * 6 + "|"]
    for name, phase in big.items():
        beyond = beyond_bytes(name, big, small)
        values = (
            name,
            f"{phase.seconds:.1f}",
            str(phase.num_samples),
            f"{phase.peak_bytes / 1e6:.0f}",
            f"{(phase.peak_bytes - beyond) / 1e6:.0f}",
            f"{beyond / table_bytes:.3f}",
        )
        lines.append(f"| {' | '.join(values)} |")
    return "\n".join(lines)


def beyond_bytes(name: str, big: Mapping[str, Phase], small: Mapping[str, Phase]) -> int:
    """Peak of a phase beyond that of the same phase with tiny tables (of all phases, where that one was not seen)."""
    like = small[name] if name in small else max(small.values(), key=lambda phase: phase.peak_bytes)
    return big[name].peak_bytes - like.peak_bytes


def run(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Phase], dict[str, Phase], int]:
    """What was seen with large and with tiny tables, and the bytes of the large ones."""
    cardinalities = [max(3, round(cardinality * options.scale)) for cardinality in KAGGLE_CARDINALITIES]
    phases: list[dict[str, Phase]] = []
    for name, sizes in (("small", [min(c, TINY_ROWS) for c in cardinalities]), ("big", cardinalities)):
        config = configure(options, folder / name, sizes)
        phases.append(watch(config, folder / name / "run"))
        shutil.rmtree(folder / name)
    return phases[1], phases[0], sum(cardinalities) * ROW_BYTES


def main() -> None:
    """Measure, print the table, perhaps write it as JSON; exit code 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ps", type=int, default=4, help="PS ranks")
    parser.add_argument("--steps", type=int, default=88)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--strategy", choices=("cpr_mfu", "cpr_ssu", "cpr_random", "partial"), default="cpr_mfu")
    parser.add_argument("--scale", type=float, default=1.0, help="of the tables, against Kaggle's")
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
    ratio = max(beyond_bytes(phase, big, small) for phase in big) / table_bytes
    verdict = f"tables {table_bytes / 1e6:.0f} MB; peak beyond tiny tables {ratio:.3f} x tables, limit {LIMIT}"
    sys.stdout.write(f"{table(big, small, table_bytes)}\n\n{verdict}\n{heading(facts)}\n")
    setting = {key: str(value) for key, value in vars(options).items() if key != "json"}
    seen = {"big": {k: asdict(v) for k, v in big.items()}, "small": {k: asdict(v) for k, v in small.items()}}
    write_json(options.json, {"machine": facts, "setting": setting, "table_bytes": table_bytes, "ratio": ratio, **seen})


if __name__ == "__main__":
    main()
