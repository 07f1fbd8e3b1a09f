"""The configuration of one run: nested frozen models, validated when they are made.

Keys marked (R) are choices that the CPR paper leaves open or that were reconstructed (docs/CPR.md);
each default is the reading this project uses.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Union

from pydantic import BaseModel, Field, model_validator

from harness.config.laws import NAMED_LAW, Law
from harness.config.profiles import MAX_PS, NAMED_PROFILE, PROFILES, Profile
from harness.config.words import STRICT, PathText
from harness.core import model_options, strategies
from harness.core.choices import CHOICES, CLIENT_NAMES, DEFAULTS, LAUNCHER_NAMES, OPTIMIZER_NAMES, STORE_NAMES, OneOf
from harness.core.clock import FailureClock
from harness.core.model_options import ModelOptions
from harness.core.strategies import CprVanilla, StrategyOptions

EngineName = Literal["local", "rpc"]
BackendName = Literal["torch", "compiled"]
DenseOptimizerName = Literal["sgd", "adagrad", "adam"]
NO_RESULT = "changes no result and no event, whatever the engine: no part of a result's hash"
"""Marks the field of a key, or of a group of keys, that has no effect on results and events."""
BY_TRACE = "as NO_RESULT, unless the trace names trainers or hosts: then the hash has what follows from the key"
"""Marks the field of a key that affects results and events only through the trace (``facts_of_named``)."""
PositiveInt = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
NumRanks = Annotated[int, Field(ge=1, le=MAX_PS)]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@-]*$")]


class _Model(BaseModel):
    model_config = STRICT


if TYPE_CHECKING:
    StrategyChoice = StrategyOptions
    ModelChoice = ModelOptions
else:  # the options of one part, chosen by the name
    StrategyChoice, ModelChoice = (
        Annotated[Union[tuple(CHOICES[group].values())], Field(discriminator="name")]  # noqa: UP007
        for group in ("strategy", "model")
    )


class DataConfig(_Model):
    path: PathText = "demo/data"
    """Folder written by `run.py data prepare`."""
    split: Literal["dlrm", "prepared", "chronological"] | None = None
    """`dlrm`: of seven equal parts of the rows, 1 to 6 are shuffled for training; the halves of part 7 are the test and
    the validation set. `prepared`: the sets of `run.py data prepare --test`, training samples shuffled.
    `chronological`: the sets of the folder without the shuffle. null: `prepared` if the folder has its own sets, else
    `dlrm`; a run's config and hash contain the choice."""
    max_train_samples: PositiveInt | None = None
    """Train on at most this many samples; null is one epoch."""


class TrainerConfig(_Model):
    batch_size: PositiveInt = 128
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] = 0.1
    optimizer: Annotated[str, OneOf(OPTIMIZER_NAMES)] = "sgd"
    """Optimizer of the embedding rows, at the PS ranks and in caches. `rowwise_adagrad` has one sum of squares a row,
    `adagrad` one a value; `adam` has two moments a value and the row's number of updates. They are columns of the row:
    they are saved, moved and lost with it."""
    dense_optimizer: DenseOptimizerName = "sgd"
    """Optimizer of the dense network, at the same learning rate. Its state is part of every checkpoint. `adam` needs
    backend `torch`."""
    num_threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of the dense network. Part of the result's hash: with backend `torch`, sums round differently with
    another number."""
    backend: Literal["auto"] | BackendName = "auto"
    """Implementation of the dense network. `torch`: torch operations, on any device. `compiled`: a compiled program for
    `dlrm`, float32 on the CPU, if it has fused multiply-adds. `auto`: `compiled` where it can run, else `torch`; a
    run's config and hash contain the choice. Part of the result's hash: sums round differently."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the dense network. PS ranks never use CUDA."""
    progress_timeout_s: Annotated[Seconds | None, NO_RESULT] = 600.0
    """Engine `rpc`: seconds after which a trainer that runs, and finishes neither a step nor a batch of an evaluation,
    nor tells the supervisor anything, is killed, and the run fails. null: never."""


