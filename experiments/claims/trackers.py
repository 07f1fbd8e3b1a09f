"""Judge of claim `trackers`: memory of CPR's trackers, by arithmetic."""

from typing import Any

from analysis.claims import Row, confirms_nothing, measured

_DIMS = (16, 128)
_PAPER = {
    "mfu": ("6.25 [recalled]", "0.78 [recalled]", 6.25, 0.78125),
    "ssu": ("r of MFU's: 0.78 [recalled]", "r of MFU's: 0.098 [recalled]", 0.78125, 0.09765625),
    "scar": ("100 [recalled]", "100 [recalled]", 100.0, 100.0),
}
_TOLERANCE = 0.002  # of the value: bits of rows that are not tracked, and lists of whole rows


def judge(results: Any) -> list[Row]:
    """A row for each tracker of CPR and embedding dim. The lists of `ssu` are without the bit a row that is ours."""
    rows: list[Row] = []
    for name, paper in _PAPER.items():
        for own in results[results["tracker"] == name].to_dict("records"):
            for place, dim in enumerate(_DIMS):
                whole = 100 * own[f"memory_fracs.{dim}"]
                value = whole - (100 / (8 * 4 * dim) if name == "ssu" else 0.0)
                expected = float(paper[2 + place])
                ends = expected * (1 - _TOLERANCE), expected * (1 + _TOLERANCE)
                what = f"memory of `{name}`, % of the tables that it tracks, dim {dim}"
                why = f"of its lists; with a bit a row that says whether it is in one: {whole:.3f}" * (name == "ssu")
                row = measured(what, str(paper[place]), [value], *ends, digits=3, why=why)
                rows.append(confirms_nothing(row, "identity"))
    return rows
