"""Laws of jobs that need no scheduler."""

import os
import signal
import sys
from pathlib import Path

import pytest

import run
from harness.config.experiment import Cell
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError
from harness.jobs import cell_job, ray_pool, slurm
from harness.jobs.arrays import arrays, done_outcome, folder_of, processors_of, progress_of
from harness.jobs.pool import JobPool
from harness.run.spec import cell_hash
from tests.grid.cells import Journal
from tests.jobs.cells import cells_of
from tests.made_runs import made_config, write_run
from tests.runs import changed


def test_processors_are_those_of_threads_and_ranks(config: Config) -> None:
    """Law: on rpc each PS rank and spare has one beside the trainer's threads; a key overrides it."""
    assert processors_of(changed(config, trainer__num_threads=3)) == 3
    assert processors_of(changed(config, engine="rpc", trainer__num_threads=3, cluster__num_ps=4)) == 7
    assert processors_of(changed(config, engine="rpc", cluster__num_ps=4, cluster__spares=2)) == 7
    several = changed(config, engine="rpc", trainer__num_threads=3, cluster__num_ps=4, cluster__num_trainers=2)
    assert processors_of(several) == 10
    assert processors_of(changed(config, engine="rpc", jobs__processors=2)) == 2
    assert cell_hash(changed(config, jobs__minutes=5)) == cell_hash(config), "the same cell"


def test_cells_with_equal_needs_are_one_array(config: Config, tmp_path: Path) -> None:
    """Law: cells are submitted together where settings and processors are equal; other cells have another name."""
    short, long = cells_of(config, tmp_path, 2), cells_of(config, tmp_path / "long", 1, minutes=600)
    groups = [*arrays("x", [short[0], *long, short[1]], 9)]
    assert [(one.settings.minutes, one.cells) for one in groups] == [(60, tuple(short)), (600, tuple(long))]
    assert [one.name for one in arrays("x", short, 2)] == [groups[0].name]
    assert [one.cells for one in arrays("x", short, 1)] == [(short[0],), (short[1],)]
    moved = [*arrays("x", cells_of(config, tmp_path / "other", 2), 9), *arrays("x", short[:1], 9)]
    assert len({one.name for one in [*groups, *moved]}) == 4


def slurm_that_says(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let each of SLURM's commands run a script."""
    for name in ("sbatch", "srun", "squeue", "scontrol"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_jobs_of_slurm_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: name and number of a job tell the cell, if the grid has that array; other jobs of the user are others'."""
    (tmp_path / "cpr-x-1.cells").write_text("a\nb\nc\n")
    (tmp_path / "cpr-x-2.cells").write_text("d\n")
    listed = "700_2 cpr-x-1\n700_0 cpr-x-1\n701_0 cpr-x-2\n702_1 cpr-x-3\n703 a job\n704_1 other\n"
    slurm_that_says(tmp_path, monkeypatch, f"printf '{listed}'")
    assert slurm.living(tmp_path) == {"c": "700_2", "a": "700_0", "d": "701_0"}


@pytest.mark.parametrize(
    ("script", "most"), [("echo 'MaxArraySize            = 5'", 5), ("echo x", 1001), ("exit 1", 1001)]
)
def test_the_limit_of_arrays_is_the_cluster_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, most: int
) -> None:
    """Law: MaxArraySize of scontrol, or SLURM's default if it does not say."""
    slurm_that_says(tmp_path, monkeypatch, script)
    assert slurm.most_in_an_array() == most


def test_a_cluster_that_does_not_answer_submits_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: while squeue fails, a cell that may have a job gets no second one; the line says what to do."""
    slurm_that_says(tmp_path, monkeypatch, "exit 1")
    (cell,) = cells_of(config, tmp_path / "grid", 1)
    with pytest.raises(ConfigError, match="expected to hear which jobs run, got no answer; run the same command again"):
        list(JobPool(tmp_path / "grid", "x").run([cell], Journal(), stop=None))
    assert not folder_of(tmp_path / "grid").exists()


def test_a_cluster_that_cannot_be_used_is_one_line(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: no SLURM; a Ray that ends, for whose cells none waits."""
    cells = cells_of(config, tmp_path, 1)
    monkeypatch.setattr(ray_pool, "PROGRAM", (sys.executable, "-ISc", "import sys; sys.stdin.readline()"))
    with pytest.raises(ConfigError, match=r"the Ray at auto has ended, and its cells with it; the same command goes"):
        list(ray_pool.RayPool(1.0).run(cells, Journal(), stop=None))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"expected the command sbatch on this machine, got none; submit from"):
        slurm.check()


