"""Puts a run together: the one place that knows which engine it runs on."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from harness.cluster import rpc
from harness.cluster.group import GroupOptions
from harness.cluster.local import LocalCluster, LocalRanks
from harness.cluster.protocol import Cluster, Supervisor
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor import Office
from harness.cluster.world import CHIEF, World
from harness.core.config import Config
from harness.core.errors import ConfigError, RunFailed
from harness.core.events import Event, Finished, Machine, Started
from harness.core.overhead import OverheadLedger, job_costs
from harness.core.placement import Placement, tracked_tables
from harness.core.plans import Costs, Rank
from harness.core.pls import PlsLedger, UpdateLedger, rank_weights
from harness.core.strategies import Strategy, make_strategy
from harness.core.trace import Strike
from harness.core.trackers import NEEDS_COUNTS, NEEDS_SAMPLES, TrackerSpec
from harness.data.dataset import Dataset
from harness.datapath import Batches, DataPath, DirectPath
from harness.injector import strikes_of, trace_digest
from harness.lookahead import LookaheadPath
from harness.model.dlrm import DenseNetwork
from harness.model.sizes import ModelSize, model_size
from harness.recorder import Recorder
from harness.recovery import Recovery, StoreSpec
from harness.spawn import fork_server
from harness.store import CheckpointStore
from harness.trainer import Schedule, Trainer

_IRRELEVANT: dict[str, set[str] | bool] = {
    "name": True,
    "out": True,
    "engine": True,
    "wandb": True,
    "store": True,
    "cluster": {
        "host",
        "port",
        "interface",
        "transports",
        "num_worker_threads",
        "rpc_timeout_s",
        "join_timeout_s",
        "max_replacements_in_a_row",
    },
}
"""Keys that change neither what a run computes nor what it records."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Where a run stands."""

    step: int
    num_steps: int
    loss: float | None
    phase: Literal["start", "train", "save", "evaluate", "recover", "done"]
    generation: int


