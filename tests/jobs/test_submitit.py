"""Cells as jobs of submitit: they end as cells do that nothing disturbs, whatever happens to jobs and to the command.

Their processors are those of this machine: jobs are processes here, or scripts of a stand-in of SLURM (slurm.py).
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
from harness.core.errors import ConfigError, RunStopped, UserError
from harness.grid.runner import run_cells
from harness.jobs import arrays as arrays_module
from harness.jobs import clusters
from harness.jobs.arrays import JobFiles, arrays, folder_of
from harness.jobs.cell_job import CellJob
from harness.jobs.clusters import CLUSTERS, sbatch_text
from harness.jobs.pool import JobPool
from harness.processes.child import Child
from harness.processes.stop import StopRequest
from tests.grid.cells import Journal
from tests.jobs import slurm
from tests.jobs.cells import Acting, assert_undisturbed, cells_of, kill_command, wait_until
from tests.runs import changed

pytest.importorskip("submitit")
PATIENCE_S = 100.0


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the gate. No job is left at the end."""
    folder = tmp_path / "gate"
    folder.mkdir()
    monkeypatch.setenv("GATE", str(folder))
    yield folder
    (folder / "open").touch()
    wait_until(lambda: not CLUSTERS["local"].living(folder_of(tmp_path / "grid")))


def run(cells: list[Cell], view: Journal | None = None) -> list[str]:
    """The outcomes of the cells as jobs."""
    outcomes = run_cells(cells, JobPool(cells[0].run_dir.parent, "grid"), view or Journal())
    return [outcome.error or outcome.status for outcome in outcomes]


def test_a_killed_command_finds_its_jobs_again(config: Config, tmp_path: Path, gate: Path) -> None:
    """Law: SIGKILL of the command ends no job; started again it submits none, and each cell is done once.

    So it is with a job that is sent SIGTERM meanwhile, and requeued: its cell goes on.
    """
    cells, pool = cells_of(config, tmp_path / "grid", 2, max_parallel=2), JobPool(tmp_path / "grid", "grid")
    kill_command(cells, pool, gate)
    before = CLUSTERS["local"].living(folder_of(tmp_path / "grid"))
    assert before is not None
    assert before.keys() == {cell.run_dir.name for cell in cells}
    preempted = cells[0]

    def act() -> None:
        os.kill(int(before[preempted.run_dir.name]), signal.SIGTERM)
        wait_until(lambda: goes_on(preempted))
        (gate / "open").touch()

    view = Acting(act)
    assert run(cells, view) == ["done", "done"]
    jobs = {path.name.partition("_")[0] for path in (tmp_path / "grid/jobs/submitit").glob("*/*_submitted.pkl")}
    assert jobs == {*before.values()}
    assert [what for what, _ in view.lines if what == "started"] == ["started"] * 2
    assert_undisturbed(preempted, tmp_path)
    assert run(cells) == ["skipped", "skipped"]


def goes_on(cell: Cell) -> bool:
    """Whether the cell's job, once requeued, began at the resume point of the gate."""
    return "goes on from step 21 of 60" in JobFiles(cell.run_dir).log.read_text()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in of SLURM, whose commands are on the path; it is asked often."""
    monkeypatch.setattr(CLUSTERS["slurm"], "settle_s", 0.0)
    monkeypatch.setattr(CLUSTERS["slurm"], "longest_poll_s", 0.25)
    folder = tmp_path / "queue"
    (tmp_path / "bin").mkdir()
    folder.mkdir()
    slurm.install(folder, tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return folder


def test_a_job_of_slurm_that_is_preempted_or_at_its_limit_is_requeued(
    config: Config, tmp_path: Path, gate: Path, queue: Path
) -> None:
    """Law: after SIGTERM, and after USR2, its cell goes on, to the record of an undisturbed one.

    The script that sbatch gets is the one that --print-script shows.
    """
    cells = cells_of(config, tmp_path / "grid", 2, cluster="slurm")
    for cell, number in zip(cells, (signal.SIGTERM, signal.SIGUSR2), strict=True):
        (gate / f"signal-{cell.run_dir.name}").write_text(str(int(number)))
    assert run(cells) == ["done", "done"]
    for cell in cells:
        assert goes_on(cell)
        assert_undisturbed(cell, tmp_path)
    (array,) = arrays("grid", cells)
    assert (queue / "700.sh").read_text() == sbatch_text(array)


@pytest.mark.parametrize(("script", "is_requeued"), [("exec sleep 60", True), ("exit 3", False)])
def test_a_job_that_is_preempted_as_it_starts_is_requeued(tmp_path: Path, script: str, is_requeued: bool) -> None:
    """Law: a command that the request ends, since it does not handle signals yet, has not failed."""
    job = CellJob(("sh", "-c", script), str(tmp_path), str(tmp_path / "log"), grace_s=PATIENCE_S)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that a script starts with `&` ignore it, as would the child
    try:
        job._child = Child(job.command, log=tmp_path / "log")
        if not is_requeued:
            job._child.wait()
        assert (job.checkpoint() is not None) is is_requeued
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_cancelled_job_of_slurm_is_not_requeued(config: Config, tmp_path: Path, gate: Path, queue: Path) -> None:
    """Law: after SIGTERM to a job that is completing the job ends, and its cell keeps a resume point."""
    (queue / "state").write_text("COMPLETING\n")
    (cell,) = cells_of(config, tmp_path / "grid", 1, cluster="slurm")
    (gate / f"signal-{cell.run_dir.name}").write_text(str(int(signal.SIGTERM)))
    (error,) = run([cell])
    assert error.startswith("job 700 ended before the cell was done: RunStopped: asked to stop; ")
    assert [*(cell.run_dir / "resume").glob("point-*.json")]


def test_a_job_that_fails_is_one_line_and_no_more_run_than_there_is_room(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: the line has the last words of the job's log; with one job at once the second one waits for the first."""
    program = tmp_path / "program.py"
    program.write_text("import sys\nsys.exit('out of luck')\n")
    monkeypatch.setattr(arrays_module, "_PROGRAM", program)
    cells, view = cells_of(config, tmp_path / "grid", 2, max_parallel=1), Journal()
    errors = run(cells, view)
    for cell, error in zip(cells, errors, strict=True):
        log = re.escape(str(JobFiles(cell.run_dir).log))
        assert re.fullmatch(rf"job \d+ ended before the cell was done: out of luck \(see {log}\)", error)
    assert [what for what, _ in view.lines] == ["started", "failed"] * 2


