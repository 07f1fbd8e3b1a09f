"""What `cpr_mirror` gains on other strategies, in pairs of equal seed and failure trace."""

from collections.abc import Sequence

from analysis.claims.rows import Row, shown, signed
from analysis.load import Cell
from analysis.stats import BASELINE, Pair, condition, estimate_pairs, pairs_of

_COLUMNS = {  # name of a column, unit and factor
    "overhead_frac": ("overhead, % of the job", 100.0),
    "update_pls": ("lost updates, %", 100.0),
}


def mirror(cells: Sequence[Cell]) -> list[Row]:
    """Overhead and lost updates less those of each other strategy, by law; and the losses of AUC of all strategies."""
    done = [cell for cell in cells if cell["status"] == "done"]
    laws = dict.fromkeys(condition(cell, "trace") for cell in done if cell["trace"] is not None)
    others = dict.fromkeys(cell["strategy"] for cell in done if cell["strategy"] not in {BASELINE, "cpr_mirror"})
    rows: list[Row] = []
    for law in laws:
        within_law = [cell for cell in done if condition(cell, "trace") == law]
        own = [cell for cell in within_law if cell["strategy"] == "cpr_mirror"]
        for other in others:
            for column, (what, scale) in _COLUMNS.items():
                value = estimate_pairs(pairs_of(own, within_law, column, other))
                if value is not None:
                    text = f"`cpr_mirror` less `{other}`: {what} (law `{law}`)"
                    rows.append(signed(text, "below 0 (own claim)", value, sign=-1, scale=scale, digits=3))
    for name in ("cpr_mirror", *others):
        own = [cell for cell in done if cell["strategy"] == name]
        pairs = [Pair(pair.seed, pair.trace, -pair.difference) for pair in pairs_of(own, done, "auc")]
        if (loss := estimate_pairs(pairs)) is not None:
            rows.append(Row(f"AUC loss of `{name}`, 10⁻³ (all laws)", "–", shown(loss, 1e3), loss.num, "ours"))
    return rows
