"""What runs of CPR's emulations show: overhead, quality, and whether a loss would be seen."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.claims.rows import NO_RUN, Row, Verdict, calibrated, shown, within
from analysis.load import Cell
from analysis.stats import DEFAULT_MARGIN, Pair, estimate, estimate_pairs, pairs_of, regimes, verdicts

_DIVIDES = "strategy.interval_counts_ranks"
_HOW = {True: "divided by k = 4", False: "not divided by k"}
_PUBLISHED = {"full": (8.2, 8.5), "cpr_mfu": (0.53, 0.68), "cpr_ssu": (0.53, 0.68)}


def overhead(cells: Sequence[Cell]) -> list[Row]:
    """Overhead on `cpr56` beside the published ranges, and the part that is removed on `poster50`."""
    rows: list[Row] = []
    for name, (low, high) in _PUBLISHED.items():
        value = estimate(100 * cell["overhead_frac"] for cell in _own(cells, "cpr56", name))
        what = f"overhead of `{name}`, % of the job (`cpr56`)"
        rows.append(calibrated(within(what, f"{low:g}–{high:g} [read]", value, low, high)))
    for name in ("cpr_mfu", "cpr_ssu"):
        rows += [_removed(cells, name, f" (`poster50`, interval {how})", divides=each) for each, how in _HOW.items()]
    return rows


def _removed(cells: Sequence[Cell], name: str, where: str = "", *, divides: bool = True) -> Row:
    """The part of full recovery's overhead on `poster50` that a strategy removes, paired by seed."""
    whole = {cell["seed"]: cell["overhead_frac"] for cell in _own(cells, "poster50", "full")}
    own = [cell for cell in _own(cells, "poster50", name, divides=divides) if whole.get(cell["seed"])]
    removed = estimate([100 * (1 - cell["overhead_frac"] / whole[cell["seed"]]) for cell in own])
    return within(f"overhead of `full` that `{name}` removes, %{where}", "over 91 [read]", removed, 91.0, math.inf)


def quality(cells: Sequence[Cell]) -> list[Row]:
    """CPR's variants against the run without failures, to which full recovery is equal by construction."""
    rows: list[Row] = []
    for block in regimes(cells):
        where = f"`{block.setting['profile']}`" + ", interval not divided by k" * (block.setting.get(_DIVIDES) is False)
        for each in verdicts(block):
            if not each.strategy.startswith("cpr_"):
                continue
            words: Mapping[str, Verdict] = {"inferior": "not reproduced", "open": "cannot be told"}
            what = f"AUC loss of `{each.strategy}`, 10⁻³ ({where}; margin {1e3 * DEFAULT_MARGIN:g})"
            verdict: Verdict = words.get(each.verdict, "reproduced")
            shown_loss = shown(each.loss, 1e3)
            rows.append(
                Row(what, "on par with full recovery [read]", shown_loss, each.loss.num, verdict, each.sentence)
            )
    for name in ("cpr_mfu", "cpr_ssu"):
        rows += [_log_loss(cells, name, f" (`poster50`, interval {how})", divides=each) for each, how in _HOW.items()]
    return rows


def _log_loss(cells: Sequence[Cell], name: str, where: str = "", *, divides: bool = True) -> Row:
    """How much worse the log loss of a strategy on `poster50` is than without failures."""
    pairs = pairs_of(_own(cells, "poster50", name, divides=divides), cells, "log_loss")
    value = estimate_pairs([Pair(pair.seed, pair.trace, 1e3 * pair.difference) for pair in pairs])
    what = f"log loss of `{name}` more than without failures, 10⁻³{where}"
    return within(what, "at most 0.8 [read: 0.8]", value, -math.inf, 0.8)


def resolution(cells: Sequence[Cell]) -> list[Row]:
    """Whether the means to tell differences apart suffice: a control that must lose, against the width of intervals."""
    rows: list[Row] = []
    for profile in ("cpr56", "poster50"):
        losses = [
            estimate_pairs(pairs_of(_own(cells, profile, name), cells, "auc")) for name in ("never_save", "cpr_mfu")
        ]
        control, other = (each and each.negated for each in losses)
        if control is None or other is None or not other.half_width:
            continue
        ratio = control.mean / other.half_width
        rows.append(
            Row(
                f"AUC loss of `never_save` in half-widths of the interval of `cpr_mfu` (`{profile}`)",
                "– (aim: at least 10)",
                f"{ratio:.1f}",
                control.num,
                "reproduced" if ratio >= 10 else "not reproduced",
                f"`never_save` loses {shown(control, 1e3)}, `cpr_mfu` {shown(other, 1e3)} (10⁻³)",
            )
        )
    return rows


def poster(cells: Sequence[Cell]) -> list[Row]:
    """CPR's job at scale on `local`: what is removed and lost; and whether a smaller job agrees on both engines."""
    rows: list[Row] = []
    if value := estimate(100 * cell["overhead_frac"] for cell in _own(cells, "poster50", "full")):
        rows.append(Row("overhead of `full`, % of the job", "–", shown(value), value.num, "ours"))
    for name in ("cpr_mfu", "cpr_ssu"):
        rows += [_removed(cells, name), _log_loss(cells, name)]
    return [*rows, _agreement(cells)]


_OF_RESULT = ("auc", "log_loss", "train_loss", "pls", "update_pls", "overhead_frac", "payload_bytes", "num_lost_ranks")


def _agreement(cells: Sequence[Cell]) -> Row:
    """Of the cells that were run on both engines, how many have equal results, to the last bit."""
    what = "runs of 4 + 6 processes (`rpc`) equal to those of `local` to the last bit, of all"
    by_cell: dict[tuple[Any, ...], dict[str, list[Any]]] = {}
    for cell in cells:
        if cell["status"] == "done":
            results = [cell.get(name) for name in _OF_RESULT]
            by_cell.setdefault((cell["profile"], cell["strategy"], cell["seed"]), {})[cell["engine"]] = results
    both = [[*results.values()] for results in by_cell.values() if len(results) > 1]
    num_equal = sum(results[0] == results[1] for results in both)
    verdict: Verdict = "cannot be told" if not both else "reproduced" if num_equal == len(both) else "not reproduced"
    why = {"cannot be told": NO_RUN, "not reproduced": "results differ"}.get(verdict, "")
    return Row(what, "all (own claim)", f"{num_equal} of {len(both)}", len(both), verdict, why)


def _own(cells: Sequence[Cell], profile: str, strategy: str, *, divides: bool = True) -> list[Cell]:
    """Finished cells of a strategy. ``divides``: its interval is divided by k, the default; others have no such key."""
    return [
        cell
        for cell in cells
        if (cell["status"], cell["profile"], cell["strategy"]) == ("done", profile, strategy)
        and cell.get(_DIVIDES) in ((divides, None) if divides else (divides,))
    ]
