"""The table of the kinds of recovery, and the kinds of one run as one object."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from harness.cluster.protocol import Ask, Request
from harness.core.errors import ConfigError, RunFailed
from harness.core.plans import Progress, Rank, RecoveryPlan, is_trainer, ps_rank, rank_order
from harness.core.resumable import Resumable
from harness.core.strategies import Lost, Strategy
from harness.recovery.kinds import (
    Checkpoint,
    HandedOver,
    Initial,
    LostRanks,
    Noticed,
    Recovery,
    Replication,
    Rollback,
    RunFacts,
    Serve,
    UploadedRows,
)
from harness.recovery.means import Mean
from harness.recovery.mirror import Mirror
from harness.recovery.parity import ParityRecovery

RECOVERIES: dict[str, type[Recovery]] = {
    "initial": Initial,
    "mean": Mean,
    "checkpoint": Checkpoint,
    "rollback": Rollback,
    "replica": Replication,
    "mirror": Mirror,
    "notice": Noticed,
    "handover": HandedOver,
    "parity": ParityRecovery,
}
ON_NOTICE = ("notice", "handover")
"""The kinds of recovery of ranks that lose nothing, since they were told of their death. No strategy plans them."""


def all_kinds(strategy: Strategy, on_notice: str) -> tuple[str, ...]:
    """The names of all kinds of recovery that a run may need."""
    kinds = ("initial", *strategy.recoveries, *(ON_NOTICE if on_notice != "none" else ()))
    return tuple(dict.fromkeys(kinds))


def check_declared(strategies: Mapping[str, type[Strategy]]) -> None:
    """Raise ConfigError unless each strategy declares a tuple of kinds of recovery that are in :data:`RECOVERIES`."""
    for name, strategy in strategies.items():
        declared = getattr(strategy, "recoveries", None)
        wrong = [repr(kind) for kind in declared if kind not in RECOVERIES] if isinstance(declared, tuple) else ["none"]
        if wrong:
            known = ", ".join(RECOVERIES)
            raise ConfigError(f"strategy {name}: recoveries: expected a tuple of {known}; got {', '.join(wrong)}")


def plan_recovery(
    strategy: Strategy,
    dead: Lost,
    progress: Progress,
    *,
    takes_trainers: bool = False,
    kept: Mapping[Rank, str] = MappingProxyType({}),
) -> RecoveryPlan:
    """The checked plan of ``strategy`` for the ranks ``dead``, in rank order.

    ``kept``: the kinds of recovery of ranks that were told of their death and lose nothing (``Notices.kinds``). They
    replace kinds with losses; a rollback only if no other rank needs it.

    The dense network is kept, unless all trainers died (``takes_trainers``). If no step is finished and ``progress``
    names no checkpoint, no update has been applied, and every lost shard is reset to its initial values.

    Raises RunFailed if the strategy cannot recover or gives no plan, and for a plan that names other PS ranks than the
    dead ones, a kind that the strategy does not declare, a kind that needs a checkpoint where there is none, or a
    rollback of some ranks only.
    """
    ordered = sorted(dead, key=rank_order)
    trainers = tuple(filter(is_trainer, ordered))
    lost = dead.difference(trainers)
    dense = strategy.plan_dense(progress) if takes_trainers else "kept"
    if not lost:
        return RecoveryPlan(kinds={}, trainers=trainers, dense=dense)
    plan = strategy.plan_recovery(lost, progress)
    if progress.saved_step is None and progress.step == 0:
        plan = RecoveryPlan(kinds=dict.fromkeys(lost, "initial"))
    elif problem := _problem(strategy, plan, lost, has_checkpoint=progress.saved_step is not None):
        raise RunFailed(f"step {progress.step}: recovery plan of {type(strategy).__name__}: {problem}")
    kinds = {rank: plan.kinds[rank] for rank in ordered if rank in lost}
    is_costly = {name: kind.loses_updates or kind.rolls_back for name, kind in RECOVERIES.items()}
    kinds_kept = {rank: kept.get(rank, kind) if is_costly[kind] else kind for rank, kind in kinds.items()}
    if dense != "rollback" and not any(RECOVERIES[kind].rolls_back for kind in kinds_kept.values()):
        kinds = kinds_kept
    return RecoveryPlan(kinds=kinds, trainers=trainers, dense=dense)


def _problem(strategy: Strategy, plan: RecoveryPlan, lost: Lost, *, has_checkpoint: bool) -> str | None:
    """Why ``plan`` cannot recover the PS ranks ``lost``, in words; None if it can."""
    if not isinstance(plan, RecoveryPlan) or not isinstance(plan.kinds, Mapping):
        return f"expected a RecoveryPlan, with a kind by lost rank, got {plan!r}"
    if plan.kinds.keys() != lost:
        return f"expected kinds of {', '.join(sorted(lost))}, got kinds of {', '.join(sorted(plan.kinds)) or 'no rank'}"
    for rank, kind in plan.kinds.items():
        if kind not in strategy.recoveries:
            return f"{rank}: expected one of its recoveries ({', '.join(strategy.recoveries)}), got {kind!r}"
        if RECOVERIES[kind].needs_checkpoint and not has_checkpoint:
            return f"{rank}: {kind} needs a checkpoint, and there is none"
    if rolls_back(plan) and len({*plan.kinds.values()}) > 1:
        return f"a rollback is of all ranks, got {', '.join(sorted({*plan.kinds.values()}))}"
    return None


def rolls_back(plan: RecoveryPlan) -> bool:
    """Whether all ranks return to the newest checkpoint, trainers included, and lost steps are repeated."""
    return plan.dense == "rollback" or any(RECOVERIES[kind].rolls_back for kind in plan.kinds.values())


def reads_checkpoint(plan: RecoveryPlan) -> bool:
    """Whether the recovery reads the newest checkpoint: rows or the dense network."""
    needs = any(RECOVERIES[kind].needs_checkpoint for kind in plan.kinds.values())
    return needs or plan.dense in ("checkpoint", "rollback")


def losing(plan: RecoveryPlan) -> list[Rank]:
    """The PS ranks whose restored shards lack updates since their last save."""
    return [rank for rank, kind in plan.kinds.items() if RECOVERIES[kind].loses_updates]


class Recoveries(Resumable):
    """The kinds of recovery of one run: those that its strategy declares, and ``initial``.

    Iteration is over the kinds, to call a hook of each.
    """

    _state_in_place = ("_kinds",)

    def __init__(self, run: RunFacts) -> None:
        self._kinds = {name: RECOVERIES[name](run) for name in all_kinds(run.strategy, run.on_notice)}
        self._ranks = [ps_rank(k) for k in range(run.placement.num_ps)]

    def __iter__(self) -> Iterator[Recovery]:
        return iter(self._kinds.values())

    def requests(self, plan: RecoveryPlan, loss: LostRanks, serve: Serve) -> dict[Rank, Request]:
        """The requests that carry out ``plan``, in rank order. Raises RunFailed if a kind gives other requests."""
        requests: dict[Rank, Request] = {}
        names = dict.fromkeys(plan.kinds.values())
        for name in names | ({"rollback": None} if rolls_back(plan) else {}):
            ranks = [rank for rank, kind in plan.kinds.items() if kind == name]
            given = self._kinds[name].requests(ranks, loss, serve)
            if problem := self._problem_of(given, ranks):
                raise RunFailed(f"step {loss.progress.step}: requests of the recovery {name}: {problem}")
            requests |= given
        return {rank: requests[rank] for rank in sorted(requests, key=rank_order)}

    def _problem_of(self, given: object, ranks: Sequence[Rank]) -> str | None:
        """Why the requests that a kind has ``given`` cannot restore ``ranks``, in words; None if they can."""
        if not isinstance(given, Mapping) or not all(isinstance(request, Request) for request in given.values()):
            return f"expected a request by rank, got {given!r}"
        if missing := [rank for rank in ranks if rank not in given]:
            return f"expected one for {', '.join(missing)}, got none"
        if unknown := [repr(rank) for rank in given if rank not in self._ranks]:
            return f"expected ranks of {self._ranks[0]} to {self._ranks[-1]}, got {', '.join(unknown)}"
        return None

    def uploaded(self, plan: RecoveryPlan) -> dict[Rank, UploadedRows]:
        """By lost PS rank, the counts of rows that its replacement got from the trainer."""
        return {rank: self._kinds[kind].uploaded.get(rank, UploadedRows()) for rank, kind in plan.kinds.items()}

    async def prepare_save(self, ask: Ask, progress: Progress) -> Mapping[Rank, Tensor]:
        """Prepare all kinds for a save; returns by rank the local flat rows that the trainer holds."""
        return {rank: rows for kind in self for rank, rows in (await kind.prepare_save(ask, progress)).items()}
