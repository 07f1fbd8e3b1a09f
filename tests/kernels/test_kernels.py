"""Laws of compiled loops: machine code on disk, initial rows. D embedding dim."""

import os
import shutil
import tempfile
from pathlib import Path

import numba
import numpy as np
import pytest

from harness.core.seeds import words
from harness.kernels import compiler, parsing
from harness.kernels.click_records import gather
from harness.kernels.row_loops import draw_rows
from harness.kernels.sorted_keys import block_firsts, shared
from tests.forked import import_from, said_by


def test_initial_rows_are_those_of_their_stream() -> None:
    """A value is 24 random bits of the table's key, at the number row * D + column, scaled; other columns stay."""
    key, first, stride, dim, bound = 2**64 - 3, 5, 8, 6, 0.3
    rows_KX = np.full((1_000, dim + 1), np.nan, np.float32)
    draw_rows(key, first, stride, bound, dim, rows_KX)
    numbers_KD = (np.arange(1_000, dtype=np.uint64) * stride + first)[:, None] * dim + np.arange(dim, dtype=np.uint64)
    units_KD = (words(key, numbers_KD) >> 40).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)
    assert np.array_equal(rows_KX[:, :dim], units_KD * np.float32(bound))
    assert np.isnan(rows_KX[:, dim]).all()


def test_shared_keys_are_those_of_an_intersection() -> None:
    """Of lists with and without gaps, short and empty ones among them."""
    rng = np.random.default_rng(5)
    for _ in range(1_000):
        num_keys, fracs = int(rng.integers(0, 500)), rng.choice([0.0, 0.02, 0.5, 1.0], 2)
        keys_K, keys_N = (np.flatnonzero(rng.random(num_keys) < frac) * rng.choice([1, 1000]) for frac in fracs)
        ours, theirs = shared(keys_K, block_firsts(keys_K, 500_000), keys_N)
        both = np.intersect1d(keys_K, keys_N)
        assert np.array_equal(keys_K[ours], both)
        assert np.array_equal(keys_N[theirs], both)


def test_a_function_compiles_in_memory_and_its_mistakes_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder for a cache is needed, and an error of the compiler is not taken for a damaged cache."""
    signature = numba.int64(numba.int64)
    monkeypatch.setattr(compiler, "CACHE_FOLDER", None)
    assert compiler.compiled_for(signature)(lambda number: 2 * number)(21) == 42
    monkeypatch.setattr(compiler, "CACHE_FOLDER", tmp_path / "kernels")
    with pytest.raises(numba.TypingError):
        compiler.compiled_for(signature)(lambda number: number.missing)


def test_records_are_gathered_from_a_map_until_it_ends(tmp_path: Path) -> None:
    """Any number of records in any order; those before the first one that the file has no more are counted."""
    path, items_B = tmp_path / "records", np.random.default_rng(3).permutation(3_000)
    records_NC = np.arange(21_000, dtype=np.int32).reshape(3_000, 7)
    records_NC.tofile(path)
    map_N = np.memmap(path, mode="r")
    found_BC = np.zeros_like(records_NC)
    with tempfile.TemporaryFile() as scratch:
        for num_items in (0, 1, 1_024, 3_000):
            out_BC = found_BC[:num_items]
            assert gather(map_N.ctypes.data, scratch.fileno(), items_B[:num_items], out_BC) == num_items
            assert np.array_equal(out_BC, records_NC[items_B[:num_items]])
        os.truncate(path, 8_192)
        first_gone = int(np.argmax(items_B * 28 + 28 > 8_192))
        assert gather(map_N.ctypes.data, scratch.fileno(), items_B, found_BC) == first_gone
        assert gather(map_N.ctypes.data, scratch.fileno(), np.arange(3_000), found_BC) == 8_192 // 28


LOOP = """
@compiled_for(numba.int64(numba.int64))
def scaled(number): return factor() * number
print(scaled(21), sum(scaled.stats.cache_hits.values()))
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A copy of the compiler in a folder of kernels with one loop, which calls a function of another file."""
    folder = tmp_path / "copied"
    folder.mkdir()
    (folder / "__init__.py").write_text("from numba.core import config\nconfig.CACHE_DIR = ''\n")
    shutil.copy(compiler.__file__, folder)
    (folder / "inner.py").write_text("import numba\n@numba.njit\ndef factor(): return 2\n")
    imports = "import numba\nfrom copied.compiler import compiled_for\nfrom copied.inner import factor\n"
    (folder / "loops.py").write_text(imports + LOOP)
    return folder


def run_loops(kernels: Path, times: int = 2) -> list[str]:
    """The loop's result, and how many functions came from the cache, in new processes."""
    return [said_by(import_from, kernels.parent, "copied.loops").strip() for _ in range(times)]


@pytest.mark.slow
def test_machine_code_is_run_again_unless_it_was_cut_short(kernels: Path) -> None:
    """As by a loss of power: the file is removed, and compiled again."""
    assert run_loops(kernels) == ["42 0", "42 1"]
    for suffix in ("nbi", "nbc"):
        (file,) = (kernels / "__pycache__").rglob(f"*.{suffix}")
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        assert run_loops(kernels, 3) == ["42 0", "42 0", "42 1"]


def test_machine_code_is_that_of_its_sources(kernels: Path) -> None:
    """It is compiled anew when a file that the loop imports changes."""
    run_loops(kernels, 1)
    # Of another length: Python takes a file of equal length and second for the one that it has bytecode of.
    (kernels / "inner.py").write_text("import numba\n@numba.njit\ndef factor(): return 30\n")
    loops = kernels / "loops.py"
    loops.write_text(loops.read_text() + LOOP.replace("return ", "return -").replace("scaled", "negated"))
    assert run_loops(kernels, 1) == ["630 0\n-630 0"]
    assert len(list((kernels / "__pycache__").glob("kernels-*"))) == 1, "machine code of older sources is removed"


def test_a_hash_table_that_grows_goes_on_at_its_start() -> None:
    """Words whose place is the last slot, before and after, keep their ids."""
    found = [-k * pow(int(parsing._GOLDEN), -1, 2**64) % 2**64 for k in (1, 2, 3)]
    words, ids = np.array(found, np.uint64), np.zeros(3, np.int32)
    small, large = ((np.zeros(size, np.uint64), np.zeros(size, np.int32)) for size in (4, 8))
    assert parsing.number_words(words, 0, *small, 0, 3, ids) == (3, 3)
    parsing.move_words(*small, *large)
    assert np.flatnonzero(large[1]).tolist() == [0, 1, 7]
    assert parsing.number_words(words[::-1].copy(), 0, *large, 3, 3, ids) == (3, 3), "none is new"
    assert ids.tolist() == [2, 1, 0]
