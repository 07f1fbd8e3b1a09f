"""A generation of the RPC world: members, addresses, joining, leaving. The one place with private names of torch 2.13.

A broken world is never repaired. Every survivor leaves it and joins a new one, together with the replacements, under
the next generation's number. Found by trying (torch 2.13.0):

- A replacement cannot rejoin under a dead name: worker names carry the generation.
- ``init_rpc`` prefixes its store with a private per-process counter, which a replacement lacks, and runs gloo, an
  all-gather and a barrier. Building the ``TensorPipeAgent`` directly needs none of it: it publishes its address,
  reads the others', and is up; 65 ms for a world of 9 instead of 160.
- ``TCPStore`` resolves the name of every peer (``getnameinfo``), which asks the network's name server for
  ``::ffff:127.0.0.1`` and stalls for 5 s whenever that does not answer. The agent needs three methods of a store, so it
  gets a store over the control channel, and a run needs no name server.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch._C._distributed_autograd import _init as init_autograd
from torch._C._distributed_c10d import Store
from torch._C._distributed_rpc import TensorPipeAgent, _is_current_rpc_agent_set
from torch.distributed import rpc
from torch.distributed.rpc import api

from harness.config.model import ClusterConfig
from harness.core.errors import HarnessError
from harness.core.plans import Rank


@dataclass(frozen=True, kw_only=True)
class Formation:
    """The number and members of one generation of the RPC world; can be pickled.

    Attributes:
        members: PS ranks, then trainers, then spares. The index of a member is its worker id in torch's RPC.
        takeovers: for each PS rank that died after the generation was formed and that a spare replaced, the spare.
        hosted: for each PS rank that is no member, the member that serves it.
        moves: for each member that is to take over its own shard, the member that has served it.
    """

    generation: int
    members: tuple[Rank, ...]
    takeovers: Mapping[Rank, Rank]
    hosted: Mapping[Rank, Rank] = field(default_factory=dict)
    moves: Mapping[Rank, Rank] = field(default_factory=dict)

    def served_by(self, member: Rank) -> tuple[Rank, ...]:
        """The ranks that ``member`` serves, or has served and is to hand over."""
        others = {**self.hosted, **self.moves}
        return (member, *(rank for rank, host in others.items() if host == member))


class Rendezvous:
    """Collects the addresses of all members of a generation, then sends all of them to every member.

    A world of N members takes N messages each way, where asking for each other's name and address takes 4 N² (LOG,
    2026-11-23).

    Args:
        send: sends a message to a rank.
    """

    def __init__(self, formation: Formation, send: Callable[..., None]) -> None:
        self._formation = formation
        self._send = send
        self._addresses: dict[Rank, bytes] = {}
        self._is_broken = False  # a rank died before the generation was complete

    @property
    def missing(self) -> list[Rank]:
        return [member for member in self._formation.members if member not in self._addresses]

    @property
    def is_complete(self) -> bool:
        """Whether the generation is formed: all members have published their addresses, and it was not abandoned."""
        return not self._is_broken and not self.missing

    def publish(self, rank: Rank, generation: int, address: bytes) -> None:
        """Store the address of ``rank``'s RPC agent. After the last member's, send all addresses to every member.

        If ``generation`` is a past one, or was abandoned, send "broken" to ``rank`` instead.
        """
        is_past = generation != self._formation.generation
        if not is_past:
            self._addresses[rank] = address
        if is_past or self._is_broken:
            self._send(rank, "broken", generation)
        elif self.is_complete:
            self._answer("addresses", generation, self._addresses)

    def abandon(self) -> None:
        """Give the generation up. Members that have published their address, and those that do later, get "broken"."""
        if not self._is_broken:
            self._is_broken = True
            self._answer("broken", self._formation.generation)

    def _answer(self, *message: object) -> None:
        for rank in self._addresses:
            self._send(rank, *message)


Meet = Callable[[bytes], Mapping[Rank, bytes]]
"""Publishes the address of this process's RPC agent; waits for the addresses of all members. Raises WorldBroken."""


class WorldBroken(HarnessError):
    """A generation could not be formed, usually because a rank died. Its members join the next one."""


_NAME, _ADDRESS = "names/", "addrs/"  # of keys: names/INDEX is a worker's name, addrs/NAME its address


class ControlStore(Store):
    """The store methods that a TensorPipeAgent calls, for one generation.

    An agent asks for the names and addresses of members. The names are known from the formation. ``meet`` publishes
    this member's own address and returns all addresses.
    """

    def __init__(self, formation: Formation, meet: Meet) -> None:
        super().__init__()
        self._workers = {member: worker_name(member, formation.generation) for member in formation.members}
        self._known = {f"{_NAME}{index}": name.encode() for index, name in enumerate(self._workers.values())}
        self._meet = meet

    def set(self, key: str, value: bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep this member's address for ``meet``; a no-op for any other key."""
        if key.startswith(_ADDRESS):
            self._own = value

    def get(self, key: str) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The value of ``key``. The first request for an address waits until all are known, or raises WorldBroken."""
        if key not in self._known:
            assert key.startswith(_ADDRESS), key
            met = self._meet(self._own)
            self._known |= {f"{_ADDRESS}{self._workers[member]}": address for member, address in met.items()}
        return self._known[key]

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return ``desired`` without a comparison: all members set the same value of ``rpcIsStaticGroup``."""
        return desired


def worker_name(rank: str, generation: int) -> str:
    return f"{rank}:{generation}"


def join(rank: Rank, formation: Formation, *, meet: Meet, options: ClusterConfig) -> Any:
    """Join the world of a generation as ``rank``; returns when the addresses of all members are known.

    The result must be kept alive until :func:`leave`. Sets the environment variable TP_SOCKET_IFNAME to
    ``options.interface``, if there is one. Raises WorldBroken.
    """
    if options.interface:
        os.environ["TP_SOCKET_IFNAME"] = options.interface
    store, index = ControlStore(formation, meet), formation.members.index(rank)
    backend = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=options.num_worker_threads,
        rpc_timeout=options.rpc_timeout_s,
        init_method="unused://",
        _transports=list(options.transports),
        # The others want another handshake for each tensor; a step's message of 2,300 rows to 2 ranks and back takes
        # 1.39 ms with this one, 1.56 with cma, 3.99 with mpt_uv (LOG, 2026-11-21).
        _channels=["basic"],
    )
    init_autograd(0)  # requests need it; the number names contexts of distributed autograd, which is not used
    worker = worker_name(rank, formation.generation)
    try:
        # The last two: no device maps, no devices.
        agent = TensorPipeAgent(store, worker, index, len(formation.members), backend, {}, [])
    except RuntimeError as error:
        raise WorldBroken(f"generation {formation.generation} of the RPC world could not be formed: {error}") from error
    api._init_rpc_states(agent)
    return store


def leave() -> None:
    """Leave the current world at once, without a message to its other ranks; a no-op outside of one."""
    if _is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)
