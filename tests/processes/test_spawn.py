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
STARTS_A_PROCESS = """
import multiprocessing.forkserver as forkserver, os, signal, sys
from harness.processes import spawn
{change}
spawn._PRELOAD[:] = ["harness.processes.leash"]
nested = spawn.nest_fork_server()
assert not spawn.nest_fork_server(), "there is one"
process = spawn.fork_server().Process(target=os.getpid)
process.start()
process.join()
print(nested, process.exitcode)
"""


def outcome(change: str) -> str:
    """Whether a new interpreter, changed so, nested a fork server, and the exit code of a process forked from it."""
    command = [sys.executable, "-c", STARTS_A_PROCESS.format(change=change)]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT)
    assert not ran.stderr
    return ran.stdout.strip()


def test_an_unknown_fork_server_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are then forked from a server that Python itself starts; that of Python 3.11 to 3.13 is nested."""
    assert outcome("forkserver._forkserver._forkserver_authkey = None") == "False 0"
    if spawn.can_nest():
        with monkeypatch.context() as patch:
            patch.delattr(forkserver._forkserver, "_inherited_fds")
            assert not spawn.can_nest()
        monkeypatch.setattr(forkserver, "main", lambda listener_fd, alive_r, preload, main_path, sys_path, key: None)
        assert not spawn.can_nest()


@pytest.fixture
def long_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of processes, with a longer path than a socket may have: 107 characters."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_a_long_temporary_folder_is_no_hindrance(long_folder: Path) -> None:
    """Law: where Python starts the fork server itself, it is one line."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        outcome("spawn.can_nest = lambda: False")
    words = f"RunFailed: no fork server could be started in {long_folder} (TMPDIR): AF_UNIX path too long"
    assert caught.value.stderr.splitlines()[-1].endswith(words)
    assert list(long_folder.rglob("fork-server")) == []


ENDS_AFTER_A_PROCESS = STARTS_A_PROCESS.replace(
    "print(nested, process.exitcode)", "assert (nested, process.exitcode) == (True, 0); os.kill(os.getpid(), {number})"
)


@pytest.mark.skipif(not spawn.can_nest(), reason="none is nested")
@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGKILL])
def test_a_nested_fork_server_leaves_nothing_in_the_temporary_folder(long_folder: Path, ended: signal.Signals) -> None:
    """Law: however its owner ends."""
    command = [sys.executable, "-c", ENDS_AFTER_A_PROCESS.format(change="", number=int(ended))]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -ended
    assert list(long_folder.iterdir()) == []


COLLECTS_GARBAGE = """
import gc
from pathlib import Path
from harness.processes import spawn
spawn._PRELOAD[:] = ["harness.processes.leash"]
imported = [[] for _ in range(500_000)]  # as objects of modules, which a collection looks at
assert spawn.nest_fork_server()

def shared_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Shared_Dirty:"))

before_kb = shared_kb()
gc.collect()
print(shared_kb() / before_kb)
"""


@pytest.mark.skipif(not spawn.can_nest(), reason="none is nested")
def test_a_garbage_collection_leaves_memory_shared_with_a_nested_fork_server() -> None:
    """It writes into each object that it looks at; of torch and its imports that copies 70 MB."""
    command = [sys.executable, "-c", COLLECTS_GARBAGE]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT)
    assert float(ran.stdout) > 0.9


LITTER = """
import os
class Litter:
    def __del__(self, name=os.environ["LITTER"], write=os.open):
        write(name, os.O_CREAT)
litter = Litter()
"""
ENDS_A_SERVER = """
import multiprocessing.forkserver as forkserver
from harness.processes import spawn
spawn._PRELOAD[:] = ["litter"]
process = spawn.fork_server().Process(target=int)
process.start()
process.join()
forkserver._forkserver._stop()
print(process.exitcode)
"""


@pytest.mark.skipif(not spawn.can_nest(), reason="it is ended by a private name")
def test_a_fork_server_ends_without_the_destructors_of_its_modules(tmp_path: Path) -> None:
    """Those of torch take seconds on a busy machine, and the server would outlive the command for as long."""
    (tmp_path / "litter.py").write_text(LITTER)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    environment = {**os.environ, "LITTER": str(tmp_path / "note"), "PYTHONPATH": path}
    command = [sys.executable, "-c", ENDS_A_SERVER]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, cwd=tmp_path, env=environment)
    assert (ran.stdout, ran.stderr) == ("0\n", "")
    assert not (tmp_path / "note").exists()


SENDS_HALF = """
import multiprocessing.forkserver as forkserver, os
from harness.processes import spawn
{change}
spawn._PRELOAD[:] = ["harness.processes.leash"]
spawn.nest_fork_server()
spawn.fork_server()
sentinel, orders = forkserver.connect_to_new_process([])
os.write(orders, {sent})
os.close(orders)
forkserver.read_signed(sentinel)
print(forkserver.read_signed(sentinel))
"""


@pytest.mark.parametrize(
    ("change", "sent"), [("", b"\x80\x04\x95\xff"), ("spawn.can_nest = lambda: False", b"")], ids=["half", "nothing"]
)
def test_a_process_whose_starter_ends_meanwhile_says_nothing(change: str, sent: bytes) -> None:
    """Law: a signal to the command between the request for a process and what it is to run shows no traceback."""
    command = [sys.executable, "-c", SENDS_HALF.format(change=change, sent=sent)]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT)
    assert (ran.stdout, ran.stderr) == ("1\n", "")
