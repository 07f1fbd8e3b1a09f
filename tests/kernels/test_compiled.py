"""Laws of compiled loops that nothing else holds. N rows of a request, S slots, D embedding dim."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from harness.client.row_cache import RowCache
from harness.core.placement import Placement
from harness.core.shard import Shard, stepped
from harness.kernels import compiled


def test_a_step_is_the_same_bits_wherever_it_is_made() -> None:
    """A shard, a cache at the trainer and plain arithmetic in float32 give a row the same bits: two roundings each."""
    rng = torch.Generator().manual_seed(0)
    shard = Shard(Placement("row", (500,), 1), 0, 16, seed=0, count_updates=True)
    shard.initialise(applied_step=0)
    rows_N = torch.randperm(500, generator=rng)[:300]
    grads_ND = torch.randn((300, 16), generator=rng)
    before_ND = shard.gather(rows_N)
    cache = RowCache(16, max_rows=None)
    cache.reserve(400)
    slots_N = torch.randperm(400, generator=rng)[:300]
    cache.take_in(slots_N.numpy(), before_ND, None)
    assert torch.equal(cache.values(slots_N.numpy()), before_ND)
    cache.sgd_step(slots_N, grads_ND, 0.1)
    keys_N = np.arange(300) * 7
    ahead_HD = before_ND.numpy()[::3].copy()  # every third one is wanted again
    compiled.sgd_step_shared(ahead_HD, keys_N[::3].copy(), keys_N, before_ND.numpy(), grads_ND.numpy(), 0.1)
    assert shard.apply(1, rows_N, grads_ND, torch.ones(300, dtype=torch.int32), 0.1)
    expected = before_ND.numpy() - grads_ND.numpy() * np.float32(0.1)
    assert np.array_equal(shard.gather(rows_N).numpy(), expected)
    assert np.array_equal(cache.values(slots_N.numpy()).numpy(), expected)
    assert np.array_equal(ahead_HD, expected[::3])
    assert np.array_equal(stepped(before_ND, grads_ND, 0.1).numpy(), expected)


def test_sums_before_edges() -> None:
    """For every edge the counts of the keys below it; they may meet, and lie outside all keys."""
    keys_N = np.array([3, 4, 9, 20], dtype=np.int64)
    counts_N = np.array([1, 10, 100, 1000], dtype=np.int32)
    edges_E = np.array([0, 3, 4, 4, 10, 20, 21, 50], dtype=np.int64)
    expected = [int(counts_N[keys_N < edge].sum()) for edge in edges_E]
    assert compiled.sums_before(keys_N, counts_N, edges_E).tolist() == expected
    assert compiled.sums_before(keys_N[:0], counts_N[:0], edges_E).tolist() == [0] * len(edges_E)


def test_it_runs_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that cannot be written, without a home, Numba refuses to keep code; it is compiled all the same."""
    njit = numba.njit

    def refusing(**options: Any) -> Any:
        def refuse(function: Any) -> Any:
            if options.get("cache"):
                raise RuntimeError("cannot cache function 'twice': no locator available for file 'x.py'")
            return njit(**options)(function)

        return refuse

    monkeypatch.setattr(numba, "njit", refusing)
    twice = compiled.compiled_for(numba.int64(numba.int64))(lambda number: 2 * number)
    assert twice(21) == 42


def test_what_was_kept_knows_what_it_was_made_of(tmp_path: Path) -> None:
    """Compiled code is read again by another process, and is compiled anew once harness.kernels.native has changed."""
    package = tmp_path / "loops.py"
    package.write_text(
        "import sys, numba\n"
        "from harness import native\n"
        "if len(sys.argv) > 1: native.SOURCE_STAMP = sys.argv[1], 0\n"
        "from harness.kernels.compiled import compiled_for\n"
        "@compiled_for(numba.int64(numba.int64))\n"
        "def twice(number): return 2 * number\n"
        "print(twice(21), sum(twice.stats.cache_hits.values()))\n"
    )

    def run(*arguments: str) -> str:
        command = [sys.executable, str(package), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout.strip()

    assert [run(), run(), run("changed"), run("changed")] == ["42 0", "42 1", "42 0", "42 1"]
