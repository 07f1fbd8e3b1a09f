"""Conversion of emulated hours to training samples, and of samples to boundaries between steps.

Samples are the clock of every decision. Only failures may follow the wall clock of the emulated job instead
(``trace.clock: wall``). Boundaries are computed in fractions, so that no decision depends on how a float rounds.
"""

import math
from fractions import Fraction
from typing import Literal

FailureClock = Literal["samples", "wall"]
"""What the hours of a trace count: ``samples`` the hours of training, ``wall`` these and the overhead so far."""


def exact(value: float) -> Fraction:
    """The decimal number that ``value`` (finite) is printed as: ``exact(0.1) == 1/10``, unlike ``Fraction(0.1)``."""
    return Fraction(repr(float(value)))


def hour_to_samples(hour: float, *, job_h: float, total_samples: int) -> Fraction:
    """Number of samples that the emulated job trains on in its first ``hour`` hours without overhead; not rounded."""
    return exact(hour) / exact(job_h) * total_samples


def samples_to_hours(samples: float, *, job_h: float, total_samples: int) -> float:
    """Emulated hours of training on ``samples``."""
    return samples / total_samples * job_h


def boundary_at(samples: Fraction | int, batch_size: int) -> int:
    """The number of steps after which at least ``samples`` samples have been trained on."""
    return math.ceil(Fraction(samples) / batch_size)


def strike_step(
    hour: float, *, job_h: float, total_samples: int, batch_size: int, num_steps: int, overhead_h: float = 0.0
) -> int:
    """The boundary at which a failure strikes: the number of finished steps when the clock has reached ``hour``.

    The clock is the emulated hours of training plus ``overhead_h``, which is 0 with ``trace.clock: samples``. A failure
    up to the job's end strikes before the last step at the latest. For a later failure the result is ``num_steps``,
    which means that it does not strike unless more overhead is charged.
    """
    due = (exact(hour) - exact(overhead_h)) / exact(job_h) * total_samples
    return num_steps if due > total_samples else max(0, min(boundary_at(due, batch_size), num_steps - 1))
