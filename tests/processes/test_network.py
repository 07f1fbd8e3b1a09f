"""Who can reach the ranks: in a private network, the ranks and the supervisor alone."""

import ctypes
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from threading import Event, Thread

import pytest
from torch.distributed import rpc

from harness.cluster.group import Formation, join, worker_name
from harness.config.model import ClusterConfig, Config
from harness.core.errors import ConfigError, RunFailed
from harness.core.events import Lost
from harness.processes import network as networks
from harness.processes.network import NoPrivateNetwork, PrivateNetwork, make
from harness.processes.spawn import fork_own_server, fork_server
from harness.record.event_log import EventLog, read_events
from harness.run import assemble
from tests.forked import alive, as_nobody, ends, said_by
from tests.runs import changed
from tests.wandb.stand_in import be_patient, started_core

PATIENCE_S = 30.0
ATTACK_S = 5.0
LISTENS, ACCEPTS = "0A", "00010000"  # of TCP, include/net/tcp_states.h; of Unix sockets, linux/net.h
LOOPBACK = "0100007F"
Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket, with "@" for a name without a file."""


@pytest.fixture
def config(config: Config) -> Config:
    """A run of 16 steps without failures or saves."""
    return changed(config, engine="rpc", trace__path=None, data__max_train_samples=64, strategy__name="none")


def open_files(pids: Iterable[int]) -> set[str]:
    """What the descriptors of the processes lead to."""
    own = set[str]()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(link))
    return own


def rows(name: str, seen_by: int | str) -> list[list[str]]:
    """The lines of a table of sockets in the network of another process."""
    return [line.split() for line in Path(f"/proc/{seen_by}/net/{name}").read_text().splitlines()[1:]]


def listening_tcp(pids: Iterable[int], *, seen_by: int | str = "self") -> list[list[str]]:
    """The rows of the TCP sockets at which the processes listen."""
    own = open_files(pids)
    both = [*rows("tcp", seen_by), *rows("tcp6", seen_by)]
    return [row for row in both if row[3] == LISTENS and f"socket:[{row[9]}]" in own]


def listening(pids: Iterable[int], *, seen_by: int | str) -> set[Address]:
    """Where sockets of the processes listen in the network of another process (as ``ss -l`` there)."""
    pids = [*pids]
    own, tcp = open_files(pids), listening_tcp(pids, seen_by=seen_by)
    unix = [row for row in rows("unix", seen_by) if row[3] == ACCEPTS and f"socket:[{row[6]}]" in own]
    return {("127.0.0.1", int(row[1].split(":")[1], 16)) for row in tcp} | {row[7] for row in unix if len(row) > 7}


def reached(addresses: Iterable[Address]) -> list[str]:
    """Those of ``addresses`` that accept a connection of this process."""
    found: list[str] = []
    for address in addresses:
        with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as caller:
            caller.settimeout(PATIENCE_S)
            if caller.connect_ex(address.replace("@", "\0", 1) if isinstance(address, str) else address) == 0:
                found.append(f"connection with {address}")
    return found


def entered(pids: Iterable[int]) -> list[str]:
    """Those of the processes whose network namespace, or open files, this process gets hold of."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: list[str] = []
    for pid in pids:
        with suppress(OSError):
            if libc.setns(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0) == 0:
                found.append(f"the network of {pid}")
        with suppress(OSError):
            found.append(f"{len(os.listdir(f'/proc/{pid}/fd'))} files of {pid}")
    return found


def joined(rank: str, port: int, num_members: int) -> list[str]:
    """The user as whom ``rank``, whose RPC agent listens at ``port``, runs code of a stranger in generation 0, if so.

    The stranger takes a place in the world, for which it needs no key.
    """
    members = (rank, *(f"member{number}" for number in range(num_members - 2)), "stranger")
    addresses = dict.fromkeys(members, f"uv://127.0.0.1:{port}".encode())
    formation = Formation(generation=0, members=members, takeovers={})
    world = join("stranger", formation, meet=lambda _: addresses, options=ClusterConfig(rpc_timeout_s=ATTACK_S))
    assert world is not None
    with suppress(RuntimeError):  # it is refused
        return [f"code runs as {rpc.rpc_sync(worker_name(rank, 0), os.getuid)}"]
    return []


def test_a_network_that_nobody_waits_for_says_nothing() -> None:
    """Law: a signal to the command while its network is made shows no traceback."""
    ours, theirs = Pipe()
    ours.close()
    process = fork_server().fork(make, theirs, "127.0.0.1", 0)
    process.join(PATIENCE_S)
    assert process.exitcode == 0


