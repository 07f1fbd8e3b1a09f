"""The loss curve of one run, from its events: each sample position once, smoothed to few points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.events import Event, Killed, Started, Trained

MAX_POINTS = 100  # a curve of a few kB


@dataclass(frozen=True)
class Curve:
    """``losses[i]``: mean over the steps of one of at most ``MAX_POINTS`` equal pieces, that ends at ``samples[i]``.

    Kills lie on the curve, one mark for each boundary at which ranks were killed.
    """

    samples: list[int]
    losses: list[float]
    kill_samples: list[int]
    kill_losses: list[float]


def curve(events: Sequence[Event], reference: Sequence[Event] = (), max_points: int = MAX_POINTS) -> Curve | None:
    """None before the first step is on record. Steps run again after a rollback are not counted twice.

    With the events of a ``reference`` run of the same seed, each loss is less that of the same step there: the noise of
    the batches, which the two share, is gone. None if they share no step.
    """
    losses = _losses(events)
    if reference:
        others = _losses(reference)
        losses = losses[: len(others)] - others[: len(losses)]
    if not len(losses) or not isinstance(events[0], Started):
        return None
    batch_size = events[0].total_samples // max(1, events[0].num_steps)
    pieces = np.array_split(losses, min(max_points, len(losses)))
    ends = np.cumsum([len(piece) for piece in pieces])
    samples = [int(end) * batch_size for end in ends]
    means = [float(piece.mean()) for piece in pieces]
    kills = sorted({event.samples for event in events if isinstance(event, Killed)})
    return Curve(samples, means, kills, [float(np.interp(kill, samples, means)) for kill in kills])


def _losses(events: Sequence[Event]) -> NDArray[np.float64]:
    """The loss of each step, by step."""
    losses: list[float] = []
    for event in events:
        if isinstance(event, Trained):
            losses[event.first_step : event.step] = event.losses
    return np.asarray(losses, dtype=np.float64)
