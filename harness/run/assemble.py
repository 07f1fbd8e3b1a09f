"""Assembles and carries out one run. The only module that chooses the parts of an engine."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness import sources
from harness.cluster.launcher import Launcher, RankContext
from harness.cluster.local import LocalChannel, LocalCluster, LocalRanks
from harness.cluster.protocol import Cluster
from harness.cluster.rank_process import ps_main, trainer_main
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor import Ranks, Supervisor
from harness.cluster.supervisor_client import Resumption, SupervisorClient
from harness.cluster.world import World
from harness.config.derived import host_map
from harness.config.model import ClusterConfig, Config
from harness.core.choices import LAUNCHER_NAMES, PartTable
from harness.core.errors import ConfigError, MustStartAnew, RunFailed, StoreError
from harness.core.events import Finished, Injected
from harness.core.faults import FAULTS, FaultTime, PlannedFault
from harness.core.plans import HostMap, NodeMap, Rank
from harness.core.resumable import State
from harness.files import held
from harness.hosts.launcher import HostsLauncher
from harness.hosts.ray_launcher import RayLauncher
from harness.processes.network import NoPrivateNetwork, PrivateNetwork
from harness.processes.spawn import fork_own_server, fork_server
from harness.processes.stop import StopRequest
from harness.record.code import current_code
from harness.record.event_log import read_events
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir
from harness.run.resume_points import point_to_go_on_from
from harness.run.spec import RunSpec
from harness.run.trainer import train, with_same_inputs
from harness.store import FileRecord, ResumeFolder, ResumePoint, Store, without_writer
from harness.store.stores import STORES
from harness.wandb.exporter import followed

_log = logging.getLogger(__name__)

MakeLauncher = Callable[[ClusterConfig, HostMap, Path], Launcher]
"""Makes a launcher from the config, the host of each rank, and the existing folder of checkpoints.

Raises ConfigError, RunFailed.
"""

LAUNCHERS: PartTable[MakeLauncher] = PartTable(
    LAUNCHER_NAMES,
    {
        "fork": lambda cluster, hosts, checkpoints: Launcher([fork_server()]),
        "hosts": HostsLauncher,
        "ray": RayLauncher,
    },
)
"""Launchers by the value of config key ``cluster.launcher``."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The progress of a run, for display. ``loss``: of the last step recorded; None before the first."""

    step: int = 0
    num_steps: int = 0
    loss: float | None = None
    phase: Literal["start", "train", "save", "evaluate", "recover", "done"] = "start"
    generation: int = 0


TrainerJob = Callable[[Config, Store, tuple[FaultTime, ...], Cluster, SupervisorClient], None]
"""The job of a trainer rank: :func:`harness.run.trainer.train`, or a test's replacement. It can be pickled."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The replaceable parts of a run; tests and benchmarks replace some of them.

    Attributes:
        train: the job of each trainer rank, on either engine.
        make_server: makes the server of a PS rank, on engine ``local``.
        make_ranks: makes the ranks of engine ``local`` from the number of PS ranks, a function that makes the server of
            a rank, and the number of trainers.
        launcher: starts the ranks of engine ``rpc``; None: the one named by ``cluster.launcher``.
        ps_main: main function of a PS rank's process on engine ``rpc``.
        clock: the supervisor's, in seconds, monotonic.
    """

    train: TrainerJob = train
    make_server: Callable[[RankSpec, Rank], RankServer] = RankServer
    make_ranks: Callable[[int, Callable[[Rank], RankServer], int], LocalRanks] = LocalRanks
    launcher: Launcher | None = None
    ps_main: Callable[[RankSpec, RankContext], None] = ps_main
    clock: Callable[[], float] = time.monotonic


DEFAULT = Parts()


