"""`run.py data prepare | synth | info | fit`: pack, generate and describe click logs, and fit laws to them."""

# ruff: noqa: PLC0415 - numpy and numba are imported when a command needs them

import argparse
from pathlib import Path

from harness.cli import console
from harness.cli.progress import amount_progress
from harness.core.errors import DataError, printable

NUM_TRACKED = 7


def prepare(options: argparse.Namespace) -> None:
    """Pack click logs into a data folder."""
    from harness.core.criteo_sizes import scaled_cardinalities
    from harness.data.delimited import AVAZU, read_schema
    from harness.data.prepare import prepare as prepare_data
    from harness.data.sources import by_numbers

    if (options.schema is None) == (options.format == "csv"):
        got = "none" if options.schema is None else f"{options.schema} with --format {options.format}"
        raise DataError(f"--schema: expected a YAML file with --format csv, and only then, got {got}")
    if options.table_rows is not None and options.format != "criteo":
        raise DataError(
            f"--table-rows: expected --format criteo, whose tables have Kaggle's sizes, got {options.format}; "
            "--max-ind-range limits the rows of a table"
        )
    columns = AVAZU if options.format == "avazu" else None if options.schema is None else read_schema(options.schema)
    sources = options.sources if options.order == "given" else by_numbers(options.sources)
    if len(sources) > 1:
        names = printable(", ".join(map(str, sources)))
        console.note(f"note: {len(sources)} files in this order, the last seventh of all rows for evaluation: {names}")
    with amount_progress("prepare") as progress:
        meta = prepare_data(
            sources,
            options.out,
            columns=columns,
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
    from harness.core.criteo_sizes import MAX_TABLE_ROWS, MIN_TABLE_ROWS, num_clamped

    num_raised, num_lowered = num_clamped(scale)
    note = f"note: --table-rows {scale:g}:"
    if num_raised:
        console.note(f"{note} {num_raised} tables raised to {MIN_TABLE_ROWS} rows, or Kaggle's size if that is less")
    if num_lowered:
        console.note(f"{note} {num_lowered} tables lowered to {MAX_TABLE_ROWS:,} rows, the most that there may be")


def synth(options: argparse.Namespace) -> None:
    """Write a synthetic click log."""
    from harness.data.synth import synth as synth_data

    given = {name: value for name in ("like", "taper") if (value := getattr(options, name)) is not None}
    with amount_progress("synth") as progress:
        report = synth_data(options.rows, options.out, seed=options.seed, flat=options.flat, progress=progress, **given)
    console.show_values(report)


def info(options: argparse.Namespace) -> None:
    """Verify a data folder and describe its contents; with ``--facts`` also write its facts to a file."""
    from harness.cli.facts_tables import facts_tables
    from harness.core.placement import tracked_tables
    from harness.data.facts import measure, read_facts, write_facts
    from harness.data.records import read_meta, refuse_other_shape

    _refuse_existing("--facts", options.facts)
    for name in ("against", "facts"):
        if getattr(options, name) is not None:
            refuse_other_shape(f"--{name}: {options.dir}", read_meta(options.dir))
    other = None if options.against is None else read_facts(options.against)
    with amount_progress("info") as progress:
        facts = measure(
            options.dir, progress=progress, growth_rows=() if other is None else [*other.tables[0].distinct_after_rows]
        )
    meta = read_meta(options.dir)
    tracked = ", ".join(meta.table_names[table] for table in tracked_tables(meta.cardinalities, NUM_TRACKED))
    for table in facts_tables(facts, other):
        console.show(table)
    console.say(f"{sum(meta.cardinalities):,} embedding rows; the largest tables are {tracked}")
    if meta.columns is not None:
        dense = [f"{name} ({transform})" for name, transform in meta.columns.dense.items()]
        console.say(f"label {meta.columns.label}; dense features: {', '.join(dense) or 'none'}")
    if meta.synthetic is not None:
        made = meta.synthetic
        flat = ", flat" if made.flat else ""
        console.say(f"synthetic: like {made.like}, taper {made.taper:g}{flat}, seed {made.seed}")
    if options.facts is not None:
        write_facts(options.facts, facts)
        console.note(f"{options.facts}: written")


def fit(options: argparse.Namespace) -> None:
    """Fit a law of synthetic logs to the facts of a log."""
    from harness.data.facts import read_facts
    from harness.data.fit import fit_law
    from harness.data.law import write_law

    _refuse_existing("--out", options.out)
    facts = read_facts(options.facts)
    if not facts.integers:
        console.note(f"{options.facts}: has no integers, as prepared data do not tell them; Kaggle's are taken")
        facts = facts.model_copy(update={"integers": read_facts(Path("kaggle")).integers})
    with amount_progress("fit") as progress:
        law = fit_law(facts, options.sizes, progress=progress)
    write_law(options.out, law, facts)
    console.say(f"{options.out}: a law of {sum(table.ranks[-1] for table in law.tables):,} ranks")


def _refuse_existing(option: str, path: Path | None) -> None:
    """Raise DataError if ``path`` cannot become a new file, before anything is measured."""
    if path is None:
        return
    if path.exists():
        raise DataError(f"{option}: {path}: exists; remove it or choose another name")
    if not path.parent.is_dir():
        raise DataError(f"{option}: {path}: {path.parent}: no such folder")
