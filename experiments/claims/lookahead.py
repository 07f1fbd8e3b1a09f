"""Judge of claim `lookahead`: the bytes that the lookahead cache moves beyond the least possible."""

from typing import Any

from analysis.claims import Row, measured


def judge(results: Any) -> list[Row]:
    """A row over the runs, one for each lookahead."""
    over = (100 * results["over_minimum_frac"]).to_list()
    return [measured("bytes beyond the least possible, %", "0 (own claim)", over, 0, 0.005)]
