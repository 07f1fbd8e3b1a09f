"""Signals that end a command: one line, an exit code that says which, and nothing left behind."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import started
from tests.forked import ran

ROOT = Path(__file__).resolve().parents[2]
IN_A_COMMAND = """
import argparse, os, signal, sys, time
from harness.cli import commands, interrupts, run_commands
from harness.core.errors import RunStopped

def work(options):
    {body}

run_commands.train = work
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
signal.signal(signal.SIGHUP, signal.{hangup})  # and those of nohup this
interrupts.install()
options = argparse.Namespace(command="train", call="run_commands:train")
sys.exit(commands.run(options, ["train", "a b.yaml", "--afresh"]))
"""
STRUCK = """
    try:
        os.kill(os.getpid(), {first})
        time.sleep(60)
    finally:
        if {second}:
            os.kill(os.getpid(), {second})
            time.sleep(60)
"""
STOPPED = """
    with interrupts.stoppable({grace}) as stop:
        for number in {signals}:
            os.kill(os.getpid(), number)
        if stop.is_set and {ends}:
            raise RunStopped({step})
        time.sleep(60)
"""
IN_AN_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["run.py", "schema"]
import run
sys.exit(run.main())
"""
GOES_ON = "this command goes on: run.py train 'a b.yaml'"


def outcome(body: str, hangup: str = "SIG_DFL") -> tuple[int, str]:
    """Exit code and what was said, in a process of its own whose command does ``body``."""
    return _said(ran(started.program, IN_A_COMMAND.format(body=body, hangup=hangup)))


def _said(done: "subprocess.CompletedProcess[str]") -> tuple[int, str]:
    assert not done.stdout
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("number", "code", "word", "is_twice"),
    [
        *((signal.SIGINT, 130, "interrupted", is_twice) for is_twice in (False, True)),
        (signal.SIGTERM, 143, "terminated", True),
        (signal.SIGHUP, 129, "hung up", False),
    ],
)
def test_a_signal_is_one_line_and_says_how_to_go_on(number: int, code: int, word: str, is_twice: bool) -> None:
    """Law: the same line and exit code whether it comes once or again while the command ends itself."""
    said = outcome(STRUCK.format(first=int(number), second=int(number) if is_twice else 0))
    assert said == (code, f"{word}; {GOES_ON}\n")


@pytest.mark.parametrize("module", ["harness.processes.stop", "harness.cli.commands", "pydantic"])
def test_an_interrupt_of_an_import_is_one_line(module: str) -> None:
    """Law: no traceback, whatever is being imported."""
    command = [sys.executable, "-c", IN_AN_IMPORT.format(module=module)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert _said(done) == (130, "interrupted; nothing was done yet\n")


def test_ignored_signals_stay_ignored() -> None:
    """Law: a command under ``nohup`` survives the terminal."""
    assert outcome(f"os.kill(os.getpid(), {int(signal.SIGHUP)})", "SIG_IGN") == (0, "")


@pytest.mark.parametrize(
    ("signals", "grace", "ends", "step", "expected"),
    [
        ([2], 25, True, 7, (130, "interrupted; run.py train 'a b.yaml' goes on from step 7\n")),
        ([15], 25, True, 7, (143, "terminated; run.py train 'a b.yaml' goes on from step 7\n")),
        ([15], 25, True, None, (143, f"terminated; {GOES_ON}\n")),
        ([15], 0.05, False, None, (143, f"terminated; {GOES_ON}\n")),
        ([2], 0, False, None, (130, f"interrupted; {GOES_ON}\n")),
        ([1], 25, False, None, (129, f"hung up; {GOES_ON}\n")),
        ([15, 2], 25, True, 7, (130, f"interrupted; {GOES_ON}\n")),
    ],
    ids=["SIGINT", "SIGTERM", "no point", "grace is over", "no grace", "SIGHUP", "second signal"],
)
def test_training_is_asked_to_stop(
    signals: list[int], grace: float, ends: bool, step: int | None, expected: tuple[int, str]
) -> None:
    """Law: the first signal asks; the second, and the end of the grace, end the command as without asking."""
    assert outcome(STOPPED.format(signals=signals, grace=grace, ends=ends, step=step)) == expected
