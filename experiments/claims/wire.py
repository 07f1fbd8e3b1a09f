"""Judge of claim `wire`: the greatest speed-up by the lookahead cache."""

from statistics import median
from typing import Any

from analysis.claims import Row, middle, up_to


def judge(results: Any) -> list[Row]:
    """A row for the wire with the greatest median speed-up. A result is a wire, with the ratios of its rounds."""
    best = max(results.to_dict("records"), key=lambda each: median(each["ratios"]))
    wire = f"{best['rate_mbit']:g} Mbit/s" if best["rate_mbit"] else "loopback"
    fewer = best["uncached.passed"] / best["lookahead.passed"]
    what = f"greatest speed-up of a step by the lookahead cache ({wire})"
    why = f"{fewer:.1f} times fewer bytes; one machine, whose cores all ranks share"
    ratios = best["ratios"]
    return [
        up_to(
            what,
            "up to 5.6 [read], over other baselines",
            middle(ratios),
            len(ratios),
            reached=min(ratios),
            most=5.6,
            why=why,
        )
    ]
