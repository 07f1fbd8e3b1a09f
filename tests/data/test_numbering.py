import numpy as np
import pytest

from harness.data.numbering import Numbering, WordNumbering


def _naive(values: list[int], known: dict[int, int]) -> list[int]:
    return [known.setdefault(value, len(known)) for value in values]


@pytest.mark.parametrize("spread", [5, 1_000, 2**32])
@pytest.mark.parametrize("chunk", [1, 17, 1_000, 20_000])
@pytest.mark.parametrize("is_wide", [False, True])
def test_equals_a_dict(spread: int, chunk: int, is_wide: bool) -> None:
    """Ids are those of a dict filled value by value, however the values are cut into chunks."""
    generator = np.random.default_rng(spread + chunk)
    values = generator.integers(0, spread, min(20_000, 300 * chunk), dtype=np.uint64)
    numbering, known = (WordNumbering(), {}) if is_wide else (Numbering(), {})
    values = values * np.uint64(2**32 + 1) if is_wide else values.astype(np.uint32)
    for start in range(0, len(values), chunk):
        part = values[start : start + chunk]
        assert numbering.ids(part).tolist() == _naive(part.tolist(), known)  # pyright: ignore[reportArgumentType]
    assert numbering.num_ids == len(known)


def test_growing_keeps_every_id() -> None:
    """Values met before the table grew a dozen times still have their ids after it."""
    values = np.arange(150_000, dtype=np.uint32) * np.uint32(2_654_435_761)
    numbering = Numbering()
    for part in np.split(values, 50):
        numbering.ids(part)
    assert np.array_equal(numbering.ids(values), np.arange(150_000))


def test_values_that_share_a_slot_are_told_apart() -> None:
    """Hundreds of values whose search starts at one slot, near the end of the table, all keep their own id."""
    numbering = Numbering()
    candidates = np.arange(1 << 22, dtype=np.uint64)
    home = (candidates * 0x9E3779B1 & 0xFFFFFFFF) * 1024 >> 32
    crowd = candidates[home == 1020][:500].astype(np.uint32)
    assert np.array_equal(numbering.ids(crowd), np.arange(500))
    assert np.array_equal(numbering.ids(crowd[::-1].copy()), np.arange(500)[::-1])
    assert numbering.ids(np.array([0, 0xFFFFFFFF, 0], dtype=np.uint32)).tolist() == [500, 501, 500]


def test_memory_per_id_is_bounded() -> None:
    """The table holds an id in at most 16 bytes once it is past its first size."""
    numbering = Numbering()
    for start in range(0, 300_000, 10_000):
        numbering.ids(np.arange(start, start + 10_000, dtype=np.uint32))
        assert numbering.num_bytes <= 16.1 * numbering.num_ids


def test_words_that_share_a_slot_are_told_apart_and_take_at_most_24_bytes() -> None:
    """Small and large words, such as a modulus leaves or not, keep their ids when the table grows; 0 is a word."""
    numbering = WordNumbering()
    words = np.arange(300_000, dtype=np.uint64) * np.where(np.arange(300_000) % 2, 1, 2**40).astype(np.uint64)
    for part in np.split(words, 30):
        numbering.ids(part)
        assert numbering.num_bytes <= 24.1 * numbering.num_ids
    assert np.array_equal(numbering.ids(words), np.arange(300_000))
    numbering = WordNumbering()
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    crowd = np.array([(1020 << 54) + place for place in range(500)], np.uint64)
    crowd *= np.uint64(inverse)  # all start at slot 1020 of 1024
    assert np.array_equal(numbering.ids(crowd), np.arange(500))
    assert np.array_equal(numbering.ids(crowd[::-1].copy()), np.arange(500)[::-1])
