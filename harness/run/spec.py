"""The constants of a run that follow from its config, data and trace."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness.cluster.server import RankSpec, num_copied_bytes
from harness.config.combinations import refuse_combinations
from harness.config.derived import host_map, job_costs
from harness.config.keys import IRRELEVANT
from harness.config.model import BackendName, Config
from harness.core.choices import DEFAULTS
from harness.core.errors import ConfigError, StoreError
from harness.core.events import Machine, Started
from harness.core.faults import PlannedFault
from harness.core.model_options import ModelOptions, Shape
from harness.core.optimizers import OPTIMIZERS
from harness.core.placement import Placement, tracked_tables
from harness.core.plans import Costs, HostMap, NodeMap, Rank
from harness.core.pls import UpdateCounter
from harness.core.strategies import Partial, Strategy, make_strategy
from harness.core.trackers import TrackerSpec, tracker_bytes
from harness.data.dataset import Dataset
from harness.model.backends import check_backend, choose_backend
from harness.model.models import Footprint, footprint
from harness.model.network import make_share_trainer
from harness.record.code import current_code
from harness.record.rundir import RunDir, read_env, read_whole_config
from harness.recovery.kinds import RunFacts
from harness.recovery.recoveries import RECOVERIES, all_kinds, check_declared
from harness.store import Store, newest_checkpoint
from harness.store.format import numbered_paths
from harness.store.initial import InitialModel
from harness.traces.job_trace import facts_of_named, with_profile_of_trace
from harness.traces.schedule import merged_instants, planned_faults_of, trace_facts
from harness.traces.trace import read_trace

MOST_IN_MEMORY_BYTES = 256_000_000
"""Payload of a full save up to which ``store.kind=auto`` may mean memory, of which a checkpoint takes twice as much."""

_LEAST_EVALUATED = 256  # samples of an evaluation of the curve, or around a failure, where the key is null
_DROPS_DIVISOR = 15  # a 15th of the training samples is evaluated before all failures together, and again after them


@dataclass(frozen=True)
class RunSpec:
    """All constants of a run that follow from its config, data and trace.

    Each constant is computed and checked when it is first used: it raises DataError, TraceError or ConfigError if what
    it follows from cannot be used. :meth:`validate` computes all that may be refused.
    """

    given: Config

    @cached_property
    def config(self) -> Config:
        """The config with backend ``auto``, split null and profile ``from_trace`` resolved."""
        data = self.given.data.model_copy(update={"split": self.dataset.split})
        config = self.given.model_copy(update={"data": data})
        return with_profile_of_trace(with_backend(config, choose_backend(config.trainer, config.model.name)))

    @cached_property
    def dataset(self) -> Dataset:
        return Dataset.open(Path(self.given.data.path), split=self.given.data.split, seed=self.given.seed)

    @cached_property
    def shape(self) -> Shape:
        return Shape(self.dataset.num_dense, self.dataset.num_tables)

    @cached_property
    def model(self) -> ModelOptions:
        """The options of the model, with all defaults filled in. They fit each other and the data."""
        self.config.model.check(self.shape)
        return self.config.model.filled()

    @cached_property
    def footprint(self) -> Footprint:
        trainer = self.config.trainer
        return footprint(self.model, trainer.optimizer, trainer.dense_optimizer, self.shape)

    @cached_property
    def num_steps(self) -> int:
        """Number of whole batches in the training samples, at most ``data.max_train_samples`` of them; at least 1."""
        samples = min(self.dataset.num_train, self.config.data.max_train_samples or self.dataset.num_train)
        steps = samples // self.config.trainer.batch_size
        if steps < 1:
            raise ConfigError(
                f"trainer.batch_size: expected at most {samples}, the number of training samples, "
                f"got {self.config.trainer.batch_size}"
            )
        return steps

    @property
    def total_samples(self) -> int:
        """Number of samples that the run trains on: S_total of the CPR paper."""
        return self.num_steps * self.config.trainer.batch_size

    @cached_property
    def num_eval_samples(self) -> int:
        """Number of samples of a whole evaluation: those of ``eval.split``, at most ``eval.max_samples``.

        Raises ConfigError if the data have no such set.
        """
        available = self.dataset.num_eval(self.config.eval.split)
        if not available:
            path = self.config.data.path
            raise ConfigError(f"eval.split: expected test, got validation; {path} was prepared without --validation")
        return min(available, self.config.eval.max_samples or available)

    @cached_property
    def num_curve_samples(self) -> int:
        """Number of samples of each evaluation of the curve. By default the curve takes 2 to 4 % of the run's time."""
        wanted = self.config.eval.curve_samples or min(max(self.total_samples // 200, _LEAST_EVALUATED), 16_384)
        return min(wanted, self.num_eval_samples)

    @cached_property
    def num_recovery_samples(self) -> int:
        """Number of samples of each evaluation before a planned failure and after its recovery; 0: there is none.

        By default all of them together read 2/15 of the training samples, which takes about 4 % of the run's time; each
        reads at least 256.
        """
        num_failures = sum(each.fault.loss is not None for each in self.planned_faults)
        if not self.config.eval.at_recoveries or not num_failures:
            return 0
        by_default = max(self.total_samples // (_DROPS_DIVISOR * num_failures), _LEAST_EVALUATED)
        return min(self.config.eval.recovery_samples or by_default, self.num_eval_samples)

    @cached_property
    def evaluate_every_steps(self) -> int | None:
        """Number of steps between evaluations of the curve; None without a curve."""
        points = self.config.eval.points
        return self.config.eval.every_steps or (math.ceil(self.num_steps / points) if points else None)

    @cached_property
    def placement(self) -> Placement:
        return Placement(self.config.cluster.placement, self.dataset.cardinalities, self.config.num_ps)

    @cached_property
    def initial(self) -> InitialModel | None:
        """The checkpoint of ``init.checkpoint``; None without one. Raises ConfigError if it does not fit this run."""
        if (path := self.config.init.checkpoint) is None:
            return None
        run, where = RunDir(Path(path)), f"init.checkpoint: {path}"
        try:
            theirs = read_whole_config(run.path, {})
            has_model = bool(numbered_paths(run.model, "manifest"))  # else it was killed while it wrote its model
            root = run.model if has_model else run.checkpoints
            manifest, damages = newest_checkpoint(root)
        except StoreError as error:
            raise ConfigError(f"{where}: {error}") from error
        if damages:  # an older checkpoint in its place would hide it
            raise ConfigError(f"{where}: {damages[0]}")
        if manifest is None:
            raise ConfigError(f"{where}: expected a run with a checkpoint, got none; see store.keep_finished")
        for key in ("model", "trainer.optimizer", "trainer.dense_optimizer"):
            ours, given = (attrgetter(key)(config) for config in (self.config, theirs))
            if ours != given:
                raise ConfigError(f"{where}: expected {key} of this run ({ours}), got {given}")
        ours, given = self.dataset.cardinalities, (read_env(run.path).get("data") or {}).get("table_rows")
        given = given if isinstance(given, list) else []
        if len(given) != len(ours):
            raise ConfigError(f"{where}: expected {len(ours)} tables, got {len(given)}")
        for table, (expected, got) in enumerate(zip(ours, given, strict=True)):
            if got != expected:
                raise ConfigError(f"{where}: expected {expected} rows of table {table}, got {got}")
        placement = Placement(theirs.cluster.placement, ours, theirs.num_ps)
        return InitialModel(root=root.resolve(), manifest=manifest, placement=placement)

    @cached_property
    def tracked(self) -> tuple[int, ...]:
        """Indices of the tracked tables, ascending: priority saves choose among their rows."""
        return tracked_tables(self.dataset.cardinalities, self.config.metrics.num_tracked)

    @cached_property
    def costs(self) -> Costs:
        return job_costs(self.config, self.total_samples)

    @cached_property
    def strategy(self) -> Strategy:
        return make_strategy(self.config.strategy, self.costs)

    @cached_property
    def planned_faults(self) -> tuple[PlannedFault, ...]:
        """The planned faults; none for a strategy without failures."""
        planned_faults = planned_faults_of(self.config, total_samples=self.total_samples, num_steps=self.num_steps)
        return planned_faults if self.strategy.injects_failures else ()

    def hosts_after(self, carried_out: Iterable[int]) -> HostMap:
        """The host of each rank after the planned faults with the numbers ``carried_out``."""
        hosts = host_map(self.config)
        for number in sorted(carried_out):
            for host in self.planned_faults[number].hosts:
                hosts.lose(host)
        return hosts

    def nodes_after(self, carried_out: Iterable[int]) -> NodeMap:
        """The node that hosts each shard after the planned faults with the numbers ``carried_out``."""
        nodes = NodeMap(self.config.num_ps, self.config.cluster.num_nodes)
        for planned in (self.planned_faults[number] for number in sorted(carried_out)):
            if planned.fault.loss and self.config.cluster.on_loss == "shrink":
                nodes.lose({nodes[rank] for rank in planned.ranks})
            for node in planned.time.returns:
                nodes.give_back(node)
        return nodes

    @property
    def counts_updates(self) -> bool:
        """Whether shards count unsaved updates for the update-weighted PLS. A tracker may have them counted besides.

        False for a strategy that never saves: all updates sent are unsaved then.
        """
        is_needed = self.config.metrics.update_pls or self.on_notice != "none"
        return is_needed and self.strategy.saves_initially

    @cached_property
    def on_notice(self) -> str:
        """``cluster.on_notice``, or ``none`` if the trace tells no rank of its death."""
        is_told = any(planned.notices for planned in self.planned_faults)
        return self.config.cluster.on_notice if is_told else "none"

    @cached_property
    def count_updates(self) -> UpdateCounter:
        """Counts the updates of a batch by rank, for all tables and for the tracked tables."""
        return UpdateCounter(self.placement, self.tracked)

    @property
    def run_facts(self) -> RunFacts:
        """The constants that kinds of recovery and the embedding client are built from."""
        return RunFacts(
            strategy=self.strategy,
            placement=self.placement,
            tracked=self.tracked,
            dim=self.model.row_values,
            optimizer=OPTIMIZERS[self.config.trainer.optimizer],
            learning_rate=self.config.trainer.learning_rate,
            has_counts=self.counts_updates,
            count_updates=self.count_updates,
            on_notice=self.on_notice,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the click log and the trace, for env.json, as plain JSON types.

        ``split``: the sets in one line. ``synthetic`` is None for real logs, ``trace`` is None without a trace.
        """
        meta = self.dataset.meta
        data = {
            "num_samples": meta.num_rows,
            "table_rows": list(self.dataset.cardinalities),
            "digest": meta.digest,
            "synthetic": meta.synthetic.model_dump() if meta.synthetic else None,
            "split": meta.split_text,
        }
        return {"data": data, "trace": trace_facts(self.config)}

    @property
    def num_rows(self) -> int:
        """Number of embedding rows of all tables."""
        return sum(self.dataset.cardinalities)

    @property
    def bytes_full(self) -> int:
        """Payload bytes of a full save: every row and the dense network, with the state of their optimizers."""
        return self.footprint.num_bytes(self.num_rows)

    @property
    def row_bytes(self) -> int:
        """Payload bytes of one row in a full save, state of the optimizer included."""
        return 4 * self.footprint.row_width

    @cached_property
    def rank_rows(self) -> list[int]:
        """Number of embedding rows of each PS rank, by number of the rank."""
        return [self.placement.num_rows(k) for k in range(self.config.num_ps)]

    @property
    def keeps_replicas(self) -> bool:
        """Whether each rank holds a replica of the shard of the rank before it."""
        return any(RECOVERIES[kind].needs_replicas for kind in self.strategy.recoveries)

    @cached_property
    def store_kind(self) -> str:
        """``store.kind``, in which ``auto`` is ``memory`` where nobody could read the files, and else ``files``."""
        config, store = self.config, self.config.store
        if store.kind != "auto":
            return store.kind
        is_read = store.keep_finished or self._damages or self.bytes_full > MOST_IN_MEMORY_BYTES
        return "files" if is_read or config.engine != "local" else "memory"

    @property
    def _damages(self) -> list[PlannedFault]:
        """The planned faults that damage files of a checkpoint."""
        return [each for each in self.planned_faults if any(one.fault.damage for one in each.strikes.values())]

    @property
    def tracker_spec(self) -> TrackerSpec:
        return TrackerSpec(self.strategy.tracker, self.tracked, self.strategy.tracker_options)

    @property
    def memory_bytes(self) -> int | None:
        """An upper bound of the bytes of tracker, replica, parity and saves in memory at a PS rank: the most of each.

        None if the tracker's size is unknown.
        """
        num_bytes = tracker_bytes(self.tracker_spec, self.placement, self.model.row_values)
        if num_bytes is None:
            return None
        num_copies = (self.strategy.groups is not None) + 2 * ("memory" in self.strategy.tiers)
        num_bytes += num_copies * max(self.rank_rows) * self.row_bytes
        if not self.keeps_replicas:
            return num_bytes
        copied_bytes = num_copied_bytes(max(self.rank_rows), self.footprint.row_width, has_counts=self.counts_updates)
        return num_bytes + copied_bytes

    @property
    def identity(self) -> dict[str, Any]:
        """All settings that affect results and events, by group of keys. The engine is left out, as it affects none.

        Paths of data and trace are replaced by digests of their content.
        """
        content = self.config.model_dump(mode="json", exclude=IRRELEVANT)
        content["data"]["path"] = self.dataset.digest
        content["trace"]["path"] = (trace_facts(self.config) or {"digest": None})["digest"]
        content["cluster"]["num_ps"] = self.config.num_ps
        content["cluster"] |= facts_of_named(self.config)
        if self.initial is not None:
            content["init"]["checkpoint"] = hash_of({"manifest": self.initial.manifest.to_text()})
        if self.config.model.name == DEFAULTS["model"]:
            del content["model"]["name"]  # there was no other model: hashes of results from before stay
        return content

    @cached_property
    def result_hash(self) -> str:
        return hash_of(self.identity)

    def validate(self) -> None:
        """Raise UserError if the config, the data and the trace do not fit each other or this machine."""
        check_backend(self.config.trainer, self.config.model.name)
        refuse_combinations(self.config, self.strategy)
        check_declared({self.config.strategy.name: type(self.strategy)})
        _ = self.model, self.num_steps, self.num_eval_samples, self.strategy, self.initial
        if self.loses_all_trainers and self.config.cache.mode == "stale":
            cause = "trace.trainers_die=true" if self.config.trace.trainers_die else "a trace that kills all trainers"
            raise ConfigError(
                f"cache.mode: expected none or lookahead with {cause}, got stale; its workers hold updates that no "
                "rank has"
            )
        if self.config.cluster.num_nodes is not None and any(each.fault.loss for each in self.planned_faults):
            raise ConfigError(
                f"cluster.num_nodes: expected null with a trace that kills ranks, got {self.config.cluster.num_nodes}; "
                "which shards die together would depend on it"
            )
        self._check_memory()

    def _check_memory(self) -> None:
        """Raise ConfigError if checkpoints are to be kept in memory and cannot be."""
        if self.store_kind == "memory" and self.config.engine != "local":
            raise ConfigError(
                "store.kind: expected files on engine rpc, got memory; its ranks have no memory in common"
            )
        if self.store_kind == "memory" and self._damages:
            line = min(strike.line for each in self._damages for strike in each.strikes.values())
            raise ConfigError(f"store.kind: expected files with a trace that damages files (line {line}), got memory")

    @property
    def loses_all_trainers(self) -> bool:
        return any(each.takes_trainers for each in self.planned_faults)

    def rank_spec(self, store: Store) -> RankSpec:
        config = self.config
        return RankSpec(
            placement=self.placement,
            embedding_dim=self.model.row_values,
            seed=config.seed,
            optimizer=config.trainer.optimizer,
            tracker=self.tracker_spec,
            counts_updates=self.counts_updates,
            store=store,
            fsync=config.store.fsync,
            save_buffer_bytes=config.save.buffer_bytes,
            keeps_replica=self.keeps_replicas,
            groups=self.strategy.groups,
            write_faults=_write_faults(self.planned_faults),
            make_share_trainer=partial(make_share_trainer, config.trainer),
            initial=self.initial,
        )

    def started(self, machine: Machine) -> Started:
        config, interval = self.config, self.strategy.interval
        return Started(
            step=0,
            samples=0,
            name=config.name,
            strategy=config.strategy.name,
            seed=config.seed,
            trace=Path(config.trace.path).name if config.trace.path else config.trace_name,
            trace_clock=config.trace.clock,
            trace_inject=config.trace.inject,
            profile=config.profile.name,
            num_ps=config.num_ps,
            total_samples=self.total_samples,
            num_steps=self.num_steps,
            interval_samples=interval.samples,
            interval_fallback=interval.fallback,
            interval_overridden=interval.overridden,
            tracker=self.strategy.tracker,
            step_parts=[*self.strategy.step_parts],
            tracked_tables=list(self.tracked),
            num_rows=self.num_rows,
            num_tracked_rows=sum(self.dataset.cardinalities[table] for table in self.tracked),
            rank_rows=self.rank_rows,
            bytes_full=self.bytes_full,
            restores_exactly=self.strategy.repeats_exactly,
            recoveries={name: RECOVERIES[name].facts() for name in all_kinds(self.strategy, self.on_notice)},
            row_bytes=self.row_bytes,
            config_hash=self.result_hash,
            machine=machine,
        )


def hash_of(identity: Mapping[str, Any]) -> str:
    """Hash (16 hex digits) of an ``identity`` (:attr:`RunSpec.identity`)."""
    return hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()


def with_backend(config: Config, backend: BackendName) -> Config:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"backend": backend})})


def cell_hash(config: Config) -> str:
    """``CONFIG-CODE``, the end of a result's name: 10 hex digits for result hash and engine, 8 for the code.

    Raises UserError if the data or the trace cannot be read: the hash includes their content.
    """
    key = f"{RunSpec(config).result_hash} {config.engine}"
    digest = hashlib.blake2b(key.encode(), digest_size=5).hexdigest()
    return f"{digest}-{current_code().fingerprint[:8]}"


def check(config: Config) -> list[str]:
    """Validate ``config`` against its data and trace, without running. Raises UserError.

    Returns a sentence for each setting that is valid but has an unexpected effect or none.
    """
    run_spec = RunSpec(config)
    run_spec.validate()
    strategy, interval, remarks = config.strategy, run_spec.strategy.interval, list[str]()
    every_samples = None if interval.samples is None else interval.samples / interval.divisor
    if every_samples is not None and every_samples < config.trainer.batch_size:
        remarks.append(
            f"strategy {strategy.name} is to save every {every_samples:,.0f} samples, less than a step: it saves "
            "after every step, fewer times than planned; a smaller trainer.batch_size or another "
            "strategy.interval_samples keeps to the plan"
        )
    if (
        config.store.kind == "memory"
        and config.store.keep_finished
        and "keep_finished" in config.store.model_fields_set
    ):
        remarks.append("store.keep_finished=true keeps the final model alone with store.kind=memory")
    resets = isinstance(strategy, Partial.Options) and strategy.restore_optimizer == "reset"
    if resets and run_spec.footprint.row_width == run_spec.model.row_values:
        name = config.trainer.optimizer
        remarks.append(f"strategy.restore_optimizer=reset changes nothing: {name} has no state in rows")
    for key, given, available, what in (
        ("data.max_train_samples", config.data.max_train_samples, run_spec.dataset.num_train, "training samples"),
        (
            "eval.max_samples",
            config.eval.max_samples,
            run_spec.dataset.num_eval(config.eval.split),
            "samples to evaluate",
        ),
        ("eval.curve_samples", config.eval.curve_samples, run_spec.num_eval_samples, "samples to evaluate"),
        ("eval.every_steps", config.eval.every_steps, run_spec.num_steps, "steps"),
    ):
        if given is not None and given > available:
            remarks.append(f"{key}={given}: there are {available:,} {what}; a larger number changes nothing")
    if run_spec.strategy.injects_failures:
        remarks += merged_instants(run_spec.config, total_samples=run_spec.total_samples, num_steps=run_spec.num_steps)
        if (path := config.trace.path) is not None and not read_trace(Path(path)).entries:
            remarks.append(f"trace.path: {path} has no failures")
    return remarks


def _write_faults(planned: Iterable[PlannedFault]) -> dict[Rank, dict[int, int]]:
    """The planned failures of writes, as :class:`RankSpec` has them."""
    faults: dict[Rank, dict[int, int]] = {}
    for number, each in enumerate(planned):
        for rank, strike in each.strikes.items():
            if (code := strike.fault.write_errno) is not None:
                faults.setdefault(rank, {})[number] = code
    return faults
