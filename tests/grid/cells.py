"""What cells of the grid runner's tests do instead of training, and a grid of them whose processes import no pytest."""

import json
import multiprocessing
import os
import select
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.config.experiment import Cell, Experiment
from harness.config.model import Config
from harness.core.errors import RunFailed, RunStopped
from harness.core.events import Finished
from harness.grid.process import Outcome
from harness.grid.runner import GridView, LocalPool, run_cells
from harness.grid.worker import OnStatus, RunCell
from harness.processes import spawn
from harness.processes.spawn import fork_own_server, fork_server
from harness.processes.stop import StopRequest
from harness.run.assemble import RunStatus
from tests.forked import stop
from tests.made_runs import reseal


def run_grid(
    cells: Sequence[Cell],
    run_cell: RunCell,
    view: GridView,
    *,
    jobs: int | None = None,
    stop: StopRequest | None = None,
) -> list[Outcome]:
    """Run the cells in processes of this machine."""
    return run_cells(cells, LocalPool(run_cell, jobs), view, stop=stop)


def finished(seed: int) -> Finished:
    """A last event whose AUC is a tenth of its seed."""
    return Finished(
        step=9, samples=9, auc=seed / 10, log_loss=0.5, accuracy=0.5, train_loss=0.5, pls=0.0, update_pls=None,
        update_pls_tracked=None, applied_updates=None, lost_updates=None, applied_tracked=None, lost_tracked=None,
        num_failures=0, num_lost_ranks=0, num_unplanned=0, num_saves=0, payload_bytes=0, save_h=0.0, load_h=0.0,
        lost_h=0.0, reschedule_h=0.0, overhead_frac=0.0, wire_bytes=0, generation=0, digests={},
    )  # fmt: skip


