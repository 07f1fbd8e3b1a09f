"""Clocks at two seams of a run on ``rpc``: the cluster that its trainer calls, and the launcher that kill.

``time.monotonic`` is one clock for all processes of a machine, so stamps of the trainer and of the supervisor compare.
What is timed is the real trainer, the real supervisor and real ranks; a stamp costs well below a microsecond.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.cluster.protocol import Cluster, Reply, Request, SupervisorClient
from harness.cluster.supervisor import Ranks
from harness.config.model import Config
from harness.core.errors import RankLost
from harness.core.events import Machine
from harness.core.plans import Rank
from harness.run.job import train


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Moments of one failure in the trainer, monotonic seconds, in order."""

    ranks: tuple[Rank, ...]
    struck_s: float  # the injector has acted: the trainer goes on
    lost_s: float  # a request failed
    joined_s: float  # the new generation stands
    restored_s: float  # the replacements hold their rows
    answered_s: float = 0.0  # the request that had failed is answered
    stepped_s: float = 0.0  # the gradients of that step are applied everywhere


@dataclass(frozen=True)
class Stamps:
    """What the trainer rank saw."""

    failures: tuple[Failure, ...]


class TimedCluster:
    """A cluster that notes when failures are found and mended."""

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner
        self._struck_s = 0.0
        self._lost_s = 0.0
        self._joined_s = 0.0
        self._ranks: tuple[Rank, ...] = ()
        self._later: list[str] = []  # moments of the last failure that are still to come
        self.failures: list[Failure] = []

    @property
    def overlaps(self) -> bool:
        """As of the inner cluster."""
        return self._inner.overlaps

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All PS ranks, in order."""
        return self._inner.ranks

    def call(self, requests: Mapping[Rank, Request]) -> dict[Rank, Reply]:
        """As the inner cluster does it."""
        try:
            replies = self._inner.call(requests)
        except RankLost as lost:
            self._lost_s, self._ranks = time.monotonic(), tuple(sorted(lost.ranks))
            raise
        now_s = time.monotonic()
        if self._joined_s:
            self.failures.append(
                Failure(
                    ranks=self._ranks,
                    struck_s=self._struck_s,
                    lost_s=self._lost_s,
                    joined_s=self._joined_s,
                    restored_s=now_s,
                )
            )
            self._joined_s, self._later = 0.0, ["answered_s", "stepped_s"]
        elif self._later:
            self.failures[-1] = replace(self.failures[-1], **{self._later.pop(0): now_s})
        return replies

    def start(self, requests: Mapping[Rank, Request]) -> Mapping[Rank, Request]:
        """Nothing yet: what runs ahead cannot be timed, so everything is asked when it is waited for."""
        return requests

    def finish(self, underway: Mapping[Rank, Request]) -> dict[Rank, Reply]:
        """Ask, and wait."""
        return self.call(underway)

    def kill_planned(self, step: int, samples: int) -> float | None:
        """As the inner cluster does it."""
        repair_h = self._inner.kill_planned(step, samples)
        self._struck_s = time.monotonic()
        return repair_h

    def replace(self, lost: Mapping[Rank, str], step: int, samples: int, seconds: float) -> None:
        """As the inner cluster does it."""
        self._inner.replace(lost, step, samples, seconds)
        self._joined_s = time.monotonic()


def timed_train(
    config: Config, checkpoints: Path, kill_steps: frozenset[int], cluster: Cluster, supervisor: SupervisorClient
) -> None:
    """The trainer's job with clocks around its cluster; the last thing it records are :class:`Stamps`."""
    timed = TimedCluster(cluster)
    train(config, checkpoints, kill_steps, timed, supervisor)
    supervisor.record(Stamps(tuple(timed.failures)))


@dataclass(frozen=True)
class Moment:
    """Of the supervisor: ``what`` began and ended, monotonic seconds."""

    what: str
    began_s: float
    ended_s: float


class TimedRanks:
    """Ranks that note when they are killed and replaced."""

    def __init__(self, inner: Ranks) -> None:
        self._inner = inner
        self.kills: list[Moment] = []
        self.replacements: list[Moment] = []

    def kill(self, ranks: Sequence[Rank]) -> dict[Rank, Machine]:
        """As the inner launcher do it."""
        began_s = time.monotonic()
        machines = self._inner.kill(ranks)
        self.kills.append(Moment(",".join(ranks), began_s, time.monotonic()))
        return machines

    def replace(self, ranks: Iterable[Rank], generation: int) -> Machine:
        """As the inner launcher do it."""
        names = tuple(ranks)
        began_s = time.monotonic()
        machine = self._inner.replace(names, generation)
        self.replacements.append(Moment(",".join(names), began_s, time.monotonic()))
        return machine


class KeptStamps:
    """A sink that keeps what the timed trainer recorded last, and nothing else."""

    def __init__(self) -> None:
        self.stamps: Stamps | None = None

    def record(self, event: Any) -> None:
        """Keep it if it is the stamps."""
        if isinstance(event, Stamps):
            self.stamps = event
