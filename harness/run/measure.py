"""Measures on this machine what a profile prices: parts of a step, saves and loads, the detection of a death.

Parts of a step are ratios of processor time. Runs on engine ``local`` train in one process, a chunk of steps each in
turn, so that a slow minute slows all of them. A second run of ``none`` is the control.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness import sources
from harness.cluster.protocol import NO_ROWS, Cluster
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.core.errors import RunStopped
from harness.core.events import Trained
from harness.core.faults import FaultTime
from harness.core.plans import CHIEF, Progress, Rank, ps_rank
from harness.core.strategies import make_strategy, options_of
from harness.run import assemble
from harness.run.job import Job
from harness.run.spec import RunSpec
from harness.run.trainer import Trainer
from harness.run.verify import Variant
from harness.store import Manifest, RowSource, Store, in_background
from harness.store.files import FileStore
from harness.store.kinds import save_kind

CHUNK_STEPS = 25
"""Steps that a run trains in a turn."""
_REPEATS = 5  # of a choice of rows
_SAVE_FRACS = (1, 1 / 2, 1 / 4, 1 / 8)  # of the largest save that is timed
_MOST_SAVE_BYTES = 500_000_000
_STEPS_PER_KILL = 5
_CONTROL = "control"
_NEVER = 1 << 60  # samples between saves, so that there is none

Done = Callable[[int, int], None]
"""A callback that gets what is done, and what there is to do."""


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval, by order statistics; of fewer than six values their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Estimate":
        ordered = sorted(values)
        cut = max(0, math.floor(len(ordered) / 2 - 0.98 * math.sqrt(len(ordered))))
        return cls(statistics.median(ordered), ordered[cut], ordered[-1 - cut])

    def __add__(self, other: "Estimate") -> "Estimate":
        """The sum; its interval is the widest that the two allow."""
        return Estimate(self.median + other.median, self.low + other.low, self.high + other.high)

    def __rmul__(self, factor: float) -> "Estimate":
        """A positive multiple."""
        return Estimate(factor * self.median, factor * self.low, factor * self.high)


class Subject(NamedTuple):
    """A part of what every step pays, a strategy that has it, and its base, a strategy that has all but this part."""

    part: str
    strategy: str
    base: str


@dataclass(frozen=True)
class StepPrice:
    """What a part adds to a step, as fractions of the processor time of a step of ``none``, which is ``step_s``.

    Attributes:
        touching: what every step pays.
        choosing: choosing and marking the rows of a save, spread over ``steps_between`` saves. None: nothing is chosen.
        control: ``touching`` of ``none`` against itself, measured in the same turns.
    """

    subject: Subject
    _: KW_ONLY
    touching: Estimate
    choosing: Estimate | None
    steps_between: int | None
    control: Estimate
    step_s: float

    @property
    def total(self) -> Estimate:
        return self.touching if self.choosing is None else self.touching + self.choosing

    @property
    def frac(self) -> float | None:
        """The price, the median of both; None if its interval does not lie above that of the control."""
        return self.total.median if self.total.low > max(0, self.control.high) else None


def subjects_of(parts_of: Mapping[str, Set[str]], strategies: Iterable[str]) -> list[Subject]:
    """Each part of ``strategies``, once, if some strategy of ``parts_of`` has all but this part."""
    found = dict[str, Subject]()
    for name in strategies:
        for part in sorted(parts_of[name] - found.keys()):
            base = next((other for other, own in parts_of.items() if own == parts_of[name] - {part}), None)
            if base is not None:
                found[part] = Subject(part, name, base)
    return [*found.values()]


def quiet(config: Config) -> Config:
    """``config`` on engine ``local`` as it trains and does nothing else: no save, failure, evaluation or counter."""
    keys: dict[str, dict[str, Any]] = {
        "cache": {"mode": "none"},
        "cluster": {"num_trainers": 1, "spares": 0, "on_loss": "replace", "on_notice": "none"},
        "eval": {"points": 0, "max_samples": 256},
        "metrics": {"log_every_steps": CHUNK_STEPS, "update_pls": False},
        "resume": {"every_s": 1e9},
        "save": {"mode": "sync"},
        "store": {"kind": "files", "keep_finished": False},
        "wandb": {"mode": "disabled"},
    }
    if "interval_samples" in type(config.strategy).model_fields:
        keys["strategy"] = {"interval_samples": _NEVER}
    return Variant("quiet", keys).of(config, "local", TraceConfig())


# --- parts of a step --------------------------------------------------------------------------------------------------


class _Server(RankServer):
    def choose(self, kind: str, tracked: Sequence[int], held: Mapping[Rank, Any], *, marks: bool) -> None:
        """Choose the rows of a save, as a save does; ``marks``: and count them as saved."""
        self.shard.mirrored_N = held.get(self.rank, NO_ROWS)
        rows = save_kind(kind).rows(self.shard, self._tracker, tracked, self.shard.applied_step)
        if marks:
            self.shard.mark_saved(_NEVER, rows, tracked)
            for table, chosen in rows.items():
                self._tracker.saved(table, chosen)


@dataclass(eq=False)
class _Turns:
    """A run in a thread, which trains one chunk at each call. ``kind``: of its saves; None: it makes none."""

    config: Config
    folder: Path
    kind: str | None
    _servers: list[_Server] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._go, self._done, self._is_stopped = Semaphore(0), Semaphore(0), False
        self._spent_s: float | None = None
        self._running = in_background("measure", self._carry_out)

    def __call__(self) -> float:
        """Processor seconds of the next chunk. Raises what ends the run."""
        self._spent_s = None
        self._go.release()
        self._done.acquire()
        if self._spent_s is None:
            self._running.result()
        assert self._spent_s is not None, "a run has more steps than are asked for"
        return self._spent_s

    def choosing_s(self, *, marks: bool = False) -> float:
        """Processor seconds to choose the rows of a save; ``marks``: and to count them as saved."""
        began_s = time.process_time()
        if self.kind is not None:
            held = _awaited(self._job, self._job.recoveries.prepare_save(self._job.requests.ask, self._job.progress()))
            for server in self._servers:
                server.choose(self.kind, self._job.run_spec.tracked, held, marks=marks)
        return time.process_time() - began_s

    def end(self) -> None:
        """Stop the run after the chunk under way, and wait for it."""
        self._is_stopped = True
        self._go.release()
        self._running.exception()

    def _carry_out(self) -> None:
        self._go.acquire()
        try:
            if not self._is_stopped:
                assemble.run(self.config, self.folder, parts=assemble.Parts(train=self._train, make_server=self._serve))
        except RunStopped:
            pass
        finally:
            self._done.release()

    def _serve(self, spec: RankSpec, rank: Rank) -> _Server:
        self._servers.append(_Server(spec, rank))
        return self._servers[-1]

    def _train(
        self, config: Config, store: Store, faults: tuple[FaultTime, ...], cluster: Cluster, client: SupervisorClient
    ) -> None:
        torch.set_num_threads(config.trainer.num_threads)
        spec = RunSpec(config)
        spec.strategy.saves_initially = False
        self._job = Job(spec, store, faults, cluster, _Chunks(client, self._chunk_ended))
        self._began_s = time.process_time()
        Trainer(self._job).run()

    def _chunk_ended(self) -> None:
        self._spent_s = time.process_time() - self._began_s
        self._done.release()
        self._go.acquire()
        if self._is_stopped:
            raise RunStopped(None)
        self._began_s = time.process_time()


class _Chunks(SupervisorClient):
    """A client of the supervisor that calls ``ended`` after each chunk of steps."""

    def __init__(self, client: SupervisorClient, ended: Callable[[], None]) -> None:
        super().__init__(client.channel)
        self._ended = ended

    def record(self, event: Any) -> None:
        super().record(event)
        if isinstance(event, Trained):
            self._ended()


def _awaited(job: Job, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine of the step loop, on engine ``local``, where no rank dies."""
    replies = None
    try:
        while True:
            replies = job.requests.await_replies(coroutine.send(replies).sent)
    except StopIteration as end:
        return end.value