def run(
    config: Config,
    run_dir: Path,
    *,
    on_status: Callable[[RunStatus], None] | None = None,
    parts: Parts = DEFAULT,
    resumes: bool = False,
    stop: StopRequest | None = None,
) -> Finished:
    """Carry out one run and leave its record in ``run_dir``; returns its last event.

    On engine ``rpc`` this process becomes the supervisor. If ``trainer0`` dies, which no trace has planned, all ranks
    start anew from the newest resume point, and the record is that of a run in which it had not died. A finished run
    removes its resume points. With ``store.keep_finished`` it keeps its checkpoints and its final model.

    Args:
        on_status: called when the progress changes.
        resumes: whether the run goes on from the newest undamaged resume point in ``run_dir``. If there is none, the
            folder is emptied of a former record, and the run starts at step 0.
        stop: once it is set, the run leaves a resume point at the next possible boundary and ends.

    Raises:
        RunStopped: the run ended because ``stop`` was set.
        UserError: the config, the data, the trace, the disk or that resume point cannot be used.
        RunFailed: the run has no result, or an invalid one: a planned kill did not happen, or a rank died that the
            trace did not name (unless ``trace.allow_unplanned``).
        RankFailed: the code of a rank raised an exception.
    """
    run_spec = RunSpec(config)
    run_spec.validate()
    run_spec.dataset.verify()
    config = run_spec.config  # resolved, as it is recorded
    with held(run_dir) as path:
        run = RunDir(path)
        folder = ResumeFolder(run.resume, fsync=config.store.fsync)
        store = STORES[run_spec.store_kind](run.checkpoints, config.store.keep, config.store.fsync)
        point, num_deaths = point_to_go_on_from(run_spec, run, folder, store) if resumes else None, 0
        while True:
            one = _Run(run_spec, run, folder, store, point, parts, on_status, stop)
            try:
                finished = one.carry_out()
                break
            except MustStartAnew as error:
                num_deaths = num_deaths + 1 if one.point is point else 1
                point = _point_after(error, one, num_deaths)
        for left in (folder.root, *([] if config.store.keep_finished else [run.checkpoints])):
            shutil.rmtree(left, ignore_errors=True)  # what is left of it is in nobody's way
    one.report(phase="done")
    return finished


def _point_after(error: MustStartAnew, one: "_Run", num_deaths: int) -> ResumePoint | None:
    """The resume point from which a run goes on whose ``trainer0`` has died; None if the points are all damaged.

    ``num_deaths``: from the same point, this one included. Raises RunFailed if there is no point, or after too many.
    """
    most = one.spec.config.cluster.max_replacements_in_a_row
    if one.point is None:
        raise RunFailed(f"{error}; there is no resume point to go on from (resume.every_s)") from error
    if num_deaths > most:
        raise RunFailed(f"{error}; so did {most} before it at one resume point (cluster.max_replacements_in_a_row)")
    _log.warning("note: %s; all ranks start anew", error)
    return point_to_go_on_from(one.spec, one.run, one.resume_folder, one.store)


