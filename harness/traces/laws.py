"""Laws of the time between failures, with mean 1: a gap of any law is its law's gap times the MTBF asked for.

Draws are quantiles: a uniform number goes in, a gap comes out. The same uniform number under another MTBF or shape
gives the corresponding gap, so settings can be compared on common random numbers. ``u`` is uniform in (0, 1), of any
shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.core.errors import TraceError

F64 = NDArray[np.float64]


class Law(Protocol):
    """Distribution of a gap X with E[X] = 1."""

    def gap(self, u: F64) -> F64:
        """Quantile of X at ``u``."""
        ...

    def met(self, u: F64) -> F64:
        """Quantile of the gap that a random moment falls into: density x f(x), long gaps are met more often."""
        ...


@dataclass(frozen=True)
class Gamma:
    """Gamma with shape k: hazard falls for k < 1, rises for k > 1; k = 1 is the exponential law."""

    shape: float

    def gap(self, u: F64) -> F64:
        """Quantile of Gamma(k, 1 / k)."""
        return special.gammaincinv(self.shape, u) / self.shape

    def met(self, u: F64) -> F64:
        """x times a gamma density of shape k is one of shape k + 1, of the same scale."""
        return special.gammaincinv(self.shape + 1, u) / self.shape


@dataclass(frozen=True)
class Weibull:
    """Weibull with shape c: hazard falls for c < 1, rises for c > 1; c = 1 is the exponential law."""

    shape: float

    @property
    def _scale(self) -> float:
        return 1 / float(special.gamma(1 + 1 / self.shape))

    def gap(self, u: F64) -> F64:
        """(−ln(1 − u))^(1/c), scaled to mean 1."""
        return (-np.log1p(-u)) ** (1 / self.shape) * self._scale

    def met(self, u: F64) -> F64:
        """(X / scale)^c of the gap that is met has a gamma distribution of shape 1 + 1/c."""
        return special.gammaincinv(1 + 1 / self.shape, u) ** (1 / self.shape) * self._scale


@dataclass(frozen=True)
class Exponential:
    """The law without memory: a Poisson process."""

    def gap(self, u: F64) -> F64:
        """−ln(1 − u)."""
        return -np.log1p(-u)

    def met(self, u: F64) -> F64:
        """Gamma of shape 2."""
        return special.gammaincinv(2.0, u)


@dataclass(frozen=True)
class Lognormal:
    """Lognormal; the shape is sigma, the standard deviation of the gap's natural logarithm."""

    shape: float

    def gap(self, u: F64) -> F64:
        """exp(sigma·z − sigma²/2)."""
        return np.exp(self.shape * special.ndtri(u) - self.shape**2 / 2)

    def met(self, u: F64) -> F64:
        """x times a lognormal density is one with its median exp(sigma²) times as large."""
        return np.exp(self.shape * special.ndtri(u) + self.shape**2 / 2)


@dataclass(frozen=True)
class Empirical:
    """Gaps that were seen, each as likely as any other, scaled to mean 1."""

    gaps: tuple[float, ...]

    @cached_property
    def _gaps_G(self) -> F64:
        gaps_G = np.sort(np.array(self.gaps))
        return gaps_G / gaps_G.mean()

    @cached_property
    def _shares_G(self) -> F64:
        shares_G = np.cumsum(self._gaps_G)
        return shares_G / shares_G[-1]

    def gap(self, u: F64) -> F64:
        """One of the gaps."""
        return self._gaps_G[(u * len(self._gaps_G)).astype(np.int64)]

    def met(self, u: F64) -> F64:
        """One of the gaps, by length."""
        return self._gaps_G[np.searchsorted(self._shares_G, u)]


SHAPED: dict[str, tuple[Callable[[float], Law], float, float]] = {
    "gamma": (Gamma, 0.1, 1_000),
    "weibull": (Weibull, 0.2, 100),
    "lognormal": (Lognormal, 0.01, 4),
}
"""Laws with a shape, and the least and the largest shape taken: outside, gaps are all alike or lost in rounding."""

MODELS = ("exponential", *SHAPED, "empirical")


def law_of(model: str, shape: float | None, gaps_h: tuple[float, ...]) -> Law:
    """The law named.

    Raises:
        TraceError: no such model, a shape where none belongs, none or an impossible one where one does, no gaps.
    """
    if model not in MODELS:
        raise TraceError(f"--model: {model!r} is none of {', '.join(MODELS)}, fit:TRACE.csv")
    if model not in SHAPED and shape is not None:
        raise TraceError(f"--shape: {model} has no shape")
    if (model == "empirical") != bool(gaps_h):
        raise TraceError(
            f"--model {model}: " + ("say whose gaps, empirical:TRACE.csv" if model == "empirical" else "takes no gaps")
        )
    if model == "exponential":
        return Exponential()
    if model == "empirical":
        if not (all(0 <= gap < np.inf for gap in gaps_h) and any(gaps_h)):
            raise TraceError("--model empirical: gaps are hours, not negative and not all zero")
        return Empirical(gaps_h)
    law, least, largest = SHAPED[model]
    if shape is None or not least <= shape <= largest:
        raise TraceError(f"--shape: {model} takes a shape from {least} to {largest}, not {shape}")
    return law(shape)
