"""Run directories as a table: one row per cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.audit import BUCKETS, check
from harness.core.errors import StoreError
from harness.core.events import Event, Finished
from harness.record.recorder import Record, read_record
from harness.record.rundir import RunDir, find_runs, flatten, read_config

if TYPE_CHECKING:
    import pandas as pd

STATUSES = ("done", "damaged", "failed", "unfinished")
"""Of a cell. ``damaged``: the record cannot be read, or DONE stands beside one without a result."""

Cell = Mapping[str, Any]
"""A row of the frame by column; None is missing."""

TEXTS = ("cell", "path", "name", "engine", "strategy", "trace", "profile", "status", "failure", "disagreement")
COUNTS = ("seed", "num_ps", "payload_bytes", "num_saves", "num_failures", "num_lost_ranks", "num_unplanned")
_CACHE = ("hit_rate", "peak_rows", "bytes", "uncached_bytes", "minimum_bytes")
"""Of what ``Finished.cache`` says, the figures with columns of their own."""
NUMBERS = (
    *("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked", "job_h"),
    *("overhead_frac", *(f"{bucket}_h" for bucket in BUCKETS)),
    *("stall_s", *(f"measured_{bucket}_s" for bucket in BUCKETS), "seconds"),
    *(*(f"cache_{name}" for name in _CACHE), "cache_saved_frac"),
)
COLUMNS = (
    *("cell", "name", "engine", "strategy", "seed", "trace", "profile", "num_ps", "status", "disagreement"),
    *("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked"),
    *("overhead_frac", "save_h", "load_h", "lost_h", "reschedule_h", "job_h"),
    *("payload_bytes", "num_saves", "num_failures", "num_lost_ranks", "num_unplanned"),
    *("stall_s", *(f"measured_{bucket}_s" for bucket in BUCKETS), "seconds"),
    *(*(f"cache_{name}" for name in _CACHE), "cache_saved_frac"),
    *("failure", "path"),
)
"""Of every frame, before the swept keys. ``*_h`` are emulated hours, ``*_s`` measured seconds, ``*_frac`` of job_h."""

_NOT_SWEPT = ("out", "name", "seed", "engine", "strategy.name", "trace.path", "profile.name", "cluster.num_ps")
"""Config keys that have a column of their own, or say nothing about a result."""


def load(path: Path | str) -> "pd.DataFrame":
    """One row per run directory at or below ``path``: ``COLUMNS``, then the config's keys that differ between cells.

    ``status`` is one of ``STATUSES``, ``failure`` says why a cell is failed or damaged. Only a run whose Finished event
    was written has figures, and what is missing is NaN. ``disagreement`` says where a record contradicts itself
    (``analysis.audit``), NaN where nowhere.

    Raises:
        StoreError: ``path`` is no folder, no run lies there, or a config.yaml is none.
    """
    root = Path(path)
    paths = find_runs(root)
    configs = [read_config(run_dir) for run_dir in paths]
    keys = swept_keys(configs)
    rows = [
        _row(root, run_dir, config) | {key: _plain(flatten(config).get(key)) for key in keys}
        for run_dir, config in zip(paths, configs, strict=True)
    ]
    import pandas as pd  # noqa: PLC0415 - half a second, for who needs it

    frame = pd.DataFrame(rows, columns=[*COLUMNS, *keys])
    types = dict.fromkeys(COUNTS, "Int64") | dict.fromkeys(NUMBERS, "float64") | dict.fromkeys(TEXTS, "str")
    return frame.astype(types)


def cells_of(frame: "pd.DataFrame") -> list[Cell]:
    """The rows of :func:`load` as mappings, with None for what is missing."""
    import pandas as pd  # noqa: PLC0415 - as above

    return [
        {str(key): None if pd.isna(value) else value for key, value in row.items()} for row in frame.to_dict("records")
    ]


def swept_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted config keys that differ between cells and have no column of their own."""
    flats = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for flat in flats for key in flat)
    return [key for key in keys if _is_swept(key, flats)]


def _is_swept(key: str, flats: Sequence[Mapping[str, Any]]) -> bool:
    if key in _NOT_SWEPT or key.startswith("wandb."):
        return False
    # A constant of a profile is told by the profile's name, unless profiles of one name differ in it.
    by = "profile.name" if key.startswith("profile.") else None
    values: dict[Any, set[str]] = {}
    # An option that only some strategies have is told by the strategy's name, unless it differs among those.
    for flat in flats if not key.startswith("strategy.") else (flat for flat in flats if key in flat):
        values.setdefault(flat.get(by) if by else None, set()).add(repr(flat.get(key)))
    return any(len(distinct) > 1 for distinct in values.values())


def _plain(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list | tuple) else value


def _row(root: Path, run_dir: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    run = RunDir(run_dir)
    flat = flatten(config)
    trace = flat.get("trace.path")
    row: dict[str, Any] = {
        "cell": run_dir.name if run_dir == root else str(run_dir.relative_to(root)),
        "path": str(run_dir),
        "name": flat.get("name"),
        "engine": flat.get("engine"),
        "strategy": flat.get("strategy.name"),
        "seed": flat.get("seed"),
        "trace": Path(trace).stem if trace else None,
        "profile": flat.get("profile.name"),
        "num_ps": flat.get("cluster.num_ps") or flat.get("profile.num_ps"),
        "job_h": flat.get("profile.job_h"),
        "status": run.status,
        "failure": run.failure(),
    }
    try:
        events = record_of(run).events
    except StoreError as error:
        return row | {"status": "damaged", "failure": str(error)}
    if damage := damage_of(run, events):
        row |= {"status": "damaged", "failure": damage}
    if problems := check(events, config) if events else []:
        row["disagreement"] = problems[0] if len(problems) == 1 else f"{problems[0]} (and {len(problems) - 1} more)"
    return row | _claims(events)


def record_of(run: RunDir) -> Record:
    """What is on record of a run: nothing before its first event. Raises StoreError if the record cannot be read."""
    return read_record(run.events) if run.events.exists() else Record([], is_torn=False)


def damage_of(run: RunDir, events: Sequence[Event]) -> str | None:
    """What is wrong with ``events``, the record of ``run``, if DONE claims more than they hold; one line."""
    if run.status != "done" or (events and isinstance(events[-1], Finished)):
        return None
    if not run.events.exists():
        what = "missing"
    elif not events:
        what = "holds no event"
    else:
        what = f"ends with a {events[-1].kind} event at step {events[-1].step}"
    return f"{run.events}: {what}, but DONE says that the run ended well; remove DONE, and it can be run again"


def _claims(events: Sequence[Event]) -> dict[str, Any]:
    if not events or not isinstance(finished := events[-1], Finished):
        return {}
    values = {name: getattr(finished, name) for name in (*COUNTS, *NUMBERS) if hasattr(finished, name)}
    stalls = finished.machine.get("overhead_seconds") or {}
    return values | {
        **{f"measured_{bucket}_s": stalls.get(bucket) for bucket in BUCKETS},
        "stall_s": sum(stalls.values()) if stalls else None,
        "seconds": finished.machine.get("seconds"),
        **_cache_claims(finished),
    }


def _cache_claims(finished: Finished) -> dict[str, float | None]:
    """What a cache did. ``cache_saved_frac``: bytes that did not travel, of those without a cache."""
    if (cache := finished.cache) is None:
        return {}
    moved, uncached = cache.get("bytes"), cache.get("uncached_bytes")
    claims = {f"cache_{name}": cache.get(name) for name in _CACHE}
    return claims | {"cache_saved_frac": None if moved is None or not uncached else 1 - moved / uncached}
