"""What operators of a cluster ask of a run, from its events: goodput, badput, RPO, RTO, hours to a target.

Definitions and sources: docs/GUIDE.md, "Operators' words". Emulated hours (``*_h``) and seconds of this machine
(``*_s``) are never added. What a record does not tell is None, never 0.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from harness.core.clock import samples_to_hours
from harness.core.events import (
    BUCKETS,
    STALLS,
    Evaluated,
    Event,
    Finished,
    Interrupted,
    Lost,
    Recovered,
    Regrouped,
    Saved,
    Started,
    Trained,
)

Words = dict[str, float | None]

BADPUT: Mapping[str, str] = {
    "save": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "load": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "lost": "WASTED_PROGRESS_FROM_DISRUPTION",
    "reschedule": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "steps": "OTHER",
}
"""By bucket, the name of the same badput in Google's ml-goodput-measurement (``goodput_utils.BadputType``)."""

RPO = ("rpo_updates", "rpo_samples", "rpo_h")
RTO = ("rto_h", "rto_reschedule_h", "rto_restore_h", "rto_catch_up_h")
RTO_MEASURED = ("rto_s", "rto_detect_s", "rto_replace_s", "rto_regroup_s", "rto_restore_s", "rto_catch_up_s")
GREATEST = tuple(f"max_{name}" for name in (*RPO, "rto_h"))
WORDS = ("goodput_frac", *(f"badput_{bucket}_frac" for bucket in BUCKETS), *RPO, *RTO, *RTO_MEASURED, *GREATEST)
"""The words of :func:`words_of`."""


def words_of(events: Iterable[Event], finished: Finished, job_h: float) -> Words:
    """The words of a finished run, by the names in ``WORDS``. ``events``: all, or all except Trained and Evaluated.

    ``goodput_frac``: hours of the job without overhead, as a fraction of its hours with it; ``badput_BUCKET_frac``:
    those of each bucket with a price, so that all add up to 1. RPO and RTO are means over the failures of the run
    (``failures_of``), ``max_*`` the greatest; they are None without a failure, or if that of some failure is.
    """
    whole_h = None if finished.overhead_frac is None else job_h * (1 + finished.overhead_frac)
    failures = [*failures_of(events, job_h)]
    values = {name: [failure[name] for failure in failures] for name in (failures[0] if failures else ())}
    means = {name: _mean(values.get(name, [])) for name in (*RPO, *RTO, *RTO_MEASURED)}
    repeated_s = (finished.machine.get("overhead_seconds") or {}).get("lost")
    if (recovered_s := means["rto_s"]) is not None:
        means["rto_catch_up_s"] = None if repeated_s is None else repeated_s / len(failures)
        means["rto_s"] = None if repeated_s is None else recovered_s + repeated_s / len(failures)
    return {
        "goodput_frac": None if whole_h is None else job_h / whole_h,
        **{f"badput_{name}": value for name, value in bucket_fracs(finished, whole_h).items()},
        **means,
        **{f"max_{name}": max(_all_known(values.get(name, [])), default=None) for name in (*RPO, "rto_h")},
    }


def bucket_fracs(finished: Finished, whole_h: float | None) -> Words:
    """The hours of each bucket as a fraction of ``whole_h``, by ``BUCKET_frac``; None where either is unknown."""
    hours = {bucket: getattr(finished, f"{bucket}_h") for bucket in BUCKETS}
    return {f"{name}_frac": None if None in (own_h, whole_h) else own_h / whole_h for name, own_h in hours.items()}


