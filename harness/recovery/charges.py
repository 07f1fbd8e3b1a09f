"""What a recovery costs: one arithmetic for the ledgers of a run and for the simulator."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.faults import Struck
from harness.core.overhead import FailureCost, OverheadLedger
from harness.core.plans import Progress, Rank, RecoveryPlan
from harness.core.pls import PlsLedger
from harness.recovery.recoveries import RECOVERIES, losing, rolls_back


@dataclass(frozen=True, kw_only=True)
class ModelBytes:
    """Payload bytes of a full save, dense network included, and of the rows of each PS rank in it."""

    full: int
    shards: Mapping[Rank, int]


def charge_recovery(
    plan: RecoveryPlan,
    progress: Progress,
    *,
    overhead: OverheadLedger,
    pls: PlsLedger,
    sizes: ModelBytes,
    struck: Struck,
    upload_bytes: int = 0,
) -> tuple[FailureCost, dict[Rank, float]]:
    """Charge the ledgers with one recovery; the ranks of ``plan`` are in order.

    Returns its cost, and the increase of the PLS by lost rank, 0 if it lost nothing.

    ``progress``: where the failure was detected; its newest save is the newest checkpoint. ``upload_bytes``: of rows
    that the trainer sent to the replacements.
    """
    goes_back = rolls_back(plan)
    resumes_at = (progress.saved_samples or 0) if goes_back else progress.samples
    read = [rank for rank, kind in plan.kinds.items() if RECOVERIES[kind].reads_rows]
    load_bytes = sizes.full if goes_back else sum(sizes.shards[rank] for rank in read) + upload_bytes
    cost = overhead.charge_failure(
        progress.samples - resumes_at,
        struck.repair_h,
        load_bytes=load_bytes,
        bytes_full=sizes.full,
        samples=progress.samples,
        num_ranks=len(plan.kinds),
        hangs=struck.hangs,
    )
    added = {} if goes_back else dict.fromkeys(plan.kinds, 0.0)
    if goes_back:
        pls.rolled_back(resumes_at)
    for rank in losing(plan):
        added[rank] = pls.lost(rank, progress.samples)
        pls.restored(rank, progress.samples)
    return cost, added
