"""`run.py data prepare | synth | info`: pack, generate and describe click logs."""

# ruff: noqa: PLC0415 - numpy and numba are imported when a command needs them

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Column, Table

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.core.errors import DataError

if TYPE_CHECKING:
    from harness.data.facts import Accesses

NUM_TRACKED = 7


def prepare(options: argparse.Namespace) -> None:
    """Pack click logs into a data folder."""
    from harness.core.criteo_sizes import scaled_cardinalities
    from harness.data.delimited import AVAZU, read_schema
    from harness.data.prepare import prepare as prepare_data

    if (options.schema is None) == (options.format == "csv"):
        got = "none" if options.schema is None else f"{options.schema} with --format {options.format}"
        raise DataError(f"--schema: expected a YAML file with --format csv, and only then, got {got}")
    if options.table_rows is not None and options.format != "criteo":
        raise DataError(
            f"--table-rows: expected --format criteo, whose tables have Kaggle's sizes, got {options.format}; "
            "--max-ind-range limits the rows of a table"
        )
    columns = AVAZU if options.format == "avazu" else None if options.schema is None else read_schema(options.schema)
    with amount_progress("prepare") as progress:
        meta = prepare_data(
            options.sources,
            options.out,
            order=options.order,
            test=options.test,
            validation=options.validation,
            columns=columns,
            categories=options.categories,
            max_ind_range=options.max_ind_range,
            table_sizes=None if options.table_rows is None else scaled_cardinalities(options.table_rows),
            progress=progress,
        )
    rows = sum(meta.cardinalities)
    console.say(f"{options.out}: {meta.num_rows:,} samples, {meta.num_positives:,} positive, {rows:,} embedding rows")
    console.say(meta.split_text)


def synth(options: argparse.Namespace) -> None:
    """Write a synthetic click log."""
    from harness.data.synth import synth as synth_data

    law = {"like": options.like, "taper": options.taper, "flat": options.flat}
    with amount_progress("synth") as progress:
        num = synth_data(options.rows, options.out, seed=options.seed, **law, progress=progress)
    console.say(f"{options.out}: {options.rows:,} samples, {num:,} positive")


def info(options: argparse.Namespace) -> None:
    """Verify a data folder and describe its contents."""
    from harness.core.placement import tracked_tables
    from harness.data.facts import measure
    from harness.data.records import read_meta

    with amount_progress("info") as progress:
        tables = measure(options.dir, progress=progress)
    meta = read_meta(options.dir)
    console.show(_accesses_table(tables))
    tracked = ", ".join(meta.table_names[table] for table in tracked_tables(meta.cardinalities, NUM_TRACKED))
    console.say(f"{meta.num_rows:,} samples, {meta.num_positives / meta.num_rows:.1%} positive")
    console.say(meta.split_text)
    console.say(f"{sum(meta.cardinalities):,} embedding rows; the largest tables are {tracked}")
    if meta.columns is not None:
        dense = [f"{name} ({transform})" for name, transform in meta.columns.dense.items()]
        console.say(f"label {meta.columns.label}; dense features: {', '.join(dense) or 'none'}")
    if meta.synthetic is not None:
        made = meta.synthetic
        flat = ", flat" if made.flat else ""
        console.say(f"synthetic: like {made.like}, taper {made.taper:g}{flat}, seed {made.seed}")


def _accesses_table(tables: "Sequence[Accesses]") -> Table:
    heads = ("top 0.1 %", "top 1 %", "top 10 %", "ids once", "accesses\nto them", "re-used in\n1,280 samples")
    columns = ("table", "ids", "ids in a\nbatch", *(f"{head}\n%" for head in heads))
    shown = Table(*(Column(column, justify="right") for column in columns), title="accesses", box=SIMPLE)
    for each in tables:
        fractions = (
            *(each.top_01_percent_share, each.top_1_percent_share, each.top_10_percent_share),
            *(each.seen_once_frac_of_ids, each.accesses_to_seen_once_frac),
            each.reuse_within_1280_rows_in_file_order,
        )
        counts = f"{each.distinct:,}", f"{each.distinct_per_batch_of_128:,.1f}"
        shown.add_row(each.column, *counts, *(f"{100 * frac:.1f}" for frac in fractions))
    return shown
