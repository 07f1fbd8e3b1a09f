"""A process that is cut off the network runs on, its connections stay open, and no packet reaches it."""

import mmap
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.processes import partition
from harness.processes.pidfd import Pidfd
from tests.forked import forked
from tests.processes import strangers

PATIENCE_S = 20.0
SILENCE_S = 0.3  # a packet on loopback takes microseconds


def echo(listener: socket.socket, channel: socket.socket, counter: mmap.mmap) -> None:
    """Answer what comes by a TCP connection and by a Unix one, and count."""
    connection, _ = listener.accept()
    peers = (connection, channel)
    for each in peers:
        each.setblocking(False)
    while True:
        counter[:8] = (int.from_bytes(counter[:8], "little") + 1).to_bytes(8, "little")
        for each in peers:
            try:
                each.sendall(each.recv(16))
            except BlockingIOError:
                time.sleep(0.001)


@contextmanager
def echoing(host: str) -> Iterator[tuple[int, socket.socket, socket.socket, mmap.mmap]]:
    """Process id of :func:`echo`, a TCP connection and a Unix one to it, and its counter."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    counter = mmap.mmap(-1, 8)
    ours, theirs = socket.socketpair()
    with socket.create_server((host, 0), family=family) as listener, ours, theirs:
        pid = forked(lambda: echo(listener, theirs, counter))
        try:
            with socket.create_connection(listener.getsockname()[:2], timeout=PATIENCE_S) as connection:
                yield pid, connection, ours, counter
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def answer(sock: socket.socket, patience_s: float) -> bytes | None:
    """What comes back of a message; None if nothing does."""
    sock.sendall(b"hello")
    sock.settimeout(patience_s)
    try:
        return sock.recv(16)
    except TimeoutError:
        return None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("drop", [partition.drop_by_filter, partition.drop_by_hops])
def test_no_packet_reaches_a_process_that_is_cut_off(
    host: str, drop: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: by either mechanism; it runs on, its connection stays open, a Unix socket is no network."""
    try:
        with socket.socket() as own:
            drop(own)
    except PermissionError:
        pytest.skip("this user may not attach filters here")
    monkeypatch.setattr(partition, "drop_by_filter", drop)
    with echoing(host) as (pid, connection, channel, counter):
        assert answer(connection, PATIENCE_S) == b"hello"
        process = Pidfd(pid)
        assert partition.problem(process) is None
        assert answer(connection, PATIENCE_S) == b"hello", "asking changes nothing"
        assert partition.cut_off(process) == 2  # the one that listens, and the connection
        counted = int.from_bytes(counter[:8], "little")
        assert answer(connection, SILENCE_S) is None
        for _ in range(2):  # it may have counted the turn in which it answers first before this process looked
            assert answer(channel, PATIENCE_S) == b"hello"
        assert int.from_bytes(counter[:8], "little") > counted
        with socket.socket(connection.family) as newcomer:
            newcomer.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                newcomer.connect(connection.getpeername())


def test_a_process_that_has_ended_has_no_sockets() -> None:
    """Law: there is nothing to cut off, and no error."""
    pid = forked(lambda: None)
    process = Pidfd(pid)
    os.waitpid(pid, 0)
    assert partition.problem(process) is None
    assert partition.cut_off(process) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_system_that_refuses_says_so_in_one_line() -> None:
    """Law: what another user may not do is one line, before it is tried and when it is."""
    process = Pidfd(os.getpid())

    def attack() -> Iterator[str]:
        yield partition.problem(process) or "allowed"
        try:
            partition.cut_off(process)
        except partition.CannotCutOff as error:
            yield str(error)

    first, second = strangers.as_nobody(attack)
    assert first == second
    assert re.fullmatch(rf"/proc/{process.pid}/fd: Permission denied", first)