def measure_step(
    configs: Mapping[str, Config],
    subject: Subject,
    *,
    job_samples: int,
    rounds: int,
    folder: Path,
    done: Callable[[int], None],
) -> StepPrice:
    """The price of a subject, from ``rounds`` chunks of each run, in the new ``folder``.

    ``configs``: of all strategies, by name, as the user has them. ``job_samples``: of the job that the profile
    describes. ``done``: called with the rounds done. Raises as ``assemble.run``.
    """
    _, name, base = subject
    dues = {each: _due(configs[each], job_samples) for each in dict.fromkeys(("none", base, name))}
    runs = {each: _Turns(quiet(configs[each]), folder / each, kind) for each, (kind, _) in dues.items()}
    runs[_CONTROL] = _Turns(quiet(configs["none"]), folder / _CONTROL, None)
    spent, order = {each: list[float]() for each in runs}, [*runs]
    try:
        with sources.modules_fixed():
            for run in runs.values():  # compiles, and fills a mirror
                run()
                run.choosing_s()
            for number in range(rounds):
                for each in order:
                    spent[each].append(runs[each]())
                order = [*order[1:], order[0]]
                done(number + 1)
            chosen = [runs[name].choosing_s() - runs[base].choosing_s() for _ in range(_REPEATS)]
            marked_s = runs[name].choosing_s(marks=True) - runs[base].choosing_s(marks=True)
    finally:
        for run in runs.values():
            run.end()
    step_s, between = statistics.median(spent["none"]) / CHUNK_STEPS, dues[name][1]
    marks_s = max(0, marked_s - statistics.median(chosen))
    return StepPrice(
        subject,
        touching=_touching(spent, name, base),
        choosing=None if between is None else Estimate.of((each + marks_s) / step_s / between for each in chosen),
        steps_between=between,
        control=_touching(spent, _CONTROL, "none"),
        step_s=step_s,
    )


