"""Laws of jobs that need no scheduler and no submitit."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

import run
from harness.config.jobs import JobsConfig
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.errors import ConfigError, RunFailed, StoreError
from harness.jobs import cell_job
from harness.jobs.cell_job import CellJob
from harness.jobs.clusters import CLUSTERS, start_ticks
from harness.jobs.files import JobFiles, JobRecord, read_record, write_record
from harness.jobs.plan import processors_of, submissions
from harness.jobs.pool import JobPool, cluster_of
from harness.jobs.progress import progress_of
from harness.jobs.submission import Request
from harness.run.spec import cell_hash
from tests.grid.cells import Journal
from tests.jobs.cells import cells_of
from tests.runs import changed

MISSING = (
    "--launcher submitit: expected the package submitit, which is missing; pip install -r requirements-submitit.txt"
)


def test_jobs_are_in_no_hash(config: Config) -> None:
    """Law: how a cell's job is submitted does not change which cell it is."""
    other = changed(config, jobs__minutes=5, jobs__cluster="local", jobs__partition="cpu")
    assert cell_hash(other) == cell_hash(config)


def test_processors_are_those_of_threads_and_ranks(config: Config) -> None:
    """Law: on rpc each PS rank and spare has one beside the trainer's threads; a key overrides it."""
    assert processors_of(changed(config, trainer__num_threads=3)) == 3
    assert processors_of(changed(config, engine="rpc", trainer__num_threads=3, cluster__num_ps=4)) == 7
    assert processors_of(changed(config, engine="rpc", cluster__num_ps=4, cluster__spares=2)) == 7
    several = changed(config, engine="rpc", trainer__num_threads=3, cluster__num_ps=4, cluster__num_trainers=2)
    assert processors_of(several) == 10
    assert processors_of(changed(several, cluster__spare_trainers=1)) == 11
    assert processors_of(changed(config, engine="rpc", jobs__processors=2)) == 2


def test_cells_with_equal_needs_are_one_submission(config: Config, tmp_path: Path) -> None:
    """Law: cells are submitted together where settings and processors are equal, and a request is sent whole."""
    short, long = cells_of(config, tmp_path, 2), cells_of(config, tmp_path / "long", 1, minutes=600)
    groups = tuple(submissions("x", [short[0], *long, short[1]]))
    assert [(one.settings.minutes, len(one.jobs)) for one in groups] == [(60, 2), (600, 1)]
    assert groups[0].records == tuple(str(JobFiles(cell.run_dir).record) for cell in short)
    request = Request("/folder", 3, 4, groups)
    assert Request.of_json(request.to_json()) == request


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Law: a job's record is whole or absent; another file in its place is one line."""
    path = tmp_path / "cell.json"
    assert read_record(path) is None
    record = JobRecord("slurm", "7_3", "2026-11-23T08:00:00+00:00")
    write_record(path, record)
    assert read_record(path) == record
    for text in ("[]", '{"job": 7}', json.dumps({"cluster": "moon", "job": "1", "submitted": "", "ticks": None})):
        path.write_text(text)
        with pytest.raises(StoreError, match=r"cell\.json: (expected|not JSON)"):
            read_record(path)


def test_a_process_is_known_by_its_start(tmp_path: Path) -> None:
    """Law: a number that another process has got since is no living job."""
    own = str(os.getpid())
    ticks = start_ticks(own)
    assert ticks is not None
    mine, other = JobRecord("local", own, "", ticks), JobRecord("local", own, "", ticks - 1)
    assert CLUSTERS["local"].alive([mine, other]) == [mine]


