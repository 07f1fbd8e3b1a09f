"""The cost of fault tolerance: CPR's closed forms, and the overhead ledger of an emulated run.

Symbols as in CPR section 4 (Maeng et al., MLSys 2021), reconstructed in docs/CPR.md. All times are emulated: hours of
the profile's cluster, never seconds of this machine. Closed forms and ledger take prices from the same two functions,
:func:`save_price` and :func:`load_price`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.core.clock import samples_to_hours
from harness.core.plans import Costs, Tier
from harness.core.resumable import Resumable


@dataclass(frozen=True, kw_only=True)
class SavePrice:
    """Emulated hours of one save: it is written in ``write_h``, and training stands still for ``stall_h``."""

    write_h: float
    stall_h: float


class Moved(NamedTuple):
    """Bytes that a save writes or a load reads: of all ranks, and over the link of the rank that moves most."""

    num: int
    most: int


class FullSave(NamedTuple):
    """Bytes of a full save: of all ranks, and over one link if all shards were even."""

    num: int = 1
    link: float = 1

    @classmethod
    def of(cls, num: int, shard_bytes: Collection[int]) -> "FullSave":
        """A full save of these shards. The trainer writes the dense network, which may be larger than their mean."""
        rows = sum(shard_bytes)
        return cls(num, max(rows / len(shard_bytes), num - rows) if shard_bytes else num)


NOTHING, WHOLE = Moved(0, 0), Moved(1, 1)
ONE = FullSave()  # in units of itself, as ``WHOLE`` is


def bound_frac(costs: Costs, moved: tuple[float, float], full: tuple[float, float]) -> tuple[float, float]:
    """What bounds a save or a load of ``moved``, and what bounds ``full``, in bytes of a link; each a pair as above.

    By ``Costs.io_bound`` the bytes of all ranks, those of one link, or the longer of both times.
    """
    if costs.io_bound == "storage":
        return moved[0], full[0]
    if costs.io_bound == "link":
        return moved[1], full[1]
    assert costs.storage_links is not None, "the profile demands it"
    return max(moved[1], moved[0] / costs.storage_links), max(full[1], full[0] / costs.storage_links)


def tier_frac(costs: Costs, tier: Tier) -> float:
    """The time of a save's bytes or of a load in ``tier``, as a fraction of that on ``shared``."""
    return 1.0 if tier == "shared" else (costs.tier_frac or {})[tier]  # the strategy demands a price of its tiers


def save_price(costs: Costs, moved: Moved = WHOLE, full: FullSave = ONE, tier: Tier = "shared") -> SavePrice:
    """The price of a save of ``moved``, row ids included; by default of a full save.

    Writing takes ``O_save * bytes / bytes of a full save + o_save_fixed_h`` hours, and training waits for it.
    ``Costs.io_bound`` says which bytes count (:func:`bound_frac`). For a save in the background
    (``snapshot_frac``) training waits only while the rows are copied, and never longer than that. In another ``tier``
    writing the bytes takes :func:`tier_frac` of that time, and copying them as long as ever.
    """
    num, whole = bound_frac(costs, moved, full)
    bytes_h = costs.o_save_h * num / whole
    write_h = bytes_h * tier_frac(costs, tier) + costs.o_save_fixed_h
    stall_h = write_h if costs.snapshot_frac is None else min(bytes_h * costs.snapshot_frac, write_h)
    return SavePrice(write_h=write_h, stall_h=stall_h)


def load_price(costs: Costs, load_frac: float, tier: Tier = "shared") -> float:
    """Hours of the load of a fraction of the model: O_load for any fraction or, priced by bytes, that part of it."""
    return tier_frac(costs, tier) * (costs.o_load_h if costs.load == "whole" else costs.o_load_h * load_frac)


def step_frac(costs: Costs, parts: Sequence[str]) -> float | None:
    """The fraction of a step's time that ``parts`` add to every step; None if the price of one of them is unknown."""
    if costs.step_frac is None or not costs.step_frac.keys() >= {*parts}:
        return None
    return math.fsum(costs.step_frac[part] for part in parts)


def steps_h(costs: Costs, parts: Sequence[str], lost_h: float = 0.0) -> float | None:
    """Hours that ``parts`` add to the steps of the job and to ``lost_h`` hours of repeated ones; None if unknown."""
    frac = step_frac(costs, parts)
    return None if frac is None else frac * (costs.job_h + lost_h)


def t_save_full_h(costs: Costs) -> float:
    """``T_save,full = sqrt(2 O_save T_fail)``, hours: the interval of least ``o_full_h`` (Young, CACM 1974).

    O_save is the whole price of a full save. For saves in the background it is the stall. The interval is then at least
    the time that a save needs after its stall until it is written, since the next save would wait for that.
    """
    price = save_price(costs)
    return max(math.sqrt(2 * price.stall_h * costs.mtbf_h), price.write_h - price.stall_h)


