"""How skewed the accesses of prepared data are: the share of all accesses that the most accessed rows get.

Every sample accesses a row of each table. Rows are those that the data has, all tables taken as one, or the seven
largest alone, which CPR tracks. Synthetic data show what their generator was asked for, and real ones what users do:
`benchmarks/accesses.py data/kaggle` for a folder that `run.py data prepare` wrote. Missing folders are left out.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np

from benchmarks._common import parser, report, table
from harness.core.placement import tracked_tables
from harness.data.facts import count_accesses, top_share
from harness.data.records import META_NAME, read_meta

NUM_TRACKED = 7
FRACS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Fractions of the rows, most accessed first."""


def accesses(folder: Path) -> list[dict[str, Any]]:
    """The share of each of ``FRACS``, of all tables and of the largest. Raises DataError if the data are damaged."""
    meta = read_meta(folder)
    counts_F = count_accesses(folder, meta)
    largest = tracked_tables(meta.cardinalities, NUM_TRACKED)
    found: list[dict[str, Any]] = []
    for tables, counts in (("all", counts_F), ("largest", [counts_F[index] for index in largest])):
        sorted_N = np.sort(np.concatenate([counts_N[counts_N > 0] for counts_N in counts]))[::-1]
        facts = {"data": str(folder), "is_synthetic": meta.synthetic is not None, "num_samples": meta.num_rows}
        facts |= {"tables": tables, "num_rows": len(sorted_N)}
        found += [{**facts, "frac": frac, "share": top_share(sorted_N, frac)} for frac in FRACS]
    return found


def main() -> None:
    made = parser(__doc__)
    made.add_argument("folders", nargs="*", type=Path, default=[Path("demo/data"), Path("demo/long")])
    options = made.parse_args()
    folders = [folder for folder in options.folders if (folder / META_NAME).exists()]
    results = [each for folder in folders for each in accesses(folder)]
    rows = [
        (each["data"], each["tables"], f"{each['num_rows']:,}", f"{each['frac']:.2%}", f"{each['share']:.2%}")
        for each in results
    ]
    report(options, table(("data", "tables", "rows", "top", "of accesses"), rows), {"results": results})


if __name__ == "__main__":
    main()
