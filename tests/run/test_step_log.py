"""The log of losses: reruns marked, and compared. That each step is on record once is checked of every run."""

from typing import cast

import pytest

from harness.cluster.supervisor_client import SupervisorClient
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


def log_of(*losses: float, **keys: bool) -> tuple[StepLog, Record]:
    """A log of ten steps of four samples, on record every three steps, that has begun with these losses."""
    record = Record()
    log = StepLog(cast(SupervisorClient, record), num_steps=10, batch_size=4, every_steps=3, **keys)
    finish(log, *losses)
    return log, record


def finish(log: StepLog, *losses: float) -> list[bool]:
    """Finish steps, and write them down; which of them were reruns."""
    reruns = []
    for loss in losses:
        reruns.append(log.finish_step(loss))
        log.flush_if_due()
    log.flush()
    return reruns


def test_a_rerun_with_another_loss_fails_the_run() -> None:
    """One flipped bit is another loss; -0.0 is not 0.0. Where saves are rounded, reruns have losses of their own."""
    log, _ = log_of(0.0)
    log.roll_back(0)
    with pytest.raises(RunFailed, match=r"step 1: its loss after a rollback is -0\.0, expected 0\.0"):
        log.finish_step(-0.0)
    log, record = log_of(0.5, 0.25, repeats_exactly=False)
    log.roll_back(1)
    assert finish(log, 0.75, 0.125) == [True, False]
    assert log.losses == [0.5, 0.75, 0.125]
    assert [event.losses for event in record.events if event.rerun] == [[0.75]]


def test_the_mean_of_the_last_tenth_has_one_step_at_least() -> None:
    """Of twenty steps the last two, of five the last one."""
    log, _ = log_of(*[1.0] * 5)
    assert log.mean_of_last_tenth() == 1.0
    finish(log, *[1.0] * 13, 2.0, 4.0)
    assert log.mean_of_last_tenth() == 3.0
