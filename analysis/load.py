"""Run folders as one frame, a row for each run.

Each record is audited: a total that does not follow from its events is a ``disagreement``.
"""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import linear_regression
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.config.keys import is_setting
from harness.config.model import name_of_draws, trace_name
from harness.core.errors import StoreError
from harness.core.events import BUCKETS, STALLS, Dropped, Evaluated, Event, Finished, Recovered, drops_of, error_of
from harness.core.operators import WORDS, bucket_fracs, hours_to_auc, hours_to_samples, words_of
from harness.core.plans import CHIEF, is_trainer
from harness.files import expanded
from harness.record.audit import check
from harness.record.code import code_of
from harness.record.event_log import EventLog
from harness.record.rundir import SEALED, RunDir, find_runs, flatten, kept_audit, read_config, read_env, verify

if TYPE_CHECKING:
    import pandas as pd

Frame = Any
"""A pandas DataFrame. Its own annotations leave open what indexing returns."""

CONTENTS = {"data.digest": "data_digest", "trace.digest": "trace_digest", "config.hash": "config_hash"}
"""Columns that separate finished cells of equal settings, each with the name of the column of its whole digest.

A frame has such a column, like a swept key, only if it has a value (``tell_apart``). ``data.digest``, ``trace.digest``:
set for cells whose data path, or trace name, is on record with several contents. ``config.hash``: set for cells that
are equal in all other keys, but differ in config hash and results.
"""

_NAMES = {"data.digest": "data", "trace.digest": "trace"}
_RESULTS = ("auc", "log_loss", "train_loss", "pls")
_DIGITS = 8  # of a digest that is shown
_NUMBER = "-_.0123456789"  # at the end of a file's name: the number of a draw

STATUSES = ("done", "copy", "damaged", "failed", "unfinished")
"""Values of a cell's status.

``damaged``: the config or the record cannot be read or is not what the run wrote. ``copy``: a finished run of the same
setting in another folder counts instead.
"""

_CACHE = ("hit_rate", "peak_rows", "bytes", "uncached_bytes", "minimum_bytes", "clock_bytes")
"""Entries of ``Finished.cache`` that have a column."""
_TYPES: dict[str, str] = {
    **dict.fromkeys(("cell", "name", "engine", "strategy"), "str"),
    "seed": "Int64",
    **dict.fromkeys(("trace", "trace_law"), "str"),
    "profile": "str",
    "num_ps": "Int64",
    "status": "str",
    "disagreement": "str",
    **dict.fromkeys(
        ("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked"), "float64"
    ),
    **dict.fromkeys(("auc_per_log_sample", "ne", "calibration", "lost_dense_frac"), "float64"),
    **dict.fromkeys(("drop", "drop_mean", "drop_last", "drop_error", "movement"), "float64"),
    "group_aucs": "object",
    **dict.fromkeys(("overhead_frac", *(f"{bucket}_h" for bucket in BUCKETS), "job_h", "node_h"), "float64"),
    **dict.fromkeys((f"{bucket}_frac" for bucket in BUCKETS), "float64"),
    **dict.fromkeys((*WORDS, "hours_to_samples", "hours_to_auc"), "float64"),
    **dict.fromkeys(("wire_bytes", "memory_bytes"), "Int64"),
    **dict.fromkeys(("payload_bytes", "num_saves", "num_failures", "num_lost_ranks", "num_unplanned"), "Int64"),
    **dict.fromkeys(("stall_s", *(f"measured_{bucket}_s" for bucket in STALLS), "seconds"), "float64"),
    **dict.fromkeys((*(f"cache_{name}" for name in _CACHE), "cache_saved_frac"), "float64"),
    **dict.fromkeys(("failure", "path", "config_hash", "code", "data"), "str"),
    **dict.fromkeys(("data_digest", "trace_digest", "model_digest"), "str"),
}
COLUMNS = tuple(_TYPES)
"""The first columns of every frame; the swept keys follow.

A column with the name of a field of the Finished event has that field's value. ``*_h``: emulated hours. ``*_s``:
measured seconds. ``overhead_frac``, and ``BUCKET_frac`` of each bucket: fractions of ``job_h``. ``node_h``: overhead in
node-hours, if the profile has a number of trainers. ``goodput_frac`` to ``max_rto_h``: the words of operators
(``harness.core.operators.words_of``). ``hours_to_samples``, ``hours_to_auc``: see :func:`load`. ``lost_dense_frac``:
the fraction of samples that the final dense network has not learned from, if all trainers have died at once.
``trace_law``: a name that all traces of one law share (``name_laws``). ``auc_per_log_sample`` to ``group_aucs``: see
``evaluation_results``; ``drop``, ``drop_*``: see ``drop_results``; ``movement``: ``movement_of``. ``data``: the path of
the click log. ``model_digest``: of every parameter of the final model.
"""

