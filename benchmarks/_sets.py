"""What a part of a strategy adds to a step, by sets of runs that take turns in one process, a few steps each.

Where the memory of a run happens to lie makes its steps up to 3 % longer or shorter than those of its equal, as long as
it lives. An interval over turns does not see that, so its unit is the set: each set makes its runs anew, beginning with
another one, and has one figure, of sums over its turns. In a turn all runs train the same steps, so that a slow minute
slows all of them. Time is processor time. A second run of ``none`` is the control.
"""

import gc
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from torch import Tensor

from benchmarks._common import Spread
from harness.cluster.local import LocalCluster, LocalRanks
from harness.cluster.protocol import NO_ROWS
from harness.cluster.server import RankServer
from harness.cluster.supervisor_client import Channel, Resumption, SupervisorClient
from harness.config.derived import job_costs
from harness.config.model import Config, TraceConfig
from harness.core.plans import Rank
from harness.core.strategies import make_strategy
from harness.planning.simulate import saves_of
from harness.recovery.requests import Wait
from harness.run.job import Job
from harness.run.spec import RunSpec
from harness.run.trainer import Trainer
from harness.run.verify import Variant
from harness.store import MemoryStore
from harness.store.kinds import save_kind

TURN_STEPS = 10
"""Steps that a run trains in a turn. Of as many steps in all, longer turns have wider intervals."""
WARM_UP_TURNS = 3
"""Turns of each run before a set is timed: loops are compiled, and pages of counters touched for the first time."""
_CONTROL = "control"
_NEVER = 1 << 60  # samples between saves, so that there is none


class Subject(NamedTuple):
    """A part of what every step pays, a strategy that has it, and its base, a strategy that has all but this part."""

    part: str
    strategy: str
    base: str


def subjects_of(parts_of: Mapping[str, Set[str]], strategies: Iterable[str]) -> list[Subject]:
    """Each part of ``strategies``, once, if some strategy of ``parts_of`` has all but this part."""
    found = dict[str, Subject]()
    for name in strategies:
        for part in sorted(parts_of[name] - found.keys()):
            base = next((other for other, own in parts_of.items() if own == parts_of[name] - {part}), None)
            if base is not None:
                found[part] = Subject(part, name, base)
    return [*found.values()]


@dataclass(frozen=True)
class Price:
    """What a part adds to a step, by sets, in % of the processor time of a step of ``none``.

    Attributes:
        touching: what it adds to every step.
        choosing: what it adds to a save before anything is written, spread over the steps between two saves.
        control: ``touching`` of ``none`` against itself.
    """

    subject: Subject
    touching: Sequence[float]
    choosing: Sequence[float]
    control: Sequence[float]

    @property
    def total(self) -> Spread:
        return Spread.interval(map(sum, zip(self.touching, self.choosing, strict=True)))

    @property
    def frac(self) -> float | None:
        """The price; None unless its interval lies above the absolute value of the control's median, and so above 0."""
        return self.total.median / 100 if self.total.low > abs(Spread.interval(self.control).median) else None


def measure_sets(
    subject: Subject, make: Callable[[str], "Run"], num_sets: int, num_turns: int, done: Callable[[int, int], None]
) -> Price:
    """The price of a part. ``make``: makes a run of a strategy. ``done``: gets how many sets are done, of how many."""
    names, found = [*dict.fromkeys(("none", subject.base, subject.strategy)), _CONTROL], list[tuple[float, ...]]()
    for number in range(num_sets):
        found.append(_measure_set(subject, make, names, num_turns))
        gc.collect()  # or the next runs would lie beside these
        names = [*names[1:], names[0]]
        done(number + 1, num_sets)
    return Price(subject, *zip(*found, strict=True))


def _measure_set(
    subject: Subject, make: Callable[[str], "Run"], names: Sequence[str], num_turns: int
) -> tuple[float, float, float]:
    """Touching, choosing and the control of one set. ``names``: of its runs, in the order in which they are made."""
    runs = {name: make("none" if name == _CONTROL else name) for name in names}
    for run in runs.values():
        for _ in range(WARM_UP_TURNS):
            run.turn_s()
        run.choosing_s()
    spent_s, order = dict.fromkeys(names, 0.0), names
    for _ in range(num_turns):
        for name in order:
            spent_s[name] += runs[name].turn_s()
        order = [*order[1:], order[0]]
    none_s, (_, strategy, base) = spent_s["none"], subject
    touching, control = spent_s[strategy] - spent_s[base], spent_s[_CONTROL] - none_s
    choosing = (runs[strategy].choosing_s() - runs[base].choosing_s()) * num_turns * TURN_STEPS
    return 100 * touching / none_s, 100 * choosing / none_s, 100 * control / none_s


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
    """A channel without a supervisor: the run begins at step 0, and no event is recorded."""

    def call(self, name: str, *args: Any) -> Any:
        return Resumption(root=Path(), next_number=0, point=None)

    def tell(self, name: str, **values: Any) -> None:
        """There is no record."""

    def is_stopping(self) -> bool:
        return False


class _Server(RankServer):
    def choose(self, kind: str, tracked: Sequence[int], held: Mapping[Rank, Tensor]) -> None:
        """Choose the rows of a save, and count them as saved."""
        self.shard.mirrored_N = held.get(self.rank, NO_ROWS)
        rows = save_kind(kind).rows(self.shard, self._tracker, tracked, self.shard.applied_step)
        self.shard.mark_saved(0, rows, tracked)
        for table, chosen in rows.items():
            self._tracker.saved(table, chosen)


class Run(Trainer):
    """A run on engine ``local`` without a record, which goes on when it is told to. No rank dies.

    ``job_samples``: of the job whose first save says what kind of save is chosen for, and how many steps apart.
    """

    def __init__(self, config: Config, job_samples: int) -> None:
        size, costs = config.trainer.batch_size, job_costs(RunSpec(config).config, job_samples)
        strategy = make_strategy(config.strategy, costs)
        saves = saves_of(strategy, batch_size=size, num_steps=job_samples // size, total_samples=job_samples)
        self.steps_between, self._due_save = next(saves, (1, None))
        spec, store = RunSpec(quiet(config)), MemoryStore()
        spec.validate()
        spec.strategy.saves_initially = False
        self._ranks = LocalRanks(spec.config.num_ps, partial(_Server, spec.rank_spec(store)))
        self.job = Job(spec, store, (), LocalCluster(self._ranks), SupervisorClient(_Silent()))
        super().__init__(self.job)
        self._awaited(self._start())

    def turn_s(self) -> float:
        """Train the next steps. Returns processor seconds."""
        began_s = process_time()
        for _ in range(TURN_STEPS):
            self._awaited(self._advance())
        return process_time() - began_s

    def choosing_s(self) -> float:
        """Choose and mark the rows of a save. Returns processor seconds by the steps between two saves."""
        if self._due_save is None:
            return 0.0
        began_s = process_time()
        held = self._awaited(self.job.recoveries.prepare_save(self.job.requests.ask, self.job.progress()))
        for server in self._ranks.servers.values():
            assert isinstance(server, _Server), "a run that is quiet has no compute ranks"
            server.choose(self._due_save.kind, self.job.run_spec.tracked, held)
        return (process_time() - began_s) / self.steps_between

    def _awaited(self, steps: Coroutine[Wait, Any, Any]) -> Any:
        """The result of a coroutine of the step loop."""
        replies = None
        try:
            while True:
                replies = self.job.requests.await_replies(steps.send(replies).sent)
        except StopIteration as end:
            return end.value
