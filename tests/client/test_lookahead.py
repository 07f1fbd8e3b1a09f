"""The lookahead cache: exact, bounded, and worth it."""

from pathlib import Path

import pytest

from harness.config.model import Config
from tests.runs import changed, run


def test_the_cache_keeps_its_bound(config: Config, tmp_path: Path) -> None:
    """Windows are cut short so that no more rows are held than allowed; the result is the same."""
    config = changed(config, strategy__name="none", cache__mode="lookahead", cache__lookahead=100)
    free, _ = run(config, tmp_path / "free")
    bound, _ = run(changed(config, cache__max_rows=500), tmp_path / "bound")
    assert free.cache is not None
    assert bound.cache is not None
    assert bound.cache["peak_rows"] <= 500 < free.cache["peak_rows"]
    assert bound.digests == free.digests


def test_the_further_it_sees_the_less_it_moves(config: Config, tmp_path: Path) -> None:
    """Rows and bytes fall with the lookahead, and stay below what one message a step moves."""
    config = changed(config, strategy__name="none", cache__mode="lookahead")
    caches = [run(changed(config, cache__lookahead=n), tmp_path / str(n))[0].cache for n in (2, 20, 200)]
    moved = [cache["bytes"] for cache in caches if cache is not None]
    assert moved == sorted(moved, reverse=True)
    assert len(moved) == 3
    assert all(cache is not None and cache["bytes"] < cache["uncached_bytes"] for cache in caches)


def test_what_is_moved_is_the_least_possible(config: Config, tmp_path: Path) -> None:
    """Without failures rows and touches on the wire are those that no cache of this sight can do without."""
    for strategy in ("none", "cpr_ssu"):
        cached = changed(
            config,
            trace__path=None,
            strategy__name=strategy,
            cache__mode="lookahead",
            cache__lookahead=24,
        )
        cache = run(cached, tmp_path / strategy)[0].cache
        assert cache is not None
        assert cache["bytes"] == cache["sent_bytes"] + cache["received_bytes"] == cache["minimum_bytes"]
        assert cache["bytes"] < cache["uncached_bytes"]
        assert cache["fetched_rows"] == pytest.approx((1 - cache["hit_rate"]) * cache["accessed_rows"])