NOT_SWEPT = ("seed", "engine", "strategy.name", "trace.path", "profile.name", "cluster.num_ps")
"""Config keys that never count as swept, as they have a column of their own."""


def load(
    path: Path | str,
    keys: Sequence[str] = (),
    *,
    copies: bool = False,
    targets: Mapping[str, float] = MappingProxyType({}),
) -> "pd.DataFrame":
    """One row per cell at or below ``path``: ``COLUMNS``, then the config's keys that differ between cells.

    Columns of ``CONTENTS`` come last. ``keys``: dotted keys that have a column even if all cells have the same value.
    ``copies``: older runs of cells have rows, too, with status ``copy``. ``targets``: of the columns of these names:
    ``hours_to_samples`` (by default all samples of the job) and ``hours_to_auc`` (by default missing); emulated hours,
    overhead included, until a run first had so many samples, or such an AUC; missing if it never had.

    ``status`` is one of ``STATUSES``. ``failure``: why a cell failed, is damaged or is a copy. ``disagreement``: a
    contradiction in its record (``harness.record.audit``). ``config_hash``: of everything that determines the result,
    except the code. ``code``: the fingerprint of the code that computed it. Only runs with a Finished event have
    results. Missing values are NaN, or NA in columns of whole numbers.

    A run whose config.yaml cannot be used is a damaged row without seed, strategy and other settings. Raises StoreError
    if ``path`` is not a folder or contains no run.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    root = Path(expanded(path))
    flats = {run_dir: _flat_or_error(run_dir) for run_dir in find_runs(root)}
    swept = _swept([flat for flat in flats.values() if not isinstance(flat, StoreError)])
    keys = [*dict.fromkeys((*swept, *(key for key in keys if "." in key and key not in NOT_SWEPT)))]
    rows = [
        _place(root, run_dir) | {"status": "damaged", "failure": str(flat)}
        if isinstance(flat, StoreError)
        else _place(root, run_dir) | _row(run_dir, flat, targets) | {key: _plain(flat.get(key)) for key in keys}
        for run_dir, flat in flats.items()
    ]
    frame: Frame = pd.DataFrame(rows, columns=[*COLUMNS, "began", "law_digest", *keys], dtype=object)
    _mark_copies(frame)
    name_laws(frame)
    keys += tell_apart(frame, keys)
    # pandas makes floats of whole numbers in a column with missing values, unless its type says otherwise
    whole = {key: "Int64" for key in keys if _is_whole(frame[key])}
    shown = frame if copies else frame[frame["status"] != "copy"]
    return shown[[*COLUMNS, *keys]].reset_index(drop=True).infer_objects().astype(_TYPES | whole)


def _is_whole(values: Any) -> bool:
    """Whether a column has missing values, and all its other values are integers that fit into 64 bits."""
    known = values.dropna()
    return len(known) < len(values) and all(type(value) is int and abs(value) < 2**63 for value in known)


def _mark_copies(frame: Frame) -> None:
    """Set the status ``copy`` for rows that did not begin after the newest finished row of equal config and engine.

    Such rows are results of other code, copied folders, or runs that other code left unfinished.
    """
    known = frame[(frame["status"] != "damaged") & frame["config_hash"].notna()]
    several = known[known.duplicated(["config_hash", "engine"], keep=False)]
    for _, same in several.groupby(["config_hash", "engine"], sort=False):
        *older, last = sorted(
            same.to_dict("index").items(), key=lambda item: (item[1]["status"] == "done", item[1]["began"])
        )
        newest = last[1]
        for label, row in older if newest["status"] == "done" else ():
            if row["began"] <= newest["began"]:
                is_equal = all(row[name] == newest[name] for name in ("auc", "log_loss", "train_loss", "pls"))
                other = "" if is_equal else "; its result differs, and so may its code"
                other = other if row["status"] == "done" else f"; it is {row['status']}"
                frame.loc[label, ["status", "failure"]] = ["copy", f"the same cell as {newest['cell']}{other}"]


def plain(frame: Frame) -> Frame:
    """A frame of objects, with None for missing values."""
    return frame.astype(object).where(frame.notna(), None)


def swept_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Dotted config keys that differ between cells, are settings, and have no column of their own."""
    return _swept([_flat(config) for config in configs])


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config by dotted key, with the law's name as ``trace.law``."""
    flat = flatten(config)
    return {"trace.law" if key == "trace.law.name" else key: value for key, value in flat.items()}