def test_a_command_that_stops_says_how_to_end_its_jobs(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: jobs go on, the line names them and the command that ends them, and that command does."""
    program = tmp_path / "program.py"
    program.write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setattr(arrays_module, "_PROGRAM", program)
    cells, stop, grid = cells_of(config, tmp_path / "grid", 1), StopRequest(), tmp_path / "grid"
    caplog.set_level("INFO", logger="harness")
    with pytest.raises(RunStopped):
        run_cells(cells, JobPool(grid, "grid"), Acting(stop.set), stop=stop)
    wait_until(lambda: CLUSTERS["local"].living(folder_of(grid)))
    (job,) = (CLUSTERS["local"].living(folder_of(grid)) or {}).values()
    assert caplog.messages[-1] == f"1 job goes on without this command; to end: kill -INT {job}"
    subprocess.run(["kill", "-INT", job], check=True)
    wait_until(lambda: not CLUSTERS["local"].living(folder_of(grid)))


def test_a_grid_of_jobs_ends_with_its_table(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: the command names the jobs, and ends as with cells in its own processes. submitit runs them one by one."""
    monkeypatch.chdir(tmp_path)
    short = changed(config, trace__path=None, data__max_train_samples=40, out="grid", jobs__cluster="debug")
    Path("x.yaml").write_text(to_yaml(short.model_dump(mode="json")))
    assert command_line.main(["grid", "x.yaml", "--scheduler", "submitit"]) == 0
    said, noted = capsys.readouterr()
    assert said.endswith("report: grid/report.html\n")
    assert re.search(
        r"\nsubmitted 1 job: \S+\n\[1/1\] local-full-seed0 .* AUC .*\n1 cell: 1 run, 0 done before, 0 failed\n$", noted
    )


def test_a_submission_that_fails_is_one_line(config: Config, tmp_path: Path, queue: Path) -> None:
    """Law: what sbatch says is repeated."""
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition: x' >&2; exit 1\n")
    (cell,) = cells_of(config, tmp_path / "grid", 1, cluster="slurm", partition="x")
    with pytest.raises(UserError, match=r"were not submitted: sbatch: error: invalid partition: x$"):
        run([cell])


def test_the_script_is_as_expected(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: every key has its line; the processors are those of the trainer's threads and the ranks.

    The private function that renders the script is called in the pinned version of submitit only.
    """
    import submitit  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(clusters, "ROOT", Path("/harness"))
    keys = {"partition": "cpu", "account": "me", "qos": "low", "minutes": 30, "memory_gb": 2.5, "max_parallel": 4}
    cells = [
        Cell(changed(cell.config, engine="rpc", trainer__num_threads=2), cell.slug, cell.hash, cell.run_dir)
        for cell in cells_of(config, Path("/grid"), 9, cluster="slurm", signal_delay_s=60, **keys)
    ]
    (array,) = arrays("a name", cells)
    assert re.fullmatch(r"cpr-a_name-[0-9a-f]{8}", array.name)
    assert sbatch_text(array) == Path(__file__).with_name("script.sh").read_text().replace("NAME", array.name)
    monkeypatch.setattr(submitit, "__version__", "1.6.0")
    with pytest.raises(ConfigError, match=r"--print-script: expected submitit 1\.5\.4, got 1\.6\.0; pip install"):
        sbatch_text(array)
