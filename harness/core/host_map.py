"""The mapping of ranks to hosts: which host each rank is on, and where the ranks of a lost host move.

Both engines ask this module which ranks die with a host. A host is named by its index in ``cluster.hosts``.
"""

from collections import Counter
from collections.abc import Mapping

from harness.core.plans import Rank, all_ranks


class HostMap(dict[Rank, int]):
    """The host of each rank. A rank that dies alone is replaced on its own host; ranks of a lost host move.

    The first host of each rank, PS ranks before trainers, is the host in ``place``, or else the host with the fewest
    ranks so far (ties to the lower index).

    Args:
        num_hosts: with 0, no rank has a host.
        place: host by rank.
        num_trainers: trainer ranks.

    Attributes:
        left: hosts that are not lost, ascending.
        lost: hosts that were lost, in order.
    """

    def __init__(self, num_ps: int, num_hosts: int, place: Mapping[Rank, int], num_trainers: int = 1) -> None:
        super().__init__()
        self.left = [*range(num_hosts)]
        self.lost: list[int] = []
        for rank in all_ranks(num_ps, num_trainers) if num_hosts else ():
            self[rank] = place[rank] if rank in place else self._emptiest()

    def on(self, host: int) -> tuple[Rank, ...]:
        """The ranks on a host: PS ranks by number, then trainers."""
        return tuple(rank for rank, its_host in self.items() if its_host == host)

    def lose(self, host: int) -> None:
        """Mark ``host`` as lost, and move each of its ranks, in order, to the host with the fewest ranks.

        A no-op for a host lost before. The ranks of the last host stay on it.
        """
        if host not in self.left:
            return
        self.left.remove(host)
        self.lost.append(host)
        for rank in self.on(host) if self.left else ():
            self[rank] = self._emptiest()

    def _emptiest(self) -> int:
        num = Counter(self.values())
        return min(self.left, key=lambda host: (num[host], host))


def host_name(index: int) -> str:
    """Name of host number ``index`` in a trace."""
    return f"host{index}"
