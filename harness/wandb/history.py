"""A run's events as wandb shows them: rows of its history, and the summary.

Every row has the keys ``samples`` and ``hours``, which are the x axes. ``hours``: emulated, with the overhead so far;
what every step pays is in it as far as it has a price. ``*_h`` are emulated hours, ``*_s`` measured seconds. The part
of a key before the slash names a group of panels. ``curve/auc`` is of ``curve/num_samples`` samples, a part of the test
set; ``auc`` in the summary is of the whole set.
"""

from collections.abc import Mapping
from typing import Any

from harness.core.clock import samples_to_hours
from harness.core.events import (
    BUCKETS,
    STALLS,
    Dropped,
    Evaluated,
    Event,
    Finished,
    Grown,
    Injected,
    Interrupted,
    Lost,
    Noticed,
    Recovered,
    Saved,
    Started,
    Trained,
    drops_of,
)
from harness.core.operators import bucket_fracs, words_of
from harness.core.plans import is_trainer, rank_order

Row = dict[str, Any]

AXES = ("samples", "hours")

_TOTALS = (
    *(f"failures/{name}" for name in ("num_kills", "num_failures", "pls", "lost_updates")),
    *(f"saves/{name}" for name in ("num_saves", "payload_bytes", "persisted_updates")),
    *(f"overhead/{bucket}_h" for bucket in STALLS),
)
"""Keys of running sums over the run."""

_QUALITY = ("auc", "log_loss", "accuracy", "train_loss", "pls", "update_pls", "update_pls_tracked")
_EMULATED = ("overhead_frac", *(f"{bucket}_h" for bucket in BUCKETS))
_RESOURCES = ("node_h", "wire_bytes", "memory_bytes")
_COUNTS = ("num_failures", "num_lost_ranks", "num_unplanned", "num_saves", "payload_bytes", "generation")


class History:
    """Turns events, in order, into rows of wandb's history. Rerun steps give no row, so ``samples`` never falls.

    ``step_prices``: ``step_frac`` of the profile.
    """

    def __init__(self, job_h: float, step_prices: Mapping[str, float] | None = None) -> None:
        self._job_h = job_h
        self._step_prices = step_prices or {}
        self._step_frac = 0.0
        self._total_samples = 1
        self._totals = dict.fromkeys(_TOTALS, 0.0)
        self._samples = 0
        self._last_eval_samples = -1
        self._curve_samples: int | None = None  # samples evaluated in each evaluation of the curve
        self._unplanned: frozenset[str] = frozenset()  # ranks of the newest failure
        self._events: list[Event] = []  # all but those of steps, whose losses are many

    def rows(self, event: Event) -> list[Row]:
        """The rows of the history that ``event`` adds; empty for an event that wandb does not show."""
        if isinstance(event, Started):
            self._total_samples = event.total_samples
            self._step_frac = sum(self._step_prices.get(part, 0.0) for part in event.step_parts)
        if isinstance(event, Lost):
            self._unplanned = frozenset(event.unplanned_ranks)
        if not isinstance(event, Trained):
            self._events.append(event)
        for key, value in _increments(event).items():
            self._totals[key] += value
        # A save in the background is committed after later steps, and is shown at the newest position.
        self._samples = max(self._samples, event.samples)
        return [{"samples": self._samples, "hours": self._hours(), **values} for values in self._values(event)]

    def summary(self, event: Event) -> Row:
        """The summary of a run from its Finished event, empty for any other event; an unknown figure is None.

        ``BUCKET_frac``: fractions of the emulated job's hours. Operators' words: ``core.operators.words_of``.
        """
        if not isinstance(event, Finished):
            return {}
        stalls: Mapping[str, float] = event.machine.get("overhead_seconds") or {}
        recoveries = [each for each in self._events if isinstance(each, Recovered)]
        latencies_s = [seconds for each in recoveries if (seconds := latency_s(each)) is not None]
        return {
            **{name: getattr(event, name) for name in (*_QUALITY, *_EMULATED, *_COUNTS)},
            **bucket_fracs(event, self._job_h),
            **{name: value for name in _RESOURCES if (value := getattr(event, name)) is not None},
            **words_of(self._events, event, self._job_h),
            **self._drops(),
            **{f"cache/{name}": value for name, value in (event.cache or {}).items()},
            **{f"measured_{bucket}_s": stalls.get(bucket) for bucket in STALLS},
            "measured_stall_s": sum(stalls.values()) if stalls else None,
            "measured_run_s": event.machine.get("seconds"),
            "recovery_latency_s": sum(latencies_s) / len(latencies_s) if latencies_s else None,
            "max_recovery_latency_s": max(latencies_s, default=None),
        }

    def _drops(self) -> Row:
        """The sum, mean and last of the drops of AUC so far; the sum alone without a failure. Unknown is left out."""
        drops = drops_of(self._events)
        of_failures = {"drop/mean": sum(drops) / len(drops), "drop/last": drops[-1]} if drops else {}
        return {} if drops is None else {"drop/sum": sum(drops), **of_failures}

    def _hours(self) -> float:
        trained_h = samples_to_hours(self._samples, job_h=self._job_h, total_samples=self._total_samples)
        steps_h = self._step_frac * (trained_h + self._totals["overhead/lost_h"])
        return trained_h + steps_h + sum(self._totals[f"overhead/{bucket}_h"] for bucket in STALLS)

    def _values(self, event: Event) -> list[Row]:
        match event:
            case Started() | Saved() | Dropped():
                return [{**self._totals, **self._drops()}]
            case Trained(rerun=False):
                return [{"train/loss": sum(event.losses) / len(event.losses)}]
            case Evaluated() if self._is_on_curve(event):
                names = ("auc", "log_loss", "accuracy", "normalised_entropy", "calibration")
                found = {name: value for name in names if (value := getattr(event, name)) is not None}
                return [
                    {f"curve/{name}": value for name, value in (found | {"num_samples": event.num_samples}).items()}
                ]
            case Injected() if event.loss:
                return [{**_named("kill", event.rank), "kill/hour": event.hour, **self._totals}]
            case Recovered():
                return [{**self._recovery(event, rank), **self._totals} for rank in event.ranks]
        return []

    def _is_on_curve(self, event: Evaluated) -> bool:
        """Whether an evaluation is part of the AUC curve: on as many samples as the first one, and later than the last.

        If so, it is the last one from now on.
        """
        self._curve_samples = self._curve_samples or event.num_samples
        is_new = event.samples > self._last_eval_samples and event.num_samples == self._curve_samples
        if is_new:
            self._last_eval_samples = event.samples
        return is_new

    def _recovery(self, event: Recovered, rank: str) -> Row:
        lost = {} if event.dense == "kept" else {"recovery/lost_dense_samples": event.lost_dense_samples}
        return {
            **_named("recovery", rank),
            **lost,
            "recovery/is_planned": int(rank not in self._unplanned),
            "recovery/is_rollback": int(event.rollback),
            "recovery/latency_s": latency_s(event),
            "recovery/rows": event.num_rows,
            "recovery/pls": event.pls.get(rank, 0.0),
        }


