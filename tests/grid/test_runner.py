"""Laws of the grid runner, with real processes: only the training inside a cell is a small function of cells.py."""

import json
import multiprocessing
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.cli import commands, progress, run_commands
from harness.config.experiment import Experiment
from harness.core.errors import RunStopped, StoreError, UserError
from harness.grid import process
from harness.grid.process import CellProcess, end_all, is_done, start
from harness.grid.runner import LocalPool
from harness.processes.forked import HostLost
from harness.processes.spawn import fork_server
from harness.processes.stop import StopRequest
from harness.record.code import current_code
from harness.record.folder import claim_grid, has_resume_point
from tests.forked import said_by
from tests.grid.cells import (
    Journal,
    cells_of,
    grid_of_stopped,
    orphaned_grid,
    run_a_rank,
    run_badly,
    run_forever,
    run_grid,
    run_in_a_grid_that_goes,
    run_in_anothers_folder,
    run_until_stopped,
    run_well,
    stopped_grid,
)

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0  # a bound for a broken runner on a busy machine, never waited for by a sound one


@pytest.mark.parametrize(("engine", "jobs", "most"), [("local", 2, 2), ("rpc", 3, 1)])
def test_outcomes_come_in_order_and_reach_the_view(tmp_path: Path, engine: str, jobs: int, most: int) -> None:
    """Law: the view gets start, status and end of each cell, and the outcome holds what the cell returned.

    A cell of engine rpc takes all slots, so that its ranks do not share the cores with another cell.
    """
    journal = Journal()
    cells = cells_of(tmp_path, 3, engine)
    outcomes = run_grid(cells, run_well, journal, jobs=jobs)
    assert [(o.cell, o.status, o.finished and o.finished.auc) for o in outcomes] == [
        (cell, "done", cell.config.seed / 10) for cell in cells
    ]
    assert sorted(journal.lines) == sorted(
        (what, cell.slug) for cell in cells for what in ("started", "train 3", "done")
    )
    assert journal.most_at_once() == most


