"""The rendezvous of a generation of the RPC world: keys that its members publish and wait for."""

from collections import defaultdict
from collections.abc import Callable

from harness.core.plans import Rank


class Rendezvous:
    """The keys of the present generation and of later ones, and the ranks that wait for a key.

    Args:
        send: sends a message to a rank.
    """

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self.generation = 0
        self._keys: dict[int, dict[str, bytes]] = defaultdict(dict)  # by generation
        self._waiting: list[tuple[Rank, int, str]] = []  # unanswered ``get``: rank, generation, key
        self._present: set[Rank] = set()  # ranks that have published their address in the present generation
        self._broken = -1  # the newest generation in which a rank died before it was complete

    @property
    def is_awaited(self) -> bool:
        """Whether a rank waits for a key: the generation is being formed."""
        return bool(self._waiting)

    def begin(self, generation: int) -> None:
        """Begin ``generation``; what is asked about earlier ones is void."""
        self.generation = generation
        self._keys = defaultdict(dict, {generation: self._keys[generation]})
        self._waiting = [entry for entry in self._waiting if entry[1] >= generation]
        self._present = set()

    def abandon(self) -> None:
        """Tell everyone that waits, now or later, that the present generation will not be complete."""
        self._broken = self.generation
        self._answer_waiting()

    def is_mute(self, rank: Rank) -> bool:
        """Whether the others of the present generation wait for ``rank``, and it waits for none of them.

        A rank publishes its name, reads the names of all, publishes its address, and reads the addresses of all. While
        no key is published that others wait for, there is such a rank.
        """
        return rank not in self._present and all(rank != waiting for waiting, _, _ in self._waiting)

    def handle(self, rank: Rank, kind: str, generation: int, key: str, *values: bytes) -> None:
        """Handle a message ``set``, ``get`` or ``compare_set``."""
        keys = self._keys[generation]
        if kind == "get":
            self._waiting.append((rank, generation, key))
        elif kind == "set":
            keys[key] = values[0]
            if generation == self.generation and key.startswith("addrs/"):  # the last key that an agent publishes
                self._present.add(rank)
        else:
            expected, desired = values
            if keys.get(key, b"") == expected:
                keys[key] = desired
            self._send(rank, "value", generation, keys.get(key, expected))
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer every ``get`` that can be answered."""
        self._waiting = [entry for entry in self._waiting if not self._answer_get(*entry)]

    def _answer_get(self, rank: Rank, generation: int, key: str) -> bool:
        if generation != self.generation or generation == self._broken:
            self._send(rank, "broken", generation)
        elif key in self._keys[generation]:
            self._send(rank, "value", generation, self._keys[generation][key])
        else:
            return False
        return True
