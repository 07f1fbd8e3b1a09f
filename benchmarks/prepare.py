"""Rows per second of ``run.py data prepare`` on one core, and the memory it takes.

    python benchmarks/prepare.py [--rows 5000000] [--rounds 3] [--scale 1] [--folder DIR] [--json FILE]

A synthetic click log at Kaggle's cardinalities (``--scale 1``) in Criteo's text format, about 240 bytes a row on disk,
is made once and not timed; the packed records take 160 more. Each round prepares it in a process of its own that may
run on one core only. Beside it, in turn, a process that only reads the text and hashes it: nothing can be faster.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, heading, machine, write_json
from harness.data.prepare import prepare
from harness.data.sources import SourceReader
from harness.data.synth import synth

ID_BYTES = 12


@dataclass(frozen=True)
class Seen:
    """One process, one core."""

    seconds: float
    extra_bytes: int  # peak of resident memory above what the process held before
    num_ids: int  # distinct, over all tables


def read(source: Path, out: Path) -> int:
    """The floor: every byte of the text, in chunks of whole lines, hashed."""
    reader = SourceReader(source, lambda num_bytes: None)
    for _ in reader.chunks():
        pass
    return 0


def pack(source: Path, out: Path) -> int:
    """As ``run.py data prepare`` does it; the number of distinct ids."""
    try:
        return sum(prepare([source], out).cardinalities)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _body(action: Callable[[Path, Path], int], source: Path, out: Path, pipe: Connection) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    before_bytes = _memory_bytes("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    began_s = time.perf_counter()
    num_ids = action(source, out)
    seconds = time.perf_counter() - began_s
    pipe.send(Seen(seconds, _memory_bytes("VmHWM:") - before_bytes, num_ids))


def _memory_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def alone(action: Callable[[Path, Path], int], source: Path, out: Path) -> Seen:
    """``action`` in a process of its own, on one core."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_body, args=(action, source, out, theirs))
    process.start()
    theirs.close()
    seen = ours.recv()
    process.join()
    return seen


def main() -> None:
    """Measure, print, perhaps write as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="prepare-", dir=options.folder) as name:
        source = Path(name) / "clicks.tsv"
        num_bytes = synth(options.rows, source, seed=1, scale=options.scale).num_bytes
        rounds = [(alone(read, source, source), alone(pack, source, Path(name) / "out")) for _ in range(options.rounds)]
    facts["load_average_after"] = os.getloadavg()
    reading = Spread.of(options.rows / each.seconds for each, _ in rounds)
    packing = Spread.of(options.rows / each.seconds for _, each in rounds)
    extra_bytes = max(each.extra_bytes for _, each in rounds)
    num_ids = rounds[0][1].num_ids
    lines = ["| on one core | rows/s | MB/s of text |", "|---|---|---|"]
    for label, spread in (("read and hash", reading), ("prepare", packing)):
        speed = f"**{spread.median:,.0f}** ({spread.low:,.0f}–{spread.high:,.0f})"
        lines.append(f"| {label} | {speed} | {spread.median * num_bytes / options.rows / 1e6:.0f} |")
    beyond_bytes = extra_bytes - ID_BYTES * num_ids
    memory = (
        f"{options.rows:,} rows, {num_bytes / 1e6:,.0f} MB, {num_ids:,} distinct ids: {extra_bytes / 1e6:.0f} MB of "
        f"memory, {beyond_bytes / 1e6:.0f} MB beyond {ID_BYTES} bytes an id"
    )
    sys.stdout.write("\n".join([*lines, "", memory, heading(facts), ""]))
    figures = {
        "prepare_rows_per_s": asdict(packing),
        "read_rows_per_s": asdict(reading),
        "num_bytes": num_bytes,
        "num_ids": num_ids,
        "extra_bytes": extra_bytes,
        "beyond_bytes": beyond_bytes,
    }
    setting = {"rows": options.rows, "rounds": options.rounds, "scale": options.scale}
    write_json(options.json, {"machine": facts, "setting": setting, **figures})


if __name__ == "__main__":
    main()
