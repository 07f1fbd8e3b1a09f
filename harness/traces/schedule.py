"""From a trace file to the strikes of one run."""

from dataclasses import replace
from pathlib import Path

import xxhash

from harness.config.model import Config
from harness.core.errors import TraceError
from harness.core.plans import PlannedKill
from harness.traces.trace import Trace, parse_trace


def read_trace(path: Path) -> Trace:
    """The trace in the CSV file ``path`` (failure_traces/README.md). Raises TraceError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise TraceError(f"no trace file {path}") from error
    except IsADirectoryError as error:
        raise TraceError(f"trace {path} is a folder; expected a CSV file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    return parse_trace(text.splitlines(), str(path))


def trace_digest(config: Config) -> str | None:
    """Fingerprint of the trace's content; None without a trace. Raises TraceError where there is no such file."""
    if config.trace.path is None:
        return None
    read_trace(Path(config.trace.path))
    return xxhash.xxh3_64_hexdigest(Path(config.trace.path).read_bytes())


def planned_kills_of(config: Config, *, total_samples: int, num_steps: int) -> tuple[PlannedKill, ...]:
    """The planned kills of the trace that ``config`` names, in order. Raises TraceError for one that does not fit."""
    if config.trace.path is None:
        return ()
    planned_kills = read_trace(Path(config.trace.path)).schedule(
        job_h=config.emulated.job_h,
        total_samples=total_samples,
        batch_size=config.trainer.batch_size,
        num_steps=num_steps,
        num_ps=config.num_ps,
        seed=config.trace_seed,
    )
    if config.trace.repair == "ignore":
        planned_kills = tuple(replace(planned_kill, repair_h=None) for planned_kill in planned_kills)
    return planned_kills