def _swept(flats: Sequence[Mapping[str, Any]]) -> list[str]:
    return [key for key in dict.fromkeys(itertools.chain(*flats)) if _is_swept(key, flats)]


def _is_swept(key: str, flats: Sequence[Mapping[str, Any]]) -> bool:
    if key in NOT_SWEPT or not is_setting(key):
        return False
    # A constant of a profile or a law follows from its name, unless others of the same name differ in it.
    owner = "profile.name" if key.startswith("profile.") else "trace.law" if key.startswith("trace.law.") else ""
    flats = [flat for flat in flats if key in flat]  # other strategies lack an option
    values = {(flat.get(owner), repr(flat.get(key))) for flat in flats}
    return len(values) > len({flat.get(owner) for flat in flats})


def _plain(value: Any) -> Any:
    return str(tuple(value)) if isinstance(value, list | tuple) else value


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a run that follow from its resolved config, nested or flat: seed, strategy, trace and others."""
    flat = _flat(config)
    path, law, window, seed = (flat.get(f"trace.{key}") for key in ("path", "law", "window", "seed"))
    trace = trace_name(path, law, window, flat.get("seed", 0) if seed is None else seed)
    return {
        **{key: flat.get(key) for key in ("name", "engine", "seed")},
        "strategy": flat.get("strategy.name"),
        "trace": trace,
        "trace_law": name_of_draws(path, law, window),
        "data": flat.get("data.path"),
        "profile": flat.get("profile.name"),
        "num_ps": flat.get("cluster.num_ps") or flat.get("profile.num_ps"),
        "job_h": flat.get("profile.job_h"),
    }


def _flat_or_error(run_dir: Path) -> dict[str, Any] | StoreError:
    try:
        verify(RunDir(run_dir), ["config.yaml"])
        return _flat(read_config(run_dir))
    except StoreError as error:
        return error


def _place(root: Path, run_dir: Path) -> dict[str, Any]:
    return {"cell": run_dir.name if run_dir == root else str(run_dir.relative_to(root)), "path": str(run_dir)}


def _row(run_dir: Path, flat: Mapping[str, Any], targets: Mapping[str, float]) -> dict[str, Any]:
    run = RunDir(run_dir)
    row = identity(flat) | {"status": run.status, "failure": run.failure()}
    try:
        verify(run, set(SEALED) - {"config.yaml"})
        log, problems = EventLog.of(run), kept_audit(run)
    except StoreError as error:
        return row | {"status": "damaged", "failure": str(error)}
    if problems is None:
        problems = check(log.events, read_config(run_dir)) if log.events else []
    if problems:
        row["disagreement"] = problems[0] if len(problems) == 1 else f"{problems[0]} (and {len(problems) - 1} more)"
    return row | _results(log, flat["profile.job_h"], targets) | _origin(run, log)


def _origin(run: RunDir, log: EventLog) -> dict[str, Any]:
    """Columns: config hash, code fingerprint, time of the start (ISO 8601), digests; empty without a Started event."""
    if log.started is None:
        return {}
    code = code_of(run.path)
    return {
        "config_hash": log.started.config_hash,
        "code": code and code.fingerprint,
        "began": str(log.started.machine.get("time")),
        **_digests(run),
    }


def _digests(run: RunDir) -> dict[str, Any]:
    """Columns with the digests of the data, the trace and the trace's law from env.json; None if it has none."""
    try:
        env = read_env(run.path)
    except StoreError:
        env = {}
    data, trace = (fact if isinstance(fact := env.get(name), dict) else {} for name in ("data", "trace"))
    return {"data_digest": data.get("digest"), "trace_digest": trace.get("digest"), "law_digest": trace.get("law")}


