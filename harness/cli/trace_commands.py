"""`run.py trace import | show | generate`: failure traces from logs or laws, and their statistics."""

import argparse
from pathlib import Path

from harness.cli import console
from harness.config.experiment import load_config
from harness.core.errors import ConfigError, TraceError
from harness.files import write_text
from harness.traces.draw import draw
from harness.traces.importers import doubts as log_doubts
from harness.traces.importers import read_log
from harness.traces.importers.findings import FailureLog, LogFormat, counted
from harness.traces.importers.words import explained, read_words
from harness.traces.learn import doubts
from harness.traces.mapping import MapSpec, map_log
from harness.traces.trace import Trace, read_trace, to_text


class _Import(MapSpec, LogFormat):
    """The words of `trace import`."""


def words_of_import() -> str:
    """The help text about the ``key=value`` words of `trace import`."""
    return "\n".join(explained(_Import))


def import_log(options: argparse.Namespace) -> None:
    """Convert a log in its original form into a trace."""
    refuse_to_overwrite(options.out, options.file, force=options.force)
    spec = read_words(_Import, options.words)
    log = read_log(options.file, spec)
    trace = map_log(log, spec)
    _show_import(log, trace)
    for doubt in log_doubts(log, is_from_start=spec.from_ is None and spec.window is None):
        console.note(f"note: {options.file}: {doubt}")
    _write(options, trace)


def generate_trace(options: argparse.Namespace) -> None:
    """Write the trace that a run with these keys draws."""
    config = load_config(None, options.overrides)
    law = config.trace.law
    if law is None:
        raise ConfigError("trace.law: expected the law of the trace, such as trace.law=exponential, got none")
    learned_from = None if law.trace is None else Path(law.trace)
    refuse_to_overwrite(options.out, learned_from, force=options.force)
    goes_on = "wall" in (config.trace.clock, config.trace.inject)
    trace = draw(law, config.profile, config.num_ps, config.trace_seed, goes_on=goes_on, is_typical=options.typical)
    for doubt in doubts(read_trace(learned_from), law.per) if learned_from else ():
        console.note(f"note: {learned_from}: {doubt}")
    _write(options, trace)


def show(options: argparse.Namespace) -> None:
    """Print a trace's statistics; write its figures if asked for."""
    from analysis.trace_show import show_trace  # noqa: PLC0415 - not needed by `import` and `generate`
    from harness.traces.statistics import describe  # noqa: PLC0415 - scipy.stats

    statistics = describe(read_trace(options.trace))
    console.show(show_trace(statistics))
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        from analysis.trace_figures import draw_trace  # noqa: PLC0415 - matplotlib, half a second

        for path in draw_trace(statistics, options.figures):
            console.say(f"figure: {path}")


def _summary(trace: Trace) -> str:
    """One line: the numbers of deaths, of their instants, and of ranks or hosts; the hours; hours per failure."""
    length_h, num_instants = float(trace.header["length_h"]), len({entry.hour for entry in trace.entries})
    kind = "host" if "hosts" in trace.header else "rank"
    counts = ((len(trace.entries), "death"), (num_instants, "instant"), (int(trace.header[f"{kind}s"]), kind))
    deaths, instants, ranks = (f"{number} {word}{'s' * (number != 1)}" for number, word in counts)
    every = f", an instant every {length_h / num_instants:.3g} h" if num_instants else ""
    return f"{deaths} at {instants}, {ranks}, {length_h:g} h{every}"


def _show_import(log: FailureLog, trace: Trace) -> None:
    """Print the numbers of records kept, and dropped or changed by each rule; the failures; the rules of mapping."""
    counts = {**log.dropped, **log.changed}
    lines = [*filter(None, [log.columns]), *(f"{count:,} {rule}" for rule, count in counts.items())]
    if log.censored:
        lines.append(f"{sum(log.censored.values()):,} that are no failures (censored): {counted(log.censored)}")
    console.say(f"{log.source}: kept {log.num_kept:,} of {log.num_read:,} records{':' if lines else ''}")
    for line in lines:
        console.say(f"  {line}")
    if log.outages:
        num, num_nodes = len(log.outages), len({outage.node for outage in log.outages})
        console.say(
            f"in the log: {num:,} failure{'s' * (num != 1)} of {num_nodes:,} node{'s' * (num_nodes != 1)} in "
            f"{log.length_h:,.1f} h, one every {log.length_h / num:.3g} h"
        )
    rules = [rule for key, rule in trace.header.items() if key.startswith("rule ")]
    for rule in rules[len(counts) :]:
        console.say(f"  mapping: {rule}")


def refuse_to_overwrite(path: Path, source: Path | None, *, force: bool) -> None:
    """Raise TraceError if ``path`` cannot be written: it is a folder, its parent is missing, or it exists.

    ``force`` allows an existing file, but never ``source``, from which the trace is made.
    """
    if source is not None and source.exists() and path.exists() and path.samefile(source):
        raise TraceError(f"--out: expected another file than the input, got {path}")
    if path.exists() and not path.is_file():
        raise TraceError(f"--out: expected a file, got the {'folder' if path.is_dir() else 'device'} {path}")
    if path.exists() and not force:
        raise TraceError(f"--out: expected a new file, got {path}, which exists; --force overwrites it")
    if not path.parent.is_dir():
        raise TraceError(f"--out: expected a file in an existing folder, got {path}; create {path.parent} first")


def _write(options: argparse.Namespace, trace: Trace) -> None:
    """Write ``--out`` whole or not at all, and print a summary. If ``--out`` is a link, its target is written."""
    write_text(options.out.resolve(), to_text(trace, command=options.command_line))
    console.say(f"wrote {options.out}: {_summary(trace)}")
