"""Bodies of processes that tests of benchmarks fork. The processes import this file, and not pytest."""

import runpy
import sys
from functools import partial
from pathlib import Path

from benchmarks._turns import Tick, chunks
from harness.config.model import Config
from harness.processes.spawn import nest_fork_server
from harness.record.code import current_code

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


def benchmark(name: str, arguments: tuple[str, ...]) -> None:
    """Run benchmark ``name``. Modules are found as where it is started by path."""
    current_code()  # inherited by the processes that the benchmark starts
    nest_fork_server()
    sys.argv = [name, *arguments]
    sys.path[:] = [str(FOLDER), *(path for path in sys.path if Path(path) not in (FOLDER.parent, Path()))]
    runpy.run_path(str(FOLDER / name), run_name="__main__")


def note_step(folder: Path, step: int) -> None:
    (folder / "step").write_text(str(step))


def count_chunks(config: Config, folder: Path, tick: Tick) -> None:
    """Body: two steps a chunk; the file holds the number of the step."""
    chunks(config, partial(note_step, folder), tick)
