"""The commands that hand results on: `export`."""

# ruff: noqa: PLC0415 - torch is imported where it is needed

import argparse
from pathlib import Path

from harness.cli import console
from harness.cli.progress import amount_progress


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
