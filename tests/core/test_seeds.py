"""Laws of random streams."""

import math

import numpy as np
import pytest

from harness.core.seeds import derive, generator, words


def test_keys_are_what_they_were() -> None:
    """Keys are stable over platforms and versions: a recorded run can be run again."""
    assert derive(0) == 8493733112532773764
    assert derive(0, "embedding", 3) == 3612748695307070979
    assert derive(2**63, "trace", 12, "x") == 6076429030561679818
    assert generator(7, "evict", 1).integers(0, 1000, 5).tolist() == [212, 172, 32, 307, 676]


def test_every_difference_in_seed_and_labels_is_another_key() -> None:
    """Labels differ by value, by type, by order and by how they are cut."""
    names: list[tuple[int, tuple[str | int, ...]]] = [
        (0, ()), (1, ()), (-1, ()), (0, (0,)), (0, ("0",)), (0, (0, 0)), (0, (1, 0)), (0, (0, 1)), (0, ("a", "b")),
        (0, ("b", "a")), (0, ("ab",)), (0, ("a", "", "b")), (0, ("int:0",)), (1, (0,)), (10, ()), (1, ("0",)),
    ]  # fmt: skip
    assert len({derive(seed, *labels) for seed, labels in names}) == len(names)


def test_words_are_splitmix64() -> None:
    """Word i of stream ``key`` is the i-th output of SplitMix64 seeded with ``key`` (published for seed 1234567)."""
    expected = [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
    assert words(1234567, np.arange(1, 6, dtype=np.uint64)).tolist() == expected


def test_words_come_in_any_order() -> None:
    """A word depends on its number alone, not on which others are asked for with it."""
    counters = np.random.Generator(np.random.PCG64(0)).integers(0, 2**64, 1000, dtype=np.uint64)
    together = words(2**64 - 1, counters)
    assert np.array_equal(words(2**64 - 1, counters[::-1])[::-1], together)
    assert [int(words(2**64 - 1, counters[i : i + 1])[0]) for i in range(0, 1000, 97)] == together[::97].tolist()


@pytest.mark.parametrize("key", [0, 1, derive(0, "embedding", 0), 2**64 - 1])
def test_words_are_uniform(key: int) -> None:
    """Every byte of consecutive words fills 256 bins evenly: chi-square within 4.5 standard deviations."""
    drawn = words(key, np.arange(65_536, dtype=np.uint64))
    for byte in drawn.view(np.uint8).reshape(-1, 8).T:
        bins = np.bincount(byte, minlength=256)
        chi2 = ((bins - 256) ** 2 / 256).sum()
        assert abs(chi2 - 255) < 4.5 * math.sqrt(2 * 255)
