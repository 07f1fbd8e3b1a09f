"""Compiled loops against plain twins, where no other test does so. N rows of a request, S slots, D embedding dim."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from harness.core.seeds import words
from harness.kernels import compiler, row_loops, sorted_keys
from harness.kernels.initial_rows import draw_rows
from tests import started
from tests.forked import import_from, ran, said_by


def test_sums_before_edges() -> None:
    """For every edge the counts of the keys below it; they may meet, and lie outside all keys."""
    keys_N = np.array([3, 4, 9, 20], dtype=np.int64)
    counts_N = np.array([1, 10, 100, 1000], dtype=np.int32)
    edges_E = np.array([0, 3, 4, 4, 10, 20, 21, 50], dtype=np.int64)
    expected = [int(counts_N[keys_N < edge].sum()) for edge in edges_E]
    assert sorted_keys.sums_before(keys_N, counts_N, edges_E).tolist() == expected
    assert sorted_keys.sums_before(keys_N[:0], counts_N[:0], edges_E).tolist() == [0] * len(edges_E)


def test_sorted_keys_are_joined_as_by_numpy() -> None:
    """``places`` is np.searchsorted; ``merge`` is np.unique with the counts of equal keys added up."""
    rng = np.random.default_rng(0)
    held_H, keys_N = np.unique(rng.integers(0, 300, 100)), np.unique(rng.integers(0, 300, 60))
    assert np.array_equal(sorted_keys.places(held_H, keys_N), np.searchsorted(held_H, keys_N))
    keys_A, counts_A = rng.integers(0, 50, 200), rng.integers(1, 9, 200).astype(np.int32)
    words_A = np.sort(keys_A << 8 | np.arange(200))
    expected_U, firsts_U, inverse_A = np.unique(keys_A, return_index=True, return_inverse=True)
    merged = sorted_keys.merge(words_A, 8, counts_A)
    sums_U = np.bincount(inverse_A, weights=counts_A)
    for actual, expected in zip(merged, (expected_U, sums_U, inverse_A, firsts_U), strict=True):
        assert np.array_equal(actual, expected)


def test_rows_move_as_by_torch() -> None:
    """``take_rows`` is index_select, ``put_rows`` is index_copy_, also of more rows than are prefetched at once."""
    rows_SD, slots_K = torch.randn(100, 20), torch.randperm(100)[:70]
    taken_KD = row_loops.take_rows(rows_SD.numpy(), slots_K.numpy())
    assert torch.equal(torch.from_numpy(taken_KD), rows_SD.index_select(0, slots_K))
    copied_SD = torch.zeros(100, 20)
    row_loops.put_rows(copied_SD.numpy(), slots_K.numpy(), taken_KD)
    assert torch.equal(copied_SD, torch.zeros(100, 20).index_copy_(0, slots_K, torch.from_numpy(taken_KD)))


def test_initial_rows_are_those_of_their_stream() -> None:
    """A value is 24 random bits of the table's key, at the number row * D + column, scaled; other columns stay."""
    key, first, stride, dim, bound = 2**64 - 3, 5, 8, 6, 0.3
    rows_KX = np.full((1_000, dim + 1), np.nan, np.float32)
    draw_rows(key, first, stride, bound, dim, rows_KX)
    numbers_KD = (np.arange(1_000, dtype=np.uint64) * stride + first)[:, None] * dim + np.arange(dim, dtype=np.uint64)
    units_KD = (words(key, numbers_KD) >> 40).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    assert np.array_equal(rows_KX[:, :dim], units_KD * np.float32(bound))
    assert np.isnan(rows_KX[:, dim]).all()


def test_only_the_dense_network_loads_the_products() -> None:
    """Importing what PS ranks, caches and data need compiles no matrix product."""
    script = (
        "import sys, harness.client.clients, harness.cluster.server, harness.core.shard, harness.data.dataset\n"
        "assert 'harness.kernels.row_loops' in sys.modules and 'harness.kernels.products' not in sys.modules"
    )
    done = ran(started.fresh_program, script)
    assert done.returncode == 0, done.stderr


