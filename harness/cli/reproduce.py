"""`run.py reproduce`: runs the experiments of claims, and says what they show of each."""

# ruff: noqa: PLC0415 - pandas takes half a second to import

import argparse
from pathlib import Path

from harness.cli import console
from harness.cli.run_commands import run_experiment
from harness.config.experiment import load_experiment
from harness.core.errors import ConfigError
from harness.grid.worker import run_assembled
from harness.record.files import write_text


def reproduce(options: argparse.Namespace) -> int:
    """Run what is not done of the claims that are named, or of all, and show them; of all, write the page too."""
    import analysis
    from analysis.cells import cells_of
    from analysis.claims.claims import CLAIMS, judge
    from analysis.claims.page import claim_table, figures_of, html, markdown
    from harness.record.environment import environment, utc_now
    from harness.run.spec import cell_hash, check

    overrides = [word for word in options.words if "=" in word]
    asked = [word for word in options.words if "=" not in word]
    if unknown := [name for name in asked if name not in CLAIMS]:
        raise ConfigError(f"claim: expected some of {', '.join(CLAIMS)}, got {', '.join(unknown)}")
    names = asked or [*CLAIMS]
    paths = dict.fromkeys(CLAIMS[name].experiment for name in names)
    if len(paths) > 1 and any(word.startswith("out=") for word in overrides):
        raise ConfigError(f"out: expected one experiment, got {', '.join(map(str, paths))}; name claims of one")
    experiments = {path: load_experiment(path, overrides, cell_hash=cell_hash) for path in paths}
    for experiment in experiments.values():
        for cell in experiment.cells:
            check(cell.config)
    code = 0
    for number, (path, experiment) in enumerate(experiments.items(), start=1):
        console.note(f"{path} ({number} of {len(paths)}): {len(experiment.cells)} cells")
        code = max(code, run_experiment(experiment, run_assembled, options.jobs, options.stale, shows=False))
    frames = {path: analysis.load(experiment.out) for path, experiment in experiments.items()}
    found = {name: judge(CLAIMS[name], frames[CLAIMS[name].experiment]) for name in names}
    for name in names:
        console.show(claim_table(name, found[name]))
    if not options.words:
        facts = environment(num_threads=1, backend="auto")
        git = facts["git"] or {"commit": "unknown"}
        machine = f"{utc_now():%Y-%m-%d}, {facts['cpu']}, {facts['num_cores']} cores, commit {git['commit'][:7]}."
        page: Path = options.page
        folder = page.with_suffix("")
        cells = {name: cells_of(frames[CLAIMS[name].experiment]) for name in names}
        figures = figures_of(cells, folder)
        write_text(page, markdown(found, machine, figures, folder.name))
        write_text(page.with_suffix(".html"), html(found, machine, figures))
        console.say(f"page: {page}, {page.with_suffix('.html')}")
    return code
