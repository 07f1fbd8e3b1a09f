"""A process that is cut off the network runs on, its connections stay open, and no packet reaches it."""

import os
import re
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from harness.processes import partition
from harness.processes.pidfd import Pidfd
from tests.forked import as_nobody, forked

PATIENCE_S = 20.0
SILENCE_S = 0.1  # a packet on loopback takes microseconds


def echo(listener: socket.socket, channel: socket.socket) -> None:
    """Answer what comes by a TCP connection and by a Unix one."""
    peers = [listener.accept()[0], channel]
    while True:
        for each in select.select(peers, [], [])[0]:
            each.sendall(each.recv(16))


def is_answered(sock: socket.socket, patience_s: float) -> bool:
    """Whether a message is sent back."""
    sock.sendall(b"hello")
    sock.settimeout(patience_s)
    try:
        return sock.recv(16) == b"hello"
    except TimeoutError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("drop", [partition.drop_by_filter, partition.drop_by_hops])
def test_no_packet_reaches_a_process_that_is_cut_off(
    host: str, drop: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: by either mechanism; it runs on, its connection stays open, a Unix socket is no network."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket() as own:
            drop(own)
    except PermissionError:
        pytest.skip("this user may not attach filters here")
    monkeypatch.setattr(partition, "drop_by_filter", drop)
    channel, theirs = socket.socketpair()
    with socket.create_server((host, 0), family=family) as listener, channel, theirs:
        address = listener.getsockname()[:2]
        process = Pidfd(forked(lambda: echo(listener, theirs)))
        with socket.create_connection(address, timeout=PATIENCE_S) as connection, socket.socket(family) as newcomer:
            assert is_answered(connection, PATIENCE_S)
            assert partition.problem(process) is None
            assert is_answered(connection, PATIENCE_S), "asking changes nothing"
            assert partition.cut_off(process) == 2  # the one that listens, and the connection
            assert not is_answered(connection, SILENCE_S)
            assert is_answered(channel, PATIENCE_S), "it runs"
            newcomer.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                newcomer.connect(address)
        os.kill(process.pid, 9)
        os.waitpid(process.pid, 0)
    assert partition.problem(process) is None, "what has ended has no sockets"
    assert partition.cut_off(process) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_what_has_ended_and_is_not_reaped_has_no_sockets() -> None:
    """Law: also for a user to whom the files of such a process are denied, as they are to all but root."""

    def attack() -> Iterator[str]:
        process = Pidfd(forked(lambda: None))
        assert process.has_ended(PATIENCE_S)
        yield partition.problem(process) or "none"
        yield str(partition.cut_off(process))

    assert [*as_nobody(attack)] == ["none", "0"]


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

    first, second = as_nobody(attack)
    assert first == second
    assert re.fullmatch(rf"/proc/{process.pid}/fd: Permission denied", first)
