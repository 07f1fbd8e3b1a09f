"""Measures what parts of a strategy add to a step, by runs that take turns in one process, a few steps each.

Ratios are of processor time, and of runs in the same turn, so that a slow minute slows all of them. A second run of
``none`` is the control.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from threading import Semaphore
from typing import Any, NamedTuple

import torch

from harness import sources
from harness.cluster.protocol import NO_ROWS, Cluster
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.core.errors import RunStopped
from harness.core.events import Trained
from harness.core.faults import FaultTime
from harness.core.plans import Progress, Rank
from harness.core.strategies import make_strategy
from harness.run import assemble
from harness.run.job import Job
from harness.run.spec import RunSpec
from harness.run.trainer import Trainer
from harness.run.verify import Variant
from harness.store import Store, in_background
from harness.store.kinds import save_kind

CHUNK_STEPS = 25
"""Steps that a run trains in a turn."""
_REPEATS = 5  # of a choice of rows
_CONTROL = "control"
_NEVER = 1 << 60  # samples between saves, so that there is none


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval, by order statistics; of fewer than eight values their range."""

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
    gc.collect()  # shards of a former call
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
