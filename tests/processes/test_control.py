"""Handshakes of the control channel: who has the key gets in, whoever else is at the door."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, wait
from threading import Thread
from unittest.mock import Mock

import pytest

from harness.processes import control

KEY = b"k" * 32
PATIENCE_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with control.listen("127.0.0.1", 0) as made:
        yield made


def knock(listener: socket.socket) -> socket.socket:
    """A stranger's connection, which says nothing."""
    stranger = socket.create_connection(listener.getsockname())
    stranger.settimeout(PATIENCE_S)
    return stranger


def hears_the_end(stranger: socket.socket) -> bool:
    """Whether it is hung up on, maybe after a challenge."""
    while stranger.recv(1024):
        pass
    return True


def served(listener: socket.socket, handshakes: control.Handshakes) -> Connection:
    """What a supervisor does until a connection has authenticated."""
    while not (found := handshakes.take()):
        ready = wait([listener, handshakes.ended], PATIENCE_S)
        assert ready, "nobody came in"
        if listener in ready:
            handshakes.begin(listener)
    return found[0]


def rank(listener: socket.socket, key: bytes, said: list[str], word: bytes = b"\0\0\0\5hello") -> Thread:
    """A rank that connects with ``key``, says ``word`` and waits for an answer."""
    host, port = listener.getsockname()

    def run() -> None:
        try:
            connection = control.connect(host, port, key, PATIENCE_S)
            os.write(connection.fileno(), word)
            connection.poll(PATIENCE_S)
        except (AuthenticationError, EOFError, OSError) as error:
            said.append(type(error).__name__)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_too_many_mute_strangers_cost_the_oldest_of_them(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a rank gets in, the oldest of them are hung up on, and one line says how many there are, and from where."""
    monkeypatch.setattr(control, "_MOST_PENDING", 8)
    mute = [knock(listener) for _ in range(12)]
    thread = rank(listener, KEY, [])
    with served(listener, control.Handshakes(KEY)) as connection:
        assert connection.recv_bytes() == b"hello"
    thread.join()
    for number, each in enumerate(mute):
        each.settimeout(PATIENCE_S if number < 5 else 0.05)
        with nullcontext() if number < 5 else pytest.raises(TimeoutError):
            assert hears_the_end(each)
        each.close()
    (line,) = caplog.messages
    assert "say nothing: 8 from 127.0.0.1; the oldest make room" in line


def test_a_rank_that_was_hung_up_on_knocks_again(listener: socket.socket) -> None:
    """Law: one that was taken for mute, before it could answer, costs no run; one with another key is told so."""
    right = rank(listener, KEY, said := [])
    wait([listener])
    listener.accept()[0].close()
    handshakes = control.Handshakes(KEY)
    wrong = rank(listener, b"x" * 32, said)
    with served(listener, handshakes):
        while wrong.is_alive():
            if wait([listener], 0.05):
                handshakes.begin(listener)
    right.join()
    assert said == ["AuthenticationError"]


def test_a_handshake_without_a_descriptor_is_one_that_failed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: where descriptors or threads run out, the next one gets in as soon as there are some again."""
    monkeypatch.setattr(control, "_MOST_PENDING", 1)
    handshakes = control.Handshakes(KEY)
    for owner, name, error in (
        (socket.socket, "dup", OSError(errno.EMFILE, "Too many open files")),
        (control.threading.Timer, "start", RuntimeError("can't start new thread")),
        (control.threading.Thread, "start", RuntimeError("can't start new thread")),
    ):
        with monkeypatch.context() as patch, knock(listener) as stranger:
            wait([listener])
            patch.setattr(owner, name, Mock(side_effect=error))
            handshakes.begin(listener)
            assert stranger.recv(1024) == b""
    rank(listener, KEY, [])
    served(listener, handshakes).close()


def test_what_stands_still_is_given_up_at_its_deadline(listener: socket.socket) -> None:
    """Law: a handshake, and a message that was begun and is not ended; to wait for a message is not limited."""
    handshakes = control.Handshakes(KEY, timeout_s=0.2)
    with knock(listener) as stranger:
        wait([listener])
        handshakes.begin(listener)
        assert hears_the_end(stranger)
        assert handshakes.take() == []
    thread = rank(listener, KEY, [], struct.pack("!i", 1 << 20) + b"half")
    with served(listener, control.Handshakes(KEY)) as connection:
        control.limit_stalls(connection, 0.2)
        with pytest.raises(BlockingIOError):
            connection.recv()
    thread.join()
