"""Whether the number of pairs that is computed for 80 % power gives that power (`benchmarks/power.py`)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.claims.rows import Row

_TOLERANCE = 0.06


def power(studies: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each kind of study: the share of studies that find the difference, within 80 ± 6 % or not."""
    rows: list[Row] = []
    for each in studies:
        share = each["found"] / each["studies"]
        half_width = 1.96 * math.sqrt(share * (1 - share) / each["studies"])
        unit = "standard deviation" + "s" * (each["difference"] != 1)
        what = (
            f"studies that find a difference of {each['difference']:g} {unit}, % "
            f"({each['noise']} differences; spread {each['spread']}; pairs {each['pairs']})"
        )
        over = share - each["promised"]
        is_kept = abs(over) <= _TOLERANCE
        why = "judged by the share, not by its interval"
        if not is_kept:
            why += f"; {100 * abs(over):.1f} points {'above' if over > 0 else 'below'}"
        rows.append(
            Row(
                what,
                f"{100 * each['promised']:g} ± {100 * _TOLERANCE:g} (own claim)",
                f"{100 * share:.1f} ± {100 * half_width:.1f}",
                each["studies"],
                "reproduced" if is_kept else "not reproduced",
                why,
            )
        )
    return rows