def test_it_compiles_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache folder a function is compiled in memory."""
    monkeypatch.setattr(compiler, "CACHE_FOLDER", None)
    twice = compiler.compiled_for(numba.int64(numba.int64))(lambda number: 2 * number)
    assert twice(21) == 42


def test_a_mistake_in_a_function_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the compiler is not taken for a damaged cache."""
    monkeypatch.setattr(compiler, "CACHE_FOLDER", tmp_path / "kernels")
    with pytest.raises(numba.TypingError):
        compiler.compiled_for(numba.int64(numba.int64))(lambda number: number.missing)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A copy of the compiler in a folder of kernels with one loop, which calls a function of another file."""
    folder = tmp_path / "copied"
    folder.mkdir()
    (folder / "__init__.py").write_text("from numba.core import config\nconfig.CACHE_DIR = ''\n")
    shutil.copy(compiler.__file__, folder)
    (folder / "inner.py").write_text("import numba\n@numba.njit\ndef factor(): return 2\n")
    (folder / "loops.py").write_text(
        "import numba\n"
        "from copied.compiler import compiled_for\n"
        "from copied.inner import factor\n"
        "@compiled_for(numba.int64(numba.int64))\n"
        "def scaled(number): return factor() * number\n"
        "print(scaled(21), sum(scaled.stats.cache_hits.values()))\n"
    )
    return folder


def run_loops(kernels: Path) -> str:
    """The loop's result, and how many functions came from the cache, in a new process."""
    return said_by(import_from, kernels.parent, "copied.loops").strip()


def test_a_change_in_any_file_compiles_anew(kernels: Path) -> None:
    """Machine code is read by the next process, and compiled anew when a file changes that the loop's file imports."""
    assert [run_loops(kernels), run_loops(kernels)] == ["42 0", "42 1"]
    # Of another length: Python takes a file of equal length and second for the one that it has bytecode of.
    (kernels / "inner.py").write_text("import numba\n@numba.njit\ndef factor(): return 30\n")
    assert [run_loops(kernels), run_loops(kernels)] == ["630 0", "630 1"]
    assert len(list((kernels / "__pycache__").glob("kernels-*"))) == 1, "machine code of older sources is removed"


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """With another bit in the middle, which Numba would load."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(("damage", "suffix"), [(cut, "nbi"), (flipped, "nbc"), (lambda c: bytes(len(c)), "nbc")])
def test_a_damaged_cache_file_is_made_anew(kernels: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    """A cached file that was cut short, zeroed or changed by a bit is not run: it is removed, and compiled again."""
    run_loops(kernels)
    (file,) = (kernels / "__pycache__").rglob(f"*.{suffix}")
    file.write_bytes(damage(file.read_bytes()))
    assert [run_loops(kernels), run_loops(kernels)] == ["42 0", "42 1"]


def test_machine_code_of_another_function_is_made_anew(kernels: Path) -> None:
    """A cached file that was replaced by another one, digest and all, is not run."""
    run_loops(kernels)
    loops = kernels / "loops.py"
    other = loops.read_text().replace("scaled(number): return", "negated(number): return -")
    loops.write_text(f"{loops.read_text()}{other.replace('scaled', 'negated')}")
    assert run_loops(kernels) == "42 0\n-42 0"
    files = sorted((kernels / "__pycache__").rglob("*.nbc"))
    shutil.copy(files[0], files[1])
    shutil.copy(f"{files[0]}.digest", f"{files[1]}.digest")
    assert [run_loops(kernels), run_loops(kernels)] == ["42 0\n-42 0", "42 1\n-42 1"]


def test_a_torn_cache_file_without_a_digest_is_made_anew(kernels: Path) -> None:
    """As of a process that ended between the two: loading fails, and all are compiled again."""
    run_loops(kernels)
    for seal in (kernels / "__pycache__").rglob("*.digest"):
        seal.unlink()
    (file,) = (kernels / "__pycache__").rglob("*.nbi")
    file.write_bytes(cut(file.read_bytes()))
    assert [run_loops(kernels), run_loops(kernels), run_loops(kernels)] == ["42 0", "42 0", "42 1"]
