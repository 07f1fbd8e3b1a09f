"""The cost of fault tolerance: CPR's closed forms, and the overhead ledger of an emulated run.

Symbols as in CPR section 4 (Maeng et al., MLSys 2021), reconstructed in docs/CPR.md. All times are emulated: hours of
the profile's cluster, never seconds of this machine.
"""

import math
from dataclasses import dataclass

from harness.core.clock import samples_to_hours
from harness.core.plans import Costs


def t_save_full_h(costs: Costs) -> float:
    """``T_save,full = sqrt(2 O_save T_fail)``, hours: the interval of least ``o_full_h`` (Young, CACM 1974)."""
    return math.sqrt(2 * costs.o_save_h * costs.mtbf_h)


def t_save_part_h(costs: Costs, *, counts_ranks: bool = True) -> float:
    """``T_save,part = 2 PLS_target N T_fail / k``, hours: the interval whose ``expected_pls`` is the PLS target.

    ``counts_ranks=False`` sets k, the ranks lost per failure, to 1 (reconstructed: docs/CPR.md).
    """
    per_failure = costs.ranks_per_failure if counts_ranks else 1
    return 2 * costs.pls_target * costs.num_ps * costs.mtbf_h / per_failure


def o_full_h(costs: Costs, t_save_h: float) -> float:
    """Expected overhead of full recovery over the job, hours.

    ``O_save T_total / T_save + (O_load + T_save/2 + O_res) T_total / T_fail``. If O_save is 0, the interval may be 0
    too: the limit is returned.
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
    """Emulated hours that one failure costs: load, lost and reschedule."""

    load_h: float
    lost_h: float
    reschedule_h: float


class OverheadLedger:
    """Totals of one emulated run: hours in each overhead bucket, saves and failures charged, bytes saved."""

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
        """Charge one save, under any strategy: ``O_save * payload_bytes / bytes_full`` hours, row ids included."""
        cost_h = self._costs.o_save_h * payload_bytes / bytes_full
        self.save_h += cost_h
        self.num_saves += 1
        self.payload_bytes += payload_bytes
        return cost_h

    def charge_saves_of(self, other: "OverheadLedger") -> None:
        """Charge all saves of ``other`` at once. On a ledger without charges the bits equal those of single charges."""
        self.save_h += other.save_h
        self.num_saves += other.num_saves
        self.payload_bytes += other.payload_bytes

    def charge_failure(self, rerun_samples: int = 0, reschedule_h: float | None = None) -> FailureCost:
        """Charge one failure of any number of ranks: one load, one rescheduling, and the samples to repeat.

        That a failure costs as much whatever its number of ranks is reconstructed (docs/CPR.md).

        ``reschedule_h``: hours of rescheduling by the trace, instead of O_res.
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
        """Emulated hours of all four buckets, summed."""
        return self.save_h + self.load_h + self.lost_h + self.reschedule_h

    @property
    def overhead_frac(self) -> float:
        """The sum of all four buckets as a fraction of the failure-free job time."""
        return self.total_h / self._costs.job_h
