"""Cells as jobs of SLURM: they end as cells do that nothing disturbs, whatever happens to jobs and to the command.

Jobs are scripts that a stand-in of SLURM's commands runs (slurm.py). Its arrays have at most 3 jobs.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import run as command_line
from harness.config.experiment import Cell
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import RunStopped, UserError
from harness.grid.runner import run_cells
from harness.jobs import cell_job, pool, slurm
from harness.jobs.arrays import JobFiles, arrays, folder_of
from harness.jobs.pool import JobPool
from harness.processes.stop import StopRequest
from tests.grid.cells import Journal
from tests.jobs import slurm as stand_in
from tests.jobs.cells import Acting, assert_undisturbed, cells_of, kill_command, wait_until
from tests.runs import changed


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the stand-in, whose commands are on the path; it is asked often. No job is left at the end."""
    monkeypatch.setattr(pool, "LIMITS_S", {"settle": 0.0, "poll": 0.25})
    folder, gate = tmp_path / "queue", tmp_path / "gate"
    for each in (tmp_path / "bin", folder, gate):
        each.mkdir()
    stand_in.install(folder, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("GATE", str(gate))
    yield folder
    (gate / "open").touch()
    wait_until(lambda: not [*folder.glob("alive-*")])


def run(cells: list[Cell], view: Journal | None = None) -> list[str]:
    """The outcomes of the cells as jobs."""
    outcomes = run_cells(cells, JobPool(cells[0].run_dir.parent, "grid"), view or Journal())
    return [outcome.error or outcome.status for outcome in outcomes]


def living(tmp_path: Path) -> dict[str, str]:
    """The jobs of the grid, by the name of the cell's folder."""
    return slurm.living(folder_of(tmp_path / "grid")) or {}


def goes_on(cell: Cell) -> bool:
    """Whether the cell's job, once requeued, began at the resume point of the gate."""
    return "goes on from step 21 of 60" in JobFiles(cell.run_dir).log.read_text()


@pytest.mark.slow
def test_a_killed_command_finds_its_jobs_again(config: Config, tmp_path: Path, queue: Path) -> None:
    """Law: SIGKILL of the command ends no job; started again it submits none, and each cell is done once."""
    cells = cells_of(config, tmp_path / "grid", 2)
    kill_command(cells, JobPool(tmp_path / "grid", "grid"), tmp_path / "gate")
    assert living(tmp_path).keys() == {cell.run_dir.name for cell in cells}
    view = Acting((tmp_path / "gate/open").touch)
    assert run(cells, view) == ["done", "done"]
    assert len([*queue.glob("*.sh")]) == 1
    assert [what for what, _ in view.lines if what == "started"] == ["started"] * 2
    assert_undisturbed(cells[0], tmp_path)
    assert run(cells) == ["skipped", "skipped"]


@pytest.mark.slow
def test_a_job_that_is_preempted_or_at_its_limit_is_requeued(config: Config, tmp_path: Path, queue: Path) -> None:
    """Law: after SIGTERM, and after USR2, its cell goes on, to the record of an undisturbed one.

    The script that sbatch gets is the one that --print-script shows.
    """
    cells = cells_of(config, tmp_path / "grid", 2)
    for cell, number in zip(cells, (signal.SIGTERM, signal.SIGUSR2), strict=True):
        (tmp_path / f"gate/signal-{cell.run_dir.name}").write_text(str(int(number)))
    assert run(cells) == ["done", "done"]
    for cell in cells:
        assert goes_on(cell)
        assert_undisturbed(cell, tmp_path)
    (array,) = arrays("grid", cells, 3)
    assert (queue / "700.sh").read_text() == slurm.script_of(array)


@pytest.mark.parametrize(("times", "is_requeued"), [("2", True), ("3", False)])
def test_a_job_that_is_preempted_as_it_starts_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Path, times: str, is_requeued: bool
) -> None:
    """Law: a run that the request ends, since it handles no signal yet, has not failed; jobs.max_timeouts limits it."""
    (tmp_path / "program.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(cell_job, "_PROGRAM", tmp_path / "program.py")
    monkeypatch.setenv("SLURM_JOB_ID", "7_0")
    monkeypatch.setenv("SLURM_RESTART_COUNT", times)
    numbers = (signal.SIGTERM, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    sender = subprocess.Popen(["sh", "-c", f"sleep 0.7; kill -USR2 {os.getpid()}"])
    try:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the job handles it
        code = cell_job.main(str(tmp_path), "60", "3", "cell")
        sender.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert code == 128 + signal.SIGINT
    assert (queue / "requeue-7_0").exists() is is_requeued


def test_a_cancelled_job_is_not_requeued(config: Config, tmp_path: Path, queue: Path) -> None:
    """Law: after SIGTERM to a job that is completing the job ends, and its cell keeps a resume point."""
    (queue / "state").write_text("COMPLETING\n")
    (cell,) = cells_of(config, tmp_path / "grid", 1)
    (tmp_path / f"gate/signal-{cell.run_dir.name}").write_text(str(int(signal.SIGTERM)))
    (error,) = run([cell])
    assert error.startswith("job 700_0 ended before the cell was done: RunStopped: asked to stop; ")
    assert [*(cell.run_dir / "resume").glob("point-*.json")]


def test_a_job_that_fails_is_one_line_and_arrays_are_as_long_as_the_cluster_allows(
    config: Config, tmp_path: Path, queue: Path
) -> None:
    """Law: the line has the last words of the job's log; four jobs are two arrays where one may have three."""
    (tmp_path / "plugin.py").write_text("raise ImportError('out of luck')\n")
    cells = cells_of(config, tmp_path / "grid", 4, gate=str(tmp_path / "plugin.py"))
    errors = run(cells)
    for cell, error in zip(cells, errors, strict=True):
        log = re.escape(str(JobFiles(cell.run_dir).log))
        assert re.fullmatch(rf"job 70\d_\d ended before the cell was done: error: .*out of luck.* \(see {log}\)", error)
    assert [len(path.read_text().splitlines()) for path in sorted(folder_of(tmp_path / "grid").glob("*.cells"))] in (
        [1, 3],
        [3, 1],
    )


def test_a_command_that_stops_says_how_to_end_its_jobs(
    config: Config, tmp_path: Path, queue: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: jobs go on, and the line names them and the command that ends them."""
    cells, stop = cells_of(config, tmp_path / "grid", 1), StopRequest()
    caplog.set_level("INFO", logger="harness")
    with pytest.raises(RunStopped):
        run_cells(cells, JobPool(tmp_path / "grid", "grid"), Acting(stop.set), stop=stop)
    assert [*living(tmp_path).values()] == ["700_0"]
    assert caplog.messages[-1] == "1 job goes on without this command; to end: scancel 700_0"


def test_a_grid_of_jobs_ends_with_its_table(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], queue: Path
) -> None:
    """Law: the command names the jobs, and ends as with cells in its own processes."""
    monkeypatch.chdir(tmp_path)
    short = changed(config, trace__path=None, data__max_train_samples=40, out="grid")
    Path("x.yaml").write_text(to_yaml(short.model_dump(mode="json")))
    assert command_line.main(["grid", "x.yaml", "--scheduler", "slurm"]) == 0
    said, noted = capsys.readouterr()
    assert said.endswith("report: grid/report.html\n")
    assert re.search(
        r"\nsubmitted 1 job: 700_0\n\[1/1\] local-full-seed0 .* AUC .*\n1 cell: 1 run, 0 done before, 0 failed\n$",
        noted,
    )


def test_a_submission_that_fails_is_one_line(config: Config, tmp_path: Path, queue: Path) -> None:
    """Law: what sbatch says is repeated."""
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: x' >&2; exit 1\n")
    (cell,) = cells_of(config, tmp_path / "grid", 1, partition="x")
    with pytest.raises(UserError, match=r"were not submitted: sbatch: error: invalid partition: x$"):
        run([cell])


def test_the_script_is_as_expected(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: every key has its line; the processors are those of the trainer's threads and the ranks; bash reads it."""
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(slurm, "ROOT", Path("/harness"))
    monkeypatch.setattr(Path, "cwd", lambda: Path("/work folder"))
    keys = {"partition": "cpu", "account": "me", "qos": "low", "minutes": 30, "memory_gb": 2.5, "max_parallel": 4}
    cells = [
        Cell(changed(cell.config, engine="rpc", trainer__num_threads=2), cell.slug, cell.hash, cell.run_dir)
        for cell in cells_of(config, Path("/grid"), 9, signal_delay_s=60, **keys)
    ]
    (array,) = arrays("a name", cells, 9)
    assert re.fullmatch(r"cpr-a_name-[0-9a-f]{8}", array.name)
    script = slurm.script_of(array)
    assert script == Path(__file__).with_name("script.sh").read_text().replace("NAME", array.name)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
