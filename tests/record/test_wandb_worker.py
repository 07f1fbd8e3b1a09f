"""Laws of the thread that makes wandb's calls: nobody waits for a call that does not end."""

import logging
import time
from collections.abc import Iterator
from threading import Event

import pytest

from harness.record import wandb_worker
from harness.record.wandb_session import WandbError
from harness.record.wandb_worker import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker, whose thread ends with the test."""
    made = Worker("a test")
    yield made
    made.close()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """A call that waits for it is stuck until the test ends; deadlines are short."""
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 0.3)
    monkeypatch.setattr(wandb_worker, "_GRACE_S", 0.01)
    event = Event()
    yield event
    event.set()


def test_calls_are_made_in_order(worker: Worker) -> None:
    """What is submitted is made before what is called later, whose result comes back."""
    made: list[int] = []
    for number in range(100):
        worker.submit(lambda number=number: made.append(number))
    assert worker.call(lambda: list(made)) == list(range(100))


def test_an_error_is_told_by_the_next_call(worker: Worker) -> None:
    """The first error of a submitted call is raised by each later submit; what must be called is called still."""

    def fail() -> None:
        raise OSError("no wandb\nat all")

    worker.submit(fail)
    assert worker.call(lambda: 1) == 1
    for look in (worker.check, lambda: worker.submit(print)):
        with pytest.raises(WandbError, match=r"^no wandb at all$"):
            look()


def test_a_stuck_call_is_given_up(worker: Worker, stuck: Event) -> None:
    """A call that does not end is a WandbError within its deadline, and so is any call behind it, at once."""
    began_s = time.monotonic()
    with pytest.raises(WandbError, match=r"^no answer within 0\.3 s$"):
        worker.call(stuck.wait)
    with pytest.raises(WandbError, match="no answer"):
        worker.call(lambda: 1)
    assert time.monotonic() - began_s < 1.5


def test_calls_after_one_that_failed_share_its_deadline(stuck: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails late leaves the next one little time; without a failure each has its own deadline."""
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 1.0)
    worker = Worker("a test", has_one_deadline=True)

    def fail_late() -> None:
        stuck.wait(0.6)
        raise OSError("no answer")

    worker.call(lambda: stuck.wait(0.6))
    began_s = time.monotonic()
    for call in (fail_late, stuck.wait, lambda: 1):
        with pytest.raises(WandbError, match="no answer"):
            worker.call(call)
    assert 0.9 < time.monotonic() - began_s < 1.5
    worker.close()


def test_a_stuck_call_holds_up_no_step(worker: Worker, stuck: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """To submit behind a stuck call takes no time; beyond a number of pending calls it is an error."""
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 60.0)
    monkeypatch.setattr(wandb_worker, "_MAX_PENDING", 100)
    worker.submit(stuck.wait)
    began_s = time.monotonic()

    def fill() -> None:
        for _ in range(102):
            worker.submit(lambda: None)

    with pytest.raises(WandbError, match=r"^100 calls are pending$"):
        fill()
    assert time.monotonic() - began_s < 1.0


def test_a_long_wait_is_told_once(
    worker: Worker, stuck: Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits reads what for, and how long at most."""
    monkeypatch.setattr(wandb_worker, "_SAID_AFTER_S", 0.0)
    with caplog.at_level(logging.INFO, "harness"), pytest.raises(WandbError):
        worker.call(stuck.wait)
    assert [record.getMessage() for record in caplog.records] == ["wandb: waiting for a test, at most 0.3 s"]
