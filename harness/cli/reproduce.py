"""`run.py reproduce`: runs the experiments and benchmarks of claims, and shows a table and a page of the results."""

# ruff: noqa: PLC0415 - pandas takes half a second to import

import argparse
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import console, inputs
from harness.cli.inputs import BenchmarkRun
from harness.cli.needs import say_needs
from harness.cli.record_commands import FAILED, OK
from harness.cli.run_commands import run_experiments
from harness.config.experiment import Cell, Experiment, load_experiment
from harness.config.model import Config
from harness.core.errors import ConfigError
from harness.files import write_text
from harness.grid.process import is_done
from harness.grid.runner import LocalPool
from harness.grid.worker import run_assembled
from harness.record.folder import claim_grid

if TYPE_CHECKING:
    import pandas as pd

    from analysis.claims.claim import Claim
    from analysis.claims.page import Finding

_DATA = "demo/data"
_OUT = {"small": Path("runs/claims"), "paper": Path("runs/claims-paper")}


@dataclass(frozen=True)
class _Evidence:
    """The experiment or the benchmark of each requested claim, by the claim's name. Claims may share an experiment."""

    experiments: Mapping[str, Experiment]
    benchmarks: Mapping[str, BenchmarkRun]

    @property
    def unique(self) -> list[Experiment]:
        return [*{id(experiment): experiment for experiment in self.experiments.values()}.values()]

    @property
    def cells(self) -> list[Cell]:
        return [cell for experiment in self.unique for cell in experiment.cells]

    @property
    def folders(self) -> list[str]:
        """The data folders of cells, and all arguments of benchmarks, since any may be a data folder."""
        words = {word for run in self.benchmarks.values() for word in run.arguments}
        return sorted(words | {cell.config.data.path for cell in self.cells})


def reproduce(options: argparse.Namespace) -> int:
    """Run the unfinished cells and benchmarks of the named claims (default: all), and show the results.

    Writes the page of results if ``--page`` names it, if a claim is a user's own, or if the command has no words.
    ``--dry-run`` only says what would be made and run. Returns an exit code.
    """
    from analysis.claims.claim import find, names
    from harness.run.spec import cell_hash, check

    if options.page is not None and (options.page.suffix != ".md" or options.page.is_dir()):
        raise ConfigError(f"--page: expected a file that ends in .md, got {options.page}")
    overrides = [word for word in options.words if "=" in word]
    asked = [word for word in options.words if "=" not in word]
    claims: dict[str, Claim] = {}
    for word in dict.fromkeys(asked or names()):
        claim = find(word)
        if (other := claims.setdefault(claim.name, claim)) is not claim:
            raise ConfigError(f"{claim.path}: expected claims of different names, got two of {other.name}")
    evidence = _evidence(claims, overrides, options.scale, Config.model_dump_json)  # before there is data
    if options.scale == "paper":
        inputs.say_data(inputs.value(overrides, "data.path"))
    missing = inputs.missing(evidence.folders)
    if options.dry_run:
        for folder in missing:
            console.say(f"{folder}: {inputs.LOGS[folder].rows:,} synthetic rows, to be made")
        if not missing:
            evidence = _evidence(claims, overrides, options.scale, cell_hash)
            say_needs(evidence.cells, options.parallel)
        _say_plan(evidence)
        return OK
    inputs.make(missing)
    evidence = _evidence(claims, overrides, options.scale, cell_hash)
    for cell in evidence.cells:
        check(cell.config)  # raises UserError before anything is run
    code = OK if options.no_run else _run_benchmarks(evidence.benchmarks)
    if evidence.experiments and not options.no_run:
        code = max(
            code,
            run_experiments(evidence.unique, LocalPool(run_assembled, say_needs(evidence.cells, options.parallel))),
        )
    import analysis

    frames = {each.out: _own(each, analysis.load(each.out, each.axes)) for each in evidence.unique}
    found = _findings(claims, evidence, frames)
    from analysis.claims.page import claim_table

    for finding in found:
        console.show(claim_table(finding))
    own = [claim.name for claim in claims.values() if not claim.is_ours]
    if options.page is not None or own or not options.words:
        page = options.page or _OUT[options.scale] / f"{'-'.join(own) or 'REPRODUCTION'}.md"
        _write_page(page, found, _commits(frames.values()), overrides)
    return code


