"""How skewed the accesses of prepared data are: the share of all accesses that the most accessed rows get.

Every sample accesses a row of each table. Rows are those that the data has, all tables taken as one. Synthetic data
show what their generator was asked for, and real ones what users do: `experiments/claims/accesses_benchmark.py
data/kaggle` for a folder that `run.py data prepare` wrote. Missing folders are left out.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when started by path

import numpy as np

from benchmarks._common import parser, report, table
from harness.data.facts import count_accesses, top_share
from harness.data.records import META_NAME, read_meta

FRACS = (0.0001, 0.001, 0.01, 0.1, 1.0)
"""Fractions of the rows, most accessed first."""


def accesses(folder: Path) -> list[dict[str, Any]]:
    """The share of each of ``FRACS``. Raises DataError if the data are damaged."""
    meta = read_meta(folder)
    counts_N = np.concatenate(count_accesses(folder, meta))
    sorted_N = np.sort(counts_N[counts_N > 0])[::-1]
    facts = {"data": str(folder), "is_synthetic": meta.synthetic is not None, "num_samples": meta.num_rows}
    return [{**facts, "num_rows": len(sorted_N), "frac": frac, "share": top_share(sorted_N, frac)} for frac in FRACS]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("folders", nargs="+", type=Path)
    options = made.parse_args()
    folders = [folder for folder in options.folders if (folder / META_NAME).exists()]
    results = [each for folder in folders for each in accesses(folder)]
    rows = [(each["data"], f"{each['num_rows']:,}", f"{each['frac']:.2%}", f"{each['share']:.2%}") for each in results]
    report(options, table(("data", "rows", "top", "of accesses"), rows), {"results": results})


if __name__ == "__main__":
    main()