@dataclass(frozen=True)
class Blueprint:
    """Everything about a run that follows from its config, data and trace. Building it validates all three."""

    config: Config

    @cached_property
    def dataset(self) -> Dataset:
        """The click logs. Raises DataError."""
        return Dataset.open(Path(self.config.data.path), split=self.config.data.split, seed=self.config.seed)

    @cached_property
    def size(self) -> ModelSize:
        """The model's size. Raises ConfigError."""
        return model_size(self.config.model)

    @cached_property
    def num_steps(self) -> int:
        """Whole batches of one epoch."""
        samples = min(self.dataset.num_train, self.config.data.max_train_samples or self.dataset.num_train)
        steps = samples // self.config.trainer.batch_size
        if steps < 1:
            raise ConfigError(
                f"trainer.batch_size: {self.config.trainer.batch_size} is more than the {samples} samples to train on"
            )
        return steps

    @property
    def total_samples(self) -> int:
        """S_total."""
        return self.num_steps * self.config.trainer.batch_size

    @cached_property
    def placement(self) -> Placement:
        """Which rank owns which row."""
        return Placement(self.config.cluster.placement, self.dataset.cardinalities, self.config.num_ps)

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """Tables whose rows trackers choose among."""
        return tracked_tables(self.dataset.cardinalities, self.config.strategy.num_tracked)

    @cached_property
    def costs(self) -> Costs:
        """The profile, resolved for this run."""
        return job_costs(self.config, self.total_samples)

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy, with its interval chosen."""
        return make_strategy(self.config.strategy, self.costs)

    @cached_property
    def strikes(self) -> tuple[Strike, ...]:
        """Planned kills. Raises TraceError."""
        return strikes_of(self.config, total_samples=self.total_samples, num_steps=self.num_steps)

    @property
    def num_rows(self) -> int:
        """Embedding rows of all tables."""
        return sum(self.dataset.cardinalities)

    @property
    def bytes_full(self) -> int:
        """Payload of a full save: every row, and the dense network."""
        return self.num_rows * self.size.embedding_dim * 4 + self.size.dense_bytes

    @cached_property
    def result_hash(self) -> str:
        """16 hex digits over all that decides what is computed and recorded: not the engine, which must not."""
        content = self.config.model_dump(mode="json", exclude=_IRRELEVANT)
        content["data"]["path"] = self.dataset.digest
        content["trace"]["path"] = trace_digest(self.config)
        content["cluster"]["num_ps"] = self.config.num_ps
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def validate(self) -> None:
        """Raise the UserError of whatever cannot work."""
        _ = self.size, self.num_steps, self.strategy, self.strikes
        if self.config.trainer.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("trainer.device: cuda, but torch sees no CUDA device here; cpu always works")

    def rank_spec(self, checkpoints: Path) -> RankSpec:
        """What PS ranks are told."""
        config = self.config
        return RankSpec(
            placement=self.placement,
            embedding_dim=self.size.embedding_dim,
            seed=config.seed,
            tracker=TrackerSpec(self.strategy.tracker, config.strategy.r, self.tracked, config.strategy.random_pool),
            count_updates=config.metrics.update_pls,
            checkpoints=checkpoints,
            fsync=config.store.fsync,
        )

    def started(self, machine: Machine) -> Started:
        """The first event."""
        config, interval = self.config, self.strategy.interval
        return Started(
            step=0,
            samples=0,
            name=config.name,
            strategy=config.strategy.name,
            seed=config.seed,
            trace=Path(config.trace.path).name if config.trace.path else None,
            profile=config.emulated.name,
            num_ps=config.num_ps,
            total_samples=self.total_samples,
            num_steps=self.num_steps,
            interval_samples=interval.samples,
            interval_fallback=interval.fallback,
            interval_overridden=interval.overridden,
            tracker=self.strategy.tracker,
            tracked_tables=list(self.tracked),
            num_rows=self.num_rows,
            num_tracked_rows=sum(self.dataset.cardinalities[table] for table in self.tracked),
            rank_rows=[self.placement.num_rows(k) for k in range(config.num_ps)],
            bytes_full=self.bytes_full,
            config_hash=self.result_hash,
            machine=machine,
        )


def cell_hash(config: Config) -> str:
    """10 hex digits that name a cell: all that decides its result, and its engine.

    Raises UserError where the data or the trace cannot be read: their content is part of it.
    """
    key = f"{Blueprint(config).result_hash} {config.engine}"
    return hashlib.blake2b(key.encode(), digest_size=5).hexdigest()


def check(config: Config) -> None:
    """Validate ``config`` against its data and trace, without running. Raises UserError."""
    Blueprint(config).validate()


def run(config: Config, run_dir: Path, *, on_status: Callable[[RunStatus], None] | None = None) -> Finished:
    """Carry out one run and leave its record in ``run_dir``; its last event.

    On engine ``rpc`` this process becomes the supervisor.

    Raises:
        UserError: the config, the data, the trace or the disk cannot be used.
        RunFailed: no result; or a result that does not count, since a planned kill did not happen or an unplanned
            one did (``trace.allow_unplanned``).
    """
    blueprint = Blueprint(config)
    blueprint.validate()
    status = _Status(on_status)
    with Recorder(run_dir, config) as recorder:
        store = CheckpointStore(recorder.run.checkpoints, keep=config.store.keep, fsync=config.store.fsync)
        sink = _LastEvent(recorder)
        engine = _run_rpc if config.engine == "rpc" else _run_local
        office = engine(blueprint, store, sink, status)
        finished = sink.finished
        assert finished is not None, "a run ends with its last event"
        if office.unfired:
            steps = ", ".join(str(strike.step) for strike in office.unfired)
            raise RunFailed(f"planned kills at steps {steps} did not happen")
        if office.num_unplanned and not config.trace.allow_unplanned:
            raise RunFailed(
                f"{office.num_unplanned} ranks died that the trace did not name; the record is kept, "
                "trace.allow_unplanned=true accepts it"
            )
        recorder.done()
    status(phase="done")
    return finished


class _Status:
    """Completes what a run tells about itself to a RunStatus."""

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
        """Pass it on."""
        self._recorder.record(event)
        if isinstance(event, Finished):
            self.finished = event


def _machine(**values: Any) -> Machine:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": now, "host": socket.gethostname(), "pid": os.getpid(), **values}


def _run_local(blueprint: Blueprint, store: CheckpointStore, sink: _LastEvent, status: _Status) -> Office:
    spec = blueprint.rank_spec(store.root)
    ranks = LocalRanks(blueprint.config.num_ps, lambda rank: RankServer(spec, rank))
    office = Office(hands=ranks, sink=sink, store=store, strikes=blueprint.strikes, on_status=status)
    office.record(blueprint.started(_machine()))
    kill_steps = frozenset(strike.step for strike in blueprint.strikes)
    train(blueprint.config, store.root, kill_steps, LocalCluster(ranks, office), office)
    return office


def _run_rpc(blueprint: Blueprint, store: CheckpointStore, sink: _LastEvent, status: _Status) -> Office:
    config = blueprint.config
    interfaces = [name for _, name in socket.if_nameindex()]
    if config.cluster.interface not in (None, *interfaces):
        there = ", ".join(interfaces)
        raise ConfigError(f"cluster.interface: no network interface {config.cluster.interface!r}; there are {there}")
    kill_steps = frozenset(strike.step for strike in blueprint.strikes)
    job = partial(train, config, store.root, kill_steps)
    world = World(
        config.num_ps,
        partial(_rank_process, config, blueprint.rank_spec(store.root), job),
        host=config.cluster.host,
        port=config.cluster.port,
    )
    try:
        world.start()
        office = Office(hands=world, sink=sink, store=store, strikes=blueprint.strikes, on_status=status)
        office.record(blueprint.started(_machine(pids=world.pids, port=world.port)))
        desk = {
            "record": office.record,
            "commit": office.commit,
            "status": office.status,
            "strike": office.strike,
            "replace": office.replace,
            "dead": world.dead,
            "absent": world.absent,
        }
        world.serve(desk)
    finally:
        world.close()
    return office


def _rank_process(  # noqa: PLR0917 - the first three are bound here, the rest is World's call
    config: Config,
    spec: RankSpec,
    job: Callable[[Cluster, Supervisor], None],
    rank: Rank,
    index: int,
    generation: int,
    port: int,
    authkey: bytes,
) -> BaseProcess:
    """The process of one rank, forked from a server that has torch loaded: 10 ms instead of 1.3 s of import."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a rank that is killed makes every peer complain
    context = fork_server()
    cluster = config.cluster
    seat = rpc.Seat(
        rank=rank,
        index=index,
        num_ps=config.num_ps,
        world_size=config.num_ps + 1,
        generation=generation,
        supervisor_pid=os.getpid(),
        host=cluster.host,
        port=port,
        authkey=authkey,
        options=GroupOptions(
            transports=cluster.transports,
            interface=cluster.interface,
            num_worker_threads=cluster.num_worker_threads,
            rpc_timeout_s=cluster.rpc_timeout_s,
            join_timeout_s=cluster.join_timeout_s,
        ),
    )
    main, work = (rpc.trainer_main, job) if rank == CHIEF else (rpc.ps_main, spec)
    return context.Process(target=main, args=(seat, work), name=rank)


