"""Hosts on this machine: a network, a PID and a mount namespace each, joined by a bridge. Supervisors import this file.

A process in each namespace holds it (``tests/hosts/warm_host.py``). All ends with these processes, and they end with
the one that started them. Nothing has a name outside, and addresses are used inside only: emulations do not meet.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from harness.config.model import Config
from harness.processes.spawn import fork_server
from tests.hosts import warm_host
from tests.runs import changed

SUPERVISOR = "10.0.0.1"
FRESH = "nsenter --target {host} --net --pid --mount {command}"
"""``cluster.start_agent`` with the command of a real host, which imports everything first."""
PATIENCE_S = 40.0
"""For a busy machine, less than that of who waits for a whole run."""


class NotAllowed(Exception):
    """This machine has no emulated hosts; the message says why."""


@dataclass(frozen=True)
class Emulation:
    """Process ids of the holders of the bridge's network, where the supervisor runs, and of the hosts.

    The name of a host is the process id of its holder. ``folder`` has the socket of each.
    """

    bridge: int
    hosts: tuple[str, ...]
    folder: Path

    def config(self, config: Config, **cluster: Any) -> Config:
        """``config`` with ranks on the hosts, and keys of ``cluster``."""
        given = {
            "hosts": self.hosts,
            "start_agent": f"{sys.executable} -I -S {warm_host.__file__} {self.folder}/{{host}} # {{command}}",
            "host": SUPERVISOR,
            "network": "open",
            "launcher": "hosts",
        }
        return changed(config, engine="rpc", **{f"cluster__{key}": value for key, value in (given | cluster).items()})

    def enter(self) -> None:
        """Make this thread, and those that it starts, the supervisor's."""
        warm_host.enter(self.bridge)

    def cut(self, host: str) -> None:
        """Take the cable of a host out."""
        _in_network(self.bridge, f"link set to{host} down")

    def mend(self, host: str) -> None:
        """Put it in again."""
        _in_network(self.bridge, f"link set to{host} up")


def address_of(hosts: Emulation, host: str) -> str:
    """Address of a host in the network of the bridge."""
    return f"10.0.0.{hosts.hosts.index(host) + 2}"


def give_own_folder(host: str, folder: Path) -> None:
    """Let the host have another folder at this path."""
    subprocess.run(["nsenter", "--target", host, "--mount", "mount", "-t", "tmpfs", "none", str(folder)], check=True)


def processes(host: str) -> dict[int, int]:
    """Processes of a host that run, its holder aside: their process id here, by that on the host."""
    found: dict[int, int] = {}
    namespace = os.readlink(f"/proc/{host}/ns/pid")
    for pid in (path.name for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != host):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
                if not status["State"].startswith("Z"):
                    found[int(status["NSpid"].split()[-1])] = int(pid)
    return found


def peers(holder: str) -> set[str]:
    """The addresses to which the network of a process has connections or sends datagrams, by IPv4 and IPv6."""
    found: set[str] = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        with suppress(FileNotFoundError):  # no IPv6 here
            for line in Path(f"/proc/{holder}/net/{kind}").read_text().splitlines()[1:]:
                number, _, port = line.split()[2].rpartition(":")
                if port != "0000":  # of a connection
                    words = [bytes.fromhex(number[i : i + 8])[::-1] for i in range(0, len(number), 8)]
                    address = ip_address(b"".join(words))
                    found.add(str(getattr(address, "ipv4_mapped", None) or address))
    return found


def signal_server(host: str, number: int) -> None:
    """Send a signal to the fork server of a host, which came first."""
    os.kill(min(processes(host).items())[1], number)


def await_end(hosts: tuple[str, ...]) -> None:
    """Wait until no process is left on the hosts."""
    await_that(lambda: not any(map(processes, hosts)), "no process is left")


def await_that(is_so: Callable[[], object], words: str) -> None:
    """Wait until ``is_so()``."""
    ends_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_s, f"expected within {PATIENCE_S:g} s: {words}"
        time.sleep(0.005)


@contextmanager
def emulated(num: int, folder: Path) -> Iterator[Emulation]:
    """So many hosts; gone at the end, with all that runs there. Raises NotAllowed."""
    for program in ("ip", "nsenter"):
        if shutil.which(program) is None:
            raise NotAllowed(f"no program {program}")
    holders: list[Any] = []
    try:
        bridge = _held(holders, warm_host.hold_bridge, f"{folder}/bridge")
        parents = [_held(holders, warm_host.hold_host, f"{folder}/{number}") for number in range(num)]
        hosts = [int(Path(f"/proc/{pid}/task/{pid}/children").read_text()) for pid in parents]
        _join(bridge, hosts)
        for number, host in enumerate(hosts):
            os.rename(f"{folder}/{number}", f"{folder}/{host}")
        yield Emulation(bridge, tuple(map(str, hosts)), folder)
    finally:
        for holder in holders:
            holder.kill()
            holder.join()


def _held(holders: list[Any], main: Callable[..., None], *arguments: Any) -> int:
    """Start a holder; its process id. Raises NotAllowed if it reports an error."""
    ours, theirs = Pipe(duplex=False)
    holder = fork_server().fork(main, theirs, *arguments)
    holders.append(holder)
    theirs.close()
    assert holder.pid is not None
    assert ours.poll(PATIENCE_S), "a holder is mute"
    if error := ours.recv():
        raise NotAllowed(error)
    return holder.pid


def _join(bridge: int, hosts: list[int]) -> None:
    """Connect the hosts to the bridge."""
    try:
        _in_network(bridge, "link set lo up", "link add bridge type bridge", f"addr add {SUPERVISOR}/24 dev bridge")
        for number, host in enumerate(hosts):
            _in_network(bridge, f"link add to{host} type veth peer name eth0 netns {host}")
            _in_network(bridge, f"link set to{host} master bridge", f"link set to{host} up")
            _in_network(host, "link set lo up", f"addr add 10.0.0.{number + 2}/24 dev eth0", "link set eth0 up")
        _in_network(bridge, "link set bridge up")
    except subprocess.CalledProcessError as error:
        raise NotAllowed(error.stderr.decode().strip()) from error


def _in_network(holder: int | str, *commands: str) -> None:
    lines = "\n".join(commands).encode()
    enter = ["nsenter", "--target", str(holder), "--net", "ip", "-batch", "-"]
    subprocess.run(enter, input=lines, check=True, capture_output=True)
