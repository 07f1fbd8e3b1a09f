"""The commands that read records: `show`, `table`, `compare`, `report`; and `schema`."""

# ruff: noqa: PLC0415 - pandas and matplotlib are imported where they are needed

import argparse
import json
from pathlib import Path

from harness.cli import console
from harness.config.keys import explained, schema
from harness.core.errors import UserError

OK, FAILED, BAD_INPUT = 0, 1, 2
"""Exit codes of every command."""


def show(options: argparse.Namespace) -> int:
    """Show the timeline and the results of one run."""
    return show_run(options.dir)


def compare(options: argparse.Namespace) -> None:
    """Show paired differences between folders, or between the strategies of one folder."""
    import analysis

    dirs, to, measure = options.dirs, options.to, analysis.measure_of(options.measure, options.target)
    if options.format is not None:
        found = analysis.comparisons(dirs, to, measure=measure)
        console.say(analysis.comparison_text(found, options.format, columns=options.columns).rstrip("\n"))
    else:
        look = {"measure": measure, "columns": options.columns, "explain": options.explain}
        console.show(analysis.show_comparison(dirs, to, **look))


def table(options: argparse.Namespace) -> None:
    """Show the table of strategies of a folder."""
    import analysis
    from analysis.tables import footnotes, missing

    measure = analysis.measure_of(options.measure, options.target)
    frame = analysis.load(options.dir, copies=True, targets=measure.targets)
    if options.format is not None:
        chosen = {"columns": options.columns, "labels": dict(options.labels), "caption": options.caption}
        console.say(analysis.table_text(frame, options.format, measure=measure, **chosen).rstrip("\n"))
        for line in (*missing(frame), *footnotes(analysis.blocks_of(frame, measure), explain=False)):
            console.note(line)
    elif options.labels or options.caption is not None:
        raise UserError("--labels, --caption: expected --format latex or markdown")
    else:
        look = {"measure": measure, "columns": options.columns, "explain": options.explain}
        console.show(analysis.show_table(frame, **look))


def report(options: argparse.Namespace) -> None:
    """Write the HTML report, and its figures and tables as files."""
    import analysis

    margin, measure = options.margin, analysis.MEASURES[options.measure]
    frame = analysis.load(options.dir, copies=True)
    console.say(f"report: {analysis.report(options.dir, frame=frame, margin=margin, measure=measure)}")
    folder = options.files or options.dir / "report"
    chosen = {"margin": margin, "measure": measure, "formats": options.figures}
    analysis.write_files(options.dir, folder, frame=frame, **chosen)
    console.say(f"figures and tables: {folder}")
    for failure in analysis.damaged_cells(frame):
        console.note(f"left out, damaged: {failure}")


def show_run(run_dir: Path) -> int:
    """Show a run. Returns OK if its record is sound (``story.is_sound``), else FAILED."""
    import analysis

    console.show(analysis.show(run_dir))
    return OK if analysis.is_sound(run_dir) else FAILED


def print_schema(options: argparse.Namespace) -> None:
    """Print the JSON schema of a configuration, or the text that describes the given keys."""
    keys = [word for word in options.overrides if not word.startswith("plugins=")]
    lines = [line for key in keys for line in explained(key)]
    console.say("\n".join(lines) if keys else json.dumps(schema(), indent=2))