def t_save_part_h(costs: Costs, *, counts_ranks: bool = True) -> float:
    """``T_save,part = 2 PLS_target N T_fail / k``, hours: the interval whose ``expected_pls`` is the PLS target.

    ``counts_ranks=False`` sets k, the ranks lost per failure, to 1 (reconstructed: docs/CPR.md).
    """
    per_failure = costs.ranks_per_failure if counts_ranks else 1
    return 2 * costs.pls_target * costs.num_ps * costs.mtbf_h / per_failure


def o_full_h(costs: Costs, t_save_h: float) -> float:
    """Expected overhead of full recovery over the job, hours.

    ``O_save T_total / T_save + (O_load + T_save/2 + O_res) T_total / T_fail``. The first term is :func:`saves_h`; the
    time until a death is noticed is part of O_res. With an O_save of 0 the interval may be 0 too, and saves cost
    nothing.
    """
    num_failures = costs.job_h / costs.mtbf_h
    wait_h = costs.detect_death_h + costs.o_res_h
    return saves_h(costs, t_save_h) + (costs.o_load_h + t_save_h / 2 + wait_h) * num_failures


def o_part_h(costs: Costs, t_save_h: float, parts: Sequence[str] = ()) -> float:
    """Expected overhead of partial recovery over the job, hours: no computation is lost.

    ``O_save T_total / T_save + (O_load + O_res) T_total / T_fail``. The first term is :func:`saves_h`, which charges a
    save in the background only the time that training stands still; O_load is :func:`load_part_h`. What every step pays
    for ``parts`` is added where its price is known.
    """
    failures_h = (load_part_h(costs) + costs.o_res_h + costs.detect_death_h) * costs.job_h / costs.mtbf_h
    return saves_h(costs, t_save_h) + failures_h + (steps_h(costs, parts) or 0.0)


def o_full_interrupted_h(costs: Costs, t_save_h: float) -> float:
    """Expected overhead of full recovery, hours, if Poisson failures also strike during saves and recoveries.

    ``T_fail e^(R/T_fail) (e^((T_save + O_save)/T_fail) - 1) T_total/T_save - T_total``, with R the hours of a recovery:
    the complete model of Daly, FGCS 2006. Every interval ends with a save. T_fail counts hours of the wall clock.
    """
    mtbf_h, recovery_h = costs.mtbf_h, costs.o_load_h + costs.o_res_h + costs.detect_death_h
    interval_h = mtbf_h * math.exp(recovery_h / mtbf_h) * math.expm1((t_save_h + save_price(costs).stall_h) / mtbf_h)
    return interval_h * costs.job_h / t_save_h - costs.job_h


def o_part_interrupted_h(costs: Costs, t_save_h: float, parts: Sequence[str] = ()) -> float:
    """Expected overhead of partial recovery, hours, if Poisson failures also strike during saves and recoveries.

    ``e^(R/T_fail) (T + T_fail (e^(O_save/T_fail) - 1) T_total/T_save) - T_total``, with R the hours of a recovery and T
    the hours of all steps, with what each pays for ``parts`` where that is known. Derived after Daly: a recovery under
    failures takes ``T_fail (e^(R/T_fail) - 1)``, an hour of steps has 1/T_fail of them and loses none of its work, and
    a save is repeated until no failure strikes it.
    """
    recovery_h = load_part_h(costs) + costs.o_res_h + costs.detect_death_h
    save_h = costs.mtbf_h * math.expm1(save_price(costs).stall_h / costs.mtbf_h)
    own_h = costs.job_h + (steps_h(costs, parts) or 0.0) + save_h * costs.job_h / t_save_h
    return math.exp(recovery_h / costs.mtbf_h) * own_h - costs.job_h


def saves_h(costs: Costs, t_save_h: float) -> float:
    """Expected hours that a job's full saves cost. A save in the background waits until the save before is written."""
    price = save_price(costs)
    each_h = max(price.stall_h, price.write_h - t_save_h)
    return each_h * costs.job_h / t_save_h if each_h else 0.0


def load_part_h(costs: Costs) -> float:
    """Expected hours of the load of partial recovery: O_load or, priced by bytes, k / N of it (no dense network).

    If links bound it, each lost shard is read over its own: O_load again.
    """
    num, whole = bound_frac(costs, (min(costs.ranks_per_failure, costs.num_ps), 1), (costs.num_ps, 1))
    return load_price(costs, num / whole)


