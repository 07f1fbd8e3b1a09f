"""Judge and figure of claim `staleness`: the embedding traffic that bounded staleness saves."""

import math
from typing import Any

from analysis.claims import Row, Verdict, shown, up_to, values_of
from analysis.stats import Estimate, estimate

_KEY = "cache.staleness"
_MOST = 88.0
_BYTES = {"versions not counted": (), "versions counted": ("cache_clock_bytes",)}


def judge(cells: Any) -> list[Row]:
    """A row for each way to count bytes: the staleness that saves most, its saving, and its AUC loss.

    A saving as large as the published one is reproduced, unless the AUC is shown to be lower than without staleness.
    """
    rows: list[Row] = []
    for counted, more in _BYTES.items():
        found = {value: saved(cells, value, *more) for value in values_of(cells, _KEY)}
        known = {value: each for value, each in found.items() if each is not None}
        if not known:
            continue
        best = max(known, key=lambda value: known[value].mean)
        loss = loss_of(cells, best)
        kept: Verdict = "cannot be told" if loss is None or loss.interval is None else "reproduced"
        if loss is not None and loss.interval is not None and loss.interval[0] > 0:
            kept = "not reproduced"
        cost = "unknown" if loss is None else f"{shown(loss)}·10⁻³"
        low = (known[best].interval or (math.nan,))[0]
        what = f"most embedding bytes saved, % ({counted})"
        why = f"at staleness {best:g}, at an AUC loss of {cost}"
        ours = shown(known[best], digits=1)
        rows.append(up_to(what, "up to 88 [read]", ours, known[best].num, reached=low, most=_MOST, kept=kept, why=why))
    return rows


def saved(cells: Any, value: Any, *more: str) -> Estimate | None:
    """Embedding traffic saved by the cache at staleness ``value``, in % of the traffic without a cache.

    ``more``: columns of bytes that count as traffic besides ``cache_bytes``. None without a run.
    """
    own = cells[cells[_KEY] == value]
    moved = own[["cache_bytes", *more]].sum(axis=1, min_count=1 + len(more))
    return estimate((100 * (1 - moved / own["cache_uncached_bytes"])).dropna())


def loss_of(cells: Any, value: Any) -> Estimate | None:
    """AUC at staleness 0 minus AUC at staleness ``value``, in 10⁻³, paired by seed; None without a pair."""
    own, fresh = (cells[cells[_KEY] == each].set_index("seed")["auc"] for each in (value, 0))
    return estimate((1e3 * (fresh - own)).dropna())


def draw(cells: Any, ax: Any) -> None:
    """AUC loss against bytes saved: a point for each staleness."""
    for value in values_of(cells, _KEY):
        x, y = saved(cells, value), loss_of(cells, value)
        if x is not None and y is not None:
            ax.errorbar(
                x.mean, y.mean, xerr=x.half_width, yerr=y.half_width or None, fmt="o", color="#222222", capsize=3
            )
            ax.annotate(f"{value:g}", (x.mean, y.mean), xytext=(5, 5), textcoords="offset points")
    ax.axvline(_MOST, color="#222222", linestyle=":", label="HET: 88 %")
    ax.set_xlabel("bytes saved, %")
    ax.set_ylabel("AUC lost to s = 0, 10⁻³")
