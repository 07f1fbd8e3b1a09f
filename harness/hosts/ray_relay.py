"""The program that starts agents by Ray: ``ray_relay.py``, a process of the supervisor, and the only one with ray.

It connects to a running Ray and puts an actor on each node, which starts the agent there as a fresh interpreter, hands
its settings over, and passes on what it prints. Nothing else goes by Ray: the agent connects to the supervisor itself.

Lines of JSON, to the program and from it:

    {"address", "hosts"}               first; without hosts all living nodes
    {"nodes": [...]} or {"error"}      their addresses, in order
    {"host", "command", "settings"}    start an agent; the settings are its line of standard input, with a key
    {"host", "line"}                   it printed that
    {"host", "ended"}                  its exit code; null if Ray lost the actor
    {"host", "error"}                  it was not started

The key of the run does not go by Ray in the clear: each actor and this program agree on a secret (Diffie and Hellman,
RFC 3526, group 14), which covers the key. Who can change messages of Ray can run code on its nodes anyway.

An agent ends with its actor and with the node's raylet; actors end with this program, and it with the supervisor.
"""

# ruff: noqa: PLC0415 - the class of the actor travels by value, and ray is optional

import hashlib
import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

_PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B"
    "302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE6"
    "49286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D"
    "670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718"
    "3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
_TICK_S = 0.05
_READY_S = 60.0  # within which Ray answers, and an actor is on its node
_LISTENS_S = 5.0  # within which something accepts a connection


class Exchange:
    """One side of an agreement on a secret; to be used once."""

    def __init__(self) -> None:
        self._exponent = secrets.randbits(256) | 1
        self.public = pow(2, self._exponent, _PRIME)

    def cover(self, key: bytes, public: int) -> bytes:
        """``key``, of 32 bytes, hidden by the secret that is shared with the other side; the inverse of itself."""
        if not 1 < public < _PRIME - 1 or len(key) != 32:
            raise ValueError("not a part of an exchange")
        shared = pow(public, self._exponent, _PRIME).to_bytes(256)
        pad = hashlib.blake2b(shared, digest_size=32, person=b"cpr-harness").digest()
        return bytes(one ^ other for one, other in zip(key, pad, strict=True))


class Node:
    """The actor of a node: it starts one agent."""

    def __init__(self) -> None:
        self._exchange = Exchange()
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def public(self) -> int:
        """This side's part of the exchange."""
        return self._exchange.public

    def start(self, command: list[str], settings: dict[str, Any], covered: bytes, public: int) -> None:
        """Start the agent, with the key and with the processes that it must not outlive."""
        owners = [os.getpid(), os.getppid()]  # the latter is the raylet
        settings = {**settings, "authkey": self._exchange.cover(covered, public).hex(), "owners": owners}
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}  # it is Ray's
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(settings).encode() + b"\n")

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put({"line": line.decode(errors="replace").rstrip()})
        self._said.put({"ended": process.wait()})

    def hear(self) -> dict[str, Any]:
        """The next line that the agent printed, or its exit code."""
        return self._said.get()


class Relay:
    """Nodes of a Ray that runs, and the actors on them."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        self._actors: dict[str, Any] = {}
        self._heard: dict[Any, str] = {}  # host of each call of ``hear`` that has not returned

    def choose(self, hosts: list[str]) -> list[str]:
        """``hosts``, or all living nodes in order of their addresses. Raises LookupError for one that is no node."""
        nodes = sorted(self._nodes, key=lambda address: [part.zfill(5) for part in address.split(".")])
        if unknown := [host for host in hosts if host not in self._nodes]:
            raise LookupError(
                f"cluster.hosts: expected addresses of living Ray nodes ({', '.join(nodes)}), got {', '.join(unknown)}"
            )
        return hosts or nodes

    def start(self, host: str, command: list[str], settings: dict[str, Any]) -> None:
        """Start the agent of a node."""
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            NodeAffinitySchedulingStrategy,
        )

        where = NodeAffinitySchedulingStrategy(node_id=self._nodes[host], soft=False)
        actor = self._ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=where)(Node).remote()
        public = self._ray.get(actor.public.remote(), timeout=_READY_S)
        ours = Exchange()
        covered = ours.cover(bytes.fromhex(settings.pop("authkey")), public)
        self._ray.get(actor.start.remote(command, settings, covered, ours.public), timeout=_READY_S)
        self._actors[host] = actor  # a handle that is dropped ends its actor
        self._heard[actor.hear.remote()] = host

    def hear(self, timeout_s: float) -> list[dict[str, Any]]:
        """What agents said within ``timeout_s``."""
        if not self._heard:
            return []
        ready, _ = self._ray.wait([*self._heard], timeout=timeout_s)
        return [self._hear(call) for call in ready]

    def _hear(self, call: Any) -> dict[str, Any]:
        host = self._heard.pop(call)
        try:
            said = self._ray.get(call)
        except self._ray.exceptions.RayError:
            said = {"ended": None}
        if "ended" in said:
            del self._actors[host]
        else:
            self._heard[self._actors[host].hear.remote()] = host
        return {"host": host, **said}


_out = 1  # file descriptor of what the supervisor reads


def _say(message: dict[str, Any]) -> None:
    os.write(_out, json.dumps(message).encode() + b"\n")


def _give_up(words: str) -> None:
    _say({"error": f"cluster.ray_address: {words}"})
    os._exit(1)


def connect(address: str, namespace: str | None, give_up: Callable[[str], None]) -> Any:
    """The module ray, connected to the Ray at an address; Ray itself tries one where nothing listens for minutes.

    ``give_up`` is called with the reason, in another thread, if there is no answer; it ends the process.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_LISTENS_S).close()
    timer = threading.Timer(_READY_S, give_up, (f"no Ray at {address} answered within {_READY_S:g} s",))
    timer.daemon = True
    timer.start()
    try:
        import ray  # pyright: ignore[reportMissingImports]

        ray.init(address=address, log_to_driver=False, logging_level="error", namespace=namespace)
    finally:
        timer.cancel()
    return ray


def _listen(orders: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)  # the supervisor has ended, or needs this program no more; Ray ends the actors


def _start(relay: Relay, order: dict[str, Any]) -> None:
    try:
        relay.start(order["host"], order["command"], order["settings"])
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is one line to the user
        _say({"host": order["host"], "error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve the supervisor until it closes the standard input."""
    global _out  # noqa: PLW0603 - Ray prints to the standard output
    _out = os.dup(1)
    os.dup2(2, 1)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    first = orders.get()
    try:
        relay = Relay(connect(first["address"], None, _give_up))
        _say({"nodes": relay.choose(first["hosts"])})
    except LookupError as error:
        _say({"error": str(error)})
        return
    except Exception as error:  # noqa: BLE001 - as above
        _say({"error": f"cluster.ray_address: no Ray at {first['address']}: {error}"})
        return
    num_ordered = 0
    while True:
        try:
            order = orders.get(timeout=_TICK_S if num_ordered else None)
        except queue.Empty:
            order = None
        if order is not None:
            threading.Thread(target=_start, args=(relay, order), daemon=True).start()
            num_ordered += 1
        for message in relay.hear(_TICK_S):
            _say(message)


if __name__ == "__main__":
    main()