class CacheConfig(_Model):
    mode: Annotated[str, OneOf(CLIENT_NAMES)] = "none"
    """`lookahead`: the trainer caches rows that coming batches share (BagPipe); results are bit-equal to `none`.
        `stale`: workers' caches with bounded staleness (HET); results differ unless `staleness` is 0."""
    lookahead: Annotated[int, Field(ge=2)] = 200
    """Number of coming steps that are planned ahead."""
    max_rows: PositiveInt | None = None
    """Upper bound of cached rows. `lookahead` includes rows in flight and shortens its windows; `stale` counts the rows
        of all workers and evicts the least recently used."""
    staleness: Annotated[int, Field(ge=0, le=2**30)] = 100
    """`stale`: how many updates of a row by other workers a copy may lack, and how many own ones may stay unpushed. The
        default is that of Hetu's click-log examples."""
    workers: Annotated[int, Field(ge=1, le=256)] = 8
    """`stale`: number of workers, each with its own cache; the trainer runs them in turn."""


class EvalConfig(_Model):
    points: Annotated[int, Field(ge=0)] = 20
    """Largest number of evaluations for the curve of AUC over samples, evenly spread, the last at the end; 0: none."""
    curve_samples: PositiveInt | None = None
    """Samples of each evaluation of the curve, the first of the set; null: a 200th of the training samples, between 256
        and 16384. The result of a run is of the whole set."""
    every_steps: PositiveInt | None = None
    """Number of steps between the evaluations of the curve; null: `points` decides."""
    at_recoveries: bool = True
    """Whether the model is evaluated right before each planned failure and right after its recovery: the drop in AUC.
        Changes no other result."""
    recovery_samples: PositiveInt | None = None
    """Samples of each of these evaluations, the first of the set; null: as many that all of them together take about
        4 % of the training time, at least 256."""
    movement: bool = False
    """Whether the L2 distance by which each planned failure moves the rows of its shards is measured with the drop in
        AUC. The trainer then keeps a copy of these shards from before the failure until after its recovery."""
    split: Literal["test", "validation"] = "test"
    batch_size: PositiveInt = 4096
    max_samples: PositiveInt | None = None
    """Largest number of samples of the set to evaluate, the first ones; null: all."""


