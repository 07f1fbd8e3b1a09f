"""The log of losses: every step on record once, reruns marked and compared."""

from typing import cast

import pytest

from harness.cluster.effects import Effects
from harness.core.errors import RunFailed
from harness.core.events import Trained
from harness.run.step_log import StepLog


class Record:
    """Keeps the events of a step log; its statuses have no reader, nobody watches it, and its clock stands still."""

    def __init__(self) -> None:
        self.events: list[Trained] = []
        self.record = self.events.append

    def status(self, **values: object) -> None: ...

    def advanced(self, step: int) -> None: ...

    def clock(self) -> float:
        return 0.0


@pytest.fixture
def record() -> Record:
    """An empty record."""
    return Record()


def make_log(record: Record) -> StepLog:
    """Ten steps of four samples, on record every three steps."""
    return StepLog(cast(Effects, record), num_steps=10, batch_size=4, every_steps=3)


def finish(log: StepLog, *losses: float) -> list[bool]:
    """Finish steps; which of them were reruns."""
    reruns = []
    for loss in losses:
        reruns.append(log.finish_step(loss))
        log.flush_if_due()
    return reruns


def test_every_step_is_on_record_once(record: Record) -> None:
    """Events follow one another without gap or overlap, and hold the losses in order."""
    log = make_log(record)
    finish(log, 0.5, 0.25, 0.125, 0.75)
    log.flush()
    log.flush()
    assert [(event.first_step, event.step, event.losses) for event in record.events] == [
        (0, 3, [0.5, 0.25, 0.125]),
        (3, 4, [0.75]),
    ]
    assert [event.samples for event in record.events] == [12, 16]


def test_reruns_are_marked_and_end_with_an_event_of_their_own(record: Record) -> None:
    """After a rollback the steps that had run are on record as reruns, up to the step where new ones begin."""
    log = make_log(record)
    finish(log, 0.1, 0.2, 0.3, 0.4)
    log.flush()
    log.roll_back(2)
    assert finish(log, 0.3, 0.4, 0.5) == [True, True, False]
    log.flush()
    assert [(event.first_step, event.step, event.rerun) for event in record.events[2:]] == [
        (2, 3, True),
        (3, 4, True),
        (4, 5, False),
    ]
    assert log.losses == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_rerun_with_another_loss_fails_the_run(record: Record) -> None:
    """One flipped bit is another loss; -0.0 is not 0.0."""
    log = make_log(record)
    finish(log, 0.0)
    log.roll_back(0)
    with pytest.raises(RunFailed, match=r"step 1: its loss after a rollback is -0\.0, expected 0\.0"):
        log.finish_step(-0.0)


def test_where_saves_are_rounded_a_rerun_has_losses_of_its_own(record: Record) -> None:
    """They take the place of the first ones, in the record and in the result."""
    log = StepLog(cast(Effects, record), num_steps=10, batch_size=4, every_steps=3, repeats_exactly=False)
    finish(log, 0.5, 0.25)
    log.roll_back(1)
    assert finish(log, 0.75, 0.125) == [True, False]
    log.flush()
    assert log.losses == [0.5, 0.75, 0.125]
    assert [event.losses for event in record.events if event.rerun] == [[0.75]]


def test_the_mean_of_the_last_tenth_has_one_step_at_least(record: Record) -> None:
    """Of twenty steps the last two, of five the last one."""
    log = make_log(record)
    finish(log, *[1.0] * 5)
    assert log.mean_of_last_tenth() == 1.0
    finish(log, *[1.0] * 13, 2.0, 4.0)
    assert log.mean_of_last_tenth() == 3.0
