"""The loss curve of one run, from its events: each step once, averaged to few points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.events import Event, Killed, Started, Trained

MAX_POINTS = 100  # a curve of a few kB


@dataclass(frozen=True)
class Curve:
    """``losses[i]``: mean over the steps of one of at most ``MAX_POINTS`` equal pieces, which ends at ``samples[i]``.

    ``kill_samples``, ``kill_losses``: points on the curve, one for each step at which ranks were killed.
    """

    samples: list[int]
    losses: list[float]
    kill_samples: list[int]
    kill_losses: list[float]


def curve(events: Sequence[Event], reference: Sequence[Event] = (), max_points: int = MAX_POINTS) -> Curve | None:
    """The loss curve of a run; of a step that ran again after a rollback, only the last loss counts.

    With the events of a ``reference`` run of the same seed, the loss of the same step there is subtracted, which
    removes the noise of the batches. None if there is no step, or none that both have.
    """
    losses = _losses(events)
    if reference:
        others = _losses(reference)
        losses = losses[: len(others)] - others[: len(losses)]
    if not len(losses) or not isinstance(events[0], Started):
        return None
    batch_size = events[0].total_samples // max(1, events[0].num_steps)
    pieces = np.array_split(losses, min(max_points, len(losses)))
    samples = [int(end) * batch_size for end in np.cumsum([len(piece) for piece in pieces])]
    means = [float(piece.mean()) for piece in pieces]
    kills = sorted({event.samples for event in events if isinstance(event, Killed)})
    return Curve(samples, means, kills, [float(np.interp(kill, samples, means)) for kill in kills])


def _losses(events: Sequence[Event]) -> NDArray[np.float64]:
    """The loss of each step, in order of the steps."""
    losses: list[float] = []
    for event in events:
        if isinstance(event, Trained):
            losses[event.first_step : event.step] = event.losses
    return np.asarray(losses, dtype=np.float64)
