"""Fork servers: what they fork, how that ends, and what ends with whom."""

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from harness.core.errors import ConfigError, RunFailed
from harness.processes.fork_server import ForkServerLoop, Settings
from harness.processes.forked import ForkedProcess, ForkServer, HostLost
from harness.processes.pidfd import Pidfd
from harness.processes.spawn import fork_server
from tests.forked import alive, ends, forked, stop

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
DEADLINE_S = 1.0


def served() -> ForkServer:
    """A fork server that is a copy of this process, with a short deadline."""
    ours, theirs = Pipe()
    assert isinstance(theirs, Connection)
    assert isinstance(ours, Connection)

    def serve() -> None:
        ours.close()
        ForkServerLoop(theirs).serve()

    pid = forked(serve)
    theirs.close()
    return ForkServer(ours, pid, "here", DEADLINE_S, process=Pidfd(pid))


@pytest.fixture
def server() -> Iterator[ForkServer]:
    """A fork server of a test's own."""
    made = served()
    yield made
    made.close()
    assert ends(made.pid)


def exit_with(code: object) -> None:
    raise SystemExit(code)


def fail() -> None:
    raise ValueError("no")


def wait() -> None:
    signal.pause()


def say_and_wait(pipe: Connection) -> None:
    pipe.send("ready")
    wait()


def add_up(pipe: Connection, *numbers: int) -> None:
    pipe.send((sum(numbers), os.getppid()))


@pytest.mark.parametrize(
    ("main", "code"), [(os.getpid, 0), (exit_with, 0), (exit_with, 7), (exit_with, "words"), (fail, 1)]
)
def test_how_a_process_ends_is_known(server: ForkServer, main: Callable[..., object], code: object) -> None:
    """Law: its exit code, as that of a program; and what it is to do comes with connections."""
    process = server.fork(main, *((None if code == 0 else code,) if main is exit_with else ()))
    process.join(PATIENCE_S)
    assert process.exitcode == (1 if code == "words" else code)
    ours, theirs = Pipe()
    server.fork(add_up, theirs, 1, 2)
    assert ours.recv() == (3, server.pid)


def test_a_process_is_stopped_continued_and_killed(server: ForkServer) -> None:
    """Law: the exit code is minus the signal's number, and orders to one that has ended do nothing."""
    process = server.fork(wait)
    process.pause()
    while not process.is_paused:
        time.sleep(0.001)
    process.send(signal.SIGCONT)
    assert not process.is_paused
    process.join(0.01)
    assert (process.exitcode, server.num_running) == (None, 1)
    process.kill()
    process.join(PATIENCE_S)
    assert (process.exitcode, server.num_running) == (-signal.SIGKILL, 0)
    process.send(signal.SIGCONT)
    assert process.is_paused


def test_processes_end_with_their_server_and_it_with_its_connection() -> None:
    """Law: stopped ones too; how they ended is known, as the kernel has killed them."""
    for lose in (lambda server: os.kill(server.pid, signal.SIGKILL), lambda server: server.close()):
        server = served()
        ours, theirs = Pipe()
        one, other = server.fork(wait), server.fork(say_and_wait, theirs)
        ours.recv()  # before it runs, the kernel does not know
        stop(other.pid)
        lose(server)
        one.join(PATIENCE_S)
        assert (one.exitcode, other.exitcode) == (-signal.SIGKILL,) * 2
        assert all(map(ends, (server.pid, one.pid, other.pid)))
        assert server.lost in [f"its fork server (pid {server.pid}) {why}" for why in ("has ended", "was ended")]
        with pytest.raises(HostLost):
            server.fork(wait)


def test_a_server_that_gives_no_answer_is_lost_at_its_deadline() -> None:
    """Law: it is killed, with its processes; other waits for it end with it."""
    server = served()
    process = server.fork(wait)
    stop(server.pid)
    began_s = time.monotonic()
    process.join(PATIENCE_S)
    assert DEADLINE_S <= time.monotonic() - began_s < PATIENCE_S
    assert server.lost == f"its fork server (pid {server.pid}) gave no answer for {DEADLINE_S:g} s"
    assert process.is_paused
    assert not any(map(alive, (server.pid, process.pid))) or ends(process.pid)


def test_a_server_that_ends_in_the_middle_of_a_message_is_lost() -> None:
    """Law: the reason is in words; what it had told stays."""
    ours, theirs = Pipe()
    assert isinstance(ours, Connection)
    server = ForkServer(ours, 7, "b", DEADLINE_S)
    theirs.send(("ended", 0, 5))
    os.write(theirs.fileno(), struct.pack("!i", 100) + b"half")
    theirs.close()
    assert [ForkedProcess(server, number, 8).exitcode for number in (0, 1)] == [5, -signal.SIGKILL]
    assert server.lost == "its fork server (pid 7) cannot be reached: got end of file during message"


def test_a_fork_that_the_system_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: and the server goes on."""

    def refuse() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    ours, theirs = Pipe()
    loop = ForkServerLoop(theirs)  # pyright: ignore[reportArgumentType]
    loop._fork(0, b"", 0)
    assert ours.recv() == ("answer", None, os.strerror(errno.EAGAIN))
    monkeypatch.undo()
    ours.send(("answer", None, "no memory"))
    with pytest.raises(RunFailed, match=r"^host b: no memory$"):
        ForkServer(theirs, 7, "b", DEADLINE_S).fork(wait)  # pyright: ignore[reportArgumentType]


def test_settings_that_are_none_are_one_line() -> None:
    """Law: who starts the program by hand is told."""
    for line in (b"", b"hello\n", b"{}\n", b"[]\n"):
        with pytest.raises(ConfigError, match=r"^standard input: expected the settings of a fork server in one line"):
            Settings.of_line(line)


# --- of this process --------------------------------------------------------------------------------------------------


def say_where(pipe: Connection) -> None:
    pipe.send((os.getppid(), "harness.run.assemble" in sys.modules, len(os.listdir("/proc/self/fd"))))


def test_the_server_of_a_process_is_started_once_and_anew_when_it_is_lost() -> None:
    """Law: it has imported all; its processes have few files."""
    server = fork_server()
    assert fork_server() is server
    ours, theirs = Pipe()
    server.fork(say_where, theirs)
    parent, has_all, num_files = ours.recv()
    assert (parent, has_all) == (server.pid, True)
    assert num_files <= 8


OWN = r"""
import gc, json, os, signal, sys
from pathlib import Path
from harness.processes import spawn
spawn._IMPORTED[:] = ["json"]
imported = [[] for _ in range(500_000)]  # as objects of modules, which a collection looks at
assert spawn.fork_own_server()
assert not spawn.fork_own_server(), "there is one"

def shared_kb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Shared_Dirty:"))

before_kb = shared_kb()
gc.collect()
assert shared_kb() > 0.9 * before_kb, "a collection writes into each object that it looks at: 70 MB of torch"
server = spawn.fork_server()
process = server.fork(signal.pause)
os.kill(server.pid, signal.SIGSTOP)
print(json.dumps([server.pid, process.pid]), flush=True)
os.kill(os.getpid(), int(os.environ["ENDED"]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_fork_server_ends_with_its_owner(number: signal.Signals) -> None:
    """Law: however that ends, and while the server is stopped; it says nothing, and its memory stays shared."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ENDED": str(int(number))}
    command = [sys.executable, "-c", OWN]
    ended = subprocess.run(command, capture_output=True, check=False, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (-number, "")
    assert all(map(ends, json.loads(ended.stdout)))