def test_a_process_of_other_code_refuses_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: where a fork server had to import an edited source anew, the cell fails; nothing is recorded of it."""
    now = current_code()
    before = replace(now, sources={**now.sources, "harness/core/shard.py": "before the edit"})
    monkeypatch.setattr(process, "current_code", lambda: before)
    (outcome,) = run_grid(cells_of(tmp_path, 1), run_well, Journal())
    why = "expected the code that this command began with, which has changed since (harness/core/shard.py); run the"
    assert (outcome.status, why in str(outcome.error)) == ("failed", True)
    assert not (outcome.cell.run_dir / "DONE").exists()


def test_failures_are_outcomes_and_others_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Law: an error, a kill, a bug and a missing DONE each become one line and an error.txt; other cells end well.

    On a full disk there is no error.txt, and the line comes all the same. Where stderr is no terminal, each ended cell
    is one plain line. A rerun leaves finished cells as they are, to the nanosecond, and starts the others from nothing.
    """
    cells = cells_of(tmp_path, 7)
    with progress.grid_progress(cells) as view:
        outcomes = run_grid(cells, run_badly, view, jobs=2)
    lines = [line.partition("] ")[2] for line in sorted(capfd.readouterr().err.splitlines(), key=lambda line: line[6:])]
    assert len(lines) == 7
    assert re.fullmatch(r"local-0  \d+\.\d s  AUC 0\.0000  PLS 0\.0000  overhead 0\.00%", lines[0])
    assert re.fullmatch(r"local-1  FAILED after \d+\.\d s: ranks keep dying", lines[1])
    assert [o.status for o in outcomes] == ["done", "failed", "failed", "failed", "failed", "failed", "done"]
    errors = [o.error or "" for o in outcomes]
    assert errors[1] == "ranks keep dying"
    assert errors[2] == "the cell's process was ended by SIGKILL (out of memory?)"
    assert re.match(
        r"the cell.s process ended with code 1: ZeroDivisionError: a bug of ours \(cells.py, line \d+\) \(see ",
        errors[3],
    )
    assert errors[4] == f"the cell's process ended, and there is no {tmp_path}/local-4/DONE"
    assert errors[5] == "no space left"
    assert not (tmp_path / "local-5" / "error.txt").exists()
    assert "Traceback" in (tmp_path / "local-3" / "output.txt").read_text()
    for seed, text in ((1, "RunFailed: ranks keep dying"), (2, errors[2]), (3, errors[3])):
        assert (tmp_path / f"local-{seed}" / "error.txt").read_text() == text + "\n"
    assert not (tmp_path / "local-0" / "output.txt").exists()
    done = tmp_path / "local-0" / "events.jsonl"
    before = done.stat()
    (tmp_path / "local-2" / "events.jsonl").write_text("cut short")
    outcomes = run_grid(cells[:4], run_well, Journal(), jobs=4)
    assert [o.status for o in outcomes] == ["skipped", "done", "done", "done"]
    assert (done.stat().st_mtime_ns, done.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert all(is_done(cell) for cell in cells[:4])
    assert "cut short" not in (tmp_path / "local-2" / "events.jsonl").read_text()
    assert not (tmp_path / "local-2" / "error.txt").exists()


def test_a_cell_ends_with_its_fork_server_and_the_others_run(tmp_path: Path) -> None:
    """Law: it fails in one line, which names the server; a new one starts the next cell."""
    cells = cells_of(tmp_path, 2)
    bad, good = json.loads(said_by(orphaned_grid, tmp_path).splitlines()[-1])
    assert good == ["done", 0.1, None]
    words = r"no result came from the cell's process; its fork server \(pid \d+\) has ended"
    assert re.fullmatch(words, bad[2])
    assert (cells[0].run_dir / "error.txt").read_text() == bad[2] + "\n"


def test_a_cell_whose_process_cannot_be_started_fails_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a fork server that ends whenever it is to fork, as without memory, is retried, and then costs each cell a
    line."""

    def end() -> None:
        raise HostLost("unexpected EOF")

    monkeypatch.setattr(process, "fork_server", end)
    monkeypatch.setattr(process, "_PATIENCE_S", 0.0)
    outcomes = run_grid(cells_of(tmp_path, 2), run_well, Journal())
    words = "the cell's process could not be started: unexpected EOF; check memory and limits"
    assert [(one.status, one.error) for one in outcomes] == [("failed", words)] * 2


def test_half_a_message_is_the_end_of_a_cell(tmp_path: Path) -> None:
    """Law: a cell that is killed while its message waits for room in the pipe has ended, and the others go on."""
    (cell,), (ours, theirs) = cells_of(tmp_path, 1), multiprocessing.Pipe(duplex=False)
    assert isinstance(ours, Connection)
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
    theirs.close()
    running = CellProcess(cell, Mock(), ours)
    with pytest.raises(EOFError):
        running.receive()
    ours.close()


def test_a_stopped_fork_server_does_not_hold_up_a_grid(tmp_path: Path) -> None:
    """Law: it is killed at its deadline, and the result of a cell that was finished is kept."""
    assert json.loads(said_by(grid_of_stopped, tmp_path)) == [["done", None]] * 2


def test_stopped_cells_and_fork_server_end_with_their_runner(tmp_path: Path) -> None:
    """Law: nothing of a grid outlives it, though nothing but the kernel can act."""
    process = fork_server().fork(stopped_grid, tmp_path)
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    assert all(gone(int(pid)) for pid in (tmp_path / "stopped").read_text().split())


def test_cells_with_many_threads_do_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: by default a cell takes as many cores as its threads, so one with several takes no cores of the others."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    one, two, wide = cells_of(tmp_path, 3)
    threads = wide.config.trainer.model_copy(update={"num_threads": 2})
    wide = replace(wide, config=wide.config.model_copy(update={"trainer": threads}))
    journal = Journal()
    run_grid([one, two, wide], run_well, journal)
    assert journal.most_at_once() == 2
    journal = Journal()
    run_grid([replace(wide, run_dir=tmp_path / name, hash=name) for name in ("a", "b")], run_well, journal)
    assert journal.most_at_once() == 1


def test_ranks_of_a_cell_are_forked_from_the_cell_itself(tmp_path: Path) -> None:
    """Their fork server is a fork of the cell, holds none of its files, has imported all, and ends with it."""
    cells = cells_of(tmp_path, 2, engine="rpc")
    assert [outcome.status for outcome in run_grid(cells, run_a_rank, Journal(), jobs=1)] == ["done", "done"]
    for cell in cells:
        *facts, num_files, server = json.loads((cell.run_dir / "facts").read_text())
        assert facts == [True, True, True]
        assert num_files <= 8  # standard streams, connection, handles, selector
        assert gone(server)


def test_a_cell_whose_folder_is_another_s_fails_alone(tmp_path: Path) -> None:
    """Law: whatever took the place of a cell's folder, before it started or while it ran, costs that cell alone.

    What is there stays as it is. A folder that is another's before the grid starts stops the grid.
    """
    outcomes = run_grid(cells_of(tmp_path, 6), run_in_anothers_folder, Journal(), jobs=1)
    assert [o.status for o in outcomes] == ["done", "failed", "failed", "failed", "failed", "done"]
    assert outcomes[1].error == outcomes[3].error == "ranks keep dying"
    for seed in (2, 4):
        assert f"local-{seed}: expected an empty or a run folder, got other files" in (outcomes[seed].error or "")
    for seed in (1, 2, 4):
        assert {path.name for path in (tmp_path / f"local-{seed}").iterdir()} == {"letter.txt", "output.txt"}
    journal = Journal()
    with pytest.raises(StoreError, match="expected an empty or a run folder"):
        run_grid(cells_of(tmp_path, 6), run_well, journal, jobs=2)
    assert journal.lines == []


@pytest.mark.parametrize("name", ["grid", "removed"])
def test_a_grid_whose_folder_goes_makes_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Law: cells that had not started fail; it says where it is; the same command works in either place then."""
    out, moved = tmp_path / name, tmp_path / "moved"

    def grid(out: Path) -> tuple[int, list[str]]:
        experiment = Experiment("grid", out, tuple(cells_of(out, 4)), {})
        pool = LocalPool(run_in_a_grid_that_goes, 1)
        monkeypatch.setattr(run_commands, "grid", lambda _: run_commands.run_experiments([experiment], pool))
        code = commands.run(Namespace(command="grid", call="run_commands:grid"), ["grid", "x.yaml"])
        return code, capsys.readouterr().err.splitlines()

    code, lines = grid(out)
    assert (code, out.exists()) == (1, False)
    failed = [line for line in lines if line.startswith("failed:")]
    assert f"{out}/local-1: a write failed" in failed[0]
    assert all(line.endswith("No such file or directory; set out to another folder") for line in failed[1:])
    note = f"note: {out}: moved while it was in use; what was written is in {moved}"
    assert (note in lines) == moved.exists()
    assert len(failed) == 3
    moved.mkdir(exist_ok=True)  # so that no grid is moved again
    assert [grid(place)[0] for place in (moved, out)] == [0, 0]


def test_a_folder_in_use_leaves_the_other_grids_as_they_were(tmp_path: Path) -> None:
    """Law: where a command has several grids, each folder is locked before anything is written."""
    grids = [Experiment(name, tmp_path / name, tuple(cells_of(tmp_path / name, 1)), {}) for name in "ab"]
    with claim_grid(tmp_path / "b"), pytest.raises(UserError, match="is writing to it"):
        run_commands.run_experiments(grids, LocalPool(run_well, 1))
    assert not (tmp_path / "a" / "grid.yaml").exists()


class Stopping(Journal):
    """A view that asks the grid to stop as soon as two cells have reported."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = StopRequest()

    def status(self, cell, status) -> None:
        super().status(cell, status)
        if sum(what == "train 3" for what, _ in self.lines) == 3:
            self.stop.set()


def test_a_grid_that_is_asked_to_stop_asks_its_cells(tmp_path: Path) -> None:
    """Law: running cells leave their resume points, no other starts, and the next grid goes on from the points."""
    cells, view = cells_of(tmp_path, 4), Stopping()
    with pytest.raises(RunStopped):
        run_grid(cells, run_until_stopped, view, jobs=2, stop=view.stop)
    assert sorted(view.lines) == sorted(
        [("started", f"local-{seed}") for seed in range(3)]
        + [("train 3", f"local-{seed}") for seed in range(3)]
        + [("done", "local-0"), ("stopped", "local-1"), ("stopped", "local-2")]
    )
    assert [has_resume_point(cell.run_dir) for cell in cells] == [False, True, True, False]
    outcomes = run_grid(cells[:3], run_until_stopped, Journal(), jobs=2)
    assert [outcome.status for outcome in outcomes] == ["skipped", "done", "done"]


def test_a_cell_that_is_asked_to_stop_while_it_starts_stops(tmp_path: Path) -> None:
    """Law: a request that comes before a cell's process handles signals is not lost."""
    stop = StopRequest()
    stop.set()
    cells, view = cells_of(tmp_path, 3)[1:], Journal()
    with pytest.raises(RunStopped):
        run_grid(cells, run_until_stopped, view, jobs=2, stop=stop)
    assert sorted(name for what, name in view.lines if what == "stopped") == ["local-1", "local-2"]


def test_end_all_ends_every_cell(tmp_path: Path) -> None:
    """Law: ending cells leaves none of them."""
    running = [start(run_forever, cell) for cell in cells_of(tmp_path, 2)]
    pids = [pid_of(tmp_path / f"local-{seed}", lambda: None) for seed in range(2)]
    end_all(running)
    assert all(gone(pid) for pid in pids)
    assert [one.outcome().error for one in running] == ["the cell's process was ended by SIGKILL (out of memory?)"] * 2


def test_cells_end_with_an_interrupted_runner(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Law: Ctrl-C of the runner ends its cells at once, with a message and exit code 130.

    Its cells are forked from itself, so that torch, imported to check them, is not imported again.
    """
    code = f"import sys; from tests.grid.cells import endless_grid; sys.exit(endless_grid({str(tmp_path)!r}))"
    runner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    request.addfinalizer(runner.kill)  # its cells do not end by themselves
    for seed in range(2):  # a runner that hears its cells has started all of them, and does nothing but listen
        wait_for(tmp_path / f"heard-local-{seed}", runner.poll)
    pids = [pid_of(tmp_path / f"local-{seed}", runner.poll) for seed in range(2)]
    assert all(is_forked_from(runner.pid, pid) for pid in pids)
    runner.send_signal(signal.SIGINT)
    _, said = runner.communicate(timeout=PATIENCE_S)
    assert all(gone(pid) for pid in pids)
    assert runner.returncode == 130
    assert said == "interrupted; the same command continues with the cells that are not done: run.py grid x.yaml\n"


def is_forked_from(pid: int, cell: int) -> bool:
    """Whether ``cell`` and the server that forked it run what ``pid`` runs: nothing was started and imported anew."""
    server = int(Path(f"/proc/{cell}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
    return len({Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, server, cell)}) == 1


def pid_of(run_dir: Path, is_over: Callable[[], object]) -> int:
    """The pid that a cell has written, as soon as it has."""
    wait_for(run_dir / "pid", is_over)
    return int((run_dir / "pid").read_text())


def wait_for(file: Path, is_over: Callable[[], object]) -> None:
    """Return when ``file`` exists; fail if its writer has ended."""
    until = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < until
        assert is_over() is None
        select.select([], [], [], 0.01)


def gone(pid: int) -> bool:
    """Whether process ``pid`` ends, with patience for a busy machine."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    ended = bool(poll.poll(PATIENCE_S * 1000))
    os.close(handle)
    return ended
