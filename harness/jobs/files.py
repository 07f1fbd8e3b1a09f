"""The files of a cell's job, in the folder ``jobs`` of its grid, named as the cell's folder.

    NAME.yaml   configuration of the cell, which the job trains
    NAME.json   which job that is (:class:`JobRecord`); written by who has submitted it
    NAME.log    what the run and its job's end have printed

The scheduler's own files are in ``jobs/submitit``. What a job has achieved is in the cell's folder, and nowhere else.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from harness.config.jobs import ClusterName
from harness.core.errors import StoreError
from harness.record.files import read_file, read_json, write_text


@dataclass(frozen=True)
class JobRecord:
    """A job that was submitted. ``submitted``: when, ISO 8601. ``ticks``: when the process began, if it is one.

    ``address``: of the Ray that has it, if it is Ray's.
    """

    cluster: ClusterName
    job: str
    submitted: str
    ticks: int | None = None
    address: str | None = None


class JobFiles:
    """The paths of the files of the job of the cell with folder ``run_dir``."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = folder_of(run_dir.parent)
        self.config = self.folder / f"{run_dir.name}.yaml"
        self.record = self.folder / f"{run_dir.name}.json"
        self.log = self.folder / f"{run_dir.name}.log"


def folder_of(out: Path) -> Path:
    """The folder of the jobs of the grid in ``out``."""
    return out / "jobs"


def write_record(path: Path, record: JobRecord) -> None:
    """Write ``path`` whole or not at all. Raises StoreError."""
    write_text(path, json.dumps(asdict(record)) + "\n")


def read_record(path: Path) -> JobRecord | None:
    """The record, None if there is none. Raises StoreError for a file that is no record, or cannot be read."""
    if not path.exists():
        return None
    match found := read_json(path):
        case {"cluster": str(cluster), "job": str(job), "submitted": str(when), "ticks": int() | None as ticks} if (
            cluster in get_args(ClusterName)
        ) and isinstance(address := found.get("address"), str | None):
            return JobRecord(cast(Any, cluster), job, when, ticks, address)
    raise StoreError(
        f"{path}: expected cluster, job, submitted and ticks of a job, got {sorted(found)}; "
        "remove the file if that job does not run any more"
    )


def last_line(log: Path) -> str:
    """The last line of a log that is not empty; empty if there is none."""
    try:
        text = read_file(log)[-4096:].decode(errors="replace")
    except StoreError:
        return ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
