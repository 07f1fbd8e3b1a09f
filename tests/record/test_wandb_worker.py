"""Laws of the thread that makes wandb's calls: nobody waits for a call that does not end."""

import logging
import time
from collections.abc import Iterator
from threading import Event

import pytest

from harness.record import wandb_worker
from harness.record.wandb_session import WandbError
from harness.record.wandb_worker import Worker

_SOON_S = 20.0  # on a busy machine


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
        worker.call(lambda: stuck.wait(_SOON_S))
    with pytest.raises(WandbError, match="no answer"):
        worker.call(lambda: 1)
    assert time.monotonic() - began_s < _SOON_S


class Clock:
    """A clock that a test sets, in the place of module ``time``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_readings = 0

    def monotonic(self) -> float:
        """Seconds."""
        self.num_readings += 1
        return self.now_s

    def stand(self, now_s: float) -> None:
        """Set it, and wait until it has been read a few times: by who waits for a call."""
        self.now_s, before, until_s = now_s, self.num_readings, time.monotonic() + _SOON_S
        while self.num_readings < before + 4 and time.monotonic() < until_s:
            time.sleep(0.01)


def test_calls_after_one_that_failed_share_its_deadline(stuck: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that fails late leaves the next one little time; without a failure each has its own deadline."""
    clock = Clock()
    monkeypatch.setattr(wandb_worker, "time", clock)
    monkeypatch.setattr(wandb_worker, "DEADLINE_S", 1.0)
    worker = Worker("a test", has_one_deadline=True)

    def fail_late() -> None:
        clock.stand(1.2)
        raise OSError("no answer")

    def be_stuck() -> None:
        clock.stand(1.5)
        clock.now_s = 1.7
        stuck.wait(_SOON_S)

    worker.call(lambda: clock.stand(0.6))  # the next begins then, and its deadline is at 1.6
    for call in (fail_late, be_stuck, lambda: 1):
        with pytest.raises(WandbError, match="no answer"):
            worker.call(call)
        assert clock.now_s == (1.2 if call is fail_late else 1.7)
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
    assert time.monotonic() - began_s < _SOON_S


def test_a_long_wait_is_told_once(
    worker: Worker, stuck: Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits reads what for, and how long at most."""
    clock = Clock()
    monkeypatch.setattr(wandb_worker, "time", clock)
    monkeypatch.setattr(wandb_worker, "_SAID_AFTER_S", -1.0)

    def be_stuck() -> None:
        clock.stand(0.2)
        clock.now_s = 0.4
        stuck.wait(_SOON_S)

    with caplog.at_level(logging.INFO, "harness"), pytest.raises(WandbError):
        worker.call(be_stuck)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("harness.")]  # not wandb's
    assert said == ["wandb: waiting for a test, at most 0.3 s"]