def test_a_scheduler_s_signals_do_not_reach_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: the child of a job, and so each rank, ignores USR1, USR2, CONT and TERM, not SIGINT; its code is kept."""
    program = tmp_path / "program.py"
    line = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')))"
    program.write_text(f"{line}\nraise SystemExit(3)")
    monkeypatch.setattr(cell_job, "_PROGRAM", program)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        assert cell_job.main(str(tmp_path), "1", "0", "cell") == 3
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    ignored = int((tmp_path / "cell.log").read_text(), 16)
    numbers = {number for number in signal.valid_signals() if ignored >> (number - 1) & 1}
    assert numbers >= {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM}
    assert signal.SIGINT not in numbers


@pytest.mark.parametrize(("state", "is_cancelled"), [("RUNNING", False), ("COMPLETING", True), ("", True)])
def test_a_job_that_slurm_ends_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_cancelled: bool
) -> None:
    """Law: only a job that still runs was sent SIGTERM to be preempted; without an answer it was too."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not cell_job.is_cancelled()
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {state}\n")
    (tmp_path / "squeue").chmod(0o755)
    assert cell_job.is_cancelled() is is_cancelled


def test_progress_is_that_of_the_newest_event(tmp_path: Path) -> None:
    """Law: step and loss are those of the last line that can be read; before the first event there is none."""
    assert progress_of(tmp_path) is None
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "started", "step": 0, "num_steps": 60}\n')
    status = progress_of(tmp_path)
    assert status is not None
    assert (status.step, status.num_steps, status.loss) == (0, 60, None)
    with events.open("a") as stream:
        stream.write(
            '{"event": "train", "step": 40, "losses": [0.7, 0.5]}\n' + "[" * 100_000 + '\n{"event": "save", "st'
        )
    status = progress_of(tmp_path)
    assert status is not None
    assert (status.step, status.loss) == (40, 0.5)


@pytest.mark.parametrize("events", [None, b"", b"no event\n"])
def test_a_done_cell_whose_record_cannot_be_used_is_damaged(tmp_path: Path, events: bytes | None) -> None:
    """Law: it is an outcome that names the file, so that the grid goes on; with its record the same cell is done."""
    cell = Cell(made_config(), "one", "0123456789", tmp_path)
    write_run(tmp_path, cell.config)
    good = done_outcome(cell, 1.0)
    assert (good.status, good.error) == ("done", None)
    file = tmp_path / "events.jsonl"
    file.unlink()
    if events is not None:
        file.write_bytes(events)
    bad = done_outcome(cell, 1.0)
    assert (bad.status, bad.finished) == ("damaged", None)
    assert str(bad.error).startswith(f"{file}:")


@pytest.mark.parametrize(("code", "status"), [(130, "stopped"), (-2, "stopped"), (-9, "failed"), (3, "failed")])
def test_a_task_that_is_asked_to_stop_as_it_starts_is_stopped(tmp_path: Path, code: int, status: str) -> None:
    """Law: so it is whether its run handled the request, or the request ended a command that handles no signal yet."""
    cell = Cell(made_config(), "one", "0123456789", tmp_path)
    assert [one.status for one in ray_pool._outcomes(cell, {"code": code, "error": None}, 1.0)] == [status]


def test_a_scheduler_whose_package_is_missing_is_one_line(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law: exit code 2, the line says what to install, and nothing is written."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(to_yaml(changed(config, out="grid").model_dump(mode="json")))
    assert run.main(["grid", "x.yaml", "--scheduler", "ray"]) == 2
    line = "expected the package ray, which is missing; pip install -r requirements-ray.txt"
    assert capsys.readouterr().err.splitlines() == [f"error: --scheduler ray: {line}"]
    assert not Path("grid").exists()