def expected_pls(costs: Costs, t_save_h: float) -> float:
    """``E[PLS] = k T_save / (2 T_fail N)`` of partial recovery, for intervals far below the job's length."""
    return 0.5 * costs.ranks_per_failure * t_save_h / (costs.mtbf_h * costs.num_ps)


@dataclass(frozen=True, kw_only=True)
class FailureCost:
    """Emulated hours that one failure costs, by bucket, and the payload bytes that its recovery reads."""

    load_h: float
    lost_h: float
    reschedule_h: float
    load_bytes: int


class OverheadLedger(Resumable):
    """Totals of one emulated run: hours in each overhead bucket, saves and failures charged, bytes moved.

    Args:
        parts: what every step of the run pays for (``Strategy.step_parts``).
        full: the bytes of a full save of the run.

    Attributes:
        payload_bytes, load_bytes: bytes that saves wrote and loads read. All cross the network.
    """

    _state = (
        *("save_h", "load_h", "lost_h", "reschedule_h", "num_saves", "num_failures", "payload_bytes", "load_bytes"),
        *("_written_h", "_spares_h"),
    )

    def __init__(self, costs: Costs, parts: Sequence[str] = (), full: FullSave = ONE) -> None:
        self.full = full
        self._costs = costs
        self._parts = tuple(parts)
        self.save_h = 0.0
        self.load_h = 0.0
        self.lost_h = 0.0
        self.reschedule_h = 0.0
        self.num_saves = 0
        self.num_failures = 0
        self.payload_bytes = 0
        self.load_bytes = 0
        self._written_h = 0.0  # wall hour at which the last save in the background is written
        self._spares_h = [0.0] * costs.num_spares  # wall hour from which each spare is ready, ascending

    def charge_save(self, moved: Moved = WHOLE, samples: int | None = None, tier: Tier = "shared") -> float:
        """Charge one save, under any strategy, and return the hours that training stood still for it.

        The price is ``save_price``; row ids are part of ``moved``. ``samples``: position of the run, needed for
        saves in the background alone. Such a save first waits until the save before is written, by the wall clock of
        the emulated job.
        """
        price = save_price(self._costs, moved, self.full, tier)
        cost_h = price.stall_h
        if self._costs.snapshot_frac is not None:
            assert samples is not None, "a save in the background has a position"
            began_h = max(self.wall_h(samples), self._written_h)
            cost_h += began_h - self.wall_h(samples)
            self._written_h = began_h + price.write_h
        self.save_h += cost_h
        self.num_saves += 1
        self.payload_bytes += moved.num
        return cost_h

    def notice_bytes(self, notice_h: float) -> float:
        """The bytes that one rank writes in ``notice_h`` hours, as :meth:`charge_notice` charges; infinite if free."""
        write_h, whole_h = notice_h - self._costs.o_save_fixed_h, self._costs.o_save_h * self._costs.num_ps
        if write_h <= 0:
            return 0.0
        return self.full.num * write_h / whole_h if whole_h else math.inf

    def charge_notice(self, payloads: Iterable[int]) -> float:
        """Charge what ranks wrote on notice, all at once, with bytes by rank; returns the hours, for which all wait.

        Each writes at its own N-th of the bandwidth of a full save.
        """
        payloads, costs = [*payloads], self._costs
        cost_h = costs.o_save_h * costs.num_ps * max(payloads) / self.full.num + costs.o_save_fixed_h
        self.save_h += cost_h
        self.payload_bytes += sum(payloads)
        return cost_h

    def save_prices_h(self, moved: Moved, tier: Tier) -> dict[str, float]:
        """The hours that training waits for a save, by bucket."""
        return {"save": save_price(self._costs, moved, self.full, tier).stall_h}

    def spent_by(self, hour: float, samples: int, prices_h: Mapping[str, float]) -> dict[str, float] | None:
        """What a failure at wall hour ``hour`` leaves spent of what begins now; None if all of it is over by then.

        ``prices_h``: hours by bucket, one after the other, as the result. Of a failure before now nothing is spent.
        """
        left_h = hour - self.wall_h(samples)
        if left_h >= sum(prices_h.values()):
            return None
        spent_h: dict[str, float] = {}
        for bucket, price_h in prices_h.items():
            spent_h[bucket] = max(0.0, min(left_h, price_h))
            left_h -= spent_h[bucket]
        return spent_h

    def charge_spent(self, spent_h: Mapping[str, float]) -> None:
        """Charge hours by bucket: of a recovery, or of what a failure has interrupted (:meth:`spent_by`)."""
        for bucket, hours in spent_h.items():
            setattr(self, f"{bucket}_h", getattr(self, f"{bucket}_h") + hours)

    def charge_failure(
        self,
        rerun_samples: int = 0,
        reschedule_h: float | None = None,
        *,
        read: Moved = NOTHING,
        samples: int = 0,
        loads: bool = True,
        num_ranks: int = 1,
        hangs: bool = False,
        tier: Tier = "shared",
    ) -> FailureCost:
        """Charge one failure of any number of ranks: one load, one rescheduling, and the samples to repeat.

        One charge for any number of lost ranks is reconstructed (docs/CPR.md).

        ``reschedule_h``: hours of rescheduling by the trace; None for O_res. ``read``: payload that is read.
        ``samples``: position of the run. ``loads``: whether a shard or the dense network is read or reset; if not, a
        load is charged only with ``trainer_load``. ``num_ranks``: dead ranks that spares may replace. ``hangs``: a rank
        did not answer until its deadline, which costs ``detect_h``; else ``detect_death_h``, or the longer of both.
        ``tier``: where the checkpoint is that is read.
        """
        costs = self._costs
        lost_h = samples_to_hours(rerun_samples, job_h=costs.job_h, total_samples=costs.total_samples)
        wait_h = costs.o_res_h if reschedule_h is None else reschedule_h
        if costs.spare_o_res_h is not None and self._take_spares(num_ranks, self.wall_h(samples), wait_h):
            wait_h = costs.spare_o_res_h
        wait_h += max(costs.detect_death_h, costs.detect_h if hangs else 0.0)
        load_h = self._load_h(read, tier) if loads or costs.trainer_load else 0.0
        self.num_failures += 1
        return self._charge(FailureCost(load_h=load_h, lost_h=lost_h, reschedule_h=wait_h, load_bytes=read.num))

    def charge_growth(self, read: Moved) -> FailureCost:
        """Charge one regroup with nodes that return, and a load of the shards that move to them."""
        hours = {"load_h": self._load_h(read), "lost_h": 0.0, "reschedule_h": self._costs.o_res_h}
        return self._charge(FailureCost(**hours, load_bytes=read.num))

    def _load_h(self, read: Moved, tier: Tier = "shared") -> float:
        num, whole = bound_frac(self._costs, read, self.full)
        return load_price(self._costs, num / whole, tier)

    def _charge(self, cost: FailureCost) -> FailureCost:
        self.charge_spent({"load": cost.load_h, "lost": cost.lost_h, "reschedule": cost.reschedule_h})
        self.load_bytes += cost.load_bytes
        return cost

    def _take_spares(self, num: int, now_h: float, refill_h: float) -> bool:
        """Use ``num`` spares if so many are ready at ``now_h``, else none; returns whether they were used.

        A used spare is ready again after ``refill_h``.
        """
        if not 0 < num <= sum(ready_h <= now_h for ready_h in self._spares_h):
            return False
        self._spares_h = sorted([*self._spares_h[num:], *[now_h + refill_h] * num])
        return True

    def wall_h(self, samples: int) -> float:
        """Wall-clock hour of the emulated job at ``samples``: hours of training, and all overhead so far."""
        costs = self._costs
        return samples_to_hours(samples, job_h=self.steps_job_h, total_samples=costs.total_samples) + self.delay_h

    @property
    def steps_job_h(self) -> float:
        """Hours in which the job makes its steps, with what every step pays where that is known."""
        return self._costs.job_h * (1 + (step_frac(self._costs, self._parts) or 0.0))

    @property
    def delay_h(self) -> float:
        """The overhead so far, without what the steps pay that led here: those that ran again paid before."""
        return self.stall_h + self.lost_h * (step_frac(self._costs, self._parts) or 0.0)

    @property
    def stall_h(self) -> float:
        """The hours of all buckets but ``steps``."""
        return self.save_h + self.load_h + self.lost_h + self.reschedule_h

    @property
    def steps_h(self) -> float | None:
        """Hours that the parts add to all steps of the job, repeated ones included; None if a price is unknown."""
        return steps_h(self._costs, self._parts, self.lost_h)

    @property
    def total_h(self) -> float | None:
        """Hours of all buckets over the whole job; None if a part of the steps has no price, though others have."""
        own_h = 0.0 if self._costs.step_frac is None else self.steps_h
        return None if own_h is None else self.stall_h + own_h

    @property
    def overhead_frac(self) -> float | None:
        """``total_h`` as a fraction of the failure-free job time."""
        return None if self.total_h is None else self.total_h / self._costs.job_h

    @property
    def node_h(self) -> float | None:
        """Node-hours of fault tolerance; None if the hours or the number of trainer nodes are unknown.

        All nodes, spares included, stand still during overhead. A spare is also occupied for the failure-free job time.
        """
        costs = self._costs
        if costs.num_trainers is None or self.total_h is None:
            return None
        return self.total_h * (costs.num_ps + costs.num_trainers + costs.num_spares) + costs.job_h * costs.num_spares