class ClusterConfig(_Model):
    num_ps: NumRanks | None = None
    """Parameter-server ranks (N in every formula), each a process with engine `rpc`; null: the profile's number."""
    num_trainers: Annotated[int, Field(ge=1, le=256), BY_TRACE] = 1
    """Trainers of engine `rpc`: `trainer0` runs the job, the others compute shares of every batch for it, each in a
        process. Their number changes no bit. More than one needs backend `compiled` (docs/TRAINERS.md)."""
    placement: Literal["row", "table"] = "row"
    """`row`: row id mod N, every table on every rank. `table`: whole tables, largest first onto the lightest rank."""
    launcher: Annotated[str, OneOf(LAUNCHER_NAMES), NO_RESULT] = "fork"
    """Where fork servers start rank processes. `fork`: on this machine. `hosts`: on the machines of `cluster.hosts`;
        needs `network: open` (docs/HOSTS.md). `ray`: the same, but a Ray that runs starts the fork servers; needs
        `pip install -r requirements-ray.txt`."""
    hosts: Annotated[tuple[HostName, ...], Field(max_length=256), BY_TRACE] = ()
    """Launcher `hosts`: names of the hosts, as `start_agent` takes them. Launcher `ray`: addresses of nodes; empty: all
        living nodes. A trace calls them `host0`, `host1`, ... in this order."""
    ray_address: Annotated[str, NO_RESULT] = "auto"
    """Launcher `ray`: address of the Ray to connect to; `auto`: the one whose node this machine is."""
    start_agent: Annotated[str, NO_RESULT] = "ssh {host} {command}"
    """Launcher `hosts`: the command that starts the fork server of a host. `{command}` stands for the program's own,
        with absolute paths; what it must be told it reads from its standard input."""
    place: Annotated[dict[str, str], BY_TRACE] = {}
    """Host by rank, `{ps0: a, trainer0: b}`. Ranks without one are placed in turn."""
    dead_after_s: Annotated[float, Field(ge=1), NO_RESULT] = 10.0
    """Launchers `hosts` and `ray`: seconds without an answer after which a host counts as dead, with all its ranks. A
        host that the supervisor does not answer ends its ranks after half of that."""
    num_nodes: Annotated[int | None, Field(ge=1), NO_RESULT] = None
    """Engine `rpc`: processes that serve the `num_ps` shards when a run starts or goes on, at most `num_ps`; null: one
        each. Changes no bit of a run that no trace kills ranks of, so that such a run may go on with another number."""
    on_loss: Literal["replace", "shrink"] = "replace"
    """What becomes of a dead PS rank's shard. `replace`: a new process serves it. `shrink`: the process of a surviving
        rank does, the one with the fewest shards, and training goes on with fewer processes. After `repair_h` of the
        trace a new process takes the shard over, with all its updates; without `repair_h` none does."""
    spares: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of spare nodes: on engine `rpc`, processes that take over at once when PS ranks or compute ranks die. Of
    the results, only emulated hours depend on it (the profile's `spare_o_res_h`), and node-hours."""
    on_notice: Annotated[Literal["none", "save", "handover"], BY_TRACE] = "none"
    """What PS ranks do that are told of their death (`notice_s` of the trace), while training waits. `save`: they save
        the updated rows that they have time for. `handover`: they copy the whole shard to a node that stays, if they
        have time for it; else as `save`."""
    host: Annotated[str, NO_RESULT] = "127.0.0.1"
    """Address that the supervisor's control channel listens on; with launcher `hosts` or `ray` one that all hosts
        reach."""
    port: Annotated[int, Field(ge=0, le=65535), NO_RESULT] = 0
    """Port of the control channel; 0 lets the system choose."""
    transports: Annotated[tuple[Literal["uv", "shm"], ...], Field(min_length=1), NO_RESULT] = ("uv",)
    """TensorPipe transports. `shm` busy-polls: each idle rank uses most of a core."""
    interface: Annotated[str | None, NO_RESULT] = "lo"
    """Network interface that RPC listens on; null lets TensorPipe resolve the host's name. Any but `lo` needs
        `network: open`. Launchers `hosts` and `ray` ignore it, and take the one by which a host reaches the
        supervisor."""
    network: Annotated[Literal["auto", "private", "open"], NO_RESULT] = "auto"
    """Access to the ranks of engine `rpc`. RPC has no authentication: a process that reaches a rank can run code in
        it. `private`: only processes of this run, as they are in a network namespace of their own. `open`: other
        processes of the machine, or of the network that `interface` is on. `auto`: private where the system allows it;
        a note says where it does not."""
    num_worker_threads: Annotated[int, Field(ge=2, le=64), NO_RESULT] = 2
    """RPC threads in every rank."""
    rpc_timeout_s: Annotated[Seconds, NO_RESULT] = 60.0
    """Seconds after which a rank that does not answer counts as lost; it is killed before it is replaced. A trainer
        that gives no sign of life for as long is killed too, and all ranks start anew from the newest resume point."""
    join_timeout_s: Annotated[Seconds, NO_RESULT] = 60.0
    """Seconds within which all ranks must join a generation of the RPC world. A late rank is killed and replaced."""
    max_replacements_in_a_row: Annotated[PositiveInt, NO_RESULT] = 5
    """The run fails after this many recoveries in a row during which ranks died."""

    @model_validator(mode="after")
    def _names_hosts(self) -> "ClusterConfig":
        if len({*self.hosts}) < len(self.hosts):
            raise ValueError(f"hosts: expected each host once, got {', '.join(self.hosts)}")
        if not self.start_agent.count("{command}"):
            raise ValueError(f"start_agent: expected a command with {{command}} in it, got {self.start_agent!r}")
        if others := {*re.findall(r"\{\w+\}", self.start_agent)} - {"{host}", "{command}"}:
            raise ValueError(f"start_agent: expected {{host}} and {{command}} alone in braces, got {min(others)}")
        for rank, host in self.place.items():
            if host not in self.hosts:
                raise ValueError(
                    f"place: {rank}: expected one of cluster.hosts ({', '.join(self.hosts)}), got {host!r}"
                )
        return self


class TraceConfig(_Model):
    path: PathText | None = None
    """A failure trace (failure_traces/README.md); null injects nothing. `{seed}` in the path stands for `seed`, so that
        each seed of a grid has a trace of its own."""
    law: Annotated[Law | None, NAMED_LAW] = None
    """A law of failures instead of a file: each `trace.seed` draws a trace of its own. Its name, or a mapping with
        `base: NAME` and the keys that differ, as `{model: fixed, number: 5}`. `exponential`: the profile's MTBF and
        ranks per failure, and the base of laws that name none (docs/TRACES.md)."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """Seed of what is random about the trace: the draw of a `law`, a `random` window, the ranks of entries that give
        only a count. null: the value of `seed`, so that each seed of a grid has its own trace; an axis `trace.seed`
        combines each seed with each trace."""
    window: Literal["densest", "median", "quietest", "random"] | None = None
    """The part of a longer trace that the job meets: as many hours as the job has, with the most, the median or the
        fewest failures, or from a random hour on. null: the trace from hour 0 on, which may not have a failure after
        the job's end."""
    stretch: bool = False
    """Whether the hours of the trace, repair times included, are scaled so that it lasts as long as the job."""
    clock: FailureClock = "samples"
    """The clock of the trace's hours. `samples`: hours of training on the samples so far; hours of overhead and of
        repeated steps meet no failure. `wall`: hours of the emulated job, with repeated steps and all overhead so far.
        A job then takes longer than `job_h`, and meets the failures of the hours after it too."""
    interrupts: bool = False
    """Whether a failure may strike during a save or a recovery, with `clock: wall`. These are charged until then; the
        save is not committed, the recovery begins anew. `false`: it strikes at the boundary after their hours."""
    inject: Literal["boundary", "wall"] = "boundary"
    """When kills strike. `boundary`: between two steps, or in the phase that the trace names; every bit of a run then
        follows from its config. `wall`: on engine `rpc` at a real second, whatever the run does, `seconds_per_hour` for
        each hour of the trace since the first step began. Such a run cannot be repeated to the bit. Kills after its end
        do not happen."""
    seconds_per_hour: Annotated[float, Field(gt=0, le=1e6)] = 3600.0
    """Seconds of this machine for an hour of the trace, with `inject: wall`."""
    repair: Literal["ignore", "reschedule"] = "ignore"
    """Rescheduling time of a failure. `ignore`: the profile's O_res, as in a job that continues on another node.
        `reschedule`: the longest repair time of the failure in the trace (column `repair_h`), as in a job that waits
        for its node; O_res where the trace has none."""
    trainers_die: bool = False
    """Whether each kill between two steps takes all trainers too: what they hold is lost, caches, mirror and dense
        network, which restarts as the strategy says (docs/TRAINERS.md)."""
    allow_unplanned: Annotated[bool, NO_RESULT] = False
    """Whether a run counts as successful (exit code 0) although ranks died that the trace did not name."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "TraceConfig":
        of_files = {"path": (self.path, ""), "window": (self.window, ""), "stretch": (self.stretch or None, "false")}
        for name, (value, unset) in of_files.items():
            if self.law is not None and value is not None:
                what = f"{name}: expected none with a trace.law ({self.law.name}), got {value}"
                raise ValueError(f"{what}; trace.{name}={unset} on the command line leaves it out")
        if self.inject == "wall" and self.clock == "wall":
            raise ValueError(
                "inject: expected boundary with trace.clock=wall, got wall; seconds read no emulated clock"
            )
        if self.interrupts and self.clock != "wall":
            raise ValueError("interrupts: expected false with trace.clock=samples, got true; no save takes hours of it")
        if self.inject == "wall" and self.repair == "reschedule":
            raise ValueError("inject: expected boundary with trace.repair=reschedule, got wall; it charges O_res")
        return self


def trace_name(path: str | None, law: str | None, window: str | None, seed: int) -> str | None:
    """:attr:`Config.trace_name` from ``trace.path``, the law's name, ``trace.window`` and the trace's seed."""
    if (name := name_of_draws(path, law, window)) is not None:
        return f"{name}-{seed}"
    return None if path is None else Path(path).stem


def name_of_draws(path: str | None, law: str | None, window: str | None) -> str | None:
    """The part of ``trace_name`` before the seed, if the trace is drawn (a law or a random window); else None."""
    return law or (Path(path).stem if path is not None and window == "random" else None)


class StoreConfig(_Model):
    kind: Annotated[str, OneOf(STORE_NAMES, also=("auto",))] = "auto"
    """Where checkpoints are kept until the run ends. `files`: in the run's folder. `memory`: in the run's process, on
    engine `local`; no trace may damage files. `auto`: `memory` where nobody could read the files, `files` elsewhere.
    That is on engine `local` with `keep_finished` false, as in a cell of a grid, if the trace damages no file and a
    full save has at most 256 MB. An interrupted run goes on with either: its resume point has the checkpoint."""
    fsync: bool = True
    """Whether all files and folder entries are synced to disk before the manifest is written."""
    keep: PositiveInt = 2
    """How many of the newest checkpoints to keep."""
    keep_finished: bool = True
    """Whether a finished run keeps its final model, which `run.py export` reads, and its checkpoints. Its record stays.
    A cell of a grid keeps neither, unless this key is given as true. Small runs take 15 MB each with them."""


class SaveConfig(_Model):
    mode: Literal["sync", "async"] = "sync"
    """`sync`: training waits for a save. `async`: training goes on while a save is written; files and results are the
        same, and charges too unless the profile has `snapshot_gbps`."""
    buffer_bytes: Annotated[int, Field(ge=1 << 16), NO_RESULT] = 64 << 20
    """Memory that an `async` save may take in each PS rank, besides 1 byte a row; steps wait while it is full."""


class ResumeConfig(_Model):
    every_s: Annotated[float, Field(ge=0)] | None = 300.0
    """Seconds between resume points: an interrupted run goes on from the newest. 0: before every save; null: only when
    asked to stop."""


class InitConfig(_Model):
    checkpoint: PathText | None = None
    """Run directory from whose final model (`store.keep_finished`), or else newest checkpoint, this run starts: rows,
    dense network and the state of their optimizers. That run may have another number of PS ranks or another placement:
    rows are placed by id. Trackers and counts start empty. null: values drawn by `seed`."""


class MetricsConfig(_Model):
    num_tracked: PositiveInt = 7
    """(R) Number of tracked tables, the largest ones: priority saves choose among their rows, and update-PLS is also
        counted over them alone. Other tables are saved whole."""
    pls_since: Literal["save_or_restore", "save"] = "save_or_restore"
    """(R) Start of a shard's lost samples: the later of its last save and restore, or always its last save."""
    update_pls: bool = True
    """Whether unsaved updates are counted, for update-PLS, at 4 bytes a row. cpr_mfu has this counter already."""
    log_every_steps: PositiveInt = 50
    """Number of steps per `train` event and wandb point."""


class WandbConfig(_Model):
    mode: Literal["online", "offline", "disabled"] = "offline"
    """`offline`: written to the run's folder, without network; `run.py sync DIR` sends it."""
    project: str = "cpr-harness"
    entity: str | None = None
    group: str | None = None
    """Group of the run; null: the experiment's name and a hash of the settings that its cells share."""


_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+=-]*$")]
_Count = Annotated[int, Field(ge=1)]


