"""Conversion of emulated hours to training samples, and of samples to boundaries between steps.

Samples are the clock of every decision; only failures may follow the wall clock of the emulated job (``trace.clock:
wall``). The arithmetic is exact, so no decision depends on how a float rounds.
"""

import math
from fractions import Fraction
from typing import Literal

FailureClock = Literal["samples", "wall"]
"""The clock of a trace's hours: hours of training on samples, or of the emulated job with all overhead so far."""


def exact(value: float) -> Fraction:
    """The decimal number that ``value`` (finite) is printed as: ``exact(0.1) == 1/10``, unlike ``Fraction(0.1)``."""
    return Fraction(repr(float(value)))


def hour_to_samples(hour: float, *, job_h: float, total_samples: int) -> Fraction:
    """Number of samples that the emulated job has trained on at ``hour``; not rounded."""
    return exact(hour) / exact(job_h) * total_samples


def samples_to_hours(samples: float, *, job_h: float, total_samples: int) -> float:
    """Emulated hours of training on ``samples``."""
    return samples / total_samples * job_h


def boundary_at(samples: Fraction | int, batch_size: int) -> int:
    """The first boundary with at least ``samples``: a number of finished steps."""
    return math.ceil(Fraction(samples) / batch_size)


def strike_step(
    hour: float, *, job_h: float, total_samples: int, batch_size: int, num_steps: int, overhead_h: float = 0.0
) -> int:
    """The boundary at which a failure of ``hour`` strikes: the first one at which the clock has reached it.

    The clock is the emulated hours of training plus ``overhead_h``, which is 0 with ``trace.clock: samples``. A failure
    up to the job's end strikes before the last step at the latest. For a later one the result is ``num_steps``: without
    further overhead it does not strike.
    """
    due = (exact(hour) - exact(overhead_h)) / exact(job_h) * total_samples
    return num_steps if due > total_samples else max(0, min(boundary_at(due, batch_size), num_steps - 1))
