"""Who can reach the ranks: in a private network, the ranks and the supervisor alone."""

import errno
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event, Thread

import pytest

from harness.config.model import Config
from harness.core.errors import ConfigError, RunFailed
from harness.processes import network as networks
from harness.processes.fork_server import current
from harness.processes.network import Entrance, NoPrivateNetwork, PrivateNetwork, make
from harness.processes.spawn import fork_server, nest_fork_server
from harness.record.event_log import EventLog
from harness.run import assemble
from tests.cluster.test_rpc import alive
from tests.forked import said_by
from tests.processes import strangers
from tests.runs import changed
from tests.wandb.stand_in import be_patient, started_core

PATIENCE_S = 30.0


@pytest.fixture
def config(config: Config) -> Config:
    """A run of 32 steps without failures or saves."""
    return changed(config, engine="rpc", trace__path=None, data__max_train_samples=128, strategy__name="none")


@pytest.fixture
def network() -> PrivateNetwork:
    """A private network, where this machine allows one."""
    try:
        return PrivateNetwork("127.0.0.1", 0)
    except NoPrivateNetwork as error:
        pytest.skip(f"no private network here: {error}")


def call_in(entrance: Entrance, port: int, report: Connection) -> None:
    """In a process inside: connect to the supervisor, then listen, and report where."""
    entrance.enter()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as caller:
        caller.sendall(b"rank")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            report.send((listener.getsockname()[1], os.getuid()))
            report.recv()
            report.send(bool(wait([listener], 0)))


def test_a_network_that_nobody_waits_for_says_nothing() -> None:
    """Law: a signal to the command while its network is made shows no traceback."""
    ours, theirs = Pipe()
    ours.close()
    process = fork_server().Process(target=make, args=(theirs, "127.0.0.1", 0))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_only_who_is_inside_gets_in(network: PrivateNetwork) -> None:
    """Law: a process inside reaches the supervisor; from outside nobody reaches what it, or the supervisor, serves."""
    port = network.listener.getsockname()[1]
    ours, theirs = Pipe()
    process = fork_server().Process(target=call_in, args=(network.entrance, port, theirs))
    process.start()
    theirs.close()
    assert wait([network.listener], PATIENCE_S)
    accepted, _ = network.listener.accept()
    with accepted:
        accepted.settimeout(PATIENCE_S)
        assert accepted.recv(4) == b"rank"
        assert ours.poll(PATIENCE_S)
        port_inside, user = ours.recv()
        assert user == os.getuid()
        for each in (port, port_inside):
            with socket.socket() as stranger:
                stranger.settimeout(PATIENCE_S)
                stranger.connect_ex(("127.0.0.1", each))  # outside, others may listen at the same number
        ours.send("look")
        assert ours.poll(PATIENCE_S)
        assert (ours.recv(), wait([network.listener], 0)) == (False, [])
    process.join(PATIENCE_S)
    assert process.exitcode == 0
    network.listener.close()
    network.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("asked", ["private", "open"])