@dataclass
class _Run:
    """One run, from its resume point if there is one. ``point``: the newest, at first the one that it continues."""

    spec: RunSpec
    run: RunDir
    resume_folder: ResumeFolder
    store: Store
    point: ResumePoint | None
    parts: Parts
    on_status: Callable[[RunStatus], None] | None
    stop: StopRequest | None

    def __post_init__(self) -> None:
        self._status = RunStatus()
        self.store.open()

    def carry_out(self) -> Finished:
        """Carry out the run and end its record; returns its last event. Raises as :func:`run`, and MustStartAnew.

        If the result is invalid, the run's resume points are removed.
        """
        config, since = self.spec.config, self.point and self.point.events
        with ExitStack() as views, Recorder(self.run.path, config, **self.spec.facts, since=since) as self.recorder:
            views.enter_context(sources.modules_fixed())
            views.enter_context(followed(self.run, config, self.spec.result_hash))  # left when the record is complete
            return self._train_and_seal()

    def _train_and_seal(self) -> Finished:
        """Carry out the run on its engine, and seal the record if the result is valid."""
        if self.point is not None:
            self.store.rewind(self.point.checkpoint)
        try:
            supervisor = self._on_rpc() if self.spec.config.engine == "rpc" else self._on_local()
        except StoreError as error:
            if words := _faults_behind(str(error), self.run.events):
                raise RunFailed(f"{error}; {words}") from error
            raise
        finally:
            self.store.close()
        finished = self.recorder.finished
        assert finished is not None, "a run ends with its last event"
        if problem := _problem_of(self.spec, supervisor):
            shutil.rmtree(self.resume_folder.root, ignore_errors=True)  # a run resumed from there would end here again
            raise RunFailed(problem)
        self.recorder.done()
        return finished

    def report(self, **values: Any) -> None:
        """Report the progress of the run. ``values``: the fields of its status that have changed."""
        self._status = replace(self._status, **values)
        if self.on_status is not None:
            self.on_status(self._status)

    def _on_local(self) -> Supervisor:
        if self.spec.config.trace.inject == "wall":
            raise ConfigError(
                "trace.inject: expected boundary on engine local, got wall; only the processes of engine rpc can be "
                "killed at any moment"
            )
        make_server = partial(self.parts.make_server, self.spec.rank_spec(self.store))
        config = self.spec.config
        ranks = self.parts.make_ranks(config.num_ps, make_server, config.cluster.num_trainers)
        supervisor = self._supervisor_of(ranks)
        try:
            self._job()(LocalCluster(ranks), SupervisorClient(LocalChannel(supervisor, self.stop)))
        finally:
            ranks.close()
        return supervisor

    def _on_rpc(self) -> Supervisor:
        config = self.spec.config
        _check_interface(config.cluster)
        inputs = {"code": current_code(), "path": config.data.path, "digest": self.spec.dataset.digest}
        job = partial(with_same_inputs, self._job(), **inputs)
        carried_out = self.point.supervisor["carried_out"] if self.point else ()
        hosts, nodes = self.spec.hosts_after(carried_out), self.spec.nodes_after(carried_out)
        rank_spec = self.spec.rank_spec(self.store)
        world = make_world(config, rank_spec, job, self.parts, hosts, nodes=nodes)
        try:
            machine = world.start()
            supervisor = self._supervisor_of(world, **machine)
            world.serve(supervisor, self.stop, supervisor.strike_by_second)
        finally:
            world.close()
        return supervisor

    def _job(self) -> Callable[[Cluster, SupervisorClient], None]:
        """The job of the trainer rank: a function that trains to the end.

        With ``trace.inject: boundary`` the job gets the times of the planned faults, and asks the supervisor at each
        time to carry the fault out. With ``wall`` it gets none, and the supervisor strikes by the clock.
        """
        config = self.spec.config
        planned = self.spec.planned_faults if config.trace.inject == "boundary" else ()
        return partial(self.parts.train, config, self.store, tuple(each.time for each in planned))

    def _supervisor_of(self, ranks: Ranks, **machine: Any) -> Supervisor:
        """The supervisor of ``ranks``. It has recorded the Started event, or loaded its state from the resume point."""
        spec, recorder, trace = self.spec, self.recorder, self.spec.config.trace
        supervisor = Supervisor(
            ranks=ranks,
            sink=recorder.record,
            store=self.store,
            planned_faults=spec.planned_faults,
            on_status=self.report,
            seconds_per_hour=trace.seconds_per_hour if trace.inject == "wall" else None,
            clock=self.parts.clock,
            begins_with=self._resumption(),
            write_point=self._commit_point,
        )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        machine = {"time": now, "host": socket.gethostname(), "pid": os.getpid(), **machine, "env": recorder.env_digest}
        if self.point is None:
            supervisor.record(spec.started(machine))
        else:
            supervisor.load(self.point.supervisor)
            supervisor.note_resumption(machine)
        return supervisor

    def _resumption(self) -> Resumption:
        """What a trainer starts with. Makes the folder of resume points if need be."""
        self.resume_folder.prepare()
        self._pin(self.point)
        return Resumption(
            root=self.resume_folder.root,
            next_number=self.resume_folder.next_number(),
            point=self.point,
            model=self.run.model if self.spec.config.store.keep_finished else None,
        )

    def _commit_point(
        self, supervisor: State, number: int, step: int, checkpoint: int | None, files: Mapping[Rank, FileRecord]
    ) -> None:
        """Commit a resume point as of the events recorded so far. Raises StoreError; the previous point stays valid."""
        point = ResumePoint(
            number=number,
            step=step,
            config_hash=self.spec.result_hash,
            code=current_code().fingerprint,
            events=self.recorder.position(),
            checkpoint=checkpoint,
            store=self.spec.store_kind,
            files=dict(files),
            supervisor=supervisor,
        )
        self._pin(self.point, point)
        self.resume_folder.commit(point)
        self.point = point
        self.resume_folder.keep_only(point)
        self._pin(point)

    def _pin(self, *points: ResumePoint | None) -> None:
        """Have the store keep exactly the checkpoints that these resume points refer to."""
        self.store.pin(point.checkpoint for point in points if point is not None and point.checkpoint is not None)


def prepare_fork_server() -> None:
    """Fork a fork server from this process, with all its imports, plugins included; it forks all later processes.

    To be called before any thread or process is started. Else no server is forked here, and processes are forked from
    one that has imported everything again.
    """
    current_code()  # computed once: forked processes inherit the digest of the code
    fork_own_server()


def starts_processes(config: Config) -> bool:
    """Whether a run of ``config`` has ranks in processes of their own."""
    return config.engine == "rpc"


def _check_interface(cluster: ClusterConfig) -> None:
    """Raise ConfigError if the interface does not exist, or is not ``lo`` and the network is not ``open``."""
    if cluster.interface != "lo" and cluster.network != "open":
        raise ConfigError(
            f"cluster.interface: expected lo, got {cluster.interface}: others reach the ranks there, and RPC "
            "authenticates nobody; on a network that you trust, set cluster.network=open"
        )
    interfaces = [name for _, name in socket.if_nameindex()]
    if cluster.interface not in (None, *interfaces):
        there = ", ".join(interfaces)
        raise ConfigError(f"cluster.interface: unknown interface {cluster.interface!r}; expected one of {there}")