def _named(what: str, rank: str) -> dict[str, int | None]:
    """``{"WHAT/rank": 3}`` for ps3, ``{"WHAT/trainer": 3}`` for trainer3; the number is None for an invalid name."""
    key = f"{what}/{'trainer' if is_trainer(rank) else 'rank'}"
    try:
        return {key: rank_order(rank)[1]}
    except ValueError:
        return {key: None}


def latency_s(event: Recovered) -> float | None:
    """Measured seconds from a failure to the end of its recovery; None if the event has none."""
    load_s, reschedule_s = (event.machine.get(name) for name in ("seconds", "reschedule_seconds"))
    return None if load_s is None or reschedule_s is None else load_s + reschedule_s


def _increments(event: Event) -> dict[str, float]:
    """The amounts that ``event`` adds to the running sums, by key; empty if it is no fault, save or recovery."""
    match event:
        case Injected():
            return {"failures/num_kills": 0 if event.loss is None else 1}
        case Saved():
            return {
                "saves/num_saves": int(event.charged),
                "saves/payload_bytes": event.payload_bytes if event.charged else 0,
                "saves/persisted_updates": event.persisted_updates or 0,
                "overhead/save_h": event.save_h,
            }
        case Noticed():
            return {
                "saves/persisted_updates": event.persisted_updates or 0,
                "saves/payload_bytes": sum(event.payload_bytes.values()),
                "overhead/save_h": event.save_h,
            }
        case Recovered():
            return {
                "failures/num_failures": 1,
                "failures/pls": sum(event.pls.values()),
                "failures/lost_updates": event.lost_updates or 0,
                **{f"overhead/{bucket}_h": getattr(event, f"{bucket}_h") for bucket in STALLS[1:]},
            }
        case Grown() | Interrupted():
            return {f"overhead/{each}_h": getattr(event, f"{each}_h", 0.0) for each in ("save", "load", "reschedule")}
        case _:
            return {}
