"""The lookahead cache: exact, bounded, and worth it."""

from pathlib import Path

import pytest

from harness.cluster.protocol import Exchange
from harness.core.config import Config
from harness.core.events import Event
from tests.runs import changed, run
from tests.test_unplanned import run_mortal


def facts(events: list[Event]) -> list[dict]:
    """Events without their machine parts, without what the cache moved and without the hash of its config."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "cache", "config_hash")} for e in events]


@pytest.mark.parametrize("placement", ["row", "table"])
@pytest.mark.parametrize("strategy", ["never_save", "full", "cpr_ssu"])
@pytest.mark.parametrize("lookahead", [2, 7, 60, 600])
def test_a_cached_run_equals_the_uncached_one(
    config: Config, tmp_path: Path, strategy: str, placement: str, lookahead: int
) -> None:
    """Event for event, under ten failures, whatever the lookahead: losses, saves, what was lost, AUC, parameters."""
    config = changed(config, strategy__name=strategy, cluster__placement=placement, eval__every_steps=45)
    _, uncached = run(config, tmp_path / "uncached")
    finished, cached = run(changed(config, cache__mode="lookahead", cache__lookahead=lookahead), tmp_path / "cached")
    assert facts(cached) == facts(uncached)
    assert finished.cache is not None


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


@pytest.mark.parametrize("number", [2, 5, 9, 14])
def test_an_unplanned_death_inside_a_window_is_mended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Whichever message it fails: full recovery ends bit-equal to no failure."""
    config = changed(config, data__max_train_samples=400, metrics__update_pls=True)
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    mortal = changed(config, strategy__name="full", cache__mode="lookahead", cache__lookahead=20)
    finished = run_mortal(mortal, tmp_path / "mortal", monkeypatch, {("ps2", number, Exchange): "after"})
    assert finished.digests == reference.digests
    assert finished.auc == reference.auc


@pytest.mark.parametrize("number", [3, 8])
def test_a_partial_recovery_inside_a_window_discards_what_is_cached_of_the_shard(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An unplanned death whose shard is restored alone: the run goes on, and the loss is on record."""
    config = changed(config, data__max_train_samples=400, strategy__name="partial")
    mortal = changed(config, cache__mode="lookahead", cache__lookahead=20)
    finished = run_mortal(mortal, tmp_path / "mortal", monkeypatch, {("ps2", number, Exchange): "after"})
    assert finished.num_unplanned == 1
    assert finished.applied_updates == 400 * 26
