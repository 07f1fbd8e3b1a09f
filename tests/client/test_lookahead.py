"""The lookahead cache: exact, bounded, and worth it."""

from pathlib import Path

import pytest

import analysis
from harness.cluster.local import LocalRanks
from harness.cluster.protocol import Exchange, Restore, Save
from harness.config.model import Config
from harness.core.events import Event, Finished, Recovered, Saved
from harness.record.recorder import read_events
from harness.record.rundir import read_config
from harness.run.assemble import Parts
from tests.recovery.test_unplanned import MortalRanks, named, run_mortal
from tests.runs import changed, run, saving_every


def facts(events: list[Event]) -> list[dict]:
    """Events without their machine parts, without what the cache moved and without the hash of its config."""
    return [{k: v for k, v in e.to_json().items() if k not in ("machine", "cache", "config_hash")} for e in events]


@pytest.mark.parametrize("placement", ["row", "table"])
@pytest.mark.parametrize("strategy", ["never_save", "full", "cpr_ssu"])
def test_a_cached_run_equals_the_uncached_one(config: Config, tmp_path: Path, strategy: str, placement: str) -> None:
    """Event for event, under ten failures, whatever the lookahead: losses, saves, what was lost, AUC, parameters."""
    config = changed(config, strategy__name=strategy, cluster__placement=placement, data__max_train_samples=512)
    config = saving_every(changed(config, eval__every_steps=45), 40)
    _, uncached = run(config, tmp_path / "uncached")
    for lookahead in (2, 7, 60, 600):
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


# --- bounds and what is moved -----------------------------------------------------------------------------------------


def test_what_is_moved_is_the_least_possible(config: Config, tmp_path: Path) -> None:
    """Without failures rows, counts and touches on the wire are those that no cache of this sight can do without."""
    for strategy, recovers in (("none", False), ("cpr_ssu", False), ("never_save", True)):
        cached = changed(
            config,
            trace__path=None,
            strategy__name=strategy,
            cache__mode="lookahead",
            cache__lookahead=24,
            cache__recover_from_cache=recovers,
        )
        cache = run(cached, tmp_path / strategy)[0].cache
        assert cache is not None
        assert cache["bytes"] == cache["sent_bytes"] + cache["received_bytes"] == cache["minimum_bytes"]
        assert cache["bytes"] < cache["uncached_bytes"]
        assert cache["fetched_rows"] == pytest.approx((1 - cache["hit_rate"]) * cache["accessed_rows"])


def test_asking_again_after_saves_costs_little(config: Config, tmp_path: Path) -> None:
    """With recover_from_cache and saves, counts that are asked for again are all that is moved beyond the least."""
    cached = changed(
        config,
        trace__path=None,
        strategy__name="partial",
        cache__mode="lookahead",
        cache__lookahead=24,
        cache__recover_from_cache=True,
    )
    finished, _ = run(cached, tmp_path / "run")
    assert finished.cache is not None
    beyond = finished.cache["bytes"] - finished.cache["minimum_bytes"]
    assert 0 < beyond <= finished.num_saves * finished.cache["peak_rows"] * (8 + 4)


# --- rows that outlive their rank -------------------------------------------------------------------------------------


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


def test_what_the_cache_holds_of_a_dead_rank_is_not_lost(config: Config, tmp_path: Path) -> None:
    """With the whole past in the cache a death changes nothing: all updates are recovered, parameters are equal."""
    trace = tmp_path / "late.csv"
    trace.write_text("hour,rank\n40,ps1\n40,ps2\n")
    config = changed(config, trace__path=str(trace), cache__mode="lookahead", cache__lookahead=600)
    reference, _ = run(changed(config, strategy__name="none", trace__path=None), tmp_path / "none")
    config = changed(config, strategy__name="never_save")
    discarded, _ = run(config, tmp_path / "discarded")
    kept, events = run(changed(config, cache__recover_from_cache=True), tmp_path / "kept")
    (recovered,) = [event for event in events if isinstance(event, Recovered)]
    assert kept.digests == reference.digests != discarded.digests
    assert (kept.lost_updates, kept.recovered_updates) == (0, discarded.lost_updates)
    assert kept.recovered_updates == recovered.recovered_updates
    assert kept.recovered_tracked == recovered.recovered_tracked == discarded.lost_tracked
    assert kept.pls == discarded.pls > 0, "plain PLS counts samples, not rows"


@pytest.mark.parametrize("strategy", ["never_save", "cpr_vanilla", "cpr_mfu", "cpr_ssu"])
def test_every_update_is_persisted_lost_or_counted(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """After ten failures with recovery from the cache: nothing twice, nothing forgotten, and less lost than without."""
    config = saving_every(changed(config, data__max_train_samples=512, strategy__name=strategy), 40)
    config = changed(config, cache__mode="lookahead", cache__lookahead=7)
    discarded, _ = run(config, tmp_path / "discarded")
    kept, events = run(changed(config, cache__recover_from_cache=True), tmp_path / "kept", Parts(make_ranks=KeptRanks))
    assert analysis.check(events, read_config(tmp_path / "kept")) == []
    assert outstanding(events) == KeptRanks.num_unsaved
    assert (kept.lost_updates or 0) < (discarded.lost_updates or 0)
    assert (kept.recovered_updates or 0) > 0 == discarded.recovered_updates


def test_full_recovery_does_not_care(config: Config, tmp_path: Path) -> None:
    """A rollback takes the cache along: bit-equal to no failure whatever recover_from_cache says."""
    reference, _ = run(changed(config, strategy__name="none"), tmp_path / "none")
    config = changed(config, strategy__name="full", cache__mode="lookahead", cache__recover_from_cache=True)
    rolled_back, _ = run(config, tmp_path / "full")
    assert rolled_back.digests == reference.digests
    assert (rolled_back.auc, rolled_back.lost_updates, rolled_back.recovered_updates) == (reference.auc, 0, 0)


@pytest.mark.parametrize(
    ("strategy", "recovers"), [("partial", False), ("cpr_mfu", False), ("cpr_mfu", True), ("cpr_ssu", True)]
)
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
def test_an_unplanned_death_loses_and_keeps_every_update_once(  # noqa: PLR0917 - pytest's
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doom: dict, strategy: str, recovers: bool
) -> None:
    """Whichever message fails, dirty rows and rows on their way included: the ledger and the ranks agree."""
    config = changed(
        config,
        data__max_train_samples=180,
        cluster__num_ps=3,
        strategy__name=strategy,
        strategy__interval_samples=60,
        cache__mode="lookahead",
        cache__lookahead=8,
        cache__recover_from_cache=recovers,
    )
    finished = run_mortal(config, tmp_path / "mortal", monkeypatch, doom, MortalKeptRanks)
    assert outstanding(read_events(tmp_path / "mortal" / "events.jsonl")) == KeptRanks.num_unsaved
    assert finished.applied_updates == 180 * 26