def run_well(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """A run that ends well."""
    assert on_status is not None
    on_status(RunStatus(step=3, num_steps=9, loss=0.5, phase="train", generation=0))
    with (run_dir / "events.jsonl").open("a") as events:
        events.write(f"{os.getpid()}\n")
    for name in ("config.yaml", "env.json"):
        (run_dir / name).touch()
    reseal(run_dir)
    return finished(config.seed)


def run_badly(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Seed 1 fails, 2 is killed, 3 is a bug, 4 ends without DONE, 5 fails on a full disk; others end well, 6 through
    a terminal's Ctrl-C, which goes to every process of the foreground."""
    if config.seed == 1:
        raise RunFailed("ranks keep dying")
    if config.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.seed == 3:
        raise ZeroDivisionError("a bug of ours")
    if config.seed == 4:
        return finished(4)
    if config.seed == 5:
        (run_dir / ".error.txt.tmp").symlink_to("/dev/full")
        raise RunFailed("no space left")
    if config.seed == 6:
        os.kill(os.getpid(), signal.SIGINT)
    return run_well(config, run_dir, on_status=on_status)


def run_in_anothers_folder(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Folders of all seeds but 0 and 5 become those of others while their cells run; that of 4 before."""
    if config.seed in (0, 5):
        return run_well(config, run_dir, on_status=on_status)
    run_dir = run_dir.resolve()
    for other in [run_dir, run_dir.with_name("local-4")] if config.seed == 1 else [run_dir]:
        if other.exists():
            other.rename(other.with_name(f"moved-{other.name}"))
        if config.seed == 3:
            other.write_text("a file")
        else:
            other.mkdir()
            (other / "letter.txt").write_text("")
            (other / "output.txt").write_text("")
    if config.seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    raise RunFailed("ranks keep dying")


def run_in_a_grid_that_goes(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Seed 1 moves the folder of the grid, or removes it if its name says so; once."""
    run_dir = run_dir.resolve()
    if config.seed == 1 and not run_dir.parent.with_name("moved").exists():
        if run_dir.parent.name == "removed":
            shutil.rmtree(run_dir.parent)
        else:
            run_dir.parent.rename(run_dir.parent.with_name("moved"))
        raise RunFailed("a write failed")
    return run_well(config, run_dir, on_status=on_status)


def run_orphaned(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Seed 0 kills its fork server; the others end well."""
    if config.seed == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    return run_well(config, run_dir, on_status=on_status)


def orphaned_grid(out: Path) -> None:
    """Body of a process with a fork server of its own, since cells kill it: says status, AUC and error of each cell."""
    fork_own_server()
    outcomes = run_grid(cells_of(out, 2), run_orphaned, Journal(), jobs=1)
    print(json.dumps([(o.status, o.finished and o.finished.auc, o.error) for o in outcomes]))  # noqa: T201


def run_beside_stopped_server(
    config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any
) -> Finished:
    """Seed 1 stops its fork server before it ends well; the others end well."""
    if config.seed == 1:
        stop(os.getppid())
    return run_well(config, run_dir, on_status=on_status)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])


def grid_of_stopped(out: Path) -> None:
    """Body of a process: a grid whose fork server is stopped, under a short deadline; says the outcomes."""
    spawn.ANSWER_S = 0.5
    fork_own_server()
    outcomes = run_grid(cells_of(out, 2), run_beside_stopped_server, Journal(), jobs=1)
    print(json.dumps([(o.status, o.error) for o in outcomes]))  # noqa: T201


def stopped_grid(out: Path) -> None:
    """Body of a process: a grid of which all processes are stopped but the runner, which is then killed."""
    fork_own_server()
    run_grid(cells_of(out, 2), run_forever, _Killer(), jobs=2)


def answer(pipe: Connection) -> None:
    """Sends the parent's pid, and whether everything a rank needs was imported before."""
    pipe.send((os.getppid(), "harness.run.assemble" in sys.modules))


def run_a_rank(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Starts a process as the rpc engine does, and writes down where it came from."""
    ours, theirs = multiprocessing.Pipe()
    rank = fork_server().fork(answer, theirs)
    parent, has_all = ours.recv()
    rank.join()
    is_fork = Path(f"/proc/{parent}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    num_files = len(list(Path(f"/proc/{parent}/fd").iterdir()))
    facts = [_parent(parent) == os.getpid(), is_fork, has_all, num_files, parent]
    (run_dir / "facts").write_text(json.dumps(facts))
    return run_well(config, run_dir, on_status=on_status)


def run_forever(config: Config, run_dir: Path, *, on_status: OnStatus | None = None, **_: Any) -> Finished:
    """Says its pid, reports, and waits for a signal."""
    assert on_status is not None
    temporary = run_dir / "pid.tmp"
    temporary.write_text(str(os.getpid()))
    temporary.rename(run_dir / "pid")
    on_status(RunStatus(step=3, num_steps=9, loss=0.5, phase="train", generation=0))
    signal.pause()
    return run_well(config, run_dir, on_status=on_status)


def run_until_stopped(
    config: Config, run_dir: Path, *, on_status: OnStatus | None = None, stop: StopRequest | None = None
) -> Finished:
    """Seed 0 ends well; the others report, and leave a resume point when they are asked to stop; then they end well."""
    assert on_status is not None
    assert stop is not None
    if config.seed > 0 and not (run_dir / "resume").exists():
        on_status(RunStatus(step=3, num_steps=9, loss=0.5, phase="train", generation=0))
        select.select([stop.fileno()], [], [])
        (run_dir / "resume").mkdir()
        (run_dir / "resume" / "point-000000.json").write_text("")
        raise RunStopped(3)
    return run_well(config, run_dir, on_status=on_status)


def cells_of(out: Path, seeds: int, engine: str = "local") -> list[Cell]:
    """Cells of ``seeds`` seeds."""
    configs = [Config.model_validate({"seed": seed, "out": str(out), "engine": engine}) for seed in range(seeds)]
    return [Cell(c, f"{engine}-{c.seed}", f"{engine}{c.seed}", out / f"{engine}-{c.seed}") for c in configs]


class Journal:
    """A view that records its calls."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def started(self, cell: Cell) -> None:
        self.lines.append(("started", cell.slug))

    def status(self, cell: Cell, status: RunStatus) -> None:
        self.lines.append((f"{status.phase} {status.step}", cell.slug))

    def ended(self, outcome: Outcome) -> None:
        self.lines.append((outcome.status, outcome.cell.slug))

    def most_at_once(self) -> int:
        """How many cells ran at a time, at most."""
        running = most = 0
        for what, _ in self.lines:
            running += (what == "started") - (what in ("done", "failed"))
            most = max(most, running)
        return most


class _Killer(Journal):
    """A view that stops both cells and the fork server once they have reported, notes them, and kills its process."""

    def status(self, cell: Cell, status: RunStatus) -> None:
        super().status(cell, status)
        if len(self.lines) < 4:
            return
        cells = [int((cell.run_dir.parent / f"local-{seed}" / "pid").read_text()) for seed in range(2)]
        pids = [*cells, fork_server().pid]
        for pid in pids:
            stop(pid)
        (cell.run_dir.parent / "stopped").write_text(" ".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)


class Witness(Journal):
    """A view that creates a file for each cell that has sent a status."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def status(self, cell: Cell, status: RunStatus) -> None:
        super().status(cell, status)
        (self._folder / f"heard-{cell.slug}").touch()


def endless_grid(out: str) -> int:
    """What `run.py grid` does, with cells that do not end."""
    from harness.cli import commands, progress, run_commands

    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
    progress.grid_progress = lambda _: nullcontext(Witness(Path(out)))
    experiment = Experiment("endless", Path(out), tuple(cells_of(Path(out), 2)), {})
    run_commands.grid = lambda _: run_commands.run_experiments([experiment], LocalPool(run_forever, 2))
    return commands.run(commands.argparse.Namespace(command="grid", call="run_commands:grid"), ["grid", "x.yaml"])
