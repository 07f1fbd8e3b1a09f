"""Conversion of emulated hours to training samples, and of samples to boundaries between steps.

Samples are the clock of every decision. The arithmetic is exact, so no decision depends on how a float rounds.
"""

import math
from fractions import Fraction


def exact(value: float) -> Fraction:
    """The decimal number that ``value`` (finite) is printed as: ``exact(0.1) == 1/10``, unlike ``Fraction(0.1)``."""
    return Fraction(repr(float(value)))


def hour_to_samples(hour: float, *, job_h: float, total_samples: int) -> Fraction:
    """Number of samples that the emulated job has trained on at ``hour``; not rounded."""
    return exact(hour) / exact(job_h) * total_samples


def samples_to_hours(samples: float, *, job_h: float, total_samples: int) -> float:
    """Emulated hours that training on ``samples`` takes."""
    return samples / total_samples * job_h


def boundary_at(samples: Fraction | int, batch_size: int) -> int:
    """The least number of finished steps that together contain at least ``samples``."""
    return math.ceil(Fraction(samples) / batch_size)
