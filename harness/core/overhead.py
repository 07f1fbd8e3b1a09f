"""What fault tolerance costs: CPR's closed forms, and the ledger of an emulated run.

Symbols as in CPR section 4 (Maeng et al., MLSys 2021), reconstructed in docs/CPR.md. Everything here is emulated:
hours of the profile's cluster, never seconds of this machine.
"""

import math
from dataclasses import dataclass

from harness.core.clock import samples_to_hours
from harness.core.plans import Costs


def t_save_full_h(costs: Costs) -> float:
    """``T_save,full = sqrt(2 O_save T_fail)``, hours: where ``o_full_h`` is least (Young, CACM 1974)."""
    return math.sqrt(2 * costs.o_save_h * costs.mtbf_h)


def t_save_part_h(costs: Costs, *, counts_ranks: bool = True) -> float:
    """``T_save,part = 2 PLS_target N T_fail / k``, hours: the interval at which ``expected_pls`` is the target.

    ``counts_ranks=False`` leaves k, the ranks lost per failure, out (R).
    """
    per_failure = costs.ranks_per_failure if counts_ranks else 1
    return 2 * costs.pls_target * costs.num_ps * costs.mtbf_h / per_failure


def o_full_h(costs: Costs, t_save_h: float) -> float:
    """Expected overhead of full recovery over the job, hours.

    ``O_save T_total / T_save + (O_load + T_save/2 + O_res) T_total / T_fail``. With saves that cost nothing the
    interval may be 0: the limit is returned.
    """
    num_failures = costs.job_h / costs.mtbf_h
    return _saves_h(costs, t_save_h) + (costs.o_load_h + t_save_h / 2 + costs.o_res_h) * num_failures


def o_part_h(costs: Costs, t_save_h: float) -> float:
    """Expected overhead of partial recovery over the job, hours: no computation is lost.

    ``O_save T_total / T_save + (O_load + O_res) T_total / T_fail``.
    """
    return _saves_h(costs, t_save_h) + (costs.o_load_h + costs.o_res_h) * costs.job_h / costs.mtbf_h


def expected_pls(costs: Costs, t_save_h: float) -> float:
    """``E[PLS] = k T_save / (2 T_fail N)`` of partial recovery, for intervals far below the job's length."""
    return 0.5 * costs.ranks_per_failure * t_save_h / (costs.mtbf_h * costs.num_ps)


def interval_in_samples(t_save_h: float, costs: Costs) -> int:
    """``t_save_h`` as a number of samples, rounded, at least 1."""
    return max(1, round(t_save_h / costs.job_h * costs.total_samples))


def _saves_h(costs: Costs, t_save_h: float) -> float:
    return costs.o_save_h * costs.job_h / t_save_h if costs.o_save_h else 0.0


@dataclass(frozen=True, kw_only=True)
class FailureCost:
    """Emulated hours that one failure cost, in three of the four buckets."""

    load_h: float
    lost_h: float
    reschedule_h: float


class OverheadLedger:
    """Adds up the four buckets of one emulated run, hours, and how often each was charged."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.save_h = 0.0
        self.load_h = 0.0
        self.lost_h = 0.0
        self.reschedule_h = 0.0
        self.num_saves = 0
        self.num_failures = 0
        self.payload_bytes = 0

    def charge_save(self, payload_bytes: int, bytes_full: int) -> float:
        """One save: ``O_save * payload_bytes / bytes_full`` hours, row ids included. One rule for every strategy."""
        cost_h = self._costs.o_save_h * payload_bytes / bytes_full
        self.save_h += cost_h
        self.num_saves += 1
        self.payload_bytes += payload_bytes
        return cost_h

    def charge_saves_of(self, other: "OverheadLedger") -> None:
        """All saves that ``other`` was charged with, at once; of a ledger not charged yet, to the bit as one by one."""
        self.save_h += other.save_h
        self.num_saves += other.num_saves
        self.payload_bytes += other.payload_bytes

    def charge_failure(self, rerun_samples: int = 0, reschedule_h: float | None = None) -> FailureCost:
        """One failure, however many ranks it took: load and reschedule whole (R), and the samples to run again.

        ``reschedule_h``: what its trace says that rescheduling took, instead of O_res.
        """
        costs = self._costs
        lost_h = samples_to_hours(rerun_samples, job_h=costs.job_h, total_samples=costs.total_samples)
        cost = FailureCost(
            load_h=costs.o_load_h, lost_h=lost_h, reschedule_h=costs.o_res_h if reschedule_h is None else reschedule_h
        )
        self.load_h += cost.load_h
        self.lost_h += cost.lost_h
        self.reschedule_h += cost.reschedule_h
        self.num_failures += 1
        return cost

    @property
    def total_h(self) -> float:
        """All four buckets."""
        return self.save_h + self.load_h + self.lost_h + self.reschedule_h

    @property
    def overhead_frac(self) -> float:
        """All four buckets as a fraction of the failure-free job time."""
        return self.total_h / self._costs.job_h
