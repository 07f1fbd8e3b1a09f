"""What fits allow to say of a family, in a plain sentence that claims no more than the data show."""

import math
from collections.abc import Sequence

from harness.traces.fits import Fit

MIN_EVENTS = 20
"""Fewer say little of a shape: its standard error is then above 0.17 (Weibull, 0.78/sqrt(n)), and AIC is asymptotic."""
TOO_CLOSE = 2.0
"""A difference of AIC below which the lesser family has substantial support (Burnham & Anderson, Model Selection and
Multimodel Inference, 2002, section 2.6)."""
_REFUTED = 0.05
_UNSEEN = 3.0


def verdict(fits: Sequence[Fit]) -> str:
    """Which family, if any: the sentence."""
    if not fits:
        return "No family can be fitted: too few times between failures differ."
    ranked = sorted(fits, key=lambda fit: fit.aic)
    best, num = ranked[0], ranked[0].num_events
    if num < MIN_EVENTS:
        return f"{_count(num)}: too few to tell families apart (at least {MIN_EVENTS} are asked for)."
    close = [fit for fit in ranked if fit.aic - best.aic < TOO_CLOSE]
    parts = _choice(best, close, ranked), _quality(close), _tail(best), _hazard(close)
    return " ".join(part for part in parts if part)


def _count(num: int) -> str:
    return f"{num:,} {'time' if num == 1 else 'times'} between failures"


def _choice(best: Fit, close: Sequence[Fit], ranked: Sequence[Fit]) -> str:
    names = [fit.family for fit in close]
    if len(close) > 1:
        told = f"The data cannot tell {_listed(names)} apart (their AICs are within {TOO_CLOSE:g} of the least)"
        return f"{told}; nothing speaks against a constant hazard." if "exponential" in names else f"{told}."
    if len(ranked) == 1:
        return f"Only {best.family} could be fitted."
    ahead, second = ranked[1].aic - best.aic, ranked[1].family
    return f"Of these families {best.family} fits best: its AIC is {ahead:.1f} below that of {second}."


def _quality(close: Sequence[Fit]) -> str:
    """Whether even the best are refuted. The bound without a bootstrap can refute, but not confirm."""
    if any(fit.goodness.p >= _REFUTED for fit in close):
        return ""
    each = ", ".join(f"{fit.family} {_p(fit)}" for fit in close)
    whom = "it does" if len(close) == 1 else "they do"
    return f"Yet {whom} not describe the data ({each}): take the observed times themselves."


def _tail(best: Fit) -> str:
    """Whether the best family lives on durations that nobody has seen."""
    seen_h = best.exposure_h / best.num_events
    if best.mean_h < _UNSEEN * seen_h:
        return ""
    told = f"{best.mean_h / seen_h:.0f} times the hours observed per failure" if best.mean_h < math.inf else "infinite"
    return f"Its mean is {told}: a tail that the data do not show, not to be drawn from beyond them."


def _p(fit: Fit) -> str:
    sign = "=" if fit.goodness.p_bootstrap is not None else "<"
    return f"p {sign} {max(fit.goodness.p, 1e-4):.2g}" if fit.goodness.p > 1e-4 else "p < 0.0001"


def _hazard(close: Sequence[Fit]) -> str:
    """What Weibull's shape says of the hazard, where it is among the best and its interval leaves out 1."""
    names = [fit.family for fit in close]
    if "weibull" not in names or "exponential" in names:
        return ""
    fitted = close[names.index("weibull")]
    shape, interval = fitted.parameters["shape"], fitted.intervals["shape"]
    if 1.0 in interval:
        return ""
    way = "falls" if shape < 1 else "rises"
    told = f"Weibull shape {shape:.2f}, {interval.low:.2f} to {interval.high:.2f}"
    return f"The longer there was no failure, the more the hazard of one {way} ({told})."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