class JobsConfig(_Model):
    """Resources and limits of a cell's job with ``--scheduler slurm`` or ``ray``. No key changes a result."""

    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    minutes: _Count = 60
    """Time limit of a job of SLURM. A cell that takes longer is requeued, and goes on from its resume point."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory of a job; null: what the cluster gives. Ray reserves it, and limits nothing."""
    processors: _Count | None = None
    """Processors of a job; null: the trainer's threads, and on `rpc` one more for each PS rank and spare."""
    signal_delay_s: Annotated[int, Field(ge=15)] = 90
    """Seconds before its limit at which a job of SLURM begins to write its resume point."""
    max_parallel: _Count | None = None
    """Most jobs at once; on SLURM of each job array. null: no limit."""
    max_timeouts: Annotated[int, Field(ge=0)] = 20
    """How often a job that has reached its time limit or is preempted is requeued; on Ray, how often a cell is started
    again whose node or worker was lost."""
    ray_address: _Word = "auto"
    """Scheduler `ray`: address of the Ray to connect to; `auto`: the one whose node this machine is."""

    @model_validator(mode="after")
    def _check_delay(self) -> "JobsConfig":
        if self.signal_delay_s >= 60 * self.minutes:
            raise ValueError(
                f"signal_delay_s: expected less than the {60 * self.minutes} s of jobs.minutes={self.minutes}, "
                f"got {self.signal_delay_s}"
            )
        return self


