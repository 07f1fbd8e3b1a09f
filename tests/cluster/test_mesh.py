"""Laws of the sockets between trainers; what happens when one dies is in ``tests/run/test_trainers.py``."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from harness.cluster.mesh import ExchangeOutcome, Mesh
from harness.core.errors import RunFailed


class Silence:
    """A control channel on which nothing comes."""

    is_waiting = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.dead = dict[int, str]()

    def fileno(self) -> int:
        return self._fd

    def hear(self) -> None:
        pass

    def ask_outcome(self, num_calls: int, values: Mapping[int, bytes]) -> ExchangeOutcome | None:
        pass


Start = Callable[[Callable[[Mesh], Any]], list[Callable[[], Any]]]


@contextmanager
def meshes(size: int) -> Iterator[Start]:
    """Trainers of this process, connected; the result starts a call by each and returns what waits for its result."""
    never, end = os.pipe()
    how: dict[str, Any] = {"host": "127.0.0.1", "authkey": b"k" * 32, "timeout_s": 20, "notices": Silence(never)}
    made = [Mesh(index, size, **how) for index in range(size)]
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
