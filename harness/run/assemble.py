"""Assembles and carries out one run. The only module whose code depends on the engine."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness.cluster import rpc
from harness.cluster.effects import Effects
from harness.cluster.launcher import Launcher, RankContext
from harness.cluster.local import LocalChannel, LocalCluster, LocalRanks
from harness.cluster.protocol import Cluster
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor import Ranks, Supervisor
from harness.cluster.world import World
from harness.config.derived import host_map
from harness.config.model import ClusterConfig, Config
from harness.core.errors import ConfigError, RunFailed, StoreError
from harness.core.events import Finished, Machine
from harness.core.faults import FaultTime
from harness.core.host_map import HostMap
from harness.core.plans import Rank
from harness.processes.network import NoPrivateNetwork, PrivateNetwork
from harness.processes.spawn import own_fork_server
from harness.processes.stop import StopRequest
from harness.record.code import current_code
from harness.record.folder import empty_run, has_resume_point
from harness.record.place import Place
from harness.record.recorder import Recorder
from harness.record.rundir import RunDir
from harness.run.last_event import LastEvent
from harness.run.launchers import LAUNCHERS
from harness.run.resume_points import PointKeeper, usable_point
from harness.run.spec import RunSpec
from harness.run.trainer import train, with_data
from harness.run.validity import problem_of
from harness.store import CheckpointStore, ResumeFolder, ResumePoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The progress of a run, for display."""

    step: int
    num_steps: int
    loss: float | None
    phase: Literal["start", "train", "save", "evaluate", "recover", "done"]
    generation: int


