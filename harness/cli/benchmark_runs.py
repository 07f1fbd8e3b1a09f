"""Runs of the benchmarks that claims rest on, and the JSON files in which their results are kept."""

import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.core.errors import StoreError
from harness.files import read_json, write_text
from harness.processes.child import Child
from harness.record.code import Code, current_code

if TYPE_CHECKING:
    from analysis.claims.claim import Benchmark

_ROOT = Path(__file__).resolve().parents[2]
_CLEAN_UP_S = 5.0
_DIGEST = "digest"  # of everything else that is kept


@dataclass(frozen=True)
class BenchmarkRun:
    """A claim's benchmark and the ``file`` of its results. ``data``: the folder for ``{data}`` in arguments."""

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
        return "code not recorded" if code is None else code.difference(current_code(code.roots))

    def results(self) -> Sequence[Mapping[str, Any]]:
        """The entries that a claim is judged by; empty if the benchmark could not run on this machine."""
        return self._kept()[self.benchmark.results] if self.is_done else []

    def machine(self) -> str:
        """The date, processor, cores and load average of the machine that measured the results, as text."""
        facts = self._kept()["machine"]
        load = ", ".join(f"{value:.1f}" for value in facts["load_average"][:1])
        return f"{facts['time'][:10]}, {facts['cpu']}, {facts['num_cores']} cores, load average {load}"

    def run(self, number: int, num_runs: int) -> bool:
        """Run the script and keep its output beside the results. Returns whether it succeeded.

        A script that succeeds without results, as it cannot run on this machine, leaves no file.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        new, output = self.file.with_suffix(".new"), self.file.with_suffix(".txt")
        new.unlink(missing_ok=True)
        script = self.benchmark.script
        console.note(f"{script} ({number} of {num_runs}): {output} has what it prints")
        command = [sys.executable, str(_ROOT / script), *self.arguments, "--json", str(new.resolve())]
        environment = os.environ | {"HARNESS_OWNER": str(os.getpid())}
        output.unlink(missing_ok=True)
        with amount_progress(script.name):
            process = Child(command, log=output, environment=environment)
            try:
                code = process.wait()
            finally:  # also by a Ctrl-C
                process.signal(signal.SIGINT)
                process.close(_CLEAN_UP_S)
        if code:
            last = (output.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
            console.print_error("failed", f"{script}: exit code {code}: {last}")
        elif not new.exists():
            console.note(f"note: {script}: {(output.read_text().strip().splitlines() or ['no results'])[-1]}")
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
