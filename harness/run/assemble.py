"""Assembles and carries out one run. The only module whose code depends on the engine."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from harness.cluster import rpc
from harness.cluster.group import GroupOptions
from harness.cluster.launcher import Launcher, Main
from harness.cluster.launchers import LAUNCHERS
from harness.cluster.local import LocalCluster, LocalRanks
from harness.cluster.network import NoPrivateNetwork, PrivateNetwork
from harness.cluster.processes import RankJob
from harness.cluster.protocol import Cluster, SupervisorClient
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.spawn import own_fork_server
from harness.cluster.supervisor import Supervisor
from harness.cluster.world import World
from harness.config.model import ClusterConfig, Config
from harness.core.errors import ConfigError, RunFailed
from harness.core.events import Event, Finished, Machine
from harness.core.plans import KillTime, PlannedKill, Rank
from harness.record.code import current_code
from harness.record.recorder import Recorder
from harness.run.job import train
from harness.run.spec import RunSpec
from harness.store import CheckpointStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The progress of a run, for display."""

    step: int
    num_steps: int
    loss: float | None
    phase: Literal["start", "train", "save", "evaluate", "recover", "done"]
    generation: int


class TrainerJob(Protocol):
    """The job of the trainer rank: :func:`harness.run.job.train`, or a test's replacement. It can be pickled."""

    def __call__(
        self,
        config: Config,
        checkpoints: Path,
        kills: tuple[KillTime, ...],
        cluster: Cluster,
        supervisor: SupervisorClient,
        /,
    ) -> None:
        """Train. ``kills``: when training stops for a planned kill."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The replaceable parts of a run; tests and benchmarks replace some of them.

    Attributes:
        train: the job of the trainer rank, on either engine.
        make_server: makes the server of a PS rank, on engine ``local``.
        make_ranks: makes the ranks of engine ``local`` from their number and ``make_server``.
        launcher: starts the ranks of engine ``rpc``; None: the one named by ``cluster.launcher``.
        ps_main: main function of a PS rank's process, on engine ``rpc``.
        clock: the supervisor's, in seconds, monotonic.
    """

    train: TrainerJob = train
    make_server: Callable[[RankSpec, Rank], RankServer] = RankServer
    make_ranks: Callable[[int, Callable[[Rank], RankServer]], LocalRanks] = LocalRanks
    launcher: Launcher | None = None
    ps_main: Main = rpc.ps_main
    clock: Callable[[], float] = time.monotonic


DEFAULT = Parts()


def run(
    config: Config, run_dir: Path, *, on_status: Callable[[RunStatus], None] | None = None, parts: Parts = DEFAULT
) -> Finished:
    """Carry out one run and leave its record in ``run_dir``; returns its last event.

    On engine ``rpc`` this process becomes the supervisor.

    Raises:
        UserError: the config, the data, the trace or the disk cannot be used.
        RunFailed: the run has no result, or an invalid one: a planned kill did not happen, or a rank died that the
        trace did not name (unless ``trace.allow_unplanned``).
    """
    run_spec = RunSpec(config)
    run_spec.validate()
    run_spec.dataset.verify()
    config = run_spec.config  # resolved, as it is recorded
    status = _Status(on_status)
    with Recorder(run_dir, config, data=run_spec.data_facts, trace=run_spec.trace_facts) as recorder:
        store = CheckpointStore(
            recorder.run.checkpoints, keep=config.store.keep, fsync=config.store.fsync, drops_later=True
        )
        sink = _LastEvent(recorder)
        engine = _run_rpc if config.engine == "rpc" else _run_local
        try:
            supervisor = engine(run_spec, store, sink, status, parts)
        finally:
            store.wait()
        finished = sink.finished
        assert finished is not None, "a run ends with its last event"
        if unfired := _missed(run_spec, supervisor.unfired):
            steps = ", ".join(str(planned_kill.step) for planned_kill in unfired)
            raise RunFailed(
                f"trace: expected every planned kill, got none at steps {steps}; the result is invalid, run it again"
            )
        if supervisor.num_unplanned and not config.trace.allow_unplanned:
            raise RunFailed(
                f"trace: expected only planned deaths of ranks, got {supervisor.num_unplanned} others; "
                "the record is kept; set trace.allow_unplanned=true to accept it"
            )
        recorder.done()
    if not config.store.keep_finished:
        shutil.rmtree(store.root, ignore_errors=True)  # what is left of it is in nobody's way
    status(phase="done")
    return finished


