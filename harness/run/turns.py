"""Measures what parts of a strategy add to a step, by runs that take turns in one process, a few steps each.

Ratios are of processor time, and of runs in the same turn, so that a slow minute slows all of them. A second run of
``none`` is the control.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from harness.cluster.local import LocalCluster, LocalRanks
from harness.cluster.protocol import NO_ROWS
from harness.cluster.server import RankServer, RankSpec
from harness.cluster.supervisor_client import Channel, Resumption, SupervisorClient
from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.core.plans import Progress, Rank
from harness.core.strategies import make_strategy
from harness.recovery.requests import Wait
from harness.run.job import Job
from harness.run.spec import RunSpec
from harness.run.trainer import Trainer
from harness.run.verify import Variant
from harness.store import MemoryStore
from harness.store.kinds import save_kind

T = TypeVar("T")
CHUNK_STEPS = 10
"""Steps that a run trains in a turn. Of as many steps in all, longer turns have wider intervals."""
_REPEATS = _LEAST = 6  # choices of rows; values that have an interval
_CONTROL = "control"
_NEVER = 1 << 60  # samples between saves, so that there is none


@dataclass(frozen=True)
class Estimate:
    """A median and its 95 % interval, by order statistics; of fewer than six values it is without bounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Estimate":
        ordered = sorted(values)
        if len(ordered) < _LEAST:
            return cls(statistics.median(ordered), -math.inf, math.inf)
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
        """The price, the median of both; None if its interval does not lie above twice what the control is off.

        Where the memory of a run happens to lie makes its steps up to 3 % longer or shorter than those of its equal.
        """
        return self.total.median if self.total.low > 2 * max(-self.control.low, self.control.high) else None


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
    """``config`` on engine ``local``, which trains and does nothing else: no save, failure, evaluation or counter."""
    keys: dict[str, dict[str, Any]] = {
        "cache": {"mode": "none"},
        "cluster": {"num_trainers": 1, "spares": 0, "on_loss": "replace", "on_notice": "none"},
        "eval": {"points": 0, "max_samples": 256},
        "metrics": {"update_pls": False},
        "resume": {"every_s": None},
        "store": {"keep_finished": False},
        "wandb": {"mode": "disabled"},
    }
    if "interval_samples" in type(config.strategy).model_fields:
        keys["strategy"] = {"interval_samples": _NEVER}
    return Variant("quiet", keys).of(config, "local", TraceConfig())


class _Silent(Channel):
    """The channel to a supervisor of a run from step 0, of which nothing is recorded."""

    def call(self, name: str, *args: Any) -> Any:
        return Resumption(root=Path(), next_number=0, point=None)

    def tell(self, name: str, **values: Any) -> None:
        """There is no record."""

    def is_stopping(self) -> bool:
        return False


class _Server(RankServer):
    def choose(self, kind: str, tracked: Sequence[int], held: Mapping[Rank, Tensor], *, marks: bool) -> None:
        """Choose the rows of a save, as a save does; ``marks``: and count them as saved."""
        self.shard.mirrored_N = held.get(self.rank, NO_ROWS)
        rows = save_kind(kind).rows(self.shard, self._tracker, tracked, self.shard.applied_step)
        if marks:
            self.shard.mark_saved(_NEVER, rows, tracked)
            for table, chosen in rows.items():
                self._tracker.saved(table, chosen)


class Run(Trainer):
    """A run on engine ``local`` without a record, which goes on when it is told to. No rank dies.

    ``kind``: of its saves; None: it makes none.
    """

    def __init__(self, config: Config, kind: str | None) -> None:
        spec, store = RunSpec(quiet(config)), MemoryStore()
        spec.validate()
        spec.strategy.saves_initially = False
        self._servers: list[_Server] = []
        ranks = LocalRanks(spec.config.num_ps, partial(self._make_server, spec.rank_spec(store)))
        self._job = Job(spec, store, (), LocalCluster(ranks), SupervisorClient(_Silent()))
        self._kind = kind
        super().__init__(self._job)
        self._awaited(self._start())

    @property
    def losses(self) -> list[float]:
        """Of the steps so far."""
        return self._job.steps.losses

    def _make_server(self, spec: RankSpec, rank: Rank) -> _Server:
        self._servers.append(_Server(spec, rank))
        return self._servers[-1]

    def chunk_s(self) -> float:
        """Processor seconds of the next chunk of steps."""
        began_s = time.process_time()
        for _ in range(CHUNK_STEPS):
            self._awaited(self._advance())
        return time.process_time() - began_s

    def choosing_s(self, *, marks: bool = False) -> float:
        """Processor seconds to choose the rows of a save; ``marks``: and to count them as saved."""
        began_s = time.process_time()
        if self._kind is not None:
            held = self._awaited(self._job.recoveries.prepare_save(self._job.requests.ask, self._job.progress()))
            for server in self._servers:
                server.choose(self._kind, self._job.run_spec.tracked, held, marks=marks)
        return time.process_time() - began_s

    def _awaited(self, steps: Coroutine[Wait, Any, T]) -> T:
        """The result of a coroutine of the step loop."""
        replies = None
        try:
            while True:
                replies = self._job.requests.await_replies(steps.send(replies).sent)
        except StopIteration as end:
            return end.value


def measure_step(
    configs: Mapping[str, Config], subject: Subject, *, job_samples: int, rounds: int, done: Callable[[int], None]
) -> StepPrice:
    """The price of a subject, from ``rounds`` chunks of each run.

    ``configs``: of all strategies, by name, as the user has them. ``job_samples``: of the job that the profile
    describes. ``done``: called with the rounds done. Raises UserError, RankFailed. Sets torch's number of threads.
    """
    gc.collect()  # shards of a former call
    _, name, base = subject
    torch.set_num_threads(configs[name].trainer.num_threads)
    dues = {each: _due(configs[each], job_samples) for each in dict.fromkeys(("none", base, name))}
    runs = {each: Run(configs[each], kind) for each, (kind, _) in dues.items()}
    runs[_CONTROL] = Run(configs["none"], None)
    for run in runs.values():  # compiles, and fills a mirror
        run.chunk_s()
        run.choosing_s()
    spent, order = {each: list[float]() for each in runs}, [*runs]
    for number in range(rounds):
        for each in order:
            spent[each].append(runs[each].chunk_s())
        order = [*order[1:], order[0]]
        done(number + 1)
    chosen = [runs[name].choosing_s() - runs[base].choosing_s() for _ in range(_REPEATS)]
    marked_s = runs[name].choosing_s(marks=True) - runs[base].choosing_s(marks=True)
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
    before, here = (step - 1) * size, step * size
    plan = strategy.plan_save(Progress(step=step, samples=here, previous_samples=before, total_samples=job_samples))
    return plan and plan.kind, step
