"""The lookahead cache: bounded, and worth it (tests/run/test_equivalence.py: exact)."""

from pathlib import Path

import pytest

from harness.config.model import Config
from tests.runs import changed, run


def test_what_is_moved_is_the_least_possible_and_falls_with_the_sight(config: Config, tmp_path: Path) -> None:
    """Without failures rows and touches on the wire are those that no cache of this sight can do without.

    That falls with the lookahead, and stays below what one message a step moves.
    """
    config = changed(config, trace__path=None, cache__mode="lookahead", data__max_train_samples=512)
    moved = []
    for strategy, lookahead in (("none", 2), ("none", 20), ("none", 200), ("cpr_ssu", 24)):
        cached = changed(config, strategy__name=strategy, cache__lookahead=lookahead)
        cache = run(cached, tmp_path / f"{strategy}-{lookahead}")[0].cache
        assert cache is not None
        moved.append(cache["bytes"])
        assert cache["bytes"] == cache["sent_bytes"] + cache["received_bytes"] == cache["minimum_bytes"]
        assert cache["bytes"] < cache["uncached_bytes"]
        assert cache["fetched_rows"] == pytest.approx((1 - cache["hit_rate"]) * cache["accessed_rows"])
    assert moved[0] > moved[1] > moved[2]


def test_the_cache_keeps_its_bound(config: Config, tmp_path: Path) -> None:
    """Windows are cut short so that no more rows are held than allowed; the result is the same."""
    config = changed(config, strategy__name="none", cache__mode="lookahead", cache__lookahead=100)
    config = changed(config, data__max_train_samples=512)
    free, _ = run(config, tmp_path / "free")
    bound, _ = run(changed(config, cache__max_rows=500), tmp_path / "bound")
    assert free.cache is not None
    assert bound.cache is not None
    assert bound.cache["peak_rows"] <= 500 < free.cache["peak_rows"]
    assert bound.digests == free.digests
