"""Samples are the clock of every decision: hours of a profile to samples, samples to boundaries between steps.

Exact arithmetic throughout, so that no decision hangs on how a float rounds.
"""

import math
from fractions import Fraction


def exact(value: float) -> Fraction:
    """The decimal that was written: ``exact(0.1) == 1/10``, which ``Fraction(0.1)`` is not. ``value`` is finite."""
    return Fraction(repr(float(value)))


def hour_to_samples(hour: float, *, job_h: float, total_samples: int) -> Fraction:
    """Where in the data the emulated job stands at ``hour``."""
    return exact(hour) / exact(job_h) * total_samples


def samples_to_hours(samples: float, *, job_h: float, total_samples: int) -> float:
    """Emulated hours that ``samples`` take."""
    return samples / total_samples * job_h


def boundary_at(samples: Fraction | int, batch_size: int) -> int:
    """The first boundary (number of finished steps) that holds at least ``samples``."""
    return math.ceil(Fraction(samples) / batch_size)