def _evidence(
    claims: Mapping[str, "Claim"], overrides: Sequence[str], scale: inputs.Scale, cell_hash: Callable[[Config], str]
) -> _Evidence:
    """The experiments and benchmarks of these claims. Raises UserError.

    At scale `paper` an experiment that compares kinds of synthetic data is left out, with a note.
    """
    from analysis.claims.claim import Benchmark

    if scale == "paper":
        overrides = inputs.paper_overrides(overrides)
    data = inputs.value(overrides, "data.path") or _DATA
    sources = {name: claim.experiment for name, claim in claims.items()}
    benchmarks = {
        name: BenchmarkRun(source, _OUT[scale] / "benchmarks" / f"{name}.json", data)
        for name, source in sources.items()
        if isinstance(source, Benchmark)
    }
    paths = {name: source for name, source in sources.items() if not isinstance(source, Benchmark)}
    files = [*dict.fromkeys(paths.values())]
    unused = [override for override in overrides if not files and not override.startswith("data.path=")]
    if unused:
        raise ConfigError(
            f"{', '.join(unused)}: expected no key but data.path for {', '.join(benchmarks)}, which rest on benchmarks"
        )
    has_out = inputs.value(overrides, "out") is not None
    if len(files) > 1 and has_out:
        raise ConfigError(f"out: expected one experiment, got {', '.join(map(str, files))}; name claims of one")
    experiments: dict[Path, Experiment] = {}
    for path in files:
        own, factor = [*overrides], 1.0
        if scale == "paper":
            small = {cell.config.data.path for cell in load_experiment(path, cell_hash=Config.model_dump_json).cells}
            if len(small) > 1:
                console.note(f"note: {path}: compares kinds of synthetic data; left out")
                continue
            factor = inputs.samples_factor(overrides, small.pop())
            own += [] if has_out else [f"out={_OUT[scale] / path.stem}"]
        experiments[path] = load_experiment(path, own, cell_hash=cell_hash, samples_factor=factor)
    return _Evidence({name: experiments[path] for name, path in paths.items() if path in experiments}, benchmarks)


def _say_plan(evidence: _Evidence) -> None:
    for experiment in evidence.unique:
        names = [name for name, one in evidence.experiments.items() if one is experiment]
        done = sum(is_done(cell) for cell in experiment.cells)
        console.say(f"{', '.join(names)}: {len(experiment.cells)} cells, {done} done, in {experiment.out}")
    for name, run in evidence.benchmarks.items():
        console.say(f"{name}: {run.benchmark.script}, {'done' if run.is_done else 'to do'}, {run.file}")


def _run_benchmarks(runs: Mapping[str, BenchmarkRun]) -> int:
    """Run the benchmarks without results of the present code, one at a time, since timings disturb each other.

    Returns an exit code. Results of other code are kept until new ones replace them. Raises StoreError.
    """
    due = [run for run in runs.values() if not run.is_done or run.difference() is not None]
    if not due:
        return OK
    with claim_grid(due[0].file.parent):
        results = [run.run(number, len(due)) for number, run in enumerate(due, start=1)]
    return OK if all(results) else FAILED


def _findings(
    claims: Mapping[str, "Claim"], evidence: _Evidence, frames: Mapping[Path, "pd.DataFrame"]
) -> list["Finding"]:
    """The rows and figure of each claim, from its results; an empty Finding for a claim without evidence.

    ``frames``: the cells of each experiment, by its folder.
    """
    from analysis.claims.page import Finding, finding

    found: list[Finding] = []
    for name, claim in claims.items():
        if name in evidence.experiments:
            found.append(finding(claim, frames[evidence.experiments[name].out]))
        elif name in evidence.benchmarks:
            run = evidence.benchmarks[name]
            found.append(finding(claim, run.results(), run.machine() if run.is_done else ""))
        else:
            found.append(Finding(claim))
    return found


def _own(experiment: Experiment, rows: "pd.DataFrame") -> "pd.DataFrame":
    """The ``rows`` that are cells of the experiment, computed by any code; other runs in its folder are left out."""
    hashes = {cell.hash.partition("-")[0] for cell in experiment.cells}
    own = rows.loc[[bool({*Path(path).name.split("-")[-2:-1]} & hashes) for path in rows["path"]]]
    if len(own) < len(rows):
        console.note(f"{experiment.out}: {len(rows) - len(own)} runs of other settings are left out")
    return own


def _commits(frames: Iterable["pd.DataFrame"]) -> str:
    """The commits whose code computed the cells, with the number of cells of each if there are several."""
    from harness.record.rundir import read_env

    gits = [read_env(Path(path)).get("git") for frame in frames for path in frame["path"]]
    counts = Counter(git["commit"][:7] if git else "unknown" for git in gits).most_common()
    return ", ".join(commit if len(counts) == 1 else f"{commit} ({num} cells)" for commit, num in counts)


def _write_page(page: Path, found: Sequence["Finding"], commits: str, overrides: Sequence[str]) -> None:
    """Write the page of claims as Markdown, and the figures in a folder named after it."""
    from analysis.claims.page import markdown, write_figures
    from harness.record.code import environment, utc_now

    facts = environment(num_threads=1, backend="auto")
    machine = f"{utc_now():%Y-%m-%d}, {facts['cpu']}, {facts['num_cores']} cores"
    machine += f", cells of commit {commits}." if commits else "."
    machine += f" All commands with {shlex.join(overrides)}." if overrides else ""
    folder = page.with_suffix("")
    write_figures(found, folder)
    write_text(page, markdown(found, machine, folder.name))
    console.say(f"page: {page}")
