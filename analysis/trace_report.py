"""The failure traces of a grid, as sections of its report."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.load import Frame
from analysis.trace_figures import CAPTION, trace_svgs
from analysis.trace_show import LEVELS, between, headline, levels_of, number, remarks
from harness.config.model import Config
from harness.core.errors import ConfigError, TraceError
from harness.core.events import Injected
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir, flatten, read_config
from harness.traces.job_trace import job_trace
from harness.traces.statistics import TraceStatistics, describe
from harness.traces.trace import Trace
from harness.traces.verdict import verdict


def trace_sections(frame: Frame) -> Iterator[Mapping[str, Any]]:
    """A section for each trace of finished cells, in order of paths: its title, notes, and panels with a caption."""
    done = frame[frame["trace"].notna() & (frame["status"] == "done")]
    by_trace: dict[_Key, list[Path]] = {}
    for path, trace in zip(map(Path, done["path"]), done["trace"], strict=True):
        by_trace.setdefault(_key_of(path, trace), []).append(path)
    for place, key in enumerate(sorted(by_trace)):
        path, window, is_stretched, job_h, clock = key
        how = f", {window} {job_h:g} h" * bool(window) + f", stretched to {job_h:g} h" * is_stretched
        how += ", on the wall clock" * (clock == "wall")
        notes, panels = _section(key, by_trace[key], f"trace{place}")
        yield {"title": f"Failure trace {Path(path).stem}{how}", "notes": notes, "panels": panels, "caption": CAPTION}


_Key = tuple[str, str, bool, float, str]
"""Path or name of a trace, window (empty: none), stretch, hours of the job (0 where they do not matter), the clock."""


def _key_of(run: Path, trace: str) -> _Key:
    flat = flatten(read_config(run))
    window, is_stretched = flat.get("trace.window") or "", bool(flat.get("trace.stretch"))
    job_h = float(flat["profile.job_h"]) if window or is_stretched else 0.0
    is_drawn = window == "random" or flat.get("trace.path") is None
    path = trace if is_drawn else str(flat["trace.path"])
    return path, window, is_stretched, job_h, flat.get("trace.clock") or "samples"


def _section(key: _Key, runs: Sequence[Path], prefix: str) -> tuple[list[str], list[str]]:
    """The notes on one trace, and the panels of its figure as SVG; only a note if the trace cannot be read again."""
    path, *_, clock = key
    try:
        config = Config.model_validate(read_config(runs[0]))
        trace, met = job_trace(config), job_trace(config, goes_on=clock == "wall")
        assert trace is not None
        assert met is not None
        stats = describe(trace)
    except ValidationError:
        return [f"No statistics: the config of {runs[0].name} is of another version."], []
    except (TraceError, ConfigError) as error:
        return [f"No statistics: {error}"], []
    if not _is_as_replayed(met, runs):
        return [f"{path} has changed since these runs."], []
    return [*_lines(stats)], trace_svgs(stats, prefix)


def _is_as_replayed(trace: Trace, runs: Sequence[Path]) -> bool:
    """Whether all losses of ranks on record have the hour and line of an entry of ``trace``, as the file is now."""
    hours = {(entry.line, entry.hour) for entry in trace.entries}
    events = (event for run in runs for event in EventLog.of(RunDir(run)).events)
    return all((event.line, event.hour) in hours for event in events if isinstance(event, Injected) and event.loss)


def _lines(stats: TraceStatistics) -> Iterator[str]:
    yield f"{headline(stats)}."
    for name, level in levels_of(stats):
        dispersed = "" if level.dispersed is None else f", {between(level.dispersed)} as dispersed"
        yield (
            f"A failure of {LEVELS[name]} every {number(level.mtbf_h)} h (95 %: {between(level.poisson)} if "
            f"Poisson{dispersed}). {verdict(level.fits)}"
        )
    yield from remarks(stats)
