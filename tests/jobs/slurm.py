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


def sbatch(folder: Path, _parsable: str) -> None:
    """Start the jobs of a script; each has a file until it has ended."""
    text = sys.stdin.read()
    job = 700 + len([*folder.glob("*.sh")])
    kept = folder / f"{job}.sh"
    kept.write_text(text)
    array = re.search(r"--array=0-(\d+)", text)
    assert array is not None
    for index in range(int(array[1]) + 1):
        name = f"{job}_{index}"
        environment = {**os.environ, "SLURM_JOB_ID": name, "SLURM_ARRAY_TASK_ID": str(index)}
        alive, again = folder / f"alive-{name}", folder / f"requeue-{name}"
        alive.write_text(text.partition("--job-name=")[2].partition("\n")[0])
        loop = f'while bash "{kept}"; [ -e "{again}" ]; do rm "{again}"; done; rm "{alive}"'
        null = subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", loop], env=environment, stdin=null, stdout=null, stderr=null)
    os.write(1, f"{job};cluster\n".encode())


def squeue(folder: Path, *options: str) -> None:
    """The ids and names of all jobs that live, or the state of one."""
    if "--format=%T" in options:
        os.write(1, (folder / "state").read_bytes() if (folder / "state").exists() else b"RUNNING\n")
    for path in folder.glob("alive-*") if "--format=%i %j" in options else ():
        os.write(1, f"{path.name.removeprefix('alive-')} {path.read_text()}\n".encode())


def srun(_folder: Path, *words: str) -> None:
    """Become the command."""
    command = words[words.index(sys.executable) :]
    os.execv(command[0], command)


def scontrol(folder: Path, what: str, name: str) -> None:
    """Requeue a job, or show the limit of arrays."""
    if what == "show":
        os.write(1, b"Configuration data\nMaxArraySize            = 3\nMaxJobCount             = 10000\n")
    else:
        (folder / f"requeue-{name}").touch()


if __name__ == "__main__":
    commands = {"sbatch": sbatch, "squeue": squeue, "srun": srun, "scontrol": scontrol}
    commands[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
