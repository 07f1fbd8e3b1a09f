"""Handshakes of the control channel: who has the key gets in, whoever else is at the door."""

import os
import socket
import struct
from collections.abc import Iterator
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


def test_who_has_another_key_is_told_so(listener: socket.socket) -> None:
    """Law: and who has the key gets in beside it, and beside those who say nothing."""
    mute = [knock(listener) for _ in range(12)]
    wrong = rank(listener, b"x" * 32, said := [])
    right = rank(listener, KEY, said)
    handshakes = control.Handshakes(KEY)
    with served(listener, handshakes) as connection:
        assert connection.recv_bytes() == b"hello"
        while wrong.is_alive():
            if wait([listener], 0.05):
                handshakes.begin(listener)
    right.join()
    assert said == ["AuthenticationError"]
    for each in mute:
        each.close()


def test_a_handshake_without_a_thread_is_one_that_failed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: where threads run out, the next one gets in as soon as there are some again."""
    handshakes = control.Handshakes(KEY)
    with monkeypatch.context() as patch, knock(listener) as stranger:
        wait([listener])
        patch.setattr(control.threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
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
