"""Curves of single runs over samples and hours, from their event logs, and their means over seeds."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.load import Frame
from analysis.stats import paired, setting_keys
from harness.core.events import Evaluated, Event, Injected, Trained
from harness.record.event_log import EventLog
from harness.record.rundir import RunDir

MAX_POINTS = 100  # a curve of a few kB


@dataclass(frozen=True)
class Losses:
    """The training loss of each step of a run, in order, and the sample positions (ascending) at which ranks died."""

    by_step: NDArray[np.float64]
    batch_size: int
    kill_samples: list[int]


@dataclass(frozen=True)
class Curve:
    """A loss curve: the steps are cut into pieces of equal length, and each point is the mean of a piece.

    ``losses[i]``: the mean of the piece that ends at ``samples[i]``. ``kill_samples``: where ranks were killed.
    """

    samples: list[int]
    losses: list[float]
    kill_samples: list[int]


def losses_of(log: EventLog) -> Losses | None:
    """The losses of a run, for a rerun step the newest one; None without a Started event."""
    if (started := log.started) is None:
        return None
    losses: list[float] = []
    for event in log.events:
        if isinstance(event, Trained):
            losses[event.first_step : event.step] = event.losses
    kills = sorted({event.samples for event in log.events if isinstance(event, Injected) and event.loss})
    return Losses(np.asarray(losses, dtype=np.float64), started.total_samples // max(1, started.num_steps), kills)


def curve(run: Losses, reference: Losses | None = None) -> Curve | None:
    """The loss curve of a run, of at most ``MAX_POINTS`` points; None if there is no step.

    With a ``reference`` run of the same seed, the curve shows the run's loss minus the reference's, at the steps that
    both runs have. This removes the noise of the batches.
    """
    losses = run.by_step
    if reference is not None:
        others = reference.by_step
        losses = losses[: len(others)] - others[: len(losses)]
    if not len(losses):
        return None
    pieces = np.array_split(losses, min(MAX_POINTS, len(losses)))
    samples = [int(end) * run.batch_size for end in np.cumsum([len(piece) for piece in pieces])]
    return Curve(samples, [float(piece.mean()) for piece in pieces], run.kill_samples)


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean of the curves that have the same ``samples`` as the first, with all their kills; None without curves."""
    if not curves:
        return None
    samples = curves[0].samples
    alike = [each for each in curves if each.samples == samples]
    means = [float(np.mean(losses)) for losses in zip(*(each.losses for each in alike), strict=True)]
    return Curve(samples, means, sorted({kill for each in alike for kill in each.kill_samples}))


@dataclass(frozen=True)
class Aucs:
    """The AUC of a run during training, by hour of the job, and the hours at which ranks died.

    An hour is the part of the samples that are trained, times the hours of the job: overhead is not in it.
    ``num_samples``: of the test set, on which each AUC is. ``is_whole``: whether these are all of it, so that the last
    AUC is that of the final evaluation. ``error``: standard error of one AUC by their choice.
    """

    by_hour: dict[float, float]
    kill_hours: list[float]
    num_samples: int
    is_whole: bool
    error: float | None


def aucs_of(log: EventLog, job_h: float) -> Aucs | None:
    """The AUC curve of a run, of a repeated evaluation the newest one; None without an evaluation during training.

    The error of one AUC follows from the AUCs of the final evaluation's parts, by the root of their sizes.
    """
    if (started := log.started) is None:
        return None
    evaluated = [event for event in log.events if isinstance(event, Evaluated) and event.auc is not None]

    def hour(event: Event) -> float:
        return event.samples * job_h / started.total_samples

    num = next((event.num_samples for event in evaluated if not event.final), None)
    if num is None:
        return None
    # The final evaluation is a point of the curve if that is on all samples, too.
    by_hour = {hour(event): event.auc for event in evaluated if event.num_samples == num and event.auc is not None}
    parts = [(event.group_aucs, event.num_samples) for event in evaluated if event.final and event.group_aucs]
    errors = [float(np.std(own, ddof=1)) * math.sqrt(whole / len(own) / num) for own, whole in parts]
    kills = sorted({hour(event) for event in log.events if isinstance(event, Injected) and event.loss})
    is_whole = any(event.final and event.num_samples == num for event in evaluated)
    return Aucs(dict(sorted(by_hour.items())), kills, num, is_whole, errors[-1] if errors else None)


def curve_rows(partners: Frame, read: Callable[[Any], Aucs | None]) -> Iterator[dict[str, Any]]:
    """A row for each evaluation during training, and for each hour at which ranks died, of runs of a frame.

    ``partners``: the index label of the run of ``none`` with the same seed, by that of each run. ``read``: the curve of
    a run, by its label. Fields: ``run`` (the label), ``hour``, ``auc``, ``num_samples`` (of the test set, on which this
    AUC is), ``auc_difference`` to ``none`` at the same hour, and ``is_failure``. Unknown is None.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    for label, partner in partners.items():
        if (own := read(label)) is None:
            continue
        other = read(partner) if pd.notna(partner) else None
        base = {} if other is None else other.by_hour
        for hour, auc in own.by_hour.items():
            difference = auc - base[hour] if hour in base else None
            known = {"auc": auc, "auc_difference": difference, "num_samples": own.num_samples}
            yield {"run": label, "hour": hour, "is_failure": False, **known}
        unknown = dict.fromkeys(("auc", "auc_difference", "num_samples"))
        yield from ({"run": label, "hour": hour, "is_failure": True, **unknown} for hour in own.kill_hours)


def curves(frame: Frame) -> Frame:
    """The AUC over the hours of the job of the finished cells of a frame made by ``load``, for ``figures.over_hours``.

    A row for each evaluation and each failure: the cell's columns ``strategy``, ``seed``, ``engine``, ``trace`` and
    ``profile`` and its swept keys, and the fields of :func:`curve_rows`. Raises StoreError if a record cannot be read.
    """
    import pandas as pd  # noqa: PLC0415 - takes half a second to import

    cells = paired(frame[frame["status"] == "done"])
    keys = ["strategy", "seed", *setting_keys(cells)]

    def read(label: Any) -> Aucs | None:
        return aucs_of(EventLog.of(RunDir(Path(cells.loc[label, "path"]))), cells.loc[label, "job_h"])

    columns = ["run", "hour", "is_failure", "auc", "auc_difference", "num_samples"]
    rows = pd.DataFrame([*curve_rows(cells["partner"], cache(read))], columns=columns)
    return rows.astype({"is_failure": bool}).join(cells[keys], on="run")
