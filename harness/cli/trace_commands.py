"""`run.py trace import | show | generate`: logs of real clusters in, traces out, and what can be said of them."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.cli import console
from harness.core.errors import TraceError
from harness.traces.generate import generate
from harness.traces.importers import read_log
from harness.traces.importers.findings import FailureLog
from harness.traces.learn import spec_of_model
from harness.traces.mapping import MapSpec, map_log
from harness.traces.presets import generate_preset
from harness.traces.spec import GeneratorSpec, parse_sizes
from harness.traces.trace import Trace, read_trace, to_text

_LONG_REPAIR = 0.02  # of the trace's length


def import_log(options: argparse.Namespace) -> int:
    """A log in its original form to a trace."""
    _refuse_to_overwrite(options.out, options.file, force=options.force)
    if options.keep_rate is not None and options.ranks not in (None, options.keep_rate):
        raise TraceError(f"--keep-rate {options.keep_rate}, --ranks {options.ranks}: both say how many ranks; give one")
    names = ("unit", "system", "by")
    extra = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    log = read_log(options.format, options.file, strict=options.strict, **extra)
    spec = MapSpec(
        first=options.first,
        last=options.last,
        kind=options.window,
        length_h=options.length,
        nodes=options.nodes,
        num_nodes=options.num_nodes,
        num_ranks=options.keep_rate or options.ranks,
        how=options.map,
        keep_rate=options.keep_rate is not None,
        stretch_h=options.stretch,
        has_repairs=not options.no_repairs,
        seed=options.seed,
    )
    trace = map_log(log, spec)
    _write(options.out, trace, options.command_line)
    _tell_import(log, trace)
    console.say(f"wrote {options.out}: {summary(trace)}")
    _warn_of_repairs(trace)
    return 0


def generate_trace(options: argparse.Namespace) -> int:
    """A trace out of parameters or a preset."""
    learned_from = (options.model or "").partition(":")[2]
    _refuse_to_overwrite(options.out, Path(learned_from) if learned_from else None, force=options.force)
    given = {field.name: getattr(options, field.name, None) for field in fields(GeneratorSpec)}
    given = {name: value for name, value in given.items() if value is not None}
    if options.preset is not None:
        if given:
            raise TraceError(f"--preset: has its own {', '.join(map(_option, given))}; leave one or the other out")
        trace = generate_preset(options.preset, options.seed, is_typical=options.typical)
    else:
        trace = generate(_spec(given), options.seed, is_typical=options.typical)
    _write(options.out, trace, options.command_line)
    console.say(f"wrote {options.out}: {summary(trace)}")
    return 0


def _spec(given: dict[str, Any]) -> GeneratorSpec:
    """Of the options given; ``--model fit:`` and ``empirical:`` learn the others from a trace."""
    if "group_sizes" in given:
        given["group_sizes"] = parse_sizes(given["group_sizes"])
    learned = spec_of_model(given.get("model", ""), {name: value for name, value in given.items() if name != "model"})
    return learned or GeneratorSpec(**given)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def show(options: argparse.Namespace) -> int:
    """What can be said of a trace."""
    from analysis.trace_show import show_trace  # noqa: PLC0415 - what `import` and `generate` do not need
    from harness.traces.statistics import describe  # noqa: PLC0415 - scipy.stats

    trace = read_trace(options.trace)
    with console.amount_progress("samples") as progress:
        statistics = describe(trace, options.bootstrap or 0, progress=progress)
    console.show(show_trace(statistics))
    if options.figures is not None:
        options.figures.mkdir(parents=True, exist_ok=True)
        from analysis.trace_figures import draw_trace  # noqa: PLC0415 - matplotlib, half a second

        for path in draw_trace(trace, statistics, options.figures):
            console.say(f"figure: {path}")
    return 0


def summary(trace: Trace) -> str:
    """One line: how many deaths, of how many ranks, in how many hours."""
    hours = float(trace.header.get("length_h") or trace.header.get("job_h") or 0) or max(
        (entry.hour for entry in trace.entries), default=0.0
    )
    instants = len({entry.hour for entry in trace.entries})
    every = f", a failure every {hours / instants:.3g} h" if instants and hours else ""
    ranks = trace.header.get("ranks", "?")
    deaths = f"{len(trace.entries)} death{'s' * (len(trace.entries) != 1)} at {instants} instant{'s' * (instants != 1)}"
    return f"{deaths}, {ranks} ranks, {hours:g} h{every}"


def _tell_import(log: FailureLog, trace: Trace) -> None:
    """What was read, and what each rule did to it."""
    dropped = log.num_read - log.num_kept
    console.say(f"{log.source}: kept {log.num_kept:,} of {log.num_read:,} records" + (":" if dropped else ""))
    for rule, count in {**log.dropped, **log.changed}.items():
        if count:
            console.say(f"  {count:,} {rule}")
    if log.outages:
        console.say(
            f"{len(log.outages):,} failures of {len({outage.node for outage in log.outages}):,} nodes in "
            f"{log.length_h:,.1f} h, one every {log.length_h / len(log.outages):.3g} h"
        )
    told = len(log.dropped) + len(log.changed)
    for key, rule in trace.header.items():
        if key.startswith("rule ") and int(key.removeprefix("rule ")) > told:
            console.say(f"  mapping: {rule}")


def _warn_of_repairs(trace: Trace) -> None:
    """A node's repair is seldom what a job waits for: say so where it would swamp everything else."""
    repairs = sorted(entry.repair_h for entry in trace.entries if entry.repair_h is not None)
    median_h, length_h = repairs[len(repairs) // 2] if repairs else 0.0, float(trace.header["length_h"])
    if median_h > _LONG_REPAIR * length_h:
        console.note(
            f"note: half of the repairs take {median_h:.3g} h or more of {length_h:g}; a failure takes its longest "
            "repair. Where jobs go on elsewhere, --no-repairs, or trace.repair=ignore in a run, takes O_res"
        )


def _refuse_to_overwrite(path: Path, source: Path | None, *, force: bool) -> None:
    """``source`` is what the trace is made from: never overwritten, not even by force, since nothing makes it again."""
    if source is not None and source.exists() and path.exists() and path.samefile(source):
        raise TraceError(f"--out: {path} is the file that is read; name another")
    if path.exists() and not path.is_file():
        raise TraceError(f"--out: {path} is no file but a {'folder' if path.is_dir() else 'device'}; name a file")
    if path.exists() and not force:
        raise TraceError(f"--out: {path} is there already; --force writes it anew")
    if not path.parent.is_dir():
        raise TraceError(f"--out: {path.parent}: no such folder")


def _write(path: Path, trace: Trace, command_line: str) -> None:
    """The whole file or none of it; a link stays one, its target is written."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(to_text(trace, command=command_line), encoding="utf-8")
    draft.replace(path)


TRACE_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "import": import_log,
    "show": show,
    "generate": generate_trace,
}
