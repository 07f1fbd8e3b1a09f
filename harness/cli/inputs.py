"""The evidence of claims besides cells: kept results of benchmarks, and the data of both scales of `run.py reproduce`.

Scale `small` has generated data, `paper` a real click log.
"""

# ruff: noqa: PLC0415 - numpy and numba are imported when data is made

import hashlib
import json
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.core.criteo_sizes import KAGGLE_ROWS, scaled_cardinalities
from harness.core.errors import ConfigError, StoreError
from harness.data.records import META_NAME, RECORD_BYTES, read_meta
from harness.files import expanded, read_json, write_text
from harness.processes.child import Child
from harness.record.code import Code, script_difference

if TYPE_CHECKING:
    from analysis.claims.claim import Benchmark

Scale = Literal["small", "paper"]


@dataclass(frozen=True)
class Log:
    """A synthetic click log, as `run.py data synth` makes it, and how it is prepared.

    ``hashed``: the size of the tables to which categories are hashed, relative to Kaggle's; None: they are numbered.
    """

    source: str = "demo/criteo.tsv"
    rows: int = 250_000
    taper: float = 0.0
    flat: bool = False
    hashed: float | None = None


LOGS: Mapping[str, Log] = {
    "demo/data": Log(),
    "demo/flat": Log("demo/flat.tsv", flat=True),
    "demo/tapered": Log("demo/tapered.tsv", taper=0.5),
    "demo/small": Log(hashed=0.0005),
    "demo/long": Log("demo/long.tsv", rows=2_000_000),
}
"""The click log (seed 0) of each data folder that `run.py reproduce` makes if it is needed and missing."""


def missing(folders: Iterable[str]) -> list[str]:
    """The members of ``folders`` that are in ``LOGS`` and hold no prepared data yet."""
    return [folder for folder in folders if folder in LOGS and not (Path(folder) / META_NAME).exists()]


def make(folders: Iterable[str]) -> None:
    """Prepare the synthetic data of ``folders``, keys of ``LOGS``. Raises DataError, OSError.

    A text file that is missing is written first; one that is there is used as it is.
    """
    from harness.data.prepare import prepare
    from harness.data.synth import synth

    for folder in folders:
        log = LOGS[folder]
        source = Path(log.source)
        source.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists():
            console.note(f"{source}: {log.rows:,} rows are made")
            with amount_progress("synth") as progress:
                synth(log.rows, source, seed=0, taper=log.taper, flat=log.flat, progress=progress)
        with amount_progress("prepare") as progress:
            if log.hashed is None:
                prepare([source], Path(folder), progress=progress)
            else:
                sizes = scaled_cardinalities(log.hashed)
                prepare([source], Path(folder), categories="hash", table_sizes=sizes, progress=progress)


def paper_overrides(overrides: Sequence[str]) -> list[str]:
    """``overrides`` for scale `paper`: adds the model size `kaggle` and whole epochs unless they are given."""
    given = {override.partition("=")[0] for override in overrides}
    own = {"model.size": "kaggle", "data.max_train_samples": "null"}
    return [*overrides, *(f"{key}={value}" for key, value in own.items() if key not in given)]


def samples_factor(overrides: Sequence[str], small: str) -> float:
    """Rows of the override ``data.path`` (without it: Kaggle's) per row of ``small``; 1 if that is not in ``LOGS``.

    Raises DataError if ``data.path`` is no prepared folder.
    """
    if small not in LOGS:
        return 1.0
    folder = value(overrides, "data.path")
    return (KAGGLE_ROWS if folder is None else read_meta(Path(folder)).num_rows) / LOGS[small].rows


def say_data(folder: str | None) -> None:
    """Write the size of the data of scale `paper` to stderr.

    Raises ConfigError, after printing, if ``folder`` (of the data) is None; DataError if it is no prepared folder.
    """
    num_rows = KAGGLE_ROWS if folder is None else read_meta(Path(folder)).num_rows
    part = f"; Kaggle's has {KAGGLE_ROWS:,}" if num_rows < KAGGLE_ROWS else ""
    console.note(f"data: {num_rows:,} rows, {num_rows * RECORD_BYTES / 1e9:.1f} GB{part}")
    if folder is None:
        raise ConfigError(
            "data.path: expected a folder of real data, got none; make it by `run.py data prepare train.txt --out "
            "FOLDER` from Kaggle's train.txt (or Terabyte's days), then name it: data.path=FOLDER"
        )


