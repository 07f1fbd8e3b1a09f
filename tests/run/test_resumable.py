"""The completeness of states: a field that is added to an object with a state is part of it, or is named here."""

from pathlib import Path

import pytest

from harness.config.model import Config
from harness.core.resumable import Resumable, State
from harness.core.strategies import STRATEGIES
from tests.runs import OF_STRATEGY, changed, run, saving_every

REBUILT: dict[str, set[str]] = {
    "Accounting": {"count_updates", "shard_bytes", "groups", "memory_bytes"},
    "Boundaries": {"run_spec", "faults", "progress", "overhead", "strikes", "at_boundaries"},
    "ChangedTracker": {"shard", "spans"},
    "Checkpoint": {"run", "uploaded"},
    "Checkpointer": {
        *("ranks", "supervisor", "store", "accounting", "recoveries", "injections", "interrupts"),
        *("config_hash", "in_background", "dense_state", "dense_optimizer"),
        *("saving", "dense", "requests", "stall_s"),  # requests: both; no save is under way
    },
    "Repeats": set(),
    "_Held": set(),
    "DirectClient": {
        *("spec", "requests", "ranks", "batches", "learning_rate", "spans"),
        *("rows_NX", "next_NX", "early_NX", "sent", "is_void"),  # looked up again
    },
    "Drops": {
        *("num_samples", "score", "accounting", "injections", "supervisor", "progress", "repeats_exactly", "rows"),
    },
    "Initial": {"run", "uploaded"},
    "Injections": {
        *("faults", "cluster", "supervisor", "progress", "before_fault"),
        *("is_evaluation", "is_suspended", "is_hidden"),  # false where a point is written
    },
    "LookaheadClient": {
        *("spec", "requests", "ranks", "batches", "learning_rate", "spans", "window_steps", "planner"),
        *("oracle", "held", "window", "following", "planned"),  # follow from before and stops
        *("under_way", "flushing", "slots_N"),  # of a step or a message that is over
    },
    "MassTracker": {"shard", "r"},
    "MfuTracker": {"shard", "r"},
    "Mirror": {
        *("run", "spec", "bases_R", "firsts_G", "ranks", "width"),
        *("begun", "uploaded"),  # taken when the step or the recovery is over
    },
    "Notices": {
        *("run", "ask", "supervisor", "injections", "checkpointer", "accounting"),
    },
    "OldestTracker": {"shard", "r", "tables"},
    "OverheadLedger": {"costs", "full", "parts"},
    "Parity": {"make_shard", "members"},
    "ParityRecovery": {"run", "uploaded", "groups", "unanswered"},  # all are answered
    "PlsLedger": {"weights", "total_samples", "counts_restores"},
    "RandomTracker": {"shard", "r", "pool"},
    "RankServer": {"rank", "reach", "fsync", "store", "saver", "fill", "tracked", "groups"},
    "Recency": set(),
    "Replica": {"owner", "tracked"},
    "Recoveries": {"ranks"},
    "Replication": {"run", "uploaded"},
    "Rollback": {"run", "uploaded"},
    "RowCache": {"max_rows"},
    "ScarTracker": {"shard", "r"},
    "StateTracker": {"shard", "r"},
    "Shard": {"placement", "rank_index", "seed", "dim", "counts_updates", "optimizer", "before_change"},
    "SsuTracker": {"index", "lists_1", "lists_L", "lists_address"},  # lists_L as lists_LX
    "StaleClient": {
        *("spec", "requests", "ranks", "batches", "learning_rate", "spans"),
        *("pulled", "pushing", "lacks_copies"),  # of a step that is over
    },
    "StepLog": {
        *("supervisor", "num_steps", "batch_size", "every_steps", "repeats_exactly"),
        "began_s",  # of the machine's part of an event
    },
    "Supervisor": {
        *("begins_with", "write_point", "ranks", "sink", "store", "on_status", "clock"),
        *("planned_faults", "seconds_per_hour"),
        "newest",  # set by the next event
        "began_s",  # as past_s
    },
    "TouchLog": set(),
    "Tracker": set(),
    "Traffic": set(),
    "UpdateLedger": {"places"},
    "WorkerCaches": {
        *("bases_R", "cache", "dim", "width"),
        "entry_of_M",  # follows from key_E
        "flushed",  # gone out when the step is over
    },
}
"""Fields of each class that are constants of the run, are rebuilt from others, or are void between two steps."""


CASES = [*((strategy, "none") for strategy in STRATEGIES), ("cpr_mass", "lookahead"), ("cpr_ssu", "stale")]


@pytest.mark.parametrize(("strategy", "cache"), CASES)
def test_every_field_is_in_the_state_or_named(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, cache: str
) -> None:
    """Law: a new field of an object with a state is part of it, or the table says why not.

    That a state comes back as it was is in ``tests/core/test_resumable.py``.
    """
    real, left = Resumable.state, dict[str, set[str]]()

    def noted(thing: Resumable) -> State:
        state = real(thing)
        left[type(thing).__name__] = {name.lstrip("_") for name in vars(thing)} - state.keys()
        return state

    monkeypatch.setattr(Resumable, "state", noted)
    config = changed(config, strategy__name=strategy, cache__mode=cache, cache__max_rows=500, resume__every_s=1e-9)
    config = changed(config, store__kind="memory", **OF_STRATEGY.get(strategy, {}))
    run(saving_every(changed(config, data__max_train_samples=160, cache__lookahead=8), 60), tmp_path / "run")
    assert {"RankServer", "Shard", "Supervisor", "StepLog"} <= left.keys()
    assert left == {name: REBUILT[name] for name in left}
