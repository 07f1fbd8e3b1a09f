"""Laws of the sockets between trainers; what happens when one dies is in ``tests/run/test_trainers.py``."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from harness.cluster.mesh import Mesh
from harness.config.model import ClusterConfig
from harness.core.errors import RunFailed

Start = Callable[[Callable[[Mesh], Any]], list[Callable[[], Any]]]


@contextmanager
def meshes(size: int) -> Iterator[Start]:
    """Trainers of this process, connected; the result starts a call by each and returns what waits for its result."""
    never, end = os.pipe()  # on the control channel nothing comes
    link = Mock(dead={}, **{"fileno.return_value": never, "own_address.return_value": "127.0.0.1"})
    link.rank_context = Mock(authkey=b"k" * 32, options=ClusterConfig(num_trainers=size, join_timeout_s=20))
    made = [Mesh(index, link) for index in range(size)]
    addresses = {mesh.index: mesh.address for mesh in made}
    with ThreadPoolExecutor(size) as threads:

        def start(call: Callable[[Mesh], Any]) -> list[Callable[[], Any]]:
            return [threads.submit(call, mesh).result for mesh in made]

        for met in start(lambda mesh: mesh.meet(addresses)):
            met()
        yield start
    for mesh in made:
        mesh.close()
    os.close(never)
    os.close(end)


@pytest.mark.parametrize("size", [2, 5])
def test_all_have_the_values_of_all(size: int) -> None:
    """Values of any size, of tensors with no rows to those that no socket buffer holds, many times."""

    def value(index: int, round_number: int) -> Any:
        rows_ND = torch.arange(index * 10_000 * round_number, dtype=torch.float32).reshape(-1, 10)
        return {"rows": rows_ND, "words": [index, None, "ps0"], "column": rows_ND.t()[1:2]}

    with meshes(size) as start:
        for found in start(lambda mesh: [mesh.exchange("rows", value(mesh.index, number)) for number in range(4)]):
            for number, values in enumerate(found()):
                assert sorted(values) == [*range(size)]
                for index, got in values.items():
                    expected = value(index, number)
                    assert got["words"] == expected["words"]
                    assert all(torch.equal(got[name], expected[name]) for name in ("rows", "column"))


def test_who_makes_another_call_has_parted() -> None:
    """The error names both calls and both trainers."""
    with meshes(2) as start:
        one, other = start(lambda mesh: mesh.exchange(["samples", "replies"][mesh.index], 1))
        with pytest.raises(RunFailed, match=r"trainer1: call 1 \(replies\): expected call 1 \(samples\) of trainer0"):
            one()
        with pytest.raises(RunFailed, match="parted"):
            other()