def train(
    config: Config, checkpoints: Path, kill_steps: frozenset[int], cluster: Cluster, supervisor: Supervisor
) -> None:
    """The job of the trainer rank, on either engine: train, and record the last event."""
    blueprint = Blueprint(config)
    torch.set_num_threads(config.trainer.num_threads)
    if config.trainer.device == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS may round differently in each run
        torch.use_deterministic_algorithms(mode=True)
    network = DenseNetwork(
        blueprint.size, seed=config.seed, learning_rate=config.trainer.learning_rate, device=config.trainer.device
    )
    counts = config.metrics.update_pls
    recovery = Recovery(
        cluster=cluster,
        supervisor=supervisor,
        strategy=blueprint.strategy,
        overhead=OverheadLedger(blueprint.costs),
        pls=PlsLedger(rank_weights(blueprint.placement), blueprint.total_samples, config.strategy.pls_since),
        updates=UpdateLedger(cluster.ranks) if counts else None,
        store=StoreSpec(
            root=checkpoints,
            fsync=config.store.fsync,
            config_hash=blueprint.result_hash,
            bytes_full=blueprint.bytes_full,
        ),
        dense_state=network.state,
        max_replacements_in_a_row=config.cluster.max_replacements_in_a_row,
        clock=time.monotonic,
    )
    trainer = Trainer(
        cluster=cluster,
        supervisor=supervisor,
        recovery=recovery,
        strategy=blueprint.strategy,
        network=network,
        make_path=partial(_data_path, blueprint, recovery, cluster.ranks),
        dataset=blueprint.dataset,
        placement=blueprint.placement,
        tracked=blueprint.tracked,
        schedule=Schedule(
            num_steps=blueprint.num_steps,
            batch_size=config.trainer.batch_size,
            kill_steps=kill_steps,
            log_every_steps=config.metrics.log_every_steps,
        ),
        evaluation=config.eval,
        clock=time.monotonic,
    )
    supervisor.record(trainer.run())


def _data_path(
    blueprint: Blueprint, recovery: Recovery, ranks: tuple[Rank, ...], is_boundary: Callable[[int], bool]
) -> DataPath:
    """The data path that the config asks for."""
    config, tracker = blueprint.config, blueprint.strategy.tracker
    batches = Batches(
        blueprint.dataset,
        blueprint.placement,
        batch_size=config.trainer.batch_size,
        ssu_period=config.strategy.ssu_period,
    )
    if config.cache.mode == "none":
        return DirectPath(recovery, batches, ranks, config.trainer.learning_rate)
    return LookaheadPath(
        recovery,
        batches,
        ranks,
        dim=blueprint.size.embedding_dim,
        learning_rate=config.trainer.learning_rate,
        num_steps=blueprint.num_steps,
        lookahead=config.cache.lookahead,
        max_rows=config.cache.max_rows,
        is_boundary=is_boundary,
        tells_counts=config.metrics.update_pls or tracker in NEEDS_COUNTS,
        tells_samples=tracker in NEEDS_SAMPLES,
    )