def _results(log: EventLog, job_h: float, targets: Mapping[str, float]) -> dict[str, Any]:
    if (finished := log.finished) is None:
        return {}
    values = {name: getattr(finished, name) for name in COLUMNS if hasattr(finished, name)}
    lost_dense = lost_dense_samples(log.events)
    stalls = finished.machine.get("overhead_seconds") or {}
    num_samples, auc = targets.get("hours_to_samples", finished.samples), targets.get("hours_to_auc")
    return values | {
        **words_of(log.events, finished, job_h),
        "hours_to_samples": hours_to_samples(log.events, finished, job_h, num_samples),
        "hours_to_auc": None if auc is None else hours_to_auc(log.events, finished, job_h, auc),
        **bucket_fracs(finished, job_h),
        **{f"measured_{bucket}_s": stalls.get(bucket) for bucket in STALLS},
        "stall_s": sum(stalls.values()) if stalls else None,
        "seconds": finished.machine.get("seconds"),
        "lost_dense_frac": None if lost_dense is None else lost_dense / finished.samples,
        "model_digest": _model_digest(finished),
        **drop_results(log.events),
        "movement": movement_of(log.events),
        **evaluation_results(log.events),
        **_cache_results(finished.cache or {}),
    }


def _model_digest(finished: Finished) -> str:
    """The digests of the parameters of the PS ranks and of ``trainer0``; other trainers have copies of its network."""
    own = {rank: digest for rank, digest in finished.digests.items() if rank == CHIEF or not is_trainer(rank)}
    return " ".join(f"{rank}:{own[rank]}" for rank in sorted(own))


def drop_results(events: Sequence[Event]) -> dict[str, float | None]:
    """What the failures of a run cost the model at once, from its Dropped events.

    ``drop``: the drops of AUC of all failures, summed: 0 without a failure, None if some failure has no drop on record.
    ``drop_mean``, ``drop_last``: of a failure, and of the last one. ``drop_error``: the standard error of the sum
    by the choice of test samples, which all drops share: that of the summed deviations
    (``harness.model.metrics.auc_deviations``).
    """
    if (drops := drops_of(events)) is None:
        return {}
    found = [event for event in events if isinstance(event, Dropped)]
    deviations = [math.fsum(parts) for parts in zip(*(e.deviations for e in found if e.deviations), strict=True)]
    return {
        "drop": math.fsum(drops),
        "drop_mean": math.fsum(drops) / sum(event.num_failures for event in found) if drops else None,
        "drop_last": drops[-1] if drops else None,
        "drop_error": error_of(deviations) if deviations else 0.0,
    }


def lost_dense_samples(events: Sequence[Event]) -> int | None:
    """Number of samples that the final dense network has not learned from; None if never all trainers died at once.

    A failure of all trainers loses the samples since the checkpoint from which the network is restored. Samples that
    are lost twice count once.
    """
    failures = [event for event in events if isinstance(event, Recovered) and event.dense != "kept"]
    spans = sorted((event.samples - event.lost_dense_samples, event.samples) for event in failures)
    total = last = 0
    for first, end in spans:
        total += max(0, end - max(first, last))
        last = max(last, end)
    return total if failures else None


def _cache_results(cache: Mapping[str, float]) -> dict[str, float | None]:
    """The columns of a cache. ``cache_saved_frac``: bytes saved, as a fraction of the bytes sent without a cache."""
    sent, uncached = cache.get("bytes"), cache.get("uncached_bytes")
    results = {f"cache_{name}": cache.get(name) for name in _CACHE}
    return results | {"cache_saved_frac": None if sent is None or not uncached else 1 - sent / uncached}


def tell_apart(frame: Frame, keys: Sequence[str]) -> list[str]:
    """Fill the columns ``CONTENTS`` of finished rows; returns the names of these columns that have a value.

    A value is the first 8 digits of a digest. ``keys``: the swept keys. Of rows with equal settings and equal results,
    but several config hashes, all except the newest get the status ``copy``.
    """
    done = frame[(frame["status"] == "done") & frame["config_hash"].notna()]
    for key, name in _NAMES.items():
        several = done.groupby(name)[CONTENTS[key]].transform("nunique") > 1
        frame[key] = done.loc[several, CONTENTS[key]].str[:_DIGITS]
    frame["config.hash"] = None
    identity = ["engine", "strategy", "seed", "trace", "profile", "num_ps", "job_h", *keys, *_NAMES]
    done = frame.loc[done.index]
    for _, twins in done[done.duplicated(identity, keep=False)].groupby(identity, dropna=False, sort=False):
        if twins["config_hash"].nunique() > 1:
            if twins.duplicated([*_RESULTS], keep=False).all() and len(twins.drop_duplicates([*_RESULTS])) == 1:
                *others, last = twins["began"].sort_values(kind="stable").index
                failure = f"the same setting and result as {frame.loc[last, 'cell']}; its config hash differs"
                frame.loc[others, ["status", "failure"]] = ["copy", failure]
            else:
                frame.loc[twins.index, "config.hash"] = twins["config_hash"].str[:_DIGITS]
    return [key for key in CONTENTS if frame[key].notna().any()]