def _missed(run_spec: RunSpec, unfired: Sequence[PlannedKill]) -> list[PlannedKill]:
    """Those planned kills that had to happen: with ``trace.clock: wall`` later ones may lie after the job's end."""
    job_h = run_spec.costs.job_h
    return [kill for kill in unfired if min(kill.hours) <= job_h or run_spec.config.trace.clock == "samples"]


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


class _LastEvent:
    """A sink that passes events on and keeps the last one of a run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.finished: Finished | None = None

    def record(self, event: Event) -> None:
        """Pass the event on, and keep it."""
        self._recorder.record(event)
        if isinstance(event, Finished):
            self.finished = event


def _machine(**values: Any) -> Machine:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "host": socket.gethostname(), "pid": os.getpid(), **values}


def _run_local(
    run_spec: RunSpec, store: CheckpointStore, sink: _LastEvent, status: _Status, parts: Parts
) -> Supervisor:
    spec = run_spec.rank_spec(store.root)
    ranks = parts.make_ranks(run_spec.config.num_ps, partial(parts.make_server, spec))
    supervisor = Supervisor(
        ranks=ranks,
        sink=sink,
        store=store,
        planned_kills=run_spec.planned_kills,
        on_status=status,
        clock=parts.clock,
    )
    supervisor.record(run_spec.started(_machine()))
    try:
        parts.train(run_spec.config, store.root, _kill_times(run_spec), LocalCluster(ranks, supervisor), supervisor)
    finally:
        ranks.close()
    return supervisor


def _run_rpc(run_spec: RunSpec, store: CheckpointStore, sink: _LastEvent, status: _Status, parts: Parts) -> Supervisor:
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
    job = partial(parts.train, config, store.root, _kill_times(run_spec))
    world = make_world(config, run_spec.rank_spec(store.root), job, parts)
    try:
        world.start()
        supervisor = Supervisor(
            ranks=world,
            sink=sink,
            store=store,
            planned_kills=run_spec.planned_kills,
            on_status=status,
            clock=parts.clock,
        )
        machine = _machine(pids=world.pids, port=world.port, network=world.network_words, **world.places)
        supervisor.record(run_spec.started(machine))
        world.serve(services_of(supervisor))
    finally:
        world.close()
    return supervisor


def _kill_times(run_spec: RunSpec) -> tuple[KillTime, ...]:
    return tuple(planned_kill.time for planned_kill in run_spec.planned_kills)


def services_of(supervisor: Supervisor) -> dict[str, Callable[..., Any]]:
    """The supervisor's functions that a trainer in another process may call, by name."""
    return {
        "record": supervisor.record,
        "commit": supervisor.commit,
        "status": supervisor.status,
        "kill_planned": supervisor.kill_planned,
        "replace": supervisor.replace,
    }


def make_world(
    config: Config,
    spec: RankSpec,
    job: Callable[[Cluster, SupervisorClient], None],
    parts: Parts = DEFAULT,
) -> World:
    """The ranks of a run on engine ``rpc``, not started yet; the trainer rank runs ``job``. Raises ConfigError."""
    cluster = config.cluster
    launcher = parts.launcher or LAUNCHERS[cluster.launcher](cluster, spec.checkpoints)
    try:
        return _world(config, spec, job, parts, launcher)
    except BaseException:
        launcher.close()
        raise


def _world(
    config: Config,
    spec: RankSpec,
    job: Callable[[Cluster, SupervisorClient], None],
    parts: Parts,
    launcher: Launcher,
) -> World:
    cluster = config.cluster
    return World(
        config.num_ps,
        launcher,
        ps=RankJob(parts.ps_main, spec),
        trainer=RankJob(rpc.trainer_main, job),
        options=GroupOptions(
            transports=cluster.transports,
            interface=cluster.interface,
            num_worker_threads=cluster.num_worker_threads,
            rpc_timeout_s=cluster.rpc_timeout_s,
            join_timeout_s=cluster.join_timeout_s,
            dead_after_s=launcher.dead_after_s,
        ),
        host=cluster.host,
        port=cluster.port,
        num_spares=cluster.spares,
        network=_private_network(cluster),
    )


def _private_network(cluster: ClusterConfig) -> PrivateNetwork | None:
    """The network that the ranks have to themselves; None where it is to be open, or cannot be private."""
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