def failures_of(events: Iterable[Event], job_h: float) -> Iterator[Words]:
    """RPO and RTO of each failure of a run, in order, without the measured time to catch up.

    ``rpo_samples``: after a rollback the samples that are trained again. Else the samples since the save or restore
    that PLS counts from, of the dead shard (or the dense network) where they are most. ``rpo_updates``: the updates
    lost. ``rto_reschedule_h``: detection, replacement and regrouping, which emulation does not divide.
    ``rto_s``: all measured seconds. Their parts before the restore are known where the ranks were found lost only once.
    """
    started: Started | None = None
    saved, restored = 0, dict[str, int]()  # samples
    found_s, replaced_s, cut = [], [], list[Interrupted]()
    for event in events:
        match event:
            case Started():
                started = event
            case Saved(closes_interval=True):
                saved = max(saved, event.samples)
            case Interrupted():
                cut.append(event)
            case Lost():
                found_s.append(event.machine.get("seconds"))
            case Regrouped():
                replaced_s.append(event.machine.get("seconds"))
            case Recovered() if started is not None:
                facts = started.recoveries
                losing = [rank for rank, kind in event.kinds.items() if facts.get(kind, {}).get("loses_updates")]
                since = [event.samples - max(saved, restored.get(rank, 0)) for rank in losing]
                samples = max([event.lost_dense_samples, *since])
                samples = event.samples - event.resume_samples if event.rollback else samples
                of_job = {"job_h": job_h, "total_samples": max(1, started.total_samples)}
                rpo = zip(RPO, (event.lost_updates, samples, samples_to_hours(samples, **of_job)), strict=True)
                yield {**dict(rpo), **_recovery_time(event, cut, found_s, replaced_s)}
                saved = event.resume_samples if event.rollback else saved
                restored = {} if event.rollback else restored | dict.fromkeys(losing, event.samples)
                found_s, replaced_s, cut = [], [], []
            case _:
                pass


def _recovery_time(
    event: Recovered, cut: Sequence[Interrupted], found_s: Sequence[Any], replaced_s: Sequence[Any]
) -> Words:
    """The parts of ``RTO`` and ``RTO_MEASURED``. ``found_s``, ``replaced_s``: seconds of the events before.

    ``cut``: recoveries from the same failure that were interrupted.
    """
    parts = "reschedule_h", "load_h", "lost_h"
    hours = [sum(getattr(each, part, 0.0) for each in (*cut, event)) for part in parts]
    reschedule_s, restore_s = event.machine.get("reschedule_seconds"), event.machine.get("seconds")
    is_split = len(found_s) == len(replaced_s) == 1
    detect_s, replace_s = (found_s[0], replaced_s[0]) if is_split else (None, None)
    before_s, whole_s = _all_known([reschedule_s, detect_s, replace_s]), _all_known([reschedule_s, restore_s])
    regroup_s = before_s[0] - before_s[1] - before_s[2] if before_s else None
    seconds = sum(whole_s) if whole_s else None, detect_s, replace_s, regroup_s, restore_s, None
    return dict(zip((*RTO, *RTO_MEASURED), (sum(hours), *hours, *seconds), strict=True))


def hours_to_samples(events: Sequence[Event], finished: Finished, job_h: float, num_samples: float) -> float | None:
    """Emulated hours, overhead included, until the run first had trained ``num_samples``; None if it never had."""
    for place, event in enumerate(events):
        if isinstance(event, Trained) and event.samples >= num_samples:
            return _hours_until(events, place, finished, job_h, num_samples, before=num_samples)
    return None


def hours_to_auc(events: Sequence[Event], finished: Finished, job_h: float, auc: float) -> float | None:
    """Emulated hours, overhead included, until the first evaluation with at least ``auc``; None without one."""
    for place, event in enumerate(events):
        if isinstance(event, Evaluated) and event.auc is not None and event.auc >= auc:
            return _hours_until(events, place, finished, job_h, event.samples, before=event.samples + 1)
    return None


def _hours_until(
    events: Sequence[Event], place: int, finished: Finished, job_h: float, samples: float, *, before: float
) -> float | None:
    """Hours of training on ``samples``, and of the overhead charged until the event at index ``place``.

    A save in the background is recorded later than it stalls training. So saves that are recorded later count too, if
    their contents have fewer samples than ``before``, until a rollback repeats such steps. What every step pays
    accrues evenly over the samples.
    """
    charged = [*events[:place]]
    for event in events[place:]:
        if isinstance(event, Recovered) and event.rollback:
            break
        charged += [event] if isinstance(event, Saved) and event.samples < before else []
    if finished.overhead_frac is None:
        return None
    overhead_h = sum(getattr(event, f"{bucket}_h", 0.0) for event in charged for bucket in STALLS)
    trained_h = job_h + (finished.steps_h or 0.0)
    return samples_to_hours(samples, job_h=trained_h, total_samples=max(1, finished.samples)) + overhead_h


def _mean(values: Sequence[float | None]) -> float | None:
    known = _all_known(values)
    return sum(known) / len(known) if known else None


def _all_known(values: Sequence[float | None]) -> list[float]:
    """The values; empty if one of them is unknown."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
