"""A slow wire on one machine: two network namespaces, joined by a pair of virtual interfaces of limited rate.

Both namespaces are nameless: they, the wire and its limits end with the last process in them, however that ends, so
there is nothing to clean up. This process lives in one of them; another one, which ends with it, holds the other open.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

INTERFACE = "wire0"
"""Name of both ends, each in its own namespace."""
NEAR, FAR = "10.77.0.1", "10.77.0.2"

_CLONE_NEWNET = 0x40000000
_INSIDE = "--inside"
_QUIET_S = 0.05


class NoWire(Exception):
    """This machine or user cannot have one; says why."""


def go_inside() -> None:
    """Start this program anew in a network namespace of its own; returns in there.

    As root, or as the root of a user namespace. Raises NoWire.
    """
    if _INSIDE in sys.argv:
        sys.argv.remove(_INSIDE)
        return
    for tool in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(tool) is None:
            raise NoWire(f"no {tool} on this machine (util-linux, iproute2)")
    command = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
    _run([*command, "true"])
    os.execvp(command[0], [*command, sys.executable, *sys.argv, _INSIDE])


def enter(pid: int) -> None:
    """Move this thread, and those it will start, into the network namespace of process ``pid``."""
    libc = ctypes.CDLL(None, use_errno=True)  # Python has os.setns from 3.12 on
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
    finally:
        os.close(namespace)


@dataclass(frozen=True)
class Counted:
    """Bytes of whole frames that the kernel has sent from the near end, and received there."""

    sent: int
    received: int

    def __sub__(self, before: "Counted") -> "Counted":
        return Counted(self.sent - before.sent, self.received - before.received)


class Wire:
    """The wire, from within the namespace of its near end. ``far_pid`` is a process in the other one."""

    def __init__(self, rate_mbit: float) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)  # until our end closes
        self.far_pid = self._holder.pid
        try:
            self._await_holder()
            self._lay(rate_mbit)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_holder(self) -> None:
        """Until the holder has left this namespace."""
        ours = os.readlink("/proc/self/ns/net")
        until_s = time.monotonic() + 10
        while os.readlink(f"/proc/{self.far_pid}/ns/net") == ours:
            if self._holder.poll() is not None or time.monotonic() > until_s:
                raise NoWire("unshare --net made no namespace")
            time.sleep(0.01)

    def _lay(self, rate_mbit: float) -> None:
        _run(["ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", str(self.far_pid)])
        limit = ["rate", f"{rate_mbit}mbit", "burst", "64kb", "latency", "400ms"]
        for address, inside in ((NEAR, []), (FAR, ["nsenter", "--target", str(self.far_pid), "--net"])):
            _run([*inside, "ip", "link", "set", "lo", "up"])
            _run([*inside, "ip", "address", "add", f"{address}/24", "dev", INTERFACE])
            _run([*inside, "ip", "link", "set", INTERFACE, "up"])
            _run([*inside, "tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", *limit])

    def counted(self) -> Counted:
        """So far."""
        (link,) = json.loads(_run(["ip", "-json", "-statistics", "link", "show", INTERFACE]))
        stats = link["stats64"]
        return Counted(stats["tx"]["bytes"], stats["rx"]["bytes"])

    def finish_pending_save(self) -> Counted:
        """Wait until nothing passes any more; what was counted then."""
        before, now = None, self.counted()
        while before != now:
            time.sleep(_QUIET_S)
            before, now = now, self.counted()
        return now

    def close(self) -> None:
        """Let go of the far namespace; it ends when no process is left in it."""
        self._holder.kill()
        self._holder.communicate()


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoWire(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout
