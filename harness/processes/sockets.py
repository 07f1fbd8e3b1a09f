"""TCP connections between hosts: the timeout of a silent connection, and the interface of an address."""

import fcntl
import os
import socket
import struct
from contextlib import suppress
from ctypes import addressof
from ctypes import c_char as ctypes_char
from pathlib import Path

LEASE_FRAC = 0.5
"""Of ``cluster.dead_after_s``: a host ends its ranks after so long without the supervisor; a connection is given up.

The supervisor starts replacements after the whole. Ranks of a host that is cut off have ended by then.
"""
_SIOCGIFCONF = 0x8912  # linux/sockios.h
_IFREQ = struct.Struct("16s2x2x4s16x")  # linux/if.h on 64-bit machines: name, family, port, IPv4 address
_MOST_INTERFACES = 256


def give_up_after(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end a connection whose peer has not answered for ``seconds``, idle or with data in flight.

    Set on a listening socket, it holds for every connection that the socket accepts later.
    """
    probe_s = max(1, int(seconds / 4))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * seconds))


def give_up_all_after(seconds: float) -> None:
    """:func:`give_up_after` for all TCP sockets of this process, since TensorPipe gives no access to its sockets."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as sock:
                    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
                        give_up_after(sock, seconds)


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has the IP address ``address``; None if there is none."""
    if ":" in address:
        return _interface_of_6(socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex())
    wanted, buffer = socket.inet_aton(address), bytearray(_MOST_INTERFACES * _IFREQ.size)
    memory = (ctypes_char * len(buffer)).from_buffer(buffer)
    request = struct.pack("iP", len(buffer), addressof(memory))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        (num_bytes,) = struct.unpack_from("i", fcntl.ioctl(any_socket, _SIOCGIFCONF, request))
    for name, found in _IFREQ.iter_unpack(buffer[:num_bytes]):
        if found == wanted:
            return name.rstrip(b"\0").decode().partition(":")[0]  # an alias is named eth0:1
    return None


def _interface_of_6(digits: str) -> str | None:
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.exists() else []
    return next((line.split()[5] for line in lines if line.startswith(digits)), None)
