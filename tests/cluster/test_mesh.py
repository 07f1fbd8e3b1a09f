"""Laws of the sockets between trainers."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from harness.cluster.mesh import ExchangeOutcome, Mesh
from harness.core.errors import RunFailed

KEY = b"k" * 32


class Silence:
    """A control channel on which nothing comes."""

    is_waiting = False

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.dead = dict[int, str]()

    def fileno(self) -> int:
        """Never readable."""
        return self._fd

    def hear(self) -> None:
        """Nothing."""

    def ask_outcome(self, num_calls: int, values: Mapping[int, bytes]) -> ExchangeOutcome | None:
        """Nobody dies."""


@contextmanager
def meshes(size: int) -> Iterator[list[Mesh]]:
    """Trainers of this process, connected with each other."""
    never, end = os.pipe()
    made = [Mesh(k, size, host="127.0.0.1", authkey=KEY, timeout_s=20, notices=Silence(never)) for k in range(size)]
    addresses = {mesh.index: mesh.address for mesh in made}
    try:
        at_once(made, lambda mesh: mesh.meet(addresses))
        yield made
    finally:
        for mesh in made:
            mesh.close()
        os.close(never)
        os.close(end)


def at_once(made: list[Mesh], call: Callable[[Mesh], Any]) -> list[Any]:
    """What ``call`` returns for each, all at the same time."""
    with ThreadPoolExecutor(len(made)) as threads:
        return [job.result(60) for job in [threads.submit(call, mesh) for mesh in made]]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_have_the_values_of_all(size: int) -> None:
    """Values of any size, of tensors with no rows to those that no socket buffer holds, many times."""

    def value(index: int, round_number: int) -> Any:
        rows_ND = torch.arange(index * 10_000 * round_number, dtype=torch.float32).reshape(-1, 10)
        return {"rows": rows_ND, "words": [index, None, "ps0"], "column": rows_ND.t()[1:2]}

    def rounds(mesh: Mesh) -> list[dict[int, Any]]:
        return [mesh.exchange("rows", value(mesh.index, number)) for number in range(4)]

    with meshes(size) as made:
        for found in at_once(made, rounds):
            for number, values in enumerate(found):
                assert sorted(values) == [*range(size)]
                for index, got in values.items():
                    expected = value(index, number)
                    assert got["words"] == expected["words"]
                    assert all(torch.equal(got[name], expected[name]) for name in ("rows", "column"))


def test_who_makes_another_call_has_parted() -> None:
    """The error names both calls and both trainers."""
    with meshes(2) as (one, other), ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(one.exchange, "samples", 1), threads.submit(other.exchange, "replies", 2)]
        with pytest.raises(RunFailed, match=r"trainer1: call 1 \(replies\): expected call 1 \(samples\) of trainer0"):
            calls[0].result()
        with pytest.raises(RunFailed, match="parted"):
            calls[1].result()
