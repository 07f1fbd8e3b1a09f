"""Fork servers: nested where this Python's is known, by public functions where it is not."""

import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from harness.processes import spawn

ROOT = Path(__file__).parents[2]
BEGIN = """
import gc, multiprocessing.forkserver as forkserver, os, signal
from pathlib import Path
from harness.processes import spawn
spawn._PRELOAD[:] = [os.environ["PRELOAD"]]

def code_of_a_process():
    process = spawn.fork_server().Process(target=os.getpid)
    process.start()
    process.join()
    return process.exitcode

def code_without_orders(sent):
    # As where the command ends between the request for a process and what it is to run.
    sentinel, orders = forkserver.connect_to_new_process([])
    os.write(orders, sent)
    os.close(orders)
    forkserver.read_signed(sentinel)
    return forkserver.read_signed(sentinel)
"""


def program(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """What becomes of a new interpreter that runs ``code``, with these variables."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PRELOAD": "harness.processes.leash", **variables}
    command = [sys.executable, "-c", BEGIN + code]
    return subprocess.run(command, capture_output=True, check=False, text=True, env=environment)


@pytest.fixture
def long_folder(tmp_path: Path) -> Path:
    """A temporary folder with a longer path than a socket may have: 107 characters."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    return folder


def test_a_long_temporary_folder_is_no_hindrance(long_folder: Path) -> None:
    """Law: where Python starts the fork server itself, it is one line."""
    ended = program("spawn.can_nest = lambda: False; code_of_a_process()", TMPDIR=str(long_folder))
    words = f"RunFailed: no fork server could be started in {long_folder} (TMPDIR): AF_UNIX path too long"
    assert ended.stderr.splitlines()[-1].endswith(words)
    assert list(long_folder.rglob("fork-server")) == []


NESTED = r"""
imported = [[] for _ in range(500_000)]  # as objects of modules, which a collection looks at
assert spawn.nest_fork_server()
assert not spawn.nest_fork_server(), "there is one"

def shared_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Shared_Dirty:"))

before_kb = shared_kb()
gc.collect()
assert shared_kb() > 0.9 * before_kb, "a collection writes into each object that it looks at: 70 MB of torch"
print(code_of_a_process(), code_without_orders(b"\x80\x04\x95\xff"), flush=True)
os.kill(os.getpid(), int(os.environ["ENDED"]))
"""


@pytest.mark.skipif(not spawn.can_nest(), reason="none is nested")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_nested_fork_server_leaves_nothing_in_the_temporary_folder(long_folder: Path, number: signal.Signals) -> None:
    """Law: however its owner ends. It says nothing of a process without orders, and its memory stays shared."""
    ended = program(NESTED, TMPDIR=str(long_folder), ENDED=str(int(number)))
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "0 1\n", "")
    assert list(long_folder.iterdir()) == []


LITTER = """
import os
class Litter:
    def __del__(self, name=__file__ + ".note", write=os.open):
        write(name, os.O_CREAT)
litter = Litter()
"""
UNKNOWN = """
forkserver._forkserver._forkserver_authkey = None  # as in Python 3.14
assert not spawn.nest_fork_server()
print(code_of_a_process(), code_without_orders(b""))
forkserver._forkserver._stop()
"""


def test_a_fork_server_ends_without_the_destructors_of_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of torch take seconds, for which it would outlive the command. One that is unknown is not nested."""
    (tmp_path / "litter.py").write_text(LITTER)
    ended = program(UNKNOWN, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}", PRELOAD="litter")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0 1\n", "")
    assert not (tmp_path / "litter.py.note").exists()
    if spawn.can_nest():
        monkeypatch.setattr(forkserver, "main", lambda listener_fd, alive_r, preload, main_path, sys_path, key: None)
        assert not spawn.can_nest()
