"""Laws of which host each rank is on."""

import pytest

from harness.core.host_map import HostMap
from harness.core.seeds import generator


def placed(hosts: HostMap) -> list[int]:
    """The host of each rank, the trainer last."""
    return [*hosts.values()]


@pytest.mark.parametrize(
    ("num_ps", "num_hosts", "place", "expected"),
    [
        (6, 3, {}, [0, 1, 2, 0, 1, 2, 0]),
        (2, 3, {}, [0, 1, 2]),
        (6, 3, {"trainer0": 2}, [0, 1, 2, 0, 1, 2, 2]),
        (4, 2, {"ps0": 1, "ps1": 1}, [1, 1, 0, 0, 0]),
        (3, 0, {}, []),
    ],
)
def test_ranks_are_placed_in_turn(num_ps: int, num_hosts: int, place: dict[str, int], expected: list[int]) -> None:
    """Law: on the host with the fewest so far, the first of equal ones; by hand where ``place`` says so."""
    assert placed(HostMap(num_ps, num_hosts, place)) == expected


def test_ranks_of_a_lost_host_move_to_the_emptiest_and_no_other_rank_moves() -> None:
    """Law: in rank order, whatever is lost; the last host keeps its ranks."""
    for number in range(100):
        rng = generator(5, "hosts", number)
        num_ps, num_hosts = int(rng.integers(1, 20)), int(rng.integers(2, 8))
        hosts = HostMap(num_ps, num_hosts, {f"ps{k}": int(rng.integers(num_hosts)) for k in range(0, num_ps, 3)})
        left = [*range(num_hosts)]
        for host in rng.permutation(num_hosts).tolist():
            expected = dict(hosts)
            left.remove(host)
            for rank in hosts.on(host) if left else ():
                del expected[rank]
                expected[rank] = min(left, key=[*expected.values()].count)
            for _ in range(2):  # a host that is lost twice is lost once
                hosts.lose(host)
            assert (hosts.left, dict(hosts)) == (left, expected)
