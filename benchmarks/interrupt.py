"""SIGKILL of ``run.py grid`` at random moments: what is left behind, and whether the rerun ends as if nothing happened.

    python benchmarks/interrupt.py EXPERIMENT.yaml [--kills 5] [--seed 0] [--folder DIR] [key=value ...]

Runs the experiment once without interruption and once with ``--kills`` SIGKILLs, each at a random moment of the first
half of what was left, then to the end. Says after each kill how many processes of the run were alive 2 s later and
whether a cell that was finished has changed, and at the end which columns of ``analysis.load`` differ, paths and
seconds of this machine left out. Exit code 1 if anything was left, touched or different.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also when started by path

import analysis  # noqa: E402

NOT_COMPARED = (
    "path",
    "seconds",
    "stall_s",
    *(f"measured_{bucket}_s" for bucket in ("save", "load", "lost", "reschedule")),
)
MARK = "CPR_HARNESS_INTERRUPTED_GRID"


def start(experiment: Path, out: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    """The grid, its output thrown away; every process that it starts inherits the mark."""
    command = [sys.executable, str(ROOT / "run.py"), "grid", str(experiment), *overrides, f"out={out}"]
    environment = {**os.environ, MARK: str(out)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def alive(out: Path) -> list[str]:
    """Command lines of the processes that carry the mark of ``out``; zombies aside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{MARK}={out}".encode() in (folder / "environ").read_bytes().split(b"\0")
            is_zombie = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if is_ours and not is_zombie:
            found.append(words[:100])
    return found


def finished(out: Path) -> dict[str, int]:
    """Finished cells, and when their record was last changed."""
    return {done.parent.name: (done.parent / "events.jsonl").stat().st_mtime_ns for done in out.glob("*/DONE")}


def main() -> int:
    """Compare an interrupted grid with an uninterrupted one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep both grids here; otherwise they are temporary")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="interrupt-") as temporary:
        return compare(options, options.folder or Path(temporary))


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Run both grids; 1 if anything was left, touched or different."""
    chance, is_bad = random.Random(options.seed), False
    began_s = time.monotonic()
    if start(options.experiment, folder / "whole", options.overrides).wait():
        sys.exit("the grid fails without being interrupted")
    left_s = time.monotonic() - began_s
    sys.stdout.write(f"uninterrupted: {left_s:.1f} s, {len(finished(folder / 'whole'))} cells\n")
    out = folder / "cut"
    for number in range(1, options.kills + 1):
        before, moment_s = finished(out), chance.uniform(0.2, max(0.5, left_s / 2))
        grid = start(options.experiment, out, options.overrides)
        try:
            grid.wait(moment_s)
            sys.stdout.write(f"kill {number}: the grid had ended before {moment_s:.1f} s\n")
            break
        except subprocess.TimeoutExpired:
            num_alive = len(alive(out))
            grid.send_signal(signal.SIGKILL)
            grid.wait()
        time.sleep(2)
        rest, after = alive(out), finished(out)
        touched = [cell for cell, changed in before.items() if after.get(cell) != changed]
        left_s *= 1 - len(after) / max(1, len(finished(folder / "whole"))) / 2
        is_bad |= bool(rest or touched)
        sys.stdout.write(
            f"kill {number}: after {moment_s:.1f} s, {num_alive} processes; 2 s later {len(rest)} alive {rest or ''}, "
            f"{len(after)} cells finished, {len(touched)} of the earlier ones touched\n"
        )
    before = finished(out)
    code = start(options.experiment, out, options.overrides).wait()
    touched = [cell for cell, changed in before.items() if finished(out).get(cell) != changed]
    sys.stdout.write(f"rerun to the end: exit code {code}, {len(touched)} finished cells touched\n")
    frames = [analysis.load(folder / name).drop(columns=list(NOT_COMPARED)) for name in ("whole", "cut")]
    frames = [frame.sort_values("cell").reset_index(drop=True) for frame in frames]
    columns = [column for column in frames[0] if not frames[0][column].equals(frames[1].get(column))]
    sys.stdout.write(f"columns that differ: {', '.join(map(str, columns)) or 'none'} of {len(frames[0].columns)}\n")
    return int(is_bad or bool(touched) or bool(columns) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
