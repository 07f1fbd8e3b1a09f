"""Laws of the time between failures with mean 1, which a generator multiplies by the MTBF.

A draw is the quantile of a uniform number, so that the same number under another MTBF or shape gives the corresponding
gap: settings are compared on common random numbers. ``u`` is in (0, 1), of any shape.

The formulas are those of ``scipy.special``, not of ``scipy.stats``: generated traces keep their bits, and ``run.py
plan`` does not import the latter.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.core.errors import TraceError

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """The distribution of a gap X with E[X] = 1, given by two quantile functions of ``u``.

    ``gap``: the quantile function of X. ``met``: that of the gap in which a random moment falls; its density is
    x f(x), since longer gaps hold more moments.
    """

    gap: Callable[[F64], F64]
    met: Callable[[F64], F64]


def _exponential() -> Law:
    """The exponential law, which has no memory; the gap around a random moment is gamma with shape 2."""
    return Law(gap=lambda u: -np.log1p(-u), met=lambda u: special.gammaincinv(2.0, u))


def _gamma(shape: float) -> Law:
    """Gamma(k, 1 / k): the hazard falls for k < 1, rises for k > 1; x f(x) is a gamma of shape k + 1, same scale."""
    return Law(
        gap=lambda u: special.gammaincinv(shape, u) / shape, met=lambda u: special.gammaincinv(shape + 1, u) / shape
    )


def _weibull(shape: float) -> Law:
    """Weibull with shape c: the hazard falls for c < 1, rises for c > 1; ``met`` by (X / scale)^c ~ Gamma(1 + 1/c)."""
    scale = 1 / float(special.gamma(1 + 1 / shape))
    return Law(
        gap=lambda u: (-np.log1p(-u)) ** (1 / shape) * scale,
        met=lambda u: special.gammaincinv(1 + 1 / shape, u) ** (1 / shape) * scale,
    )


def _lognormal(sigma: float) -> Law:
    """Lognormal; sigma is the standard deviation of the logarithm. x f(x) has a median exp(sigma²) times as large."""
    return Law(
        gap=lambda u: np.exp(sigma * special.ndtri(u) - sigma**2 / 2),
        met=lambda u: np.exp(sigma * special.ndtri(u) + sigma**2 / 2),
    )


def _empirical(gaps: tuple[float, ...]) -> Law:
    """Observed gaps, equally likely, scaled to mean 1; ``met`` draws them in proportion to their length."""
    gaps_G = np.sort(np.array(gaps))
    gaps_G = gaps_G / gaps_G.mean()
    shares_G = np.cumsum(gaps_G)
    shares_G = shares_G / shares_G[-1]
    return Law(
        gap=lambda u: gaps_G[(u * len(gaps_G)).astype(np.int64)], met=lambda u: gaps_G[np.searchsorted(shares_G, u)]
    )


SHAPED: dict[str, tuple[Callable[[float], Law], float, float]] = {
    "gamma": (_gamma, 0.1, 1_000),
    "weibull": (_weibull, 0.2, 100),
    "lognormal": (_lognormal, 0.01, 4),
}
"""Laws with a shape, and the least and largest shape accepted: outside, gaps are all alike or lost in rounding."""

MODELS = ("exponential", *SHAPED, "empirical")


def law_of(model: str, shape: float | None, gaps_h: tuple[float, ...]) -> Law:
    """The law with this name and this shape or these gaps.

    Raises:
        TraceError: an unknown model; a shape or gaps that are missing, superfluous or out of range.
    """
    if model not in MODELS:
        raise TraceError(f"model: {model!r} is none of {', '.join(MODELS)}, fit:TRACE.csv")
    if model not in SHAPED and shape is not None:
        raise TraceError(f"shape: {model} has no shape")
    if model == "empirical" and not gaps_h:
        raise TraceError("model=empirical: expected a trace to take the gaps from, empirical:TRACE.csv, got none")
    if model != "empirical" and gaps_h:
        raise TraceError(
            f"model={model}: expected no list of gaps between failures; only the model 'empirical' takes one"
        )
    if model == "exponential":
        return _exponential()
    if model == "empirical":
        if not (all(0 <= gap < np.inf for gap in gaps_h) and any(gaps_h)):
            raise TraceError("model=empirical: expected finite gaps of 0 h or more, at least one of them above 0")
        return _empirical(gaps_h)
    law, least, largest = SHAPED[model]
    if shape is None or not least <= shape <= largest:
        raise TraceError(f"shape: {model} takes a shape from {least} to {largest}, not {shape}")
    return law(shape)
