"""`run.py trace import | show | generate`: failure traces from logs or laws, and their statistics."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from harness.cli import console
from harness.core.errors import TraceError
from harness.record.files import write_text
from harness.traces.gaps import without_repeats
from harness.traces.generate import generate
from harness.traces.importers import read_log
from harness.traces.importers.findings import FailureLog
from harness.traces.learn import spec_of_model
from harness.traces.mapping import MapSpec, map_log
from harness.traces.presets import generate_preset
from harness.traces.spec import GeneratorSpec, parse_sizes
from harness.traces.trace import Trace, read_trace, to_text

_MAP_OPTIONS = {
    "first": "first", "last": "last", "kind": "window", "length_h": "length", "nodes": "nodes",
    "num_nodes": "num_nodes", "how": "map", "stretch_h": "stretch", "seed": "seed",
}  # fmt: skip
"""Fields of ``MapSpec`` by the options of `trace import` that hold them."""


def import_log(options: argparse.Namespace) -> int:
    """Convert a log in its original form into a trace."""
    _refuse_to_overwrite(options.out, options.file, force=options.force)
    if options.keep_rate is not None and options.ranks not in (None, options.keep_rate):
        raise TraceError(
            f"--keep-rate, --ranks: expected one number of ranks, got {options.keep_rate} and {options.ranks}; "
            "give only one of the options"
        )
    if options.hosts is not None and (options.ranks or options.keep_rate):
        raise TraceError("--hosts: expected neither --ranks nor --keep-rate: a host has the ranks of a run's placement")
    given = {name: getattr(options, name) for name in ("unit", "system", "by") if getattr(options, name) is not None}
    log = read_log(options.format, options.file, strict=options.strict, **given)
    spec = MapSpec(
        num_ranks=options.keep_rate or options.ranks,
        num_hosts=options.hosts,
        keep_rate=options.keep_rate is not None,
        has_repairs=not options.no_repairs,
        **{field: getattr(options, option) for field, option in _MAP_OPTIONS.items()},
    )
    trace = map_log(log, spec)
    _write(options.out, trace, options.command_line)
    _show_import(log, trace)
    console.say(f"wrote {options.out}: {summary(trace)}")
    return 0


def generate_trace(options: argparse.Namespace) -> int:
    """Generate a trace from parameters, another trace or a preset."""
    learned_from = (options.model or "").partition(":")[2]
    _refuse_to_overwrite(options.out, Path(learned_from) if learned_from else None, force=options.force)
    given = {field.name: getattr(options, field.name, None) for field in fields(GeneratorSpec)}
    given = {name: value for name, value in given.items() if value is not None}
    if options.preset is not None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise TraceError(
                f"--preset: expected no option that the preset sets, got {names}; leave out one or the other"
            )
        trace = generate_preset(options.preset, options.seed, is_typical=options.typical)
    else:
        if "group_sizes" in given:
            given["group_sizes"] = parse_sizes(given["group_sizes"])
        asked = {name: value for name, value in given.items() if name != "model"}
        spec = spec_of_model(given.get("model", ""), asked) or GeneratorSpec(**given)
        trace = generate(spec, options.seed, is_typical=options.typical)
    _write(options.out, trace, options.command_line)
    console.say(f"wrote {options.out}: {summary(trace)}")
    return 0


def show(options: argparse.Namespace) -> int:
    """Describe a trace on the console, and in figures."""
    from analysis.trace_show import show_trace  # noqa: PLC0415 - not needed by `import` and `generate`
    from harness.traces.statistics import describe  # noqa: PLC0415 - scipy.stats

    statistics = describe(read_trace(options.trace))
    console.show(show_trace(statistics))
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        from analysis.trace_figures import draw_trace  # noqa: PLC0415 - matplotlib, half a second

        for path in draw_trace(statistics, options.figures):
            console.say(f"figure: {path}")
    return 0


def summary(trace: Trace) -> str:
    """One line: the numbers of deaths, instants and ranks, the hours, and hours per failure."""
    last_h = max((entry.hour for entry in trace.entries), default=0.0)
    hours = float(trace.header.get("length_h") or trace.header.get("job_h") or 0) or last_h
    instants = len({entry.hour for entry in trace.failures})
    every = f", a failure every {hours / instants:.3g} h" if instants and hours else ""
    num = len(without_repeats(trace).entries)
    deaths = f"{num} death{'s' * (num != 1)} at {instants} instant{'s' * (instants != 1)}"
    kind = "host" if "hosts" in trace.header else "rank"
    of_all = trace.header.get(f"{kind}s", "?")
    of_all = f"{of_all} {kind}{'s' * (of_all != '1')}"
    return f"{deaths}, {of_all}, {hours:g} h{every}"


def _show_import(log: FailureLog, trace: Trace) -> None:
    """The records kept, and the number that each rule dropped or mended."""
    counts = {**log.dropped, **log.changed}
    console.say(f"{log.source}: kept {log.num_kept:,} of {log.num_read:,} records{':' if log.dropped else ''}")
    for rule, count in counts.items():
        console.say(f"  {count:,} {rule}")
    if log.outages:
        num, num_nodes = len(log.outages), len({outage.node for outage in log.outages})
        console.say(
            f"{num:,} failure{'s' * (num != 1)} of {num_nodes:,} node{'s' * (num_nodes != 1)} in "
            f"{log.length_h:,.1f} h, one every {log.length_h / num:.3g} h"
        )
    rules = [rule for key, rule in trace.header.items() if key.startswith("rule ")]
    for rule in rules[len(counts) :]:
        console.say(f"  mapping: {rule}")


def _refuse_to_overwrite(path: Path, source: Path | None, *, force: bool) -> None:
    """Refuses a ``path`` that exists, unless forced; ``source``, from which the trace is made, even then."""
    if source is not None and source.exists() and path.exists() and path.samefile(source):
        raise TraceError(f"--out: expected another file than the input, got {path}")
    if path.exists() and not path.is_file():
        raise TraceError(f"--out: expected a file, got the {'folder' if path.is_dir() else 'device'} {path}")
    if path.exists() and not force:
        raise TraceError(f"--out: expected a new file, got {path}, which exists; --force overwrites it")
    if not path.parent.is_dir():
        raise TraceError(f"--out: expected a file in an existing folder, got {path}; create {path.parent} first")


def _write(path: Path, trace: Trace, command_line: str) -> None:
    """Writes the whole file or nothing; the target of a link is written."""
    write_text(path.resolve(), to_text(trace, command=command_line))


TRACE_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "import": import_log,
    "show": show,
    "generate": generate_trace,
}
