"""The commands that hand results on: `export`, `bundle`."""

# ruff: noqa: PLC0415 - torch is imported where it is needed

import argparse
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from harness.cli import console
from harness.cli.progress import amount_progress, runs_progress
from harness.cli.record_commands import FAILED, OK
from harness.core.errors import ConfigError
from harness.files import expanded


def export(options: argparse.Namespace) -> None:
    """Write the trained model of a finished run as files."""
    from harness.run.export import export as export_model

    out = options.out or Path(f"{options.run}-export")
    with amount_progress("export") as progress:
        about = export_model(options.run, out, progress)
    results = about["results"]
    console.say(
        f"{out}: {len(about['tables'])} tables, {len(about['dense'])} dense tensors, predictions.csv; "
        f"AUC {results['auc']}, log loss {results['log_loss']}"
    )


def bundle(options: argparse.Namespace) -> int:
    """Write the archive of a grid or, with ``--check``, run some cells of an archive again."""
    folders = [word for word in options.overrides if "=" not in word]
    keys = dict(word.split("=", 1) for word in options.overrides if "=" in word)
    if others := keys.keys() - ({"data.path", "plugins"} if options.check else {"plugins"}):
        raise ConfigError(f"{min(others)}: expected data.path= with --check, or plugins=; a cell runs as it ran")
    if len(folders) != (options.check is None):
        raise ConfigError(f"expected the folder of a grid, or --check ARCHIVE alone; got {' '.join(folders) or 'none'}")
    if options.check is not None:
        return _check(options, Path(expanded(keys["data.path"])) if "data.path" in keys else None)
    from harness.grid.bundle import bundle as write_bundle

    grid = Path(expanded(folders[0]))
    archive = options.out or Path(f"{grid}.tar.xz")
    with amount_progress("bundle") as progress:
        about = write_bundle(grid, archive, progress)
    for digest, data in about["data"].items():
        console.note(f"data of digest {digest} are not in it; made by: {data['command']}")
    if left_out := about["left_out"]:
        console.note(f"{len(left_out)} runs are not finished, and left out: {left_out[0]}, …")
    console.say(f"{archive}: {len(about['cells'])} cells, {archive.stat().st_size / 1e6:.1f} MB")
    return OK


def _check(options: argparse.Namespace, data: Path | None) -> int:
    from harness.grid.bundle import check, opened, sample
    from harness.record.code import difference_of

    with opened(options.check) as folder:
        chosen, num_inexact = sample(folder, options.cells, options.seed)
        if num_inexact:
            console.note(f"{num_inexact} cells with trace.inject=wall cannot be repeated to the bit, and are left out")
        if difference := next(filter(None, (difference_of(run.path) for run in chosen)), None):
            console.note(f"note: the archive is of other code: {difference}")
        with runs_progress("check") as on_status:
            found = [*check(folder, chosen, data=data, on_status=on_status)]
    table = Table("cell", "AUC", "run again", box=SIMPLE)
    for one in found:
        result = f"DIFFERENT: {one.differences[0]}" if one.differences else "equal to the bit"
        table.add_row(one.cell, "unknown" if one.auc is None else repr(one.auc), result)
    console.show(table)
    num_equal = sum(not one.differences for one in found)
    console.say(f"{num_equal} of {len(found)} cells equal to the bit")
    return OK if found and num_equal == len(found) else FAILED
