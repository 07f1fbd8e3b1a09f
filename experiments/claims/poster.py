"""Judge of claim `poster`: results of processes that are killed are those of the emulation, to the last bit."""

from typing import Any

from analysis.claims import Row, Verdict

_OF_RESULT = ("auc", "log_loss", "train_loss", "pls", "update_pls", "overhead_frac", "payload_bytes", "num_lost_ranks")


def judge(cells: Any) -> list[Row]:
    """A row: the number of cells, of those that ran on both engines, whose results are equal."""
    by_cell = [own for _, own in cells.groupby(["profile", "strategy", "seed"])]
    both = [own.reindex(columns=_OF_RESULT) for own in by_cell if own["engine"].nunique() > 1]
    num_equal = sum(len(own.drop_duplicates()) == 1 for own in both)
    verdict: Verdict = "cannot be told" if not both else "reproduced" if num_equal == len(both) else "not reproduced"
    why = {"cannot be told": "no cell ran on both engines", "not reproduced": "results differ"}.get(verdict, "")
    what = "runs of 4 + 6 processes (`rpc`) equal to those of `local` to the last bit, of all"
    return [Row(what, "all (own claim)", f"{num_equal} of {len(both)}", len(both), verdict, why)]
