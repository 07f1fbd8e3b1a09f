"""A stand-in of SLURM's commands, as far as jobs use them: ``python slurm.py FOLDER sbatch|squeue|srun|scontrol ...``.

The tasks of an array run all at once, each with a script of its own in the background. A requeued one runs again.
"""

import os
import re
import subprocess
import sys
from pathlib import Path


def install(folder: Path, bin_folder: Path) -> None:
    """Put the commands into ``bin_folder``."""
    for name in ("sbatch", "squeue", "srun", "scontrol"):
        command = bin_folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{__file__}" "{folder}" {name} "$@"\n')
        command.chmod(0o755)


def sbatch(folder: Path, script: str) -> None:
    """Start the jobs of a script; each has a file that holds its pid until it has ended."""
    text = Path(script).read_text()
    job = 700 + len([*folder.glob("*.sh")])
    kept = folder / f"{job}.sh"
    kept.write_text(text)
    array = re.search(r"--array=0-(\d+)", text)
    for index in range(int(array[1]) + 1) if array else [None]:
        name = str(job) if index is None else f"{job}_{index}"
        environment = {**os.environ, "SLURM_JOB_ID": name, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
        if index is not None:
            environment |= {"SLURM_ARRAY_JOB_ID": str(job), "SLURM_ARRAY_TASK_ID": str(index)}
        alive, again = folder / f"alive-{name}", folder / f"requeue-{name}"
        alive.write_text(text.partition("--job-name=")[2].partition("\n")[0])
        loop = f'while bash "{kept}"; [ -e "{again}" ]; do rm "{again}"; done; rm "{alive}"'
        null = subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", loop], env=environment, stdin=null, stdout=null, stderr=null)
    os.write(1, f"Submitted batch job {job}\n".encode())


def squeue(folder: Path, *options: str) -> None:
    """The ids and names of all jobs that live, or the state of one."""
    if "--format=%T" in options:
        os.write(1, (folder / "state").read_bytes() if (folder / "state").exists() else b"RUNNING\n")
    for path in folder.glob("alive-*") if "--format=%i %j" in options else ():
        os.write(1, f"{path.name.removeprefix('alive-')} {path.read_text()}\n".encode())


def srun(_folder: Path, *words: str) -> None:
    """Become the command."""
    output = words[words.index("--output") + 1]
    name = os.environ["SLURM_JOB_ID"]
    output = output.replace("%A_%a", name).replace("%j", name).replace("%t", "0")
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    command = words[words.index(sys.executable) :]
    os.execv(command[0], command)


def scontrol(folder: Path, _requeue: str, name: str) -> None:
    """Requeue a job."""
    (folder / f"requeue-{name}").touch()


if __name__ == "__main__":
    commands = {"sbatch": sbatch, "squeue": squeue, "srun": srun, "scontrol": scontrol}
    commands[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