def name_laws(frame: Frame) -> None:
    """Fill the column ``trace_law``: a name that all traces drawn from one law share, and no other trace has.

    Traces drawn by ``trace.law``, and random windows of a trace, have a name from their config already. Trace files are
    drawn from one law if their headers differ only in the seed (:attr:`harness.traces.trace.Trace.law`). The law's name
    is then the common beginning of their names. Every other file counts as a law of its own.
    """
    files = frame[frame["trace"].notna() & frame["trace_law"].isna()]
    law = files["law_digest"].fillna("")
    names = files["trace"].groupby([law, files["trace"].where(law == "", "")], sort=False)
    shared = {key: os.path.commonprefix([*own]) or min(own) for key, own in names}  # noqa: RUF071 - of letters
    draws = {key: own.nunique() for key, own in names}
    short = {key: name.rstrip(_NUMBER) or name if draws[key] > 1 else name for key, name in shared.items()}
    for key, own in names:
        unique = (each[key] for each in (short, shared) if [*each.values()].count(each[key]) == 1)
        frame.loc[own.index, "trace_law"] = next(unique, f"{shared[key]} (law {(key[0] or str(None))[:_DIGITS]})")


def content_notes(frame: Frame) -> list[str]:
    """A line for each data path or trace name with several contents, and one on cells that differ only in hashes."""
    lines: list[str] = []
    for key, name in _NAMES.items():
        for own, same in frame[frame[key].notna()].groupby(name, sort=False) if key in frame else ():
            counts = same.groupby(key, sort=False).size()
            parts = ", ".join(f"{num} by digest {digest}" for digest, num in counts.items())
            other = "other data" if name == "data" else "another trace"
            lines.append(
                f"{len(same)} cells were computed with {other} under the same path, {name} {own}: {parts}; "
                "each content is a setting of its own"
            )
    twins = frame[frame["config.hash"].notna()] if "config.hash" in frame else frame[:0]
    if len(twins):
        rows = twins[["strategy", "seed", "config.hash"]].itertuples(index=False)
        parts = ", ".join(f"{strategy} of seed {seed} ({digest})" for strategy, seed, digest in rows)
        lines.append(
            f"{len(twins)} cells have equal settings but different config hashes and results, and are not paired: "
            f"{parts}; the older ones may be of another version"
        )
    return lines


_LEAST_POINTS = 3  # of a slope


def movement_of(events: Sequence[Event]) -> float | None:
    """The movement of a run (``Dropped.movement``), an L2 norm, summed over its failures; None if one is unknown."""
    return None if (moved := drops_of(events, "movement")) is None else math.fsum(moved)


def evaluation_results(events: Sequence[Event]) -> dict[str, Any]:
    """Columns from the evaluations of a run; empty without a final evaluation with an AUC. Unknown is None.

    ``auc_per_log_sample``: slope of the AUC over the natural logarithm of the number of samples, by least squares over
    the evaluations before the final one in the second half of the run. ``ne`` (normalised entropy), ``calibration`` and
    ``group_aucs`` are of the final evaluation (:class:`harness.model.metrics.Quality`).
    """
    known = [event for event in events if isinstance(event, Evaluated) and event.auc is not None]
    finals = [event for event in known if event.final]
    if not finals:
        return {}
    final = finals[-1]
    curve = [(event.samples, event.auc) for event in known if not event.final and event.auc is not None]
    return {
        "auc_per_log_sample": _slope([point for point in curve if 2 * point[0] >= final.samples]),
        "ne": final.normalised_entropy,
        "calibration": final.calibration,
        "group_aucs": final.group_aucs,
    }


def _slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Slope of the AUC over the logarithm of the samples; None for fewer than three different numbers of samples."""
    if len({samples for samples, _ in points}) < _LEAST_POINTS:
        return None
    samples, aucs = zip(*points, strict=True)
    return linear_regression([*map(math.log, samples)], aucs).slope
