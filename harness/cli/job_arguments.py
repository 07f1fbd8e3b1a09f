"""The options of `run.py grid` about jobs. Imports nothing heavy."""

from harness.cli.parsing import Parser

SCHEDULERS = ("none", "submitit", "ray")


def add_scheduler(parser: Parser) -> None:
    """Options that say where cells run."""
    group = parser.add_argument_group("where cells run (docs/HOSTS.md)")
    group.add_argument(
        "--scheduler",
        choices=SCHEDULERS,
        default="none",
        help="none: processes of this command; submitit: each cell is a job of SLURM, which outlives this "
        "command; ray: each cell is a task of a Ray that runs. Both as the keys jobs.* say. They need `pip install -r "
        "requirements-submitit.txt` or `requirements-ray.txt` (default: %(default)s)",
    )
    group.add_argument(
        "--print-script", action="store_true", help="with submitit: show the scripts for sbatch; submit nothing"
    )
