"""The completeness of states: a field that is added to an object with a state is part of it, or is named here."""

from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pytest

from harness.cluster.server import RankServer
from harness.cluster.supervisor import Supervisor
from harness.config.model import Config
from harness.core.errors import RunStopped
from harness.core.resumable import Resumable
from harness.core.strategies import STRATEGIES
from harness.model.dlrm import DenseNetwork
from harness.run import assemble, job
from harness.run.assemble import Parts
from harness.run.resume_points import ResumePoints
from harness.run.spec import RunSpec
from harness.store import MemoryStore, read_state, write_state
from tests.runs import changed, run, saving_every

REBUILT: dict[str, set[str]] = {
    "Accounting": {"count_updates", "bytes_full", "shard_bytes", "memory_bytes"},
    "Boundaries": {"run_spec", "faults", "progress", "overhead_h", "strikes", "at_boundaries"},
    "ChangedTracker": {"shard", "spans"},
    "Checkpoint": {"run", "uploaded"},
    "Checkpointer": {
        *("ask", "ranks", "supervisor", "store", "accounting", "recoveries", "injections"),
        *("config_hash", "in_background", "dense_state", "dense_optimizer"),
        *("saving", "dense", "requests", "stall_s"),  # no save is under way
    },
    "_Held": set(),
    "DirectClient": {
        *("spec", "requests", "ranks", "batches", "learning_rate", "spans"),
        *("rows_NX", "next_NX", "early_NX", "sent", "is_void"),  # looked up again
    },
    "Drops": {*("num_samples", "score", "accounting", "injections", "supervisor", "progress", "repeats_exactly")},
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
        *("run", "spec", "bases_R", "ranks", "width"),
        *("begun", "uploaded"),  # taken when the step or the recovery is over
    },
    "OverheadLedger": {"costs"},
    "PlsLedger": {"weights", "total_samples", "counts_restores"},
    "RandomTracker": {"shard", "r", "pool"},
    "RankServer": {"rank", "reach", "fsync", "store", "saver"},
    "Recency": set(),
    "Replica": {"owner", "tracked"},
    "Recoveries": {"ranks"},
    "Replication": {"run", "uploaded"},
    "Rollback": {"run", "uploaded"},
    "RowCache": {"max_rows"},
    "ScarTracker": {"shard", "r"},
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


class Watching(ResumePoints):
    """Looks at the trainer's objects when a point is written."""

    seen: dict[str, Resumable] = {}  # noqa: RUF012 - set by each run

    def __init__(self, *, parts: dict[str, Resumable], **others: Any) -> None:
        super().__init__(parts=parts, **others)
        Watching.seen = parts


class Fresh(Watching):
    """Ends the run before its first step."""

    def resume(self) -> bool:
        raise RunStopped(None)


def looked_at(config: Config, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[Resumable]:
    """All objects with a state of a run that has ended."""
    monkeypatch.setattr(job, "ResumePoints", Watching)
    found: list[Resumable] = []

    class Seen(RankServer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    class SeenSupervisor(Supervisor):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            found.append(self)

    monkeypatch.setattr(assemble, "Supervisor", SeenSupervisor)
    run(config, run_dir, Parts(make_server=Seen))
    return [*found, *Watching.seen.values()]


def name_of(thing: Resumable) -> str:
    kind = type(thing)
    return kind.__mro__[1].__name__ if kind.__name__.startswith("Seen") else kind.__name__


def fields_of(thing: Resumable) -> dict[str, Any]:
    return {name.lstrip("_"): value for name, value in vars(thing).items()}


def with_parts(things: list[Resumable]) -> list[Resumable]:
    """Objects with a state that are fields of such objects, and those of theirs."""
    seen: dict[int, Resumable] = {}
    while things:
        thing = things.pop()
        if id(thing) not in seen and not isinstance(thing, DenseNetwork):
            seen[id(thing)] = thing
            for value in vars(thing).values():
                things += [
                    part for part in (value.values() if _is_dict(value) else [value]) if isinstance(part, Resumable)
                ]
    return list(seen.values())


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def equal(left: Any, right: Any) -> bool:
    """Whether two states are equal, to the bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if hasattr(left, "shape"):
        same_form = left.shape == right.shape and left.dtype == right.dtype
        return same_form and np.asarray(left).tobytes() == np.asarray(right).tobytes()  # slots not in use may hold NaN
    return type(left) is type(right) and left == right


def arrays_of(state: Any) -> list[np.ndarray]:
    """All arrays and tensors of a state."""
    if isinstance(state, dict | list):
        return [array for each in (state.values() if isinstance(state, dict) else state) for array in arrays_of(each)]
    return [np.asarray(state)] if hasattr(state, "shape") else []


@pytest.mark.parametrize(("strategy", "cache"), CASES)
def test_every_field_is_in_the_state_or_named(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, cache: str
) -> None:
    """Law: a new field of an object with a state is part of it, or the table says why not.

    What is read from a file is what was written, of the same types; loaded into a new object, it gives the same again,
    in memory of its own.
    """
    config = changed(config, strategy__name=strategy, cache__mode=cache, cache__max_rows=500)
    config = changed(config, store__kind="memory")
    config = saving_every(changed(config, data__max_train_samples=160, cache__lookahead=8), 60)
    seen = looked_at(config, tmp_path / "run", monkeypatch)
    server = [thing for thing in seen if isinstance(thing, RankServer)][-1]
    things = {"server": server, **Watching.seen}
    for thing in with_parts(seen):
        left = fields_of(thing).keys() - thing.state().keys()
        assert left == REBUILT[name_of(thing)], f"{name_of(thing)}: {sorted(left ^ REBUILT[name_of(thing)])}"
    monkeypatch.setattr(job, "ResumePoints", Fresh)
    with pytest.raises(RunStopped):
        run(config, tmp_path / "fresh")
    others = {"server": RankServer(RunSpec(config).rank_spec(MemoryStore()), server.rank), **Watching.seen}
    for number, (name, thing) in enumerate(things.items()):
        before = thing.state()
        after = read_state(tmp_path, write_state(tmp_path, "ps3", number, 40, before, fsync=False))
        assert equal(after, before), name
        others[name].load(after)
        loaded = others[name].state()
        assert equal(loaded, before), name
        shared = [own for own in arrays_of(loaded) for given in arrays_of(after) if np.shares_memory(own, given)]
        assert not shared, name
