"""What a process of another user can reach of a run: its listening addresses, and its namespaces."""

import ctypes
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import rpc

from harness.cluster.formation import Formation
from harness.cluster.group import join, worker_name
from harness.config.model import ClusterConfig
from harness.processes.leash import end_with_parent

NOBODY = 65534
ATTACK_S = 5.0
_LISTEN = "0A"  # state of a TCP socket, include/net/tcp_states.h
_ACCEPTS = "00010000"  # flags of a Unix socket that listens, __SO_ACCEPTCON of linux/net.h


@dataclass(frozen=True)
class Address:
    """Where a process listens: host and port, or the path of a Unix socket, with "@" for a name without a file."""

    family: int
    host: str
    port: int = 0


def listening(pid: int) -> set[Address]:
    """All addresses at which a socket of the process listens, in whichever network namespace it is (as ``ss -l``)."""
    inodes = _sockets(pid)
    found: set[Address] = set()
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for values in _table(Path(f"/proc/{pid}/net/{name}")):
            if values[3] == _LISTEN and values[9] in inodes:
                host, port = values[1].split(":")
                found.add(Address(family, _host(host), int(port, 16)))
    for values in _table(Path(f"/proc/{pid}/net/unix")):
        if values[6] in inodes and values[3] == _ACCEPTS and len(values) > 7:
            found.add(Address(socket.AF_UNIX, values[7]))
    return found


def taken(pids: Iterable[int]) -> set[int]:
    """The ports at which others than the processes ``pids`` listen in this process's network."""
    own = set[str]().union(*map(_sockets, pids))
    lines = [values for name in ("tcp", "tcp6") for values in _table(Path(f"/proc/self/net/{name}"))]
    return {int(values[1].split(":")[1], 16) for values in lines if values[3] == _LISTEN and values[9] not in own}


def _sockets(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink())
    return {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}


def _table(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []


def _host(words: str) -> str:
    """An address as the kernel prints it: words of 32 bits, in the byte order of the machine."""
    parts = [bytes.fromhex(words[first : first + 8])[::-1] for first in range(0, len(words), 8)]
    return socket.inet_ntop(socket.AF_INET if len(parts) == 1 else socket.AF_INET6, b"".join(parts))


def as_nobody(attack: Callable[[], Iterable[str]]) -> list[str]:
    """What ``attack`` says in a process of another user; root alone can ask."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            end_with_parent()  # here: a change of the user undoes it
            said = "\n".join(attack())
        except BaseException as error:  # noqa: BLE001 - the parent is to hear of it
            said = f"failed: {error!r}"
        os.write(writing, said.encode()[:60_000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = said.read().splitlines()
    os.waitpid(child, 0)
    return lines


def reached(addresses: Iterable[Address]) -> list[str]:
    """Those of ``addresses`` that accept a connection of this process; ``0.0.0.0`` is tried by loopback."""
    return [f"{address.host} {address.port}" for address in addresses if _accepts(address)]


def _accepts(address: Address) -> bool:
    with socket.socket(address.family) as caller:
        caller.settimeout(5)
        if address.family == socket.AF_UNIX:
            return caller.connect_ex(address.host.replace("@", "\0", 1)) == 0
        return caller.connect_ex((address.host, address.port)) == 0


def joined(rank: str, url: str, num_members: int) -> list[str]:
    """What ``rank``, whose RPC agent listens at ``url``, says to a stranger that takes a place in generation 0.

    The stranger needs no key. A rank that carries out the stranger's function says its user.
    """
    names = tuple(f"member{number}" for number in range(num_members - 1))
    formation = Formation(generation=0, members=(rank, *names, "stranger"), takeovers={})
    options = ClusterConfig(rpc_timeout_s=ATTACK_S, join_timeout_s=ATTACK_S)
    addresses = dict.fromkeys(formation.members, url.encode())
    world = join("stranger", formation, meet=lambda _: addresses, options=options)
    assert world is not None
    try:
        return [f"{rank} runs code as user {rpc.rpc_sync(worker_name(rank, 0), os.getuid)}"]
    except RuntimeError as error:
        return [f"refused: {error}".splitlines()[0]]


def entered(pids: Iterable[int]) -> list[str]:
    """Those of the processes whose network namespace, or an open file, this process gets hold of."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: list[str] = []
    for pid in pids:
        with suppress(OSError):
            if libc.setns(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY), 0) == 0:
                found.append(f"the network of {pid}")
        with suppress(OSError):
            found.append(f"{len(os.listdir(f'/proc/{pid}/fd'))} files of {pid}")
    return found