def test_another_user_reaches_nothing_of_a_private_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: nothing of it listens in the network outside; no file or Unix socket of it is another user's.

    Who knows its ports and names joins no RPC world.
    """
    try:
        network = PrivateNetwork("127.0.0.1", 0)
    except NoPrivateNetwork as error:
        pytest.skip(f"no private network here: {error}")
    network.listener.close()
    network.close()
    be_patient(monkeypatch)
    found: list[object] = []

    def attack(status: assemble.RunStatus) -> None:
        if found or status.step < 1:
            return
        machine = EventLog.read(tmp_path / "run" / "events.jsonl").events[0].machine
        ranks, server, core = [*machine["pids"].values()], fork_server(), started_core(os.getpid())
        pids = [os.getpid(), *ranks, server.pid, core]
        ends_s = time.monotonic() + PATIENCE_S
        while not listening([core], seen_by="self"):
            assert time.monotonic() < ends_s
            time.sleep(0.01)
        assert len(listening(pids, seen_by=ranks[0])) >= len(ranks) + 1, "each rank and the supervisor listen"
        addresses = listening(pids, seen_by="self")
        found.append({address for address in addresses if not isinstance(address, str)})
        found.append(machine["network"])
        if os.getuid() == 0:  # who alone can act as another user
            assert not listening([server.pid], seen_by="self")
            ((_, port),) = listening([machine["pids"]["ps1"]], seen_by=ranks[0])
            found.append(
                as_nobody(lambda: [*reached(addresses), *entered(pids), *joined("ps1", int(port), len(ranks))])
            )

    assert config.cluster.network == "auto"
    assemble.run(changed(config, wandb__mode="offline"), tmp_path / "run", on_status=attack)
    assert found in ([set(), "private"], [set(), "private", []])


def test_a_run_completes_beside_connections_that_say_nothing_or_nonsense(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: the supervisor waits for no stranger at its control port, from before the first rank connects.

    Without a private network `auto` says that others reach the ranks, which they do, and run their code.
    """

    def refuse(*_: object) -> None:
        raise NoPrivateNetwork("not permitted")

    monkeypatch.setattr(assemble, "PrivateNetwork", refuse)
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

    def attack(status: assemble.RunStatus) -> None:
        if status.step == 1:
            machine = EventLog.read(tmp_path / "run" / "events.jsonl").events[0].machine
            assert machine["network"] == "open"
            pids = machine["pids"]
            assert len(reached(listening(pids.values(), seen_by="self"))) >= len(pids)
            if os.getuid() == 0:
                ((_, rpc_port),) = listening([pids["ps1"]], seen_by="self")
                assert as_nobody(lambda: joined("ps1", int(rpc_port), len(pids))) == ["code runs as 0"]

    thread = Thread(target=pester, daemon=True)
    thread.start()
    try:
        with caplog.at_level("INFO", logger="harness"):
            assemble.run(changed(config, cluster__port=port), tmp_path / "run", on_status=attack)
    finally:
        is_over.set()
        thread.join()
        for caller in strange:
            caller.close()
    assert len(strange) > len(nonsense) + 2
    assert "its other processes can reach the ranks" in caplog.text


def test_stray_bytes_on_an_open_network_are_a_death_without_a_plan(config: Config, tmp_path: Path) -> None:
    """Law: the record names the rank that eight bytes at its RPC port end; seven at that of another do nothing to it.

    Ranks listen on the interface that the config names alone, the supervisor at its host: by default, loopback.
    """
    said = set[str]()

    def attack(status: assemble.RunStatus) -> None:
        if said or status.step < 1:
            return
        pids = EventLog.read(tmp_path / "run" / "events.jsonl").events[0].machine["pids"]
        assert {row[1].partition(":")[0] for row in listening_tcp([os.getpid(), *pids.values()])} == {LOOPBACK}
        for rank, num_bytes in (("ps0", 7), ("ps1", 8)):
            ((_, port),) = listening([pids[rank]], seen_by="self")
            with socket.create_connection(("127.0.0.1", int(port))) as caller:
                caller.sendall(b"\0" * num_bytes)
            said.add(rank)
        assert ends(pids["ps1"])
        assert alive(pids["ps0"])

    own = changed(config, cluster__network="open", data__max_train_samples=1024)
    with pytest.raises(RunFailed, match=r"ps1 died; strategy none cannot recover"):
        assemble.run(own, tmp_path / "run", on_status=attack)
    (lost,) = (event for event in read_events(tmp_path / "run" / "events.jsonl") if isinstance(event, Lost))
    assert (lost.ranks, lost.planned) == (["ps1"], False)


def test_an_open_network_is_asked_for(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: by name where none can be private, and for any other interface."""
    with pytest.raises(ConfigError, match=r"^cluster\.interface: expected lo, got None"):
        assemble.run(changed(config, cluster__interface=None), tmp_path / "wide")

    def refuse(*_: object) -> None:
        raise NoPrivateNetwork("not permitted")

    monkeypatch.setattr(assemble, "PrivateNetwork", refuse)
    with pytest.raises(ConfigError, match=r"^cluster\.network: no private network on this machine: not permitted;"):
        assemble.run(changed(config, cluster__network="private"), tmp_path / "private")


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
    assert fork_own_server()
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
