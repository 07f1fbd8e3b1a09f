"""What saves cost the steps of real runs: waited for, in the background, and none at all, in turn."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import KAGGLE_CARDINALITIES, Spread, make_data
from benchmarks._workers import Worker, trainer
from harness.config.model import Config
from harness.core.events import Saved
from harness.record.recorder import read_events

VARIANTS = {
    "none": {"strategy": {"name": "none"}},
    "sync": {"save": {"mode": "sync"}},
    "async": {"save": {"mode": "async"}},
}
"""What each run changes in the common config."""

_APART = 2  # steps from the pause of a run to its next save


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs of Kaggle's tables, ``rows_scale`` of their rows, with a save every ``steps_per_save`` steps."""

    rows_scale: float
    num_ps: int
    steps_per_save: int
    saves_per_round: int = 3
    num_rounds: int
    strategy: str = "full"
    engine: str = "rpc"
    batch_size: int = 128

    @property
    def num_steps(self) -> int:
        """Of a whole run, with a round to warm up."""
        return (1 + (self.num_rounds + 1) * (self.saves_per_round + 1)) * self.steps_per_save

    @property
    def first_steps(self) -> int:
        """To where a run first pauses, shortly before its first save."""
        return self.steps_per_save - _APART

    @property
    def round_steps(self) -> tuple[int, int]:
        """Steps of a round that are not timed, and that are."""
        return self.steps_per_save, self.saves_per_round * self.steps_per_save


@dataclass(frozen=True, kw_only=True)
class SaveCosts:
    """Seconds a save, by variant: ``stall_s`` as charged, ``wall_s`` by which steps with saves last longer."""

    stall_s: dict[str, Spread]
    wall_s: dict[str, Spread]
    step_ms: Spread  # without saves

    def over_sync(self, costs: dict[str, Spread]) -> float:
        """Of a save in the background, over the stall of one that is waited for."""
        return costs["async"].median / self.stall_s["sync"].median


def measure_saves(setting: Setting, folder: Path) -> SaveCosts:
    """Run all variants, a round of each in turn.

    A run pauses shortly before a save, when the one before has been written. In its turn it takes that one untimed,
    then the clock runs over whole saves, each from its beginning until right before the next.
    """
    config = configure(setting, folder)
    rounds: list[dict[str, float]] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, changes in VARIANTS.items():
            values = config.model_dump() | {key: getattr(config, key).model_dump() | to for key, to in changes.items()}
            workers[name] = Worker(trainer, Config.model_validate(values), folder / name)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.wait_ready()
        for worker in workers.values():
            worker.run(0, setting.first_steps)
        order = list(workers)
        for _ in range(setting.num_rounds + 1):
            rounds.append({name: workers[name].run(*setting.round_steps)[0] for name in order})
            order = [*order[1:], order[0]]
    return _costs(setting, rounds[1:], folder)


def configure(setting: Setting, folder: Path) -> Config:
    """Make the data; the config that all variants have in common."""
    cardinalities = [max(3, round(cardinality * setting.rows_scale)) for cardinality in KAGGLE_CARDINALITIES]
    num_train = setting.num_steps * setting.batch_size
    make_data(folder / "data", cardinalities, num_train * 7 // 6 + 14, seed=1)
    return Config.model_validate(
        {
            "engine": setting.engine,
            "data": {"path": str(folder / "data"), "max_train_samples": num_train},
            "trainer": {"batch_size": setting.batch_size},
            "eval": {"max_samples": 256},
            "cluster": {"num_ps": setting.num_ps},
            "strategy": {"name": setting.strategy, "interval_samples": setting.steps_per_save * setting.batch_size},
            "wandb": {"mode": "disabled"},
        }
    )


def _costs(setting: Setting, rounds: Sequence[dict[str, float]], folder: Path) -> SaveCosts:
    names = [name for name in VARIANTS if name != "none"]
    extra = {name: [(each[name] - each["none"]) / setting.saves_per_round for each in rounds] for name in names}
    num_steps = setting.saves_per_round * setting.steps_per_save
    return SaveCosts(
        stall_s={name: Spread.of(_stalls(folder / name)) for name in names},
        wall_s={name: Spread.of(extra[name]) for name in names},
        step_ms=Spread.of(1e3 * each["none"] / num_steps for each in rounds),
    )


def _stalls(run_dir: Path) -> list[float]:
    """Seconds that the run was charged for each save, the first round's left out."""
    saves = [event for event in read_events(run_dir / "events.jsonl") if isinstance(event, Saved) and event.charged]
    return [event.machine["seconds"] for event in saves[len(saves) // 4 :]]
