"""The job of a trainer rank, on either engine, and its step loop.

A step: pull the rows of the batch -> forward, backward -> push gradients -> dense update. At the boundary after it, in
this order, whatever is due: resume point, save, evaluate, faults. The embedding client decides how rows travel.

The loop is a coroutine. Where it awaits replies of ranks it is suspended, and :meth:`Trainer.run` waits for them. If
ranks are found dead, ``run`` recovers, has their requests served by the replacements, and goes on with the coroutine;
after a full recovery it begins a new one at the boundary of the checkpoint instead.
"""

import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from harness.client.embedding_client import Pulled
from harness.cluster.protocol import Cluster, Compute, Initialise, no_op
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import Config
from harness.core.errors import ConfigError, DataError, RankLost, RunFailed
from harness.core.events import Evaluated, Finished
from harness.core.faults import FaultTime
from harness.core.lookup import BatchPlan
from harness.core.plans import CHIEF, Progress, SavePlan
from harness.data.records import read_meta, verify
from harness.model.dlrm import DenseNetwork
from harness.model.metrics import Quality, measure
from harness.record.code import Code, refuse_other_code
from harness.recovery.injections import ChiefDied
from harness.recovery.kinds import Restoration
from harness.recovery.recoveries import losing, rolls_back
from harness.recovery.requests import Replies, Wait
from harness.run import final_model
from harness.run.job import Job
from harness.run.spec import RunSpec
from harness.store import Store


def train(
    config: Config, store: Store, faults: tuple[FaultTime, ...], cluster: Cluster, supervisor: SupervisorClient
) -> None:
    """Train one epoch on the given cluster and record all events of the trainer, Finished the last.

    On engine ``local``, this process goes on as the new trainer if a planned fault kills it. Torch's number
    of threads and use of deterministic algorithms are set for the run and restored afterwards.

    Raises:
        UserError: the config, the data or a resume point cannot be used.
        RunStopped: the run was asked to stop.
        RunFailed, RankFailed: the run has no result.
    """
    run_spec = RunSpec(config)
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()  # on engine local, the caller's
    torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.device == "cuda":
        if (
            not torch.cuda.is_available()
        ):  # asked here: a process that has asked can fork none that computes on the device
            raise ConfigError("trainer.device: expected a CUDA device for cuda, but torch finds none here; use cpu")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may round differently in each run
        torch.use_deterministic_algorithms(mode=True)
    try:
        while True:
            job = Job(run_spec, store, faults, cluster, supervisor)
            try:
                return supervisor.record(Trainer(job).run())
            except ChiefDied:
                pass  # a new one begins
            finally:
                job.checkpointer.give_up()
    finally:
        torch.set_num_threads(before[0])
        if torch.are_deterministic_algorithms_enabled() != before[1]:  # to set it imports a compiler
            torch.use_deterministic_algorithms(before[1])


def with_same_inputs(
    job: Callable[[Cluster, SupervisorClient], None],
    cluster: Cluster,
    supervisor: SupervisorClient,
    *,
    code: Code,
    path: str,
    digest: str,
) -> None:
    """Run ``job(cluster, supervisor)`` if this process has the ``code``, and ``path`` the data, of the supervisor.

    Raises ConfigError, DataError.
    """
    refuse_other_code(code, CHIEF)
    refuse_other_data(Path(path), digest)
    job(cluster, supervisor)


def refuse_other_data(folder: Path, digest: str) -> None:
    """Raise DataError, which names this host, unless ``folder`` holds the data with this digest. Reads all records.

    The supervisor has checked its own copy, which may be on another host.
    """
    try:
        meta = read_meta(folder)
        if meta.digest == digest:
            return verify(folder, meta)
        why = f"got data of digest {meta.digest}"
    except (DataError, OSError) as error:
        why = str(error)
    raise DataError(
        f"data.path: expected the supervisor's data (digest {digest}) in {folder.absolute()} on {socket.gethostname()} "
        f"of {CHIEF}: {why}"
    )


