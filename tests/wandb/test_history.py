"""What wandb shows of events: rows of its history."""

from typing import Any

from harness.core.events import Evaluated, Event, Recovered, Trained
from harness.wandb.history import History, Row
from tests.injected import is_loss
from tests.made_runs import altered, made_config, made_events


def _rows(events: list[Event]) -> list[Row]:
    history = History(made_config().emulated.job_h)
    return [row for event in events for row in history.rows(event)]


def test_a_position_is_seen_once_and_of_one_sample_set() -> None:
    """Steps run again after a rollback are not logged: losses have rising sample positions.

    The evaluation of the whole set, which gives the result, is no point of a curve over a part of it.
    """
    events = made_events(made_config("full"))
    assert any(isinstance(event, Trained) and event.rerun for event in events), "nothing was run again"
    at = next(number for number, event in enumerate(events) if isinstance(event, Evaluated))
    rows = _rows([*events[:at], altered(events[at], num_samples=100, auc=0.7, final=False), *events[at:]])
    positions = [row["samples"] for row in rows if "train/loss" in row]
    assert positions == [event.samples for event in events if isinstance(event, Trained) and not event.rerun]
    assert positions == sorted(set(positions))
    assert [row["eval/auc"] for row in rows if "eval/auc" in row] == [0.7]


def test_a_trainer_has_a_number_of_its_own() -> None:
    """Law: of each death and recovery the number is that of a PS rank or of a trainer, and what the network lacks.

    A record that is not sealed has a view, whatever its ranks are called.
    """
    num_recovered, events = 0, []
    for event in made_events(made_config()):
        changes: dict[str, Any] = {}
        if is_loss(event):
            changes = {"rank": "trainer1"}
        elif isinstance(event, Recovered):
            ranks, num_recovered = [*event.ranks, "trainer1"], num_recovered + 1
            changes = {"ranks": ranks, "dense": "checkpoint", "lost_dense_samples": 7}
        events.append(altered(event, **changes) if changes else event)
    rows = _rows(events)
    assert {row["kill/trainer"] for row in rows if "kill/hour" in row} == {1}
    recoveries = [row for row in rows if "recovery/rows" in row]
    assert [row["recovery/trainer"] for row in recoveries if "recovery/rank" not in row] == [1] * num_recovered
    assert {row["recovery/lost_dense_samples"] for row in recoveries} == {7}
    damaged = [altered(event, rank="psnull") if is_loss(event) else event for event in events]
    assert {row["kill/rank"] for row in _rows(damaged) if "kill/rank" in row} == {None}
