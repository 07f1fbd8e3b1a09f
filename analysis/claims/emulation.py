"""What runs of CPR's emulations show: overhead, quality, and whether a loss would be seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from analysis.advice import DEFAULT_MARGIN, verdicts
from analysis.blocks import Line, regimes
from analysis.cells import Cell
from analysis.claims.rows import Row, Verdict, shown, within
from analysis.stats import Estimate, estimate


def overhead(cells: Sequence[Cell]) -> list[Row]:
    rows: list[Row] = []
    by_profile = _by_profile(cells)
    if lines := by_profile.get("cpr56"):
        published = {"full": (8.2, 8.5), "cpr_mfu": (0.53, 0.68), "cpr_ssu": (0.53, 0.68)}
        for name, (low, high) in published.items():
            if name in lines:
                value = estimate([100 * cell["overhead_frac"] for cell in lines[name].cells])
                row = within(
                    f"overhead of `{name}`, % of the job (`cpr56`)", f"{low:g}–{high:g} [read]", value, low, high
                )
                rows.append(replace(row, verdict="calibrated") if row.verdict == "reproduced" else row)
    if (lines := by_profile.get("poster50")) and "full" in lines:
        for name in ("cpr_mfu", "cpr_ssu"):
            if name in lines:
                what = f"overhead of `full` that `{name}` removes, % (`poster50`)"
                rows.append(within(what, "over 91 [read]", _removed(lines[name], lines["full"]), 91.0, math.inf))
    return rows


def _removed(line: Line, full: Line) -> Estimate | None:
    """Percent of the overhead of ``full`` that a strategy does not have, paired by seed."""
    whole = {cell["seed"]: cell["overhead_frac"] for cell in full.cells}
    return estimate(
        [100 * (1 - cell["overhead_frac"] / whole[cell["seed"]]) for cell in line.cells if cell["seed"] in whole]
    )


def quality(cells: Sequence[Cell]) -> list[Row]:
    """CPR's variants against the run without failures, to which full recovery is equal by construction."""
    rows: list[Row] = []
    for block in regimes(cells):
        profile = block.setting["profile"]
        for each in verdicts(block):
            if not each.strategy.startswith("cpr_"):
                continue
            words: Mapping[str, Verdict] = {"inferior": "not reproduced", "open": "cannot be told"}
            rows.append(
                Row(
                    f"AUC loss of `{each.strategy}`, 10⁻³ (`{profile}`, margin {1e3 * DEFAULT_MARGIN:g})",
                    "on par with full recovery [read]",
                    shown(each.loss, 1e3),
                    each.loss.num,
                    words.get(each.verdict, "reproduced"),
                    each.sentence,
                )
            )
    return rows


def resolution(cells: Sequence[Cell]) -> list[Row]:
    """Whether the means to tell differences apart suffice: a control that must lose, against the width of intervals."""
    rows: list[Row] = []
    for block in regimes(cells):
        losses = {line.strategy: line.auc_difference.negated for line in block.lines if line.auc_difference}
        control, other = losses.get("never_save"), losses.get("cpr_mfu")
        if control is None or other is None or not other.half_width:
            continue
        ratio = control.mean / other.half_width
        rows.append(
            Row(
                f"AUC loss of `never_save` in half-widths of the interval of `cpr_mfu` (`{block.setting['profile']}`)",
                "– (aim: at least 10)",
                f"{ratio:.1f}",
                control.num,
                "reproduced" if ratio >= 10 else "not reproduced",
                f"`never_save` loses {shown(control, 1e3)}, `cpr_mfu` {shown(other, 1e3)} (10⁻³)",
            )
        )
    return rows


def _by_profile(cells: Sequence[Cell]) -> dict[str, dict[str, Line]]:
    return {block.setting["profile"]: {line.strategy: line for line in block.lines} for block in regimes(cells)}