def test_a_cluster_that_does_not_answer_submits_nothing(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: while squeue fails, a cell that may have a job gets no second one; the line says what to do."""
    for name in ("sbatch", "srun", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (cell,) = cells_of(config, tmp_path / "grid", 1, cluster="slurm")
    record = JobFiles(cell.run_dir).record
    record.parent.mkdir(parents=True)
    write_record(record, JobRecord("slurm", "7", ""))
    with pytest.raises(ConfigError, match="slurm: expected to hear whether job 7 runs, got no answer; run the same"):
        list(JobPool(tmp_path / "grid", "x").run([cell], Journal(), stop=None))
    assert not JobFiles(cell.run_dir).config.exists()


def test_cells_are_on_one_cluster(config: Config, tmp_path: Path) -> None:
    """Law: two clusters in a grid are one line."""
    cells = [*cells_of(config, tmp_path, 1), *cells_of(config, tmp_path, 1, cluster="debug")]
    with pytest.raises(ConfigError, match="expected one value for all cells, got local and debug"):
        cluster_of(cells)


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Law: without sbatch the line names it and the way to try it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"expected the command sbatch on this machine, got none; .*jobs.cluster=loc"):
        CLUSTERS["slurm"].check(JobsConfig())


def test_a_scheduler_s_signals_do_not_reach_the_child(tmp_path: Path) -> None:
    """Law: the child of a job, and so each rank, ignores USR1, USR2, CONT and TERM, and not SIGINT."""
    log = tmp_path / "log"
    code = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')))"
    CellJob((sys.executable, "-S", "-c", code), str(tmp_path), str(log), grace_s=1.0)()
    ignored = int(log.read_text(), 16)
    numbers = {number for number in signal.valid_signals() if ignored >> (number - 1) & 1}
    assert numbers >= {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTERM}
    assert signal.SIGINT not in numbers
    with pytest.raises(RunFailed, match=r"ended with exit code 3; see .*log"):
        CellJob((sys.executable, "-S", "-c", "raise SystemExit(3)"), str(tmp_path), str(log), grace_s=1.0)()


@pytest.mark.parametrize(("state", "is_cancelled"), [("RUNNING", False), ("COMPLETING", True), ("", True)])
def test_a_job_that_slurm_ends_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_cancelled: bool
) -> None:
    """Law: only a job that still runs was sent SIGTERM to be preempted; without SLURM, or an answer, it was too."""
    assert not cell_job.is_cancelled()
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {state}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cell_job.is_cancelled() is is_cancelled


def test_progress_is_that_of_the_newest_event(tmp_path: Path) -> None:
    """Law: step and loss are those of the last whole line; before the first event there is none."""
    assert progress_of(tmp_path) is None
    events = tmp_path / "events.jsonl"
    events.write_text('{"event": "started", "step": 0, "num_steps": 60}\n')
    status = progress_of(tmp_path)
    assert status is not None
    assert (status.step, status.num_steps, status.loss) == (0, 60, None)
    with events.open("a") as stream:
        stream.write('{"event": "train", "step": 40, "losses": [0.7, 0.5]}\n{"event": "save", "st')
    status = progress_of(tmp_path)
    assert status is not None
    assert (status.step, status.loss) == (40, 0.5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--launcher", "submitit"], MISSING),
        (
            ["--launcher", "submitit", "--jobs", "2"],
            "--jobs: expected --launcher local; the key jobs.max_parallel limits the jobs of submitit",
        ),
        (
            ["--launcher", "ray"],
            "--launcher ray: expected the package ray, which is missing; pip install -r requirements-ray.txt",
        ),
        (
            ["--launcher", "ray", "--jobs", "2"],
            "--jobs: expected --launcher local; the key jobs.max_parallel limits the jobs of ray",
        ),
        (
            ["--launcher", "ray", "--print-script"],
            "--print-script: expected --launcher submitit, got ray, which submits no script",
        ),
        (["--print-script"], "--print-script: expected --launcher submitit, got local, which submits no script"),
        (
            ["--launcher", "submitit", "jobs.minutes=0"],
            "jobs.minutes: 0 is not a whole number >= 1 (jobs.minutes=0 on the command line)",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    words: list[str],
    line: str,
) -> None:
    """Law: without submitit or ray, and for options of another launcher: exit code 2, one line, nothing written."""
    for package in ("submitit", "ray"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(to_yaml(changed(config, out="grid").model_dump(mode="json")))
    assert run.main(["grid", "x.yaml", *words]) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {line}"]
    assert not Path("grid").exists()
