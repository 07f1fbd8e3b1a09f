"""Distributions of the gaps between failures, and what a generated trace is made of.

A distribution has mean 1; a generator multiplies its gaps by the MTBF. A draw is the quantile of a uniform number
``u``, an array of any shape with values in (0, 1). So the same number under another MTBF or shape gives the
corresponding gap: settings are compared on common random numbers.

The formulas use ``scipy.special`` and not the distributions of ``scipy.stats``, so that generated traces keep their
bits, and that drawing a trace does not import the latter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.config.laws import Law
from harness.core.errors import TraceError

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Gaps:
    """The distribution of a gap X with E[X] = 1, given by two quantile functions of ``u``.

    ``gap``: the quantile function of X. ``met``: the quantile function of the gap in which a random moment falls. The
    density of that gap is x f(x), since longer gaps hold more moments.
    """

    gap: Callable[[F64], F64]
    met: Callable[[F64], F64]


def _exponential() -> Gaps:
    """The exponential law, which has no memory; the gap around a random moment is gamma with shape 2."""
    return Gaps(gap=lambda u: -np.log1p(-u), met=lambda u: special.gammaincinv(2.0, u))


def _gamma(shape: float) -> Gaps:
    """Gamma(k, 1 / k): the hazard falls for k < 1, rises for k > 1; x f(x) is a gamma of shape k + 1, same scale."""
    return Gaps(
        gap=lambda u: special.gammaincinv(shape, u) / shape, met=lambda u: special.gammaincinv(shape + 1, u) / shape
    )


def _weibull(shape: float) -> Gaps:
    """Weibull with shape c: the hazard falls for c < 1, rises for c > 1; ``met`` by (X / scale)^c ~ Gamma(1 + 1/c)."""
    scale = 1 / float(special.gamma(1 + 1 / shape))
    return Gaps(
        gap=lambda u: (-np.log1p(-u)) ** (1 / shape) * scale,
        met=lambda u: special.gammaincinv(1 + 1 / shape, u) ** (1 / shape) * scale,
    )


def _lognormal(sigma: float) -> Gaps:
    """Lognormal; sigma is the standard deviation of the logarithm. x f(x) has a median exp(sigma²) times as large."""
    return Gaps(
        gap=lambda u: np.exp(sigma * special.ndtri(u) - sigma**2 / 2),
        met=lambda u: np.exp(sigma * special.ndtri(u) + sigma**2 / 2),
    )


def _empirical(gaps: tuple[float, ...]) -> Gaps:
    """Observed gaps, equally likely, scaled to mean 1; ``met`` draws them in proportion to their length."""
    gaps_G = np.sort(np.array(gaps))
    gaps_G = gaps_G / gaps_G.mean()
    shares_G = np.cumsum(gaps_G)
    shares_G = shares_G / shares_G[-1]
    return Gaps(
        gap=lambda u: gaps_G[(u * len(gaps_G)).astype(np.int64)], met=lambda u: gaps_G[np.searchsorted(shares_G, u)]
    )


_SHAPED: dict[str, Callable[[float], Gaps]] = {"gamma": _gamma, "weibull": _weibull, "lognormal": _lognormal}

I64 = NDArray[np.int64]

MAX_DEATHS = 1_000_000
"""The largest expected number of deaths of one trace; a larger one suggests a wrong unit."""


@dataclass(frozen=True, kw_only=True)
class Lemons:
    """The first ``num`` places of a random order of ``ranks`` ranks. They get ``failures_frac`` of the failures.

    Raises TraceError if places of lemons would not get more failures than others.
    """

    num: int
    ranks: int
    failures_frac: float

    def __post_init__(self) -> None:
        even = self.num / self.ranks
        if self.failures_frac <= even:
            raise TraceError(
                f"trace.law.lemon_failures_frac: expected above {even:.3g}, as {self.num} of {self.ranks} ranks are "
                f"lemons, got {self.failures_frac:g}"
            )

    @classmethod
    def of(cls, law: Law, ranks: int) -> "Lemons | None":
        """Those of ``law`` among so many ranks, at least one; None if it has none."""
        if law.lemon_frac is None or law.lemon_failures_frac is None:
            return None
        return cls(num=max(1, round(law.lemon_frac * ranks)), ranks=ranks, failures_frac=law.lemon_failures_frac)

    def places(self, u_E: F64) -> I64:
        """The place that each failure strikes, by a uniform number in (0, 1) for each."""
        of_lemons_E = u_E / self.failures_frac * self.num
        others_E = self.num + (u_E - self.failures_frac) / (1 - self.failures_frac) * (self.ranks - self.num)
        places_E = np.where(u_E < self.failures_frac, of_lemons_E, others_E).astype(np.int64)
        return np.minimum(places_E, self.ranks - 1)  # a quotient may be rounded up to 1


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec:
    """A law of gaps, and the job of ``ranks`` ranks and ``job_h`` hours that has its failures.

    ``law``: with an MTBF, and with groups that fit into the ranks. ``gaps_h``, ``repairs_h``: those that model
    ``empirical`` draws from, in hours; the gaps are scaled to the MTBF. Hours and rates of the properties are those of
    the law, before the trace is scaled to the job.

    Raises TraceError for racks that do not divide the ranks, for more than ``MAX_DEATHS`` expected deaths, and as
    ``Lemons``.
    """

    law: Law
    ranks: int
    job_h: float
    gaps_h: tuple[float, ...] = ()
    repairs_h: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _ = self.lemons
        rack_size, num_deaths = self.law.rack_size, self.expected_instants * self.ranks_per_instant
        if rack_size is not None and self.ranks % rack_size:
            raise TraceError(f"trace.law.rack_size: expected a divisor of the {self.ranks} ranks, got {rack_size}")
        if num_deaths > MAX_DEATHS:
            raise TraceError(
                f"trace.law: expected at most {MAX_DEATHS} deaths, got {num_deaths:.3g}; shorten the job or raise the "
                "MTBF"
            )

    def times(self, factor: int) -> "GeneratorSpec":
        """The same law for a job so many times as long. Its traces begin as those of this one."""
        length_h = None if self.law.length_h is None else factor * self.law.length_h
        return replace(self, law=self.law.model_copy(update={"length_h": length_h}), job_h=factor * self.job_h)

    def rarer(self, factor: float) -> "GeneratorSpec":
        """The same law with an MTBF so many times as long, of the system or of a node."""
        key = "node_mtbf_h" if self.law.mtbf_h is None else "mtbf_h"
        return replace(self, law=self.law.model_copy(update={key: factor * getattr(self.law, key)}))

    @property
    def gaps(self) -> Gaps:
        if self.gaps_h:
            return _empirical(self.gaps_h)
        return _exponential() if self.law.shape is None else _SHAPED[self.law.model](self.law.shape)

    @cached_property
    def lemons(self) -> Lemons | None:
        return Lemons.of(self.law, self.ranks)

    @property
    def length_h(self) -> float:
        """The trace's length before it is scaled to the job."""
        return self.job_h if self.law.length_h is None else self.law.length_h

    @property
    def ranks_per_instant(self) -> float:
        """The mean number of ranks that die at an instant, k."""
        sizes, probability = self.law.group_sizes, self.law.group_probability
        if not sizes or probability is None:
            return 1.0
        mean = sum(size * weight for size, weight in sizes) / sum(weight for _, weight in sizes)
        return 1 + probability * (mean - 1)

    @property
    def instant_mtbf_h(self) -> float:
        """Mean hours between instants of the job, after its early hours. Scales as 1 / ranks."""
        if self.law.mtbf_h is not None:
            return self.law.mtbf_h * (self.law.nodes or self.ranks) / self.ranks
        assert self.law.node_mtbf_h is not None, "one of them is given"
        return self.law.node_mtbf_h * self.ranks_per_instant / self.ranks

    @property
    def busy_h(self) -> float:
        """The trace's length if early hours count ``early_factor`` times; gaps follow the law on this time scale."""
        return self.length_h + (self.law.early_factor - 1) * min(self.law.early_h, self.length_h)

    @property
    def expected_instants(self) -> float:
        """The expected number of instants. For ``fresh`` it is the long-run number, exact for exponential gaps only."""
        return self.busy_h / self.instant_mtbf_h
