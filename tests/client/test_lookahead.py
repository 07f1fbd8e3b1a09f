"""The lookahead cache: exact, bounded, and worth it."""

from pathlib import Path

import pytest

from harness.cluster.local import LocalRanks
from harness.cluster.protocol import Exchange, Restore, Save
from harness.config.model import Config
from harness.core.events import Event, Finished, Saved
from harness.record.recorder import read_events
from tests.recovery.test_unplanned import MortalRanks, named, run_mortal
from tests.runs import changed, run, saving_every


def facts(events: list[Event]) -> list[dict]:
    """Events without their machine parts, without what the cache moved and without the hash of its config."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "cache", "config_hash")} for e in events]


@pytest.mark.parametrize("placement", ["row", "table"])
@pytest.mark.parametrize("strategy", ["never_save", "full", "cpr_ssu"])
def test_a_cached_run_equals_the_uncached_one(config: Config, tmp_path: Path, strategy: str, placement: str) -> None:
    """Event for event, under ten failures, whatever the lookahead: losses, saves, what was lost, AUC, parameters."""
    config = changed(config, strategy__name=strategy, cluster__placement=placement, data__max_train_samples=256)
    config = saving_every(changed(config, eval__every_steps=25), 40)
    _, uncached = run(config, tmp_path / "uncached")
    for lookahead in (2, 7, 60):
        looking_ahead = changed(config, cache__mode="lookahead", cache__lookahead=lookahead)
        finished, cached = run(looking_ahead, tmp_path / str(lookahead))
        assert facts(cached) == facts(uncached), f"lookahead {lookahead}"
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
    mortal = saving_every(changed(config, strategy__name="full", cache__mode="lookahead", cache__lookahead=20), 40)
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


# --- bounds and what is moved -----------------------------------------------------------------------------------------


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


# --- the ledger -------------------------------------------------------------------------------------------------------


class KeptRanks(LocalRanks):
    """Ranks whose counters can be looked at when the run is over."""

    num_unsaved = 0  # updates, on all ranks of the last run

    def close(self) -> None:
        """Add up what they have counted, and close them."""
        pending = (server.shard.pending_M for server in self.servers.values())
        KeptRanks.num_unsaved = sum(int(pending_M.sum()) for pending_M in pending if pending_M is not None)
        super().close()


class MortalKeptRanks(MortalRanks, KeptRanks):
    """Both."""


def outstanding(events: list[Event]) -> int:
    """Updates that according to the ledger are neither persisted nor lost."""
    finished = events[-1]
    assert isinstance(finished, Finished)
    persisted = sum(event.persisted_updates or 0 for event in events if isinstance(event, Saved))
    return (finished.applied_updates or 0) - persisted - (finished.lost_updates or 0)


@pytest.mark.parametrize("strategy", ["partial", "cpr_mfu", "cpr_mirror"])
@pytest.mark.parametrize(
    "doom",
    [
        *({("ps2", number, Exchange): when} for number in (1, 2, 3, 8, 9, 13) for when in ("before", "after")),
        {("ps2", 4, Exchange): "after", ("ps1", 4, Exchange): "after", ("ps1", 1, Restore): "after"},
        {("ps2", 2, Save): "after"},
        {("ps2", 2, Save): "before", ("ps0", 2, Save): "after"},
        {("ps2", 6, Exchange): "after", ("ps2", 7, Exchange): "after", ("ps2", 8, Exchange): "after"},
    ],
    ids=named,
)
def test_an_unplanned_death_loses_and_keeps_every_update_once(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict, strategy: str
) -> None:
    """Whichever message fails, dirty rows and rows on their way included: the ledger and the ranks agree."""
    config = changed(
        config,
        data__max_train_samples=120,
        cluster__num_ps=3,
        strategy__name=strategy,
        strategy__interval_samples=72,
        cache__mode="lookahead",
        cache__lookahead=8,
    )
    finished = run_mortal(config, tmp_path / "mortal", monkeypatch, doom, MortalKeptRanks)
    assert outstanding(read_events(tmp_path / "mortal" / "events.jsonl")) == KeptRanks.num_unsaved
    assert finished.applied_updates == 120 * 26