TrainerJob = Callable[[Config, Path, tuple[FaultTime, ...], Cluster, Effects], None]
"""The job of the trainer rank: :func:`harness.run.trainer.train`, or a test's replacement. It can be pickled."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The replaceable parts of a run; tests and benchmarks replace some of them.

    Attributes:
        train: the job of the trainer rank, on either engine.
        make_server: makes the server of a PS rank, on engine ``local``.
        make_ranks: makes the ranks of engine ``local`` from their number and ``make_server``.
        launcher: starts the ranks of engine ``rpc``; None: the one named by ``cluster.launcher``.
        ps_main: main function of a PS rank's process on engine ``rpc``, called with its spec and context.
        clock: the supervisor's, in seconds, monotonic.
    """

    train: TrainerJob = train
    make_server: Callable[[RankSpec, Rank], RankServer] = RankServer
    make_ranks: Callable[[int, Callable[[Rank], RankServer]], LocalRanks] = LocalRanks
    launcher: Launcher | None = None
    ps_main: Callable[[RankSpec, RankContext], None] = rpc.ps_main
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

    On engine ``rpc`` this process becomes the supervisor. ``resumes``: the run goes on from the newest resume point in
    ``run_dir`` that it can go on from; where there is none, what is there is removed, and the run starts. ``stop``:
    once it is set, the run leaves a resume point at the next boundary and ends.

    Raises:
        RunStopped: the run ended since it was asked to.
        UserError: the config, the data, the trace or the disk cannot be used.
        RunFailed: the run has no result, or an invalid one: a planned kill did not happen, or a rank died that the
        trace did not name (unless ``trace.allow_unplanned``).
    """
    place, run_spec = Place(run_dir), RunSpec(config)
    run_spec.validate()
    run_spec.dataset.verify()
    config = run_spec.config  # resolved, as it is recorded
    status = _Status(on_status)
    folder = ResumeFolder(RunDir(run_dir).resume, fsync=config.store.fsync)
    point = _point_of(run_spec, RunDir(run_dir), folder, place) if resumes else None
    place.check()
    facts = {"data": run_spec.data_facts, "trace": run_spec.trace_facts}
    with Recorder(run_dir, config, **facts, since=point and point.events) as recorder:
        finished = _carry_out(run_spec, recorder, folder, point=point, status=status, parts=parts, stop=stop)
    for left in (folder.root, *([] if config.store.keep_finished else [recorder.run.checkpoints])):
        if recorder.place.is_own:
            shutil.rmtree(left, ignore_errors=True)  # what is left of it is in nobody's way
    status(phase="done")
    return finished


def _carry_out(
    run_spec: RunSpec,
    recorder: Recorder,
    folder: ResumeFolder,
    *,
    point: ResumePoint | None,
    status: "_Status",
    parts: Parts,
    stop: StopRequest | None,
) -> Finished:
    """Carry out a run from its beginning, or from ``point`` on, and end its record; returns its last event."""
    config = run_spec.config
    store = CheckpointStore(
        recorder.run.checkpoints,
        keep=config.store.keep,
        fsync=config.store.fsync,
        check=recorder.place.check,
    )
    if point is not None:
        store.rewind(point.checkpoint)
    points = PointKeeper(folder, point, config_hash=run_spec.result_hash, recorder=recorder, store=store)
    sink = LastEvent(recorder)

    def make_supervisor(ranks: Ranks, machine: Machine) -> Supervisor:
        supervisor = Supervisor(
            ranks=ranks,
            sink=sink.record,
            store=store,
            planned_faults=run_spec.planned_faults,
            on_status=status,
            seconds_per_hour=config.trace.seconds_per_hour if config.trace.inject == "wall" else None,
            clock=parts.clock,
            resumption=points.resumption,
            commit_point=points.commit,
        )
        _begin_record(supervisor, run_spec, point, machine | {"env": recorder.env_digest})
        return supervisor

    engine = _run_rpc if config.engine == "rpc" else _run_local
    try:
        hosts = run_spec.hosts_after(point.supervisor["carried_out"] if point else ())
        supervisor = engine(run_spec, store, parts, make_supervisor, stop, hosts=hosts)
    except StoreError as error:
        if words := sink.damage_in(str(error)):
            raise RunFailed(f"{error}; {words}") from error
        raise
    finally:
        store.wait()
    finished = sink.finished
    assert finished is not None, "a run ends with its last event"
    if problem := problem_of(run_spec, supervisor):
        recorder.place.check()
        shutil.rmtree(folder.root, ignore_errors=True)  # who went on from there would end here again
        raise RunFailed(problem)
    with suppress(OSError):  # what is left of a killed rank does no harm
        store.remove_unfinished()
    recorder.done()
    return finished


def _point_of(run_spec: RunSpec, run: RunDir, folder: ResumeFolder, place: Place) -> ResumePoint | None:
    """The resume point that the run goes on from. Where there is none, the folder is emptied for a new start."""
    point = usable_point(run_spec, run, folder)
    if point is None:
        place.check()
        if has_resume_point(run.path):
            _log.info("%s: starts afresh", run.path)
        empty_run(run.path)
    else:
        _log.info("%s: goes on from step %d of %d", run.path, point.step, run_spec.num_steps)
    return point


def prepare_fork_server() -> None:
    """Fork later processes from this one, which has imported all that they need, plugins included.

    To be called before a thread is started; too late, it does nothing, and processes import everything themselves.
    """
    current_code()  # read once, before an edit, and inherited by every process
    own_fork_server()


def starts_processes(config: Config) -> bool:
    """Whether a run of ``config`` has ranks in processes of their own."""
    return config.engine == "rpc"


class _Status:
    """Completes the status fields that a run reports to a RunStatus."""

    def __init__(self, on_status: Callable[[RunStatus], None] | None) -> None:
        self._on_status = on_status
        self._values: dict[str, Any] = {"step": 0, "num_steps": 0, "loss": None, "phase": "start", "generation": 0}

    def __call__(self, **values: Any) -> None:
        self._values |= values
        if self._on_status is not None:
            self._on_status(RunStatus(**self._values))


def _machine(**values: Any) -> Machine:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "host": socket.gethostname(), "pid": os.getpid(), **values}


MakeSupervisor = Callable[[Ranks, Machine], Supervisor]
"""Makes the supervisor of a run, whose record has begun, from its ranks and the machine's part of the first event."""


