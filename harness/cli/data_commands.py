"""`run.py data prepare | synth | info`: write, pack and describe click logs."""

# ruff: noqa: PLC0415 - numpy and numba are imported when a command needs them

import argparse

from harness.cli import console
from harness.cli.progress import amount_progress


def prepare(options: argparse.Namespace) -> None:
    """Pack Criteo's text format into a data folder."""
    from harness.data.prepare import prepare as prepare_data
    from harness.data.teacher import scaled_cardinalities

    with amount_progress("prepare") as progress:
        meta = prepare_data(
            options.sources,
            options.out,
            categories=options.categories,
            max_ind_range=options.max_ind_range,
            table_sizes=None if options.table_rows is None else scaled_cardinalities(options.table_rows),
            progress=progress,
        )
    if options.table_rows is not None:
        _say_clamped(options.table_rows)
    rows = sum(meta.cardinalities)
    console.say(f"{options.out}: {meta.num_rows:,} samples, {meta.num_positives:,} positive, {rows:,} embedding rows")


def _say_clamped(scale: float) -> None:
    from harness.data.teacher import MAX_TABLE_ROWS, MIN_TABLE_ROWS, num_clamped

    num_raised, num_lowered = num_clamped(scale)
    note = f"note: --table-rows {scale:g}:"
    if num_raised:
        console.note(f"{note} {num_raised} tables raised to {MIN_TABLE_ROWS} rows, or Kaggle's size if that is less")
    if num_lowered:
        console.note(f"{note} {num_lowered} tables lowered to {MAX_TABLE_ROWS:,} rows, the most that there may be")


def synth(options: argparse.Namespace) -> None:
    """Write a synthetic click log."""
    from harness.data.synth import synth as synth_data

    given = {"scale": options.table_rows, "taper": options.taper}
    given = {name: value for name, value in given.items() if value is not None}
    with amount_progress("synth") as progress:
        report = synth_data(options.rows, options.out, seed=options.seed, progress=progress, **given)
    console.show_values(report)


def info(options: argparse.Namespace) -> None:
    """Verify a data folder and describe its contents."""
    from harness.data.info import info as data_info

    with amount_progress("info") as progress:
        found = data_info(options.dir, progress=progress)
    console.show_values(found)