class Config(_Model):
    """The configuration of one run. Equal configs, data and traces give equal bits, unless `trace.inject` is `wall`."""

    name: Annotated[str, NO_RESULT] = "run"
    """The experiment's name: part of wandb's group, and the heading of the report."""
    out: Annotated[PathText, NO_RESULT] = "runs/run"
    """Output folder of the run or grid."""
    plugins: Annotated[tuple[PathText, ...], NO_RESULT] = ()  # their content is part of the fingerprint of the code
    """Modules that add strategies and other parts, by dotted name or by a path that ends in .py, relative to the
    working directory (docs/EXTENDING.md)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial values, the data order and the sub-sampling."""
    engine: Annotated[EngineName, NO_RESULT] = "local"
    profile: Annotated[Profile, NAMED_PROFILE] = PROFILES["cpr56"]
    """Name of an emulated cluster, or a mapping with `base: NAME` and the constants that differ, or FILE.yaml with such
    a mapping, as `benchmarks/measure.py` writes it. `from_trace`: MTBF and ranks per failure of the trace, the others
    as `cpr56`; as a mapping, `{base: busy, from_trace: true}`."""
    data: DataConfig = DataConfig()
    model: ModelChoice = model_options.options_of()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()
    init: InitConfig = InitConfig()
    cluster: ClusterConfig = ClusterConfig()
    cache: CacheConfig = CacheConfig()
    strategy: StrategyChoice = strategies.options_of(DEFAULTS["strategy"])
    trace: TraceConfig = TraceConfig()
    store: Annotated[StoreConfig, NO_RESULT] = StoreConfig()
    save: SaveConfig = SaveConfig()
    resume: Annotated[ResumeConfig, NO_RESULT] = ResumeConfig()
    metrics: MetricsConfig = MetricsConfig()
    wandb: Annotated[WandbConfig, NO_RESULT] = WandbConfig()
    jobs: Annotated[JobsConfig, NO_RESULT] = JobsConfig()

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        values = {**values}
        for group, name in DEFAULTS.items():
            if isinstance(own := values.get(group), dict):
                values[group] = {"name": name, **own}
        trace = values.get("trace")
        trace = trace.model_dump() if isinstance(trace, TraceConfig) else trace
        if isinstance(trace, dict) and isinstance(trace.get("path"), str):
            values["trace"] = {**trace, "path": trace["path"].replace("{seed}", str(values.get("seed", 0)))}
        return values

    @property
    def num_ps(self) -> int:
        """N, the number of PS ranks."""
        return self.cluster.num_ps or self.profile.num_ps

    @property
    def pls_target(self) -> float:
        """Target PLS: portion of lost samples that CPR accepts."""
        own = self.strategy.pls_target if isinstance(self.strategy, CprVanilla.Options) else None
        return own or self.profile.pls_target

    @property
    def trace_seed(self) -> int:
        """The seed of everything random about the trace: draws of a law, windows, ranks."""
        return self.seed if self.trace.seed is None else self.trace.seed

    @property
    def trace_name(self) -> str | None:
        """Name of the trace: its file without suffix, or its law; then the seed if drawn. None without a trace."""
        law = self.trace.law and self.trace.law.name
        return trace_name(self.trace.path, law, self.trace.window, self.trace_seed)