def _run_local(
    run_spec: RunSpec,
    store: CheckpointStore,
    parts: Parts,
    make_supervisor: MakeSupervisor,
    stop: StopRequest | None,
    *,
    hosts: HostMap,
) -> Supervisor:
    if run_spec.config.trace.inject == "wall":
        raise ConfigError(
            "trace.inject: expected boundary on engine local, got wall; only the processes of engine rpc can be killed "
            "at any moment"
        )
    spec = run_spec.rank_spec(store.root)
    ranks = parts.make_ranks(run_spec.config.num_ps, partial(parts.make_server, spec))
    supervisor = make_supervisor(ranks, _machine())
    try:
        effects = Effects(LocalChannel(supervisor, stop))
        parts.train(run_spec.config, store.root, _fault_times(run_spec), LocalCluster(ranks), effects)
    finally:
        ranks.close()
    return supervisor


def _run_rpc(
    run_spec: RunSpec,
    store: CheckpointStore,
    parts: Parts,
    make_supervisor: MakeSupervisor,
    stop: StopRequest | None,
    *,
    hosts: HostMap,
) -> Supervisor:
    config = run_spec.config
    if config.cluster.interface != "lo" and config.cluster.network != "open":
        raise ConfigError(
            f"cluster.interface: expected lo, got {config.cluster.interface}: others reach the ranks there, and RPC "
            "authenticates nobody; on a network that you trust, set cluster.network=open"
        )
    interfaces = [name for _, name in socket.if_nameindex()]
    if config.cluster.interface not in (None, *interfaces):
        there = ", ".join(interfaces)
        raise ConfigError(f"cluster.interface: unknown interface {config.cluster.interface!r}; expected one of {there}")
    train_there = partial(parts.train, config, store.root, _fault_times(run_spec))
    job = partial(with_data, config.data.path, run_spec.dataset.digest, train_there)
    may_cut = any(fault.cuts_network for planned in run_spec.planned_faults for fault in planned.ranks_by_fault)
    world = make_world(config, run_spec.rank_spec(store.root), job, parts, hosts, may_cut=may_cut)
    try:
        world.start()
        machine = _machine(pids=world.pids, port=world.port, network=world.network_words, **world.places)
        supervisor = make_supervisor(world, machine)
        world.serve(supervisor, stop, supervisor.strike_by_second)
    finally:
        world.close()
    return supervisor


def _begin_record(supervisor: Supervisor, run_spec: RunSpec, point: ResumePoint | None, machine: Machine) -> None:
    """Record the first event, or take up the supervisor's state where the record goes on, and note ``machine``."""
    if point is None:
        supervisor.record(run_spec.started(machine))
    else:
        supervisor.load(point.supervisor)
        supervisor.note_resumption(machine)


def _fault_times(run_spec: RunSpec) -> tuple[FaultTime, ...]:
    """Faults for which the trainer stops: none where the supervisor kills at a second."""
    if run_spec.config.trace.inject == "wall":
        return ()
    return tuple(planned.time for planned in run_spec.planned_faults)


def make_world(
    config: Config,
    spec: RankSpec,
    job: Callable[[Cluster, Effects], None],
    parts: Parts = DEFAULT,
    hosts: HostMap | None = None,
    *,
    may_cut: bool = False,
) -> World:
    """The ranks of a run on engine ``rpc``, not started yet; the trainer rank runs ``job``. Raises ConfigError.

    ``hosts``: which host each rank is on; None: as the config places them. ``may_cut``: ranks may have to be cut off
    the network.
    """
    hosts, cluster = host_map(config) if hosts is None else hosts, config.cluster
    launcher = parts.launcher or LAUNCHERS[cluster.launcher](cluster, hosts, spec.checkpoints)
    with ExitStack() as undo:
        undo.callback(launcher.close)
        world = World(
            config.num_ps,
            launcher,
            ps=partial(parts.ps_main, spec),
            trainer=partial(rpc.trainer_main, job),
            options=cluster,
            network=_private_network(cluster),
            may_cut=may_cut,
            progress_timeout_s=config.trainer.progress_timeout_s,
        )
        undo.pop_all()
    return world


def _private_network(cluster: ClusterConfig) -> PrivateNetwork | None:
    """The network that the ranks have to themselves; None where it is to be open, or the system allows none."""
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
        _log.info("note: no private network on this machine (%s): other processes of it can reach the ranks", error)
        return None
