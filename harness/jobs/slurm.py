"""SLURM by its own commands: sbatch submits a job array, squeue lists the jobs that live.

The name of a living job is its array's. It names the file that lists the array's cells, in order.
"""

import getpass
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from harness.core.errors import ConfigError, UserError, printable
from harness.files import read_file, write_text
from harness.jobs.arrays import JobArray
from harness.processes.child import ROOT, output_of

DEFAULT_MOST = 1001
"""SLURM's default MaxArraySize (https://slurm.schedmd.com/slurm.conf.html)."""
_ANSWER_S = 60.0
_MARGIN_S = 10.0  # the part of `jobs.signal_delay_s` that is left to the job after its run's end


def check() -> None:
    """Raise ConfigError if jobs cannot be submitted from this machine."""
    if missing := [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]:
        raise ConfigError(
            f"--scheduler slurm: expected the command {missing[0]} on this machine, got none; submit from a machine of "
            "the cluster"
        )


def most_in_an_array() -> int:
    """The most jobs that an array may have on this cluster, MaxArraySize of ``scontrol show config``.

    The largest index of an array is one less than it. ``DEFAULT_MOST`` if scontrol gives no answer.
    Source: https://slurm.schedmd.com/slurm.conf.html, MaxArraySize.
    """
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", output_of(["scontrol", "show", "config"], _ANSWER_S) or "", re.M)
    return max(1, int(found[1])) if found else DEFAULT_MOST


def script_of(array: JobArray) -> str:
    """The script that sbatch gets. Keys of ``jobs`` without a value get the cluster's defaults."""
    settings, cores = array.settings, f"--cpus-per-task={array.processors}"
    limit = "" if settings.max_parallel is None else f"%{settings.max_parallel}"
    options = {
        "job-name": array.name,
        "array": f"0-{len(array.cells) - 1}{limit}",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "mem": None if settings.memory_gb is None else f"{math.ceil(1024 * settings.memory_gb)}M",
        "time": settings.minutes,
        "signal": f"USR2@{settings.signal_delay_s}",  # to the steps of srun
        "output": shlex.quote(f"{array.folder / array.name}-%a.out"),
    }
    grace_s = max(1.0, settings.signal_delay_s - _MARGIN_S)
    job = [sys.executable, "-m", "harness.jobs.cell_job", array.folder, grace_s, settings.max_timeouts]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None),
        f"#SBATCH --nodes=1 --ntasks-per-node=1 {cores} --open-mode=append --requeue",
        f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'cell=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {shlex.quote(str(_list_of(array.folder, array.name)))})',
        # since SLURM 22.05 srun does not take sbatch's number of processors
        f'srun {cores} {shlex.join(map(str, job))} "$cell"',
    ]
    return "\n".join(lines) + "\n"


def submit(array: JobArray) -> list[str]:
    """Submit the jobs of an array; their ids, in order of its cells. Raises UserError with the words of sbatch.

    sbatch has a session of its own, so that Ctrl-C does not end it halfway.
    """
    write_text(_list_of(array.folder, array.name), "".join(f"{cell.run_dir.name}\n" for cell in array.cells))
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"],
            input=script_of(array),
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        said = printable(words.strip().splitlines()[0])
        raise UserError(f"jobs of {array.folder.parent} were not submitted: {said}") from error
    job = done.stdout.strip().partition(";")[0]  # ID;CLUSTER
    return [f"{job}_{index}" for index in range(len(array.cells))]


def living(folder: Path) -> dict[str, str] | None:
    """The ids of a grid's jobs that wait or run, by the name of the cell's folder; None if squeue gives no answer.

    Jobs of earlier commands count too. ``folder``: the grid's folder ``jobs``. squeue lists all jobs of the user, since
    it fails for an unknown job name.
    """
    command = ["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i %j"]
    if (listed := output_of(command, _ANSWER_S)) is None:
        return None
    found: dict[str, str] = {}
    for job, _, name in (line.partition(" ") for line in listed.splitlines()):
        index = job.partition("_")[2]
        if name.startswith("cpr-") and index.isdigit() and (path := _list_of(folder, name.strip())).exists():
            found[read_file(path).decode().splitlines()[int(index)]] = job
    return found


def _list_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.cells"