class Trainer:
    """The step loop: trains one model over one epoch, and recovers from the deaths of ranks."""

    def __init__(self, job: Job) -> None:
        self._run_spec, self._supervisor, self._cluster = job.run_spec, job.supervisor, job.cluster
        self._steps, self._progress = job.steps, job.progress
        self._boundaries, self._injections, self._notices = job.boundaries, job.injections, job.notices
        self._accounting, self._recoveries = job.accounting, job.recoveries
        self._requests, self._failover, self._client = job.requests, job.failover, job.client
        self._network = job.network
        self._evaluator, self._drops = job.evaluator, job.drops
        self._checkpointer, self._resume_points = job.checkpointer, job.resume_points
        # While a message is under way one thread makes the update, and leaves a core to the message. Requests are then
        # served while this process computes.
        self._overlap = partial(job.network.apply_pending, is_alone=True) if job.cluster.overlaps else no_op

    def run(self) -> Finished:
        """Run all steps that the trainer's state lacks, and return the last event, which is not recorded yet.

        Raises as :func:`train`, and ChiefDied on engine ``local`` if a planned fault kills this trainer.
        """
        steps: Coroutine[Wait, Replies | None, Finished] = self._train(self._start)
        replies: Replies | None = None
        try:
            while True:
                wait = steps.send(replies)
                replies = self._replies(wait)
                if replies is None:  # all ranks are back at a checkpoint: the step under way is void
                    steps.close()
                    steps = self._train(self._finish_boundary)
        except StopIteration as end:
            return end.value
        finally:
            steps.close()

    def _replies(self, wait: Wait) -> Replies | None:
        """The replies that a step awaits, through failures; None after a full recovery.

        Raises RunFailed if ranks died ``cluster.max_replacements_in_a_row`` times in a row.
        """
        most = self._run_spec.config.cluster.max_replacements_in_a_row
        for _ in range(most):
            asked_s = self._supervisor.clock()
            try:
                return self._requests.await_replies(wait.sent)
            except RankLost as lost:
                detect_s = self._supervisor.clock() - asked_s
                lost = self._requests.drain(lost)  # the others in flight end with the generation, and may find more
                if self._recover(lost, wait.progress, detect_s):
                    return None
        raise RunFailed(
            f"step {wait.progress.step}: ranks died {most} times in a row at one request "
            "(cluster.max_replacements_in_a_row)"
        )

    def _recover(self, lost: RankLost, progress: Progress, detect_s: float) -> bool:
        """Have the lost ranks replaced and restored, and charge it. Returns whether the recovery is a full one."""
        self._steps.flush()
        self._supervisor.status(phase="recover")
        restoration = self._failover.restore(lost, progress, detect_s)
        plan = restoration.plan
        self._requests.drop_replies(plan.ranks)
        self._supervisor.record(
            self._accounting.charge_failure(
                restoration,
                uploaded=self._recoveries.uploaded(plan),
                in_flight=self._client.shards_restored(losing(plan)) if plan.kinds else {},
                injection=self._injections.take_injection(),
            )
        )
        self._supervisor.status(phase="train")
        if rolls_back(plan):
            self._roll_back(restoration)
            return True
        self._steps.recover_partially()
        if plan.dense == "checkpoint":
            self._network.load(self._failover.dense(restoration))
        return False

    def _roll_back(self, restoration: Restoration) -> None:
        """Set the trainer's state back to the checkpoint that the PS ranks have been restored from."""
        assert restoration.loss.checkpoint is not None
        self._network.load(self._failover.dense(restoration))
        self._steps.roll_back(restoration.loss.checkpoint.step)
        self._requests.reset()
        self._client.reset()
        for kind in self._recoveries:
            kind.forget()
        self._drops.rolled_back()

    async def _train(self, begin: Callable[[], Coroutine[Wait, Replies, None]]) -> Finished:
        await begin()
        while self._steps.step < self._run_spec.num_steps:
            await self._advance()
        return await self._finish()

    async def _start(self) -> None:
        """Load the state of a former trainer or a resume point, or begin anew; then the rest of the boundary there."""
        if self._resume_points.load_succession():
            return
        is_resumed = self._resume_points.resume()
        self._supervisor.advanced(self._steps.step)
        self._supervisor.status(phase="start", step=self._steps.step, num_steps=self._run_spec.num_steps, loss=None)
        if is_resumed:
            await self._act(announced=True)
            return
        await self._requests.ask({rank: Initialise(step=0) for rank in self._cluster.ranks}, self._progress())
        self._injections.arm(0)
        if self._run_spec.strategy.saves_initially:  # a save that is not charged
            await self._save(SavePlan(kind="full"))
            await self._finish_pending()
        await self._inject_if_due()
        self._supervisor.status(phase="train")

    async def _advance(self) -> None:
        """Run one step and the actions due at the boundary after it."""
        if self._client.sends_at(self._steps.step):
            await self._drops.expect(self._injections.awaited_losses("lookup", "forward", "apply"))
        began_s = self._supervisor.clock()
        pulled = await self._client.pull(self._progress())
        await self._drops.measure()
        await self._drops.expect(self._injections.awaited_losses("forward", "apply"))
        if self._injections.waits_for("forward"):
            await self._client.drain(self._progress())  # else it would matter how long ago the last message was sent
            self._injections.strike("forward")
        loss, grads_ND = await self._compute(pulled)
        step = self._steps.step + 1
        is_due, saves = self._boundaries.is_due(step), self._boundaries.saves_at(step)
        for kind in self._recoveries:
            kind.begin_step(step, pulled.plan, grads_ND)
        await self._client.push(grads_ND, self._progress(), is_boundary=is_due, overlap=self._overlap)
        self._finish_step(loss, pulled.plan, began_s)
        self._injections.arm(step)
        if is_due:
            for kind in self._recoveries:
                await kind.settle(self._requests.ask, self._progress())
            await self._finish_pending()
        if not self._injections.depend_on_messages:
            await self._resume_points.at_boundary(self._progress(), saves=saves)
        await self._act(announced=saves)

    async def _compute(self, pulled: Pulled) -> tuple[float, Tensor]:
        """Forward and backward of a batch: its loss, and the gradients of its rows (N, D).

        Each compute rank computes a share, where there are any. A share whose rank dies is sent again to the
        replacement, which needs nothing else.
        """
        ranks = self._cluster.compute_ranks
        batch = pulled.batch
        arguments = batch.dense_BI, pulled.rows_SX, pulled.plan, batch.labels_B, pulled.slots_N
        if not ranks:
            return self._network.train(*arguments)
        if not self._cluster.overlaps:
            await self._requests.ask(dict.fromkeys(ranks, Compute()), self._progress())
            return self._network.train(*arguments)
        assert isinstance(self._network, DenseNetwork), "a run with compute ranks divides its batches"
        division = self._network.divide(1 + len(ranks), *arguments)
        sent = self._requests.start(dict(zip(ranks, map(Compute, division.shares), strict=True)))
        division.compute()
        parts = await self._requests.finish(sent, self._progress())
        return division.merge([*parts.values()])

    def _finish_step(self, loss: float, plan: BatchPlan, began_s: float) -> None:
        seconds = self._supervisor.clock() - began_s
        if self._steps.finish_step(loss):
            self._accounting.note_rerun(seconds)
        for kind in self._recoveries:
            kind.finish_step(self._steps.step)
        self._accounting.count_step(plan)
        self._steps.flush_if_due()

    async def _act(self, *, announced: bool) -> None:
        """Do all actions due at the present boundary after its resume point. ``announced``: see ``plan_save``."""
        save = self._boundaries.plan_save(announced=announced)
        if save is not None:
            self._steps.flush()
            await self._save(save)
        await self._finish_boundary()

    async def _save(self, plan: SavePlan) -> None:
        await self._drops.expect(self._injections.awaited_losses("save", "manifest"))
        await self._checkpointer.save(plan, self._progress())

    async def _finish_pending(self) -> None:
        """Commit the save in the background, if there is one."""
        if self._checkpointer.saving is not None:
            await self._drops.expect(self._injections.awaited_losses("save", "manifest"))
            await self._checkpointer.finish_pending(self._progress())

    async def _finish_boundary(self) -> None:
        """Evaluate and have planned faults carried out, where due at the present boundary and not done yet.

        A rollback goes on here, since it ends at the boundary of a save, after the save.
        """
        if self._boundaries.evaluates_at(self._steps.step):
            await self._evaluate(final=False)
        await self._inject_if_due()

    async def _inject_if_due(self) -> None:
        """Have the planned faults that are due carried out. The next request detects the ranks that died."""
        if self._boundaries.faults_at(self._steps.step):
            # A kill finds the files that it would find had the save not been in the background.
            await self._finish_pending()
            due, state = self._boundaries.due_faults(), None
            await self._notices.serve(due, self._progress())
            if self._injections.takes_chief(due):
                await self._client.drain(self._progress())
            await self._drops.expect(self._injections.losses(due))
            # Measuring may find a death; with trace.interrupts the faults may strike during its recovery.
            due = [number for number in self._boundaries.due_faults() if number in due]
            self._boundaries.take_faults(due)
            if self._injections.takes_chief(due):
                self._steps.flush()
                state = self._resume_points.hand_over(all_die=self._injections.takes_trainers(due))
            self._carry_out(due, state)

    def _carry_out(self, faults: Sequence[int], state: bytes | None) -> None:
        """Have faults of this boundary carried out, nodes that return first: they take their shards over."""
        returns = {number: nodes for number in faults if (nodes := self._injections.faults[number].returns)}
        for number, nodes in returns.items():
            began_s = self._supervisor.clock()
            self._injections.carry_out([number])
            self._cluster.move()
            seconds = self._supervisor.clock() - began_s
            self._supervisor.record(self._accounting.charge_growth(nodes, self._progress(), seconds))
        self._injections.carry_out([each for each in faults if each not in returns], state)

    async def _evaluate(self, *, final: bool) -> Quality:
        self._steps.flush()
        await self._drops.expect(self._injections.awaited_losses("eval", "lookup"))
        began_s = self._supervisor.clock()
        self._supervisor.status(phase="evaluate")
        num_samples = self._run_spec.num_eval_samples if final else self._run_spec.num_curve_samples
        with self._injections.evaluation():
            quality = measure(*await self._evaluator.score(self._progress(), num_samples), has_groups=final)
        self._boundaries.evaluated(self._steps.step)
        self._supervisor.record(
            Evaluated(
                step=self._steps.step,
                samples=self._progress().samples,
                **vars(quality),
                final=final,
                machine={"seconds": self._supervisor.clock() - began_s},
            )
        )
        return quality

    async def _finish(self) -> Finished:
        quality = await self._evaluate(final=True)
        await self._drops.measure()
        digests = await final_model.keep(
            self._supervisor.resumption().model,
            self._network.state(),
            ask=self._requests.ask,
            ranks=self._cluster.ranks,
            progress=self._progress(),
            config_hash=self._run_spec.result_hash,
            fsync=self._run_spec.config.store.fsync,
        )
        return Finished(
            step=self._steps.step,
            samples=self._progress().samples,
            auc=quality.auc,
            log_loss=quality.log_loss,
            accuracy=quality.accuracy,
            train_loss=self._steps.mean_of_last_tenth(),
            num_unplanned=0,  # the supervisor completes these two
            generation=0,
            cache=self._client.summary(),
            digests=digests,
            machine={
                **self._resume_points.measured_s(),
                "overhead_seconds": self._accounting.measured_s,
            },
            **self._accounting.totals(self._recoveries),
        )