def test_another_user_reaches_nothing_of_a_private_run(
    asked: str, network: PrivateNetwork, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: another user, who knows all ports and names, neither connects to a process of the run nor joins its world.

    Of an open run the ranks accept connections, and run the code of the other user.
    """
    network.listener.close()
    network.close()
    be_patient(monkeypatch)
    said: dict[str, list[str]] = {}

    def attack(status: assemble.RunStatus) -> None:
        if said or status.step < 1:
            return
        said["done"] = []
        ranks = EventLog.read(tmp_path / "run" / "events.jsonl").events[0].machine["pids"]
        assert len(ranks) == 5
        addresses = {rank: strangers.listening(pid) for rank, pid in ranks.items()}
        assert all(addresses.values()), "each rank listens"
        server, core = current(), started_core(os.getpid())
        assert server is not None
        pids = [os.getpid(), *ranks.values(), server.pid, core]
        everywhere = set[strangers.Address]().union(*map(strangers.listening, pids))
        assert strangers.listening(server.pid)
        assert strangers.listening(core)
        others = strangers.taken(pids)  # the same numbers may be in use outside
        everywhere = {each for each in everywhere if each.port not in others}
        (address,) = addresses["ps1"]
        url = f"uv://127.0.0.1:{address.port}"
        said["joined"] = strangers.as_nobody(lambda: strangers.joined("ps1", url, len(ranks)))
        said["reached"] = strangers.as_nobody(lambda: strangers.reached(everywhere))
        said["entered"] = strangers.as_nobody(lambda: strangers.entered(pids))

    config = changed(config, cluster__network=asked, wandb__mode="offline")
    assemble.run(config, tmp_path / "run", on_status=attack)
    (started, *_) = EventLog.read(tmp_path / "run" / "events.jsonl").events
    assert started.machine["network"] == asked
    assert said["entered"] == []
    if asked == "open":
        assert said["joined"] == [f"ps1 runs code as user {os.getuid()}"]
        assert len(said["reached"]) > 0
        assert all(each.startswith("127.0.0.1 ") for each in said["reached"]), "no Unix socket"
    else:
        assert said["joined"][0].startswith("refused: ")
        assert said["reached"] == []


def test_a_run_says_who_can_reach_its_ranks(network: PrivateNetwork, config: Config, tmp_path: Path) -> None:
    """Its record names the network once; an open one is asked for, and any other interface must be."""
    network.listener.close()
    network.close()
    assemble.run(config, tmp_path / "run")
    (started, *_) = EventLog.read(tmp_path / "run" / "events.jsonl").events
    assert (config.cluster.network, started.machine["network"]) == ("auto", "private")
    with pytest.raises(ConfigError, match=r"^cluster\.interface: expected lo, got None"):
        assemble.run(changed(config, engine="rpc", cluster__interface=None), tmp_path / "wide")


def test_a_run_completes_beside_connections_that_say_nothing_or_nonsense(config: Config, tmp_path: Path) -> None:
    """Law: the supervisor waits for no stranger at its control port, from before the first rank connects."""
    with socket.create_server(("127.0.0.1", 0)) as any_socket:
        port = any_socket.getsockname()[1]
    strange: list[socket.socket] = []
    nonsense = (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, b"\x00\x00\x00\x14", b"\x00" * 5000)
    is_over = Event()

    def pester() -> None:
        for said in (*nonsense, *[b""] * 300):
            strange.append(caller := socket.socket())
            while caller.connect_ex(("127.0.0.1", port)) != 0:
                if is_over.is_set():
                    return
                time.sleep(0.0005)
            with suppress(OSError):  # it is not wanted any more
                caller.sendall(said)

    thread = Thread(target=pester, daemon=True)
    thread.start()
    try:
        assemble.run(changed(config, cluster__network="open", cluster__port=port), tmp_path / "run")
    finally:
        is_over.set()
        thread.join()
        for caller in strange:
            caller.close()
    assert len(strange) > len(nonsense) + 2


def make_networks(how: Path) -> None:
    """Body of a process: says what becomes of a network that is refused, fails, is mute, and is at a wrong address."""

    def unshare() -> tuple[str, ...]:
        number = int(how.read_text())
        if number < 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number > 0:
            raise OSError(number, os.strerror(number))
        return ()

    networks._unshare, networks._raise_loopback = unshare, lambda: None
    assert nest_fork_server()
    for number, host, patience_s in (
        (errno.EPERM, "127.0.0.1", PATIENCE_S),
        (errno.EMFILE, "127.0.0.1", PATIENCE_S),
        (0, "192.0.2.1", PATIENCE_S),
        (-1, "127.0.0.1", 1.0),
    ):
        how.write_text(str(number))
        networks._START_S = patience_s
        try:
            PrivateNetwork(host, 0)
        except (NoPrivateNetwork, RunFailed) as error:
            sys.stdout.write(f"{type(error).__name__}: {error}\n")


def test_only_a_refusal_of_the_system_leads_to_an_open_network(tmp_path: Path) -> None:
    """Law: any other failure, and a mute process, which is killed, end the run in one line."""
    refused, failed, misplaced, mute = said_by(make_networks, tmp_path / "how").splitlines()
    assert refused == "NoPrivateNetwork: [Errno 1] Operation not permitted"
    words = "RunFailed: no private network could be made: "
    assert failed == f"{words}[Errno 24] Too many open files"
    assert misplaced.startswith(f"{words}[Errno 99] Cannot assign requested address")
    pid = int(mute.removeprefix(f"{words}process ").split(",")[0])
    assert mute.endswith(", which was to make it, gave no answer within 1 s, and was killed")
    assert not alive(pid)


def test_without_a_private_network_a_run_is_refused_or_says_so(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`private` ends in one line, `auto` goes on with a note."""

    def refuse(*_: object) -> None:
        raise NoPrivateNetwork("not permitted")

    monkeypatch.setattr(assemble, "PrivateNetwork", refuse)
    with pytest.raises(ConfigError, match=r"^cluster\.network: no private network on this machine: not permitted;"):
        assemble.run(changed(config, engine="rpc", cluster__network="private"), tmp_path / "private")
    with caplog.at_level("INFO", logger="harness"):
        assemble.run(changed(config, engine="rpc"), tmp_path / "auto")
    assert "other processes of it can reach the ranks" in caplog.text
