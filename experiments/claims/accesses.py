"""Judge of claim `accesses`: the share of accesses of the most accessed rows."""

from collections.abc import Mapping
from typing import Any

from analysis.claims import Row, Verdict, joined

_FRAC, _SHARE = 0.01, 0.92
_LEAST_SAMPLES = 1_000_000  # of real data, for a share below the published one to count: it grows with the samples


def judge(results: Any) -> list[Row]:
    """A row for each data set. Synthetic data, whose skew was chosen, are not judged."""
    rows: list[Row] = []
    for each in results.to_dict("records"):
        if each["frac"] == _FRAC:
            kind = "synthetic" if each["is_synthetic"] else "real"
            verdict, reason = _verdict(each)
            why = joined(reason, f"{each['num_rows']:,} rows, {each['num_samples']:,} samples")
            what = f"accesses of the top 1 % of rows, % (`{each['data']}`, {kind})"
            ours = f"{100 * each['share']:.1f}"
            rows.append(Row(what, "over 92 [read]", ours, each["num_samples"], verdict, why))
    return rows


def _verdict(each: Mapping[str, Any]) -> tuple[Verdict, str]:
    if each["is_synthetic"]:
        return "cannot be told", "the generator's law was fitted to a sample of Criteo Kaggle"
    if each["share"] > _SHARE:
        return "reproduced", ""
    if each["num_samples"] < _LEAST_SAMPLES:
        return "cannot be told", f"fewer than {_LEAST_SAMPLES:,} samples, and the share grows with them"
    return "not reproduced", "the share is 92 % or less"