def make_world(
    config: Config,
    spec: RankSpec,
    job: Callable[[Cluster, SupervisorClient], None],
    parts: Parts = DEFAULT,
    hosts: HostMap | None = None,
    *,
    nodes: NodeMap | None = None,
) -> World:
    """The ranks of a run on engine ``rpc``, not started yet. Raises ConfigError, RunFailed.

    Args:
        job: what each trainer rank runs.
        hosts: which host each rank is on; None: as the config places them.
        nodes: which rank's process serves each shard; None: its own.
    """
    hosts, cluster = host_map(config) if hosts is None else hosts, config.cluster
    if cluster.on_loss == "shrink" or cluster.num_nodes:  # each shard may ask others at once, and be asked
        num_threads = max(cluster.num_worker_threads, config.num_ps + 1)
        cluster = cluster.model_copy(update={"num_worker_threads": num_threads})
    launcher = parts.launcher or LAUNCHERS[cluster.launcher](cluster, hosts, spec.store.root or Path())
    with ExitStack() as undo:
        undo.callback(launcher.close)
        world = World(
            config.num_ps,
            launcher,
            ps=partial(parts.ps_main, spec),
            trainer=partial(trainer_main, job),
            options=cluster,
            network=_private_network(cluster),
            progress_timeout_s=config.trainer.progress_timeout_s,
            nodes=nodes,
        )
        undo.pop_all()
    return world


def _private_network(cluster: ClusterConfig) -> PrivateNetwork | None:
    """Make the private network of the ranks; None with ``network: open``, or with ``auto`` if the system allows none.

    Raises ConfigError if it is required and the system allows none, RunFailed if it cannot be made for another reason.
    """
    if cluster.network == "open":
        return None
    try:
        return PrivateNetwork(cluster.host, cluster.port)
    except NoPrivateNetwork as error:
        if cluster.network == "private":
            raise ConfigError(
                f"cluster.network: no private network on this machine: {error}; `open` lets other processes of the "
                "machine reach the ranks"
            ) from error
        _log.info("note: no private network on this machine (%s): its other processes can reach the ranks", error)
        return None


# --- what is wrong with a run that has ended --------------------------------------------------------------


def _problem_of(run_spec: RunSpec, supervisor: Supervisor) -> str | None:
    """Why the result of a run that has ended is invalid, in words; None if it is valid."""
    unfired, trace = supervisor.unfired, run_spec.config.trace
    if unfired and trace.inject == "wall":
        lines = ", ".join(str(strike.line) for kill in unfired for strike in kill.strikes.values())
        _log.info("note: the run ended before kills of the trace (trace.inject=wall): lines %s", lines)
        unfired = []
    if trace.clock == "wall":  # later ones may lie after the job's end
        unfired = [kill for kill in unfired if kill.hour <= run_spec.costs.job_h]
    if unfired:
        return "\n".join(_unfired_words(trace.path, unfired))
    if supervisor.num_unplanned and not trace.allow_unplanned:
        return (
            f"trace: expected only planned deaths of ranks, got {supervisor.num_unplanned} others; "
            "the record is kept; trace.allow_unplanned=true accepts such runs: start it again with --afresh"
        )
    return None


def _unfired_words(path: str | None, unfired: Sequence[PlannedFault]) -> Iterator[str]:
    """One line for all planned faults at boundaries that did not happen, and one for each whose phase never came."""
    if steps := [str(kill.step) for kill in unfired if kill.phase == "boundary"]:
        yield (
            f"trace: expected every planned kill, got none at steps {', '.join(steps)}; the result is invalid, run it "
            "again"
        )
    for kill in unfired:
        if kill.phase != "boundary":
            line = min(strike.line for strike in kill.strikes.values())
            yield (
                f"{path}:{line}: expected a phase {kill.phase} after step {kill.step}, in which {kill.fault.aim} "
                f"{', '.join(kill.ranks)}, got none; the result is invalid; give the line an earlier hour or another "
                "phase"
            )


def _faults_behind(problem: str, events: Path) -> str:
    """Which lines of the trace damaged the file that ``problem`` names, in words; empty if none did.

    ``events``: the record of the run; it is read only if ``problem`` reports damage. Raises StoreError if it cannot be
    read.
    """
    lines: dict[str, list[str]] = {}
    problem = without_writer(problem)  # as events name files
    record = read_events(events) if ": damaged" in problem else []
    for event in (each for each in record if isinstance(each, Injected)):
        what = FAULTS[event.fault].damage
        if what and f"{event.details['path']}: damaged" in problem:
            lines.setdefault(what, []).append(str(event.line))
    return "; ".join(f"{what} by line {', '.join(which)} of the trace" for what, which in lines.items())
