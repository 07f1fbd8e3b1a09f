"""The conclusion from fits of the time between failures, in sentences that claim no more than the data show."""

import math
from collections.abc import Iterator, Sequence

from harness.traces.fits import Fit

MIN_EVENTS = 20
"""With fewer, a shape's standard error is above 0.17 (Weibull, 0.78/sqrt(n)), and AIC is asymptotic."""
TOO_CLOSE = 2.0
"""A difference of AIC below which the lesser family has substantial support (Burnham & Anderson, Model Selection and
Multimodel Inference, 2002, section 2.6)."""
_REFUTED = 0.05
_UNSEEN = 3.0


def verdict(fits: Sequence[Fit]) -> str:
    """Sentences: which family of distributions fits best, if the data can tell, and the doubts about it."""
    if not fits:
        return "No family can be fitted: too few times between failures differ."
    ranked = sorted(fits, key=lambda fit: fit.aic)
    num = ranked[0].num_events
    if num < MIN_EVENTS:
        times = f"{num:,} {'time' if num == 1 else 'times'} between failures"
        return f"{times}: too few to tell families apart (at least {MIN_EVENTS} are needed)."
    close = [fit for fit in ranked if fit.aic - ranked[0].aic < TOO_CLOSE]
    return " ".join([_choice(close, ranked), *_doubts(close)])


def _choice(close: Sequence[Fit], ranked: Sequence[Fit]) -> str:
    names = [fit.family for fit in close]
    if len(close) > 1:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        apart = f"The data cannot tell {listed} apart (their AICs are within {TOO_CLOSE:g} of the least)"
        return f"{apart}; nothing speaks against a constant hazard." if "exponential" in names else f"{apart}."
    if len(ranked) == 1:
        return f"Only {names[0]} could be fitted."
    ahead, second = ranked[1].aic - ranked[0].aic, ranked[1].family
    return f"Of these families {names[0]} fits best: its AIC is {ahead:.1f} below that of {second}."


def _doubts(close: Sequence[Fit]) -> Iterator[str]:
    """Sentences on the closest fits: all refuted, mean beyond the observed durations, hazard that falls or rises."""
    if all(fit.p < _REFUTED for fit in close):
        each = ", ".join(f"{fit.family} p < {max(fit.p, 1e-4):.2g}" for fit in close)
        yield f"Yet the observed times refute {'it' if len(close) == 1 else 'them'} ({each}): use the times themselves."
    times = close[0].mean_h / (close[0].exposure_h / close[0].num_events)
    if times >= _UNSEEN:
        mean = f"{times:.0f} times the hours observed per failure" if times < math.inf else "infinite"
        yield f"Its mean is {mean}: it rests on durations beyond those observed; do not extrapolate."
    by_name = {fit.family: fit for fit in close}
    if "weibull" in by_name and "exponential" not in by_name:
        shape, interval = by_name["weibull"].parameters["shape"], by_name["weibull"].intervals["shape"]
        if 1.0 not in interval:
            shown = f"Weibull shape {shape:.2f}, {interval.low:.2f} to {interval.high:.2f}"
            yield f"The hazard {'falls' if shape < 1 else 'rises'} with the time since the last failure ({shown})."
