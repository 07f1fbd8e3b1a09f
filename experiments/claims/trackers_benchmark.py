"""Memory of CPR's trackers over 8 PS ranks, in parts of the tables of Kaggle's log that they choose from.

It is arithmetic, by the trackers' own ``num_bytes``. r = 1/8.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when started by path

from benchmarks._common import parser, report, table
from harness.config.model import MetricsConfig
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES
from harness.core.placement import Placement, tracked_tables
from harness.core.trackers import TRACKERS, TrackerSpec

KINDS = ("mfu", "ssu", "scar")
DIMS = (16, 128)
NUM_PS = 8
R = 0.125


def memory_fracs(kind: str) -> dict[int, float]:
    """Bytes of a tracker over all ranks, as a part of the tables that it chooses from, by embedding dim."""
    placement = Placement("row", KAGGLE_CARDINALITIES, NUM_PS)
    tables = tracked_tables(KAGGLE_CARDINALITIES, MetricsConfig().num_tracked)
    spec, size = TrackerSpec(kind, tables, {"r": R}), TRACKERS[kind].num_bytes
    num_rows = sum(KAGGLE_CARDINALITIES[number] for number in tables)
    return {dim: sum(size(spec, placement, k, dim) or 0 for k in range(NUM_PS)) / (4 * dim * num_rows) for dim in DIMS}


def main() -> None:
    options = parser(__doc__).parse_args()
    fracs = {kind: memory_fracs(kind) for kind in KINDS}
    rows = [(kind, *(f"{100 * frac:.3f}" for frac in own.values())) for kind, own in fracs.items()]
    results = [{"tracker": kind, "memory_fracs": own} for kind, own in fracs.items()]
    report(options, table(("tracker, %", *(f"dim {dim}" for dim in DIMS)), rows), {"results": results})


if __name__ == "__main__":
    main()
