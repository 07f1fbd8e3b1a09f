"""Loss curves of runs, from their events: each step once, averaged to few points; and their mean over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.events import Injected, Trained
from harness.record.event_log import EventLog

MAX_POINTS = 100  # a curve of a few kB


@dataclass(frozen=True)
class Losses:
    """The loss of each step of a run, in order of the steps, and the sample positions of its kills."""

    by_step: NDArray[np.float64]
    batch_size: int
    kill_samples: list[int]


@dataclass(frozen=True)
class Curve:
    """A loss curve: the steps are cut into at most ``MAX_POINTS`` equal pieces, and each point is the mean of a piece.

    ``losses[i]``: the mean of the piece that ends at ``samples[i]``. ``kill_samples``, ``kill_losses``: points on the
    curve, one for each step at which ranks were killed.
    """

    samples: list[int]
    losses: list[float]
    kill_samples: list[int]
    kill_losses: list[float]


def losses_of(log: EventLog) -> Losses | None:
    """The losses of a run, the last one of each rerun step; None without a Started event."""
    if (started := log.started) is None:
        return None
    losses: list[float] = []
    for event in log.events:
        if isinstance(event, Trained):
            losses[event.first_step : event.step] = event.losses
    kills = sorted({event.samples for event in log.events if isinstance(event, Injected) and event.loss})
    return Losses(np.asarray(losses, dtype=np.float64), started.total_samples // max(1, started.num_steps), kills)


def curve(run: Losses, reference: Losses | None = None, max_points: int = MAX_POINTS) -> Curve | None:
    """The loss curve of a run; None if there is no step.

    With a ``reference`` run of the same seed, the curve is of the differences at steps that both runs have, which
    removes the noise of the batches.
    """
    losses = run.by_step
    if reference is not None:
        others = reference.by_step
        losses = losses[: len(others)] - others[: len(losses)]
    if not len(losses):
        return None
    pieces = np.array_split(losses, min(max_points, len(losses)))
    samples = [int(end) * run.batch_size for end in np.cumsum([len(piece) for piece in pieces])]
    return _with_kills(samples, [float(piece.mean()) for piece in pieces], run.kill_samples)


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """The mean of the curves with the ``samples`` of the first, and the kills of all these; None without curves."""
    if not curves:
        return None
    samples = curves[0].samples
    alike = [each for each in curves if each.samples == samples]
    means = [float(np.mean(losses)) for losses in zip(*(each.losses for each in alike), strict=True)]
    return _with_kills(samples, means, sorted({kill for each in alike for kill in each.kill_samples}))


def _with_kills(samples: list[int], losses: list[float], kills: list[int]) -> Curve:
    return Curve(samples, losses, kills, [float(np.interp(kill, samples, losses)) for kill in kills])
