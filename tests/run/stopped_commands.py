"""Commands that get a signal at a moment of their run. Their processes import this file, and not pytest."""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import run as command_line
from harness.cli import interrupts
from harness.config.model import Config
from harness.config.yaml_file import to_yaml
from harness.core.events import Event
from harness.processes.spawn import fork_server
from harness.record.recorder import Recorder

PATIENCE_S = 100.0
Moment = Callable[[Path], bool]
"""Whether the record in a run's folder has got to a moment."""


def command(config: Config, file: Path, said: Path, moment: Moment) -> None:
    """Body of a process: `run.py train` of ``file``, as a user's shell starts it.

    At the moment it creates the file "reached" beside its run, and stands still until it is asked to stop, so that a
    signal finds it there.
    """
    real, reached = Recorder.record, file.with_name("reached")

    def record(self: Recorder, event: Event) -> None:
        real(self, event)
        if not reached.exists() and moment(Path(config.out)):
            reached.touch()
            wait_until(lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0)  # the seconds of grace

    Recorder.record = record
    with said.open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # a fork server has them blocked
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.install()
    sys.exit(command_line.main(["train", str(file)]))


def wait_until(is_so: Callable[[], object]) -> None:
    """Return when ``is_so()``."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def interrupted(config: Config, folder: Path, number: signal.Signals, moment: Moment) -> tuple[int, str]:
    """Send the signal to a command at a moment of its run; exit code and what it said, when its ranks have ended too.

    SIGTERM goes to its ranks too, as from a scheduler.
    """
    file, said = folder / "run.yaml", folder / "said.txt"
    file.write_text(to_yaml(config.model_dump(mode="json")))
    process = fork_server().fork(command, config, file, said, moment)
    assert process.pid is not None
    wait_until(lambda: (folder / "reached").exists() or process.exitcode is not None)
    assert process.exitcode is None, said.read_text()
    ranks = pids_of(Path(config.out))
    ends = [os.pidfd_open(pid) for pid in ranks]
    for pid in [*(ranks if number == signal.SIGTERM else ()), process.pid]:
        os.kill(pid, number)
    process.join(PATIENCE_S)
    assert process.exitcode is not None
    for end in ends:
        assert select.select([end], [], [], PATIENCE_S)[0]
        os.close(end)
    return process.exitcode, said.read_text()


def pids_of(run_dir: Path) -> list[int]:
    """The processes of all ranks, as the record has them last."""
    events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
    *_, newest = (event["machine"].get("pids", {}) for event in events if event["event"] in ("started", "regroup"))
    return [*newest.values()]


def has_trained(steps: int, run_dir: Path) -> bool:
    """Whether the record has so many steps, and there is a resume point."""
    events = run_dir / "events.jsonl"
    is_there = events.exists() and f'"train","step":{steps},' in events.read_text()
    return is_there and any((run_dir / "resume").glob("point-*"))


def has_begun(steps: int, run_dir: Path) -> bool:
    """Whether the record has so many steps."""
    events = run_dir / "events.jsonl"
    return events.exists() and f'"train","step":{steps},' in events.read_text()