def _touching(spent: Mapping[str, Sequence[float]], name: str, base: str) -> Estimate:
    turns = zip(spent[name], spent[base], spent["none"], strict=True)
    return Estimate.of((own - other) / none for own, other, none in turns)


def _due(config: Config, job_samples: int) -> tuple[str | None, int | None]:
    """The kind of a strategy's saves, and the steps between them in a job of ``job_samples``; None if none is made."""
    strategy = make_strategy(config.strategy, job_costs(RunSpec(config).config, job_samples))
    size = config.trainer.batch_size
    due = strategy.next_save(Progress(step=0, samples=0, previous_samples=0, total_samples=job_samples))
    if due is None:
        return None, None
    step = -(-due // size)
    here = {"step": step, "samples": step * size, "previous_samples": (step - 1) * size}
    plan = strategy.plan_save(Progress(**here, total_samples=job_samples))
    return plan and plan.kind, step


# --- saves and loads --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """Seconds of a save or a load: those of the fixed part, those of all bytes of the model, the first by the second.

    By a line through measured ones (least squares of relative errors), one for each round.
    """

    fixed_s: Estimate
    full_s: Estimate
    fixed_frac: Estimate

    @classmethod
    def of(cls, rounds: Iterable[Sequence[tuple[int, float]]], bytes_full: int) -> "Line":
        """``rounds``: bytes and seconds."""
        fits: list[tuple[float, float]] = []
        for each in rounds:
            num_bytes, seconds = np.array(each).T
            slope, fixed_s = np.polyfit(num_bytes, seconds, 1, w=1 / seconds)
            fits.append((float(fixed_s), float(fixed_s + slope * bytes_full)))
        return cls(*(Estimate.of(values) for values in (*zip(*fits, strict=True), (one / full for one, full in fits))))


def measure_saves(config: Config, rounds: int, folder: Path, done: Done) -> tuple[Line, Line]:
    """Lines of full saves and loads of several sizes in turn, in the new ``folder``.

    All ranks write at once, and then read, each in a thread. A save has the dense network and the manifest too. Files
    are dropped from the page cache before they are read, which needs ``store.fsync``.
    """
    spec = RunSpec(config)
    store, width = FileStore(folder, keep=1, fsync=config.store.fsync), spec.footprint.row_width
    store.open()
    most, dense = min(1.0, _MOST_SAVE_BYTES / spec.bytes_full), torch.ones(spec.footprint.num_bytes(0) // 4)
    shards = {ps_rank(k): torch.ones(math.ceil(most * rows), width) for k, rows in enumerate(spec.rank_rows)}
    order, saves, loads = [*_SAVE_FRACS], list[list[tuple[int, float]]](), list[list[tuple[int, float]]]()
    for first in range(0, rounds * len(order), len(order)):
        found = [_save_and_load(store, first + i, shards, frac, dense) for i, frac in enumerate(order)]
        saves.append([save for save, _ in found])
        loads.append([load for _, load in found])
        order = [*order[1:], order[0]]
        done(first + len(order), rounds * len(order))
    store.close()
    return Line.of(saves, spec.bytes_full), Line.of(loads, spec.bytes_full)


def _save_and_load(
    store: FileStore, number: int, shards: Mapping[Rank, Tensor], frac: float, dense: Tensor
) -> tuple[tuple[int, float], tuple[int, float]]:
    """Bytes and seconds of save ``number``, of a fraction of each shard, and those of its load."""
    parts = {rank: rows_MD[: math.ceil(frac * len(rows_MD))] for rank, rows_MD in shards.items()}
    read = {rank: torch.empty_like(rows_MD) for rank, rows_MD in parts.items()}
    began_s = time.perf_counter()
    written = _at_once(lambda rank: store.write_base(rank, number, 0, RowSource(parts[rank])), parts)
    trainer = store.write_dense(CHIEF, number, 0, {"all": dense}, {})
    files = {rank: (record,) for rank, record in written.items()}
    manifest = {"sequence": number, "step": 0, "samples": 0, "kind": "full", "config_hash": ""}
    store.commit(Manifest(**manifest, shards=files, trainer=trainer))
    saved_s = time.perf_counter() - began_s
    for record in written.values():
        with (store.root / record.path).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began_s = time.perf_counter()
    _at_once(lambda rank: store.read_rows(files[rank], read[rank]), parts)
    loaded_s, num_bytes = time.perf_counter() - began_s, sum(record.payload_bytes for record in written.values())
    return (num_bytes + trainer.payload_bytes, saved_s), (num_bytes, loaded_s)


def _at_once(action: Callable[[Rank], Any], ranks: Iterable[Rank]) -> dict[Rank, Any]:
    running = {rank: in_background(rank, partial(action, rank)) for rank in ranks}
    return {rank: future.result() for rank, future in running.items()}


# --- detection --------------------------------------------------------------------------------------------------------


def measure_detection(config: Config, num_kills: int, folder: Path, done: Done) -> Estimate:
    """Seconds from SIGKILL of a PS rank until its loss is known, in a run on engine ``rpc`` in the new ``folder``."""
    folder.mkdir()
    size, job_h = config.trainer.batch_size, config.profile.job_h
    num_steps = _STEPS_PER_KILL * (num_kills + 1)
    hours = [job_h * number / (num_kills + 1) for number in range(1, num_kills + 1)]
    trace = [f"{hour!r},{ps_rank(number % config.num_ps)}" for number, hour in enumerate(hours)]
    (folder / "trace.csv").write_text("\n".join(["# title: kills to be detected", "hour,rank", *trace, ""]))
    one = quiet(config)
    data = one.data.model_copy(update={"max_train_samples": num_steps * size})
    metrics = one.metrics.model_copy(update={"log_every_steps": 1})
    of_rpc = {"engine": "rpc", "data": data, "metrics": metrics, "strategy": options_of("never_save")}
    given = one.model_copy(update=of_rpc | {"trace": TraceConfig(path=str(folder / "trace.csv"))})
    times = list[tuple[str, float]]()

    def note(status: assemble.RunStatus) -> None:
        times.append((status.phase, time.monotonic()))
        done(status.step, num_steps)

    assemble.run(given, folder / "run", on_status=note)
    # The status before is of the step after which the supervisor kills.
    found = (i for i, (phase, _) in enumerate(times) if phase == "recover" and times[i - 1][0] != "recover")
    return Estimate.of(times[i][1] - times[i - 1][1] for i in found)
