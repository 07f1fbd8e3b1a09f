"""Child processes that run another program: lines both ways, and an end in time."""

import os
import signal
import sys
from pathlib import Path
from threading import Thread

import pytest

from harness.processes.child import Child, output_of
from tests.forked import ends, forked

PATIENCE_S = 60.0


def python(code: str) -> list[str]:
    return [sys.executable, "-ISc", f"import json, os, signal, subprocess, sys, time\n{code}"]


def test_values_go_both_ways_and_a_mute_program_is_ended_at_its_deadline() -> None:
    """Law: a value a line; after its deadline it and its own children, whatever their sessions, get SIGKILL."""
    child = Child(
        python(
            "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "other = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "print(json.dumps({'got': json.loads(input()), 'other': other.pid}), flush=True)\n"
            "time.sleep(600)"
        )
    )
    child.send([1, None])
    answer = child.answer(PATIENCE_S)
    assert answer["got"] == [1, None]
    with pytest.raises(TimeoutError, match=r"^no answer within 0\.01 s$"):
        child.answer(0.01)
    child.signal(signal.SIGINT)
    assert child.wait(0.01) is None
    assert child.close(0.01) == -signal.SIGKILL
    assert ends(answer["other"])
    child.send("to nobody")


def test_a_log_gets_output_and_errors_at_its_end(tmp_path: Path) -> None:
    """Law: the exit code is the program's, which has its folder, ignores what it is to, and nothing else."""
    log = tmp_path / "log"
    log.write_text("before\n")
    code = (
        "handled = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]\n"
        "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "sys.exit(f'{os.getcwd()} {handled[0].name} {callable(handled[1])} {handled[2].name} {len(blocked)}')"
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        child = Child(python(code), folder=str(tmp_path), log=log, ignored=(signal.SIGTERM,))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (child.end(PATIENCE_S), child.wait()) == (1, 1)
    assert log.read_text() == f"before\n{tmp_path} SIG_IGN True SIG_DFL 0\n"


def test_a_command_is_ended_while_its_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: and so are its own children."""
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [self / "0" / "children", *glob(self, pattern)])
    child = Child(python("print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"))
    other = child.answer(PATIENCE_S)
    ender = Thread(target=child.close, daemon=True)
    ender.start()
    ender.join(10.0)
    child.signal(signal.SIGKILL)
    ender.join(PATIENCE_S)
    assert (child.wait(), ends(other)) == (-signal.SIGKILL, True)


def test_it_ends_with_the_process_that_started_it() -> None:
    """Law: at once, also by SIGKILL, whatever it does by then."""
    reading, writing = os.pipe()

    def start() -> None:
        child = Child(python("print(os.getpid(), flush=True); time.sleep(600)"))
        os.write(writing, str(child.answer()).encode())
        signal.pause()

    parent = forked(start)
    pid = int(os.read(reading, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert ends(pid)
    os.close(reading)
    os.close(writing)


def test_what_a_command_says_is_its_output_if_it_ends_well() -> None:
    """Law: a program that is not there is an error of the system; for a question it is no answer, as is a failure."""
    with pytest.raises(FileNotFoundError):
        Child(["/nowhere"])
    assert output_of(["echo", "yes"], PATIENCE_S) == "yes\n"
    assert [output_of(command, 0.01) for command in (["/nowhere"], ["false"], ["sleep", "600"])] == [None] * 3
