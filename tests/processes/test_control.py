"""Handshakes of the control channel: who has the key gets in, whoever else is at the door."""

import errno
import os
import socket
import struct
import threading
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
    """A control port."""
    with control.listen("127.0.0.1", 0) as made:
        yield made


def knock(listener: socket.socket) -> socket.socket:
    """A stranger's connection, which says nothing."""
    return socket.create_connection(listener.getsockname())


def served(listener: socket.socket, handshakes: control.Handshakes, num: int) -> list[Connection]:
    """What a supervisor does until so many connections have authenticated."""
    found: list[Connection] = []
    while len(found) < num:
        ready = wait([listener, handshakes.ended], PATIENCE_S)
        assert ready, f"only {len(found)} of {num} came in"
        if listener in ready:
            handshakes.begin(listener)
        found += handshakes.take()
    return found


def rank(listener: socket.socket, key: bytes, said: list[str]) -> Thread:
    """A rank that connects with ``key`` and says hello."""

    host, port = listener.getsockname()

    def run() -> None:
        try:
            connection = control.connect(host, port, key, PATIENCE_S)
        except (AuthenticationError, EOFError, OSError) as error:
            said.append(type(error).__name__)
        else:
            connection.send("hello")

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_too_many_mute_strangers_cost_the_oldest_of_them(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: a rank gets in, the oldest of them are hung up on, and one line says how many there are, and from where."""
    monkeypatch.setattr(control, "_MOST_PENDING", 8)
    handshakes = control.Handshakes(KEY)
    mute = [knock(listener) for _ in range(12)]
    thread = rank(listener, KEY, [])
    (connection,) = served(listener, handshakes, 1)
    assert connection.recv() == "hello"
    thread.join()
    for number, each in enumerate(mute):
        each.settimeout(PATIENCE_S if number < 5 else 0.05)
        with nullcontext() if number < 5 else pytest.raises(TimeoutError):
            while each.recv(1024):
                pass  # the challenge, then the end
        each.close()
    connection.close()
    (line,) = caplog.messages
    assert "say nothing: 8 from 127.0.0.1; the oldest make room" in line


def test_a_rank_that_was_hung_up_on_knocks_again(listener: socket.socket) -> None:
    """Law: one that was taken for mute, before it could answer, costs no run."""
    thread = rank(listener, KEY, said := [])
    wait([listener])
    listener.accept()[0].close()
    served(listener, control.Handshakes(KEY), 1)[0].close()
    thread.join()
    assert said == []


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
            stranger.settimeout(PATIENCE_S)
            assert stranger.recv(1024) == b""
    rank(listener, KEY, [])
    served(listener, handshakes, 1)[0].close()


def test_a_message_that_stands_still_fails_at_its_deadline(listener: socket.socket) -> None:
    """Law: a message that was begun, and is not ended, is given up; to wait for one is not limited."""
    handshakes = control.Handshakes(KEY)
    half = threading.Event()
    host, port = listener.getsockname()

    def say_half() -> None:
        connection = control.connect(host, port, KEY, PATIENCE_S)
        os.write(connection.fileno(), struct.pack("!i", 1 << 20) + b"half")
        half.wait(PATIENCE_S)
        connection.close()

    thread = Thread(target=say_half, daemon=True)
    thread.start()
    (connection,) = served(listener, handshakes, 1)
    control.limit(connection, 0.2)
    with pytest.raises(BlockingIOError):
        connection.recv()
    connection.close()
    half.set()
    thread.join()


def test_who_has_another_key_stays_out(listener: socket.socket) -> None:
    """It is told so, and the next one gets in."""
    handshakes, said = control.Handshakes(KEY), list[str]()
    wrong = rank(listener, b"x" * 32, said)
    right = rank(listener, KEY, said)
    (connection,) = served(listener, handshakes, 1)
    assert connection.recv() == "hello"
    while wrong.is_alive():
        if wait([listener], 0.05):
            handshakes.begin(listener)
    assert said == ["AuthenticationError"]
    right.join()
    connection.close()


def test_a_mute_connection_is_hung_up_at_its_deadline(listener: socket.socket) -> None:
    """So are those beyond the most that may be at it, at once."""
    handshakes = control.Handshakes(KEY, timeout_s=0.2)
    stranger = knock(listener)
    wait([listener])
    handshakes.begin(listener)
    stranger.settimeout(PATIENCE_S)
    while stranger.recv(1024):
        pass  # the challenge, then the end
    assert handshakes.take() == []
    stranger.close()