def value(overrides: Sequence[str], key: str) -> str | None:
    """The value in the last override of ``key``; None if there is none."""
    given = [override.removeprefix(f"{key}=") for override in overrides if override.startswith(f"{key}=")]
    return expanded(given[-1]) if given else None


_ROOT = Path(__file__).resolve().parents[2]
_CLEAN_UP_S = 5.0
_DIGEST = "digest"  # of everything else that is kept


@dataclass(frozen=True)
class BenchmarkRun:
    """A claim's benchmark and the ``file`` of its results. ``data``: the data folder, ``{data}`` in the arguments."""

    benchmark: "Benchmark"
    file: Path
    data: str

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments of the script, without ``--json FILE``."""
        return [word.format(data=self.data) for word in shlex.split(self.benchmark.arguments)]

    @property
    def is_done(self) -> bool:
        """Whether the file of results exists."""
        return self.file.exists()

    def difference(self) -> str | None:
        """How the code or the arguments of the kept results differ from the present ones, in words; None if equal.

        Raises StoreError if the kept results cannot be read.
        """
        kept = self._kept()
        if (kept["script"], kept["arguments"]) != (self._script_digest(), self.arguments):
            return f"{self.benchmark.script} or its arguments"
        code = Code.of_json(kept["machine"].get("code"))
        return "code not recorded" if code is None else script_difference(code)

    def results(self) -> Sequence[Mapping[str, Any]]:
        """The entries that a claim is judged by; empty without results, as of a benchmark that cannot run here.

        Raises StoreError if the kept results cannot be read.
        """
        return self._kept()[self.benchmark.results] if self.is_done else []

    def machine(self) -> str:
        """Date of the results; processor, cores and load average (1 min) of their machine. Raises StoreError."""
        facts = self._kept()["machine"]
        load = ", ".join(f"{value:.1f}" for value in facts["load_average"][:1])
        return f"{facts['time'][:10]}, {facts['cpu']}, {facts['num_cores']} cores, load average {load}"

    def run(self, number: int, num_runs: int) -> bool:
        """Run the script; keep its results in ``file``, and what it prints beside them. Returns whether it succeeded.

        A script that cannot run on this machine succeeds without results, and ``file`` stays as it was. ``number`` of
        ``num_runs`` is for the message. Raises StoreError, OSError.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new, output = self.file.with_suffix(".new"), self.file.with_suffix(".txt")
        new.unlink(missing_ok=True)
        script = self.benchmark.script
        console.note(f"{script} ({number} of {num_runs}): {output} has what it prints")
        command = [sys.executable, str(_ROOT / script), *self.arguments, "--json", str(new.resolve())]
        output.unlink(missing_ok=True)
        with amount_progress(script.name):
            process = Child(command, log=output)
            try:
                code = process.wait()
            finally:  # also by a Ctrl-C
                process.signal(signal.SIGINT)
                process.close(_CLEAN_UP_S)
        if code:
            last = (output.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
            console.print_error("failed", f"{script}: exit code {code}: {last}")
        elif not new.exists():
            last = (output.read_text(errors="replace").strip().splitlines() or ["no results"])[-1]
            console.note(f"note: {script}: {last}")
        else:
            self.keep(read_json(new))
            new.unlink()
        return code == 0

    def keep(self, values: Mapping[str, Any]) -> None:
        """Write the results ``values``, with the script's digest and arguments, to ``file``. Raises StoreError."""
        kept = {"script": self._script_digest(), "arguments": self.arguments, **values}
        write_text(self.file, json.dumps({_DIGEST: _digest_of(kept), **kept}, indent=1) + "\n")

    def _kept(self) -> dict[str, Any]:
        """The results that :meth:`keep` wrote, by name, with digest and arguments. Raises StoreError."""
        kept = read_json(self.file)
        if kept.pop(_DIGEST, None) != _digest_of(kept):
            raise StoreError(f"{self.file}: expected the results as they were written, got others; remove the file")
        return kept

    def _script_digest(self) -> str:
        return hashlib.blake2b((_ROOT / self.benchmark.script).read_bytes(), digest_size=8).hexdigest()


def _digest_of(kept: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()
