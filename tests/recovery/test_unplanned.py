"""Deaths that no trace planned, at any moment: in the middle of a step, of a save, of another rank's recovery."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cluster.protocol import (
    BuildReplica,
    CopyShard,
    Exchange,
    Initialise,
    OnShard,
    ReadShard,
    Restore,
    RestoreFromParity,
    Save,
)
from harness.config.model import Config
from harness.core.errors import RunFailed
from harness.core.events import Evaluated, Finished, Injected, Interrupted, Machine, Recovered, Saved
from harness.record.event_log import read_events
from harness.run.assemble import Parts
from harness.store import newest_checkpoint
from tests.covering import Row, covering
from tests.recovery.mortal_ranks import (
    Doom,
    Finish,
    MortalRanks,
    assert_parities_are_whole,
    assert_replicas_are_whole,
    outstanding,
    run_mortal,
    unsaved,
)
from tests.runs import changed, run, saving_every, small_config, under

# --- any death under any settings -------------------------------------------------------------------------------------

NUM_SAMPLES = 120  # 30 steps, a save every 9
NUM_UPDATES = NUM_SAMPLES * 26
IN_A_STEP: dict[str, Doom] = {
    "newborn": {("ps1", 1, Initialise): "after", ("ps3", 1, Exchange): "after", ("ps2", 2, Exchange): "before"},
    "next to a save": {("ps2", 8, Exchange): "before", ("ps0", 9, Exchange): "after", ("ps2", 14, Exchange): "after"},
    "two at once": {("ps1", 8, Exchange): "before", ("ps3", 8, Exchange): "before"},
    "two in turn": {("ps1", 8, Exchange): "before", ("ps3", 9, Exchange): "before"},
    "in three recoveries": {("ps2", number, Exchange): "after" for number in (6, 7, 8)},
    "in two restores": {("ps2", 9, Exchange): "after", ("ps2", 1, Restore): "after", ("ps2", 2, Restore): "after"},
}
IN_A_SAVE: dict[str, Doom] = {
    "save": {("ps3", 1, Save): "after", ("ps0", 2, Save): "before", ("ps2", 3, Save): "after"},
    "two in a save": {("ps1", 3, Save): "before", ("ps3", 3, Save): "after"},
    "while it is written": {("ps1", 12, Exchange): "after", ("ps2", 22, Exchange): "before"},
    "finish": {("ps1", 2, Finish): "before", ("ps2", 3, Finish): "after"},
}
DOOMS = {**IN_A_STEP, **IN_A_SAVE}
INSTEAD: dict[tuple[str, str], Doom] = {
    ("buddy", "in two restores"): {
        ("ps1", 8, Exchange): "before",
        ("ps1", 1, CopyShard): "after",
        ("ps3", 14, Exchange): "before",
        ("ps3", 1, BuildReplica): "after",
    },
    ("parity", "in two restores"): {
        ("ps1", 8, Exchange): "before",
        ("ps1", 1, RestoreFromParity): "after",
        ("ps2", 14, Exchange): "before",
        ("ps2", 1, BuildReplica): "after",
    },
    ("parity", "next to a save"): {
        ("ps1", 8, Exchange): "before",
        ("ps3", 9, Exchange): "after",
        ("ps1", 14, Exchange): "after",
    },
}
"""Dooms of strategies whose ranks are asked otherwise, or in which too many of a group would die at once."""

STRATEGIES: dict[str, dict[str, Any]] = {
    "full": {},
    "partial": {},
    "partial-each-step": {"interval_samples": 4},
    "cpr_mfu": {},
    "cpr_mirror": {"share": 0.03},
    "cpr_mirror-whole": {"share": 1.0},
    "differential": {},
    "buddy": {},
    "parity": {},
    "tiers": {"memory_samples": 8, "disk_samples": 20},
}
SETTINGS = {
    "strategy": tuple(STRATEGIES),
    "doom": tuple(DOOMS),
    "cache": ("none", "lookahead", "stale"),
    "save": ("sync", "async"),
}


def is_allowed(row: Row) -> bool:
    """A mirror needs exact rows, and a save that is waited for is not finished later."""
    is_stale = row.get("strategy", "").startswith("cpr_mirror") and row.get("cache") == "stale"
    is_late = any(word in row.get("doom", "") for word in ("finish", "written"))
    return not is_stale and not (is_late and row.get("save") == "sync")


def is_exact(row: Row) -> bool:
    """Whether nothing is lost, so that the run ends as without a death."""
    match row["strategy"]:
        case "full" | "differential":
            return True
        case "buddy" | "parity" | "cpr_mirror-whole" | "tiers":  # whose copies go out at saves that ``full`` has not
            return row["cache"] != "stale"
        case "partial-each-step":
            return (row["cache"], row["save"]) == ("none", "sync") and row["doom"] in IN_A_STEP
    return False


@pytest.fixture(scope="module")
def calm(click_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Finished]:
    """The run without a death, by whether its caches are stale."""
    config = changed(small_config(click_data), data__max_train_samples=NUM_SAMPLES, trace__path=None)
    exact, _ = run(changed(config, strategy__name="none"), tmp_path_factory.mktemp("calm"))
    stale = changed(config, strategy__name="full", strategy__interval_samples=36, **STALE)
    return {False: exact, True: run(stale, tmp_path_factory.mktemp("stale"))[0]}


STALE: dict[str, Any] = {"cache__mode": "stale", "cache__staleness": 3, "cache__workers": 3}


@pytest.mark.parametrize("row", covering(SETTINGS, is_allowed), ids=lambda row: " ".join(row.values()))
def test_a_death_at_any_moment_loses_what_its_strategy_may_lose(
    config: Config, tmp_path: Path, calm: dict[bool, Finished], row: Row
) -> None:
    """Law: each update is saved, lost or held, once; checkpoints are whole; exact recovery ends as without a death."""
    name, _, _ = row["strategy"].partition("-")
    config = changed(config, strategy__name=name, data__max_train_samples=NUM_SAMPLES, save__mode=row["save"])
    config = changed(saving_every(config, 36), **STALE, cache__lookahead=8)
    options = {f"strategy__{key}": value for key, value in STRATEGIES[row["strategy"]].items()}
    config = changed(config, cache__mode=row["cache"], profile__tier_frac={"disk": 0.3, "memory": 0.05}, **options)
    doom = INSTEAD.get((name, row["doom"]), DOOMS[row["doom"]])
    finished = run_mortal(config, tmp_path / "run", doom)
    assert finished.num_unplanned >= 1
    assert finished.applied_updates == NUM_UPDATES
    num_saves = {"partial-each-step": 29, "tiers": finished.num_saves}.get(row["strategy"], 3)
    assert finished.num_saves == num_saves, "none is lost, none made twice"
    assert outstanding(read_events(tmp_path / "run" / "events.jsonl")) == unsaved()
    manifest, skipped = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert manifest is not None
    assert skipped == []
    if name == "buddy":
        assert_replicas_are_whole()
    if name == "parity":
        assert_parities_are_whole()
    if is_exact(row):
        expected = calm[row["cache"] == "stale"]
        assert (finished.digests, finished.auc) == (expected.digests, expected.auc)
        assert (finished.lost_updates or 0) == 0


# --- what belongs to one failure --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "doom",
    [
        {("ps0", 3, Save): "after"},
        {("ps0", 7, Save): "after", ("ps3", 7, Save): "after"},
        {("ps0", 1, OnShard): "after"},
    ],
    ids=["one", "two", "digest"],
)
def test_a_death_in_a_save_loses_what_the_save_was_for(config: Config, tmp_path: Path, doom: Doom) -> None:
    """A checkpoint exists when its manifest does: with a save every step, one step's updates of the shard are lost."""
    mortal = changed(config, data__max_train_samples=100, strategy__name="partial", strategy__interval_samples=4)
    finished = run_mortal(mortal, tmp_path / "mortal", doom)
    assert finished.lost_updates is not None
    assert 0 < finished.lost_updates <= 4 * 26
    assert finished.pls == pytest.approx(len(doom) * 4 / 100 / 4)
    saves = {rank: MortalRanks.served[rank, Save] for rank in ("ps1", "ps2")}
    assert set(saves.values()) == {25}, "a save that failed is asked of the dead again, and of nobody else"


@pytest.mark.parametrize(
    "doom",
    [
        {("ps1", 20, Exchange): "before", ("ps2", 1, ReadShard): "before"},  # the buddy dies while it is read
        {("ps2", 20, Exchange): "before", ("ps1", 1, ReadShard): "before"},  # the owner, while its replica is made
    ],
    ids=["buddy", "owner"],
)
def test_a_buddy_that_dies_during_a_recovery_belongs_to_the_failure(config: Config, tmp_path: Path, doom: Doom) -> None:
    """The owner is restored from the checkpoint, the buddy from its own buddy."""
    config = changed(config, strategy__name="buddy", strategy__interval_samples=36, data__max_train_samples=100)
    finished = run_mortal(config, tmp_path / "mortal", doom)
    events = read_events(tmp_path / "mortal" / "events.jsonl")
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert recovered.kinds == {"ps1": "checkpoint", "ps2": "replica"}
    assert finished.pls > 0
    assert outstanding(events) == unsaved()
    assert_replicas_are_whole()


@pytest.mark.parametrize(
    ("doom", "kinds"),
    [
        ({("ps1", 20, Exchange): "before", ("ps0", 1, ReadShard): "before"}, {"ps0", "ps1"}),  # of its group
        ({("ps1", 20, Exchange): "before", ("ps2", 1, ReadShard): "before"}, {"ps1"}),  # the holder of its parity
        ({("ps2", 20, Exchange): "before", ("ps1", 1, ReadShard): "before"}, {"ps1"}),  # a rank of the holder's parity
        ({("ps2", 20, Exchange): "before", ("ps3", 1, ReadShard): "after"}, {"ps2", "ps3"}),
    ],
    ids=["group", "holder", "held", "after"],
)
def test_a_rank_whose_shard_or_parity_is_read_belongs_to_the_failure(
    config: Config, tmp_path: Path, doom: Doom, kinds: set[str]
) -> None:
    """Ranks ``kinds`` are restored from the checkpoint, and the others from their parity, which is whole afterwards."""
    config = changed(config, strategy__name="parity", strategy__interval_samples=36, data__max_train_samples=100)
    finished = run_mortal(config, tmp_path / "mortal", doom)
    events = read_events(tmp_path / "mortal" / "events.jsonl")
    (recovered,) = (event for event in events if isinstance(event, Recovered))
    assert {rank for rank, kind in recovered.kinds.items() if kind == "checkpoint"} == kinds
    assert finished.pls > 0
    assert outstanding(events) == unsaved()
    assert_parities_are_whole()


@pytest.mark.parametrize("number", [11, 12], ids=["lookup", "push"])
def test_a_survivor_that_dies_while_others_are_recovered_gets_its_step_again(
    config: Config, tmp_path: Path, calm: dict[bool, Finished], number: int
) -> None:
    """It had applied the step; its replacement has not, and the step is sent to it too."""

    class Cruel(MortalRanks):
        def replace(self, ranks: Any, step: int) -> Any:
            machine = super().replace(ranks, step)
            if list(ranks) == ["ps1"]:
                self.die("ps3")
            return machine

    config = changed(config, data__max_train_samples=NUM_SAMPLES, strategy__name="partial")
    config = changed(config, strategy__interval_samples=4, trace__path=None, trace__allow_unplanned=True)
    MortalRanks.begin({("ps1", number, Exchange): "after"})
    finished, _ = run(config, tmp_path / "cruel", Parts(make_ranks=Cruel))
    assert MortalRanks.died == ["ps1", "ps3"]
    assert finished.digests == calm[False].digests


def test_ranks_that_keep_dying_end_the_run(config: Config, tmp_path: Path) -> None:
    """After cluster.max_replacements_in_a_row it is not bad luck any more."""
    doom = {("ps1", 12, Exchange): "after", **{("ps1", n, Restore): "after" for n in range(1, 9)}}
    with pytest.raises(RunFailed, match=r"cluster\.max_replacements_in_a_row"):
        run_mortal(changed(config, strategy__name="partial", data__max_train_samples=100), tmp_path / "run", doom)


def test_an_unplanned_death_counts_only_if_it_is_allowed(config: Config, tmp_path: Path) -> None:
    """The run goes on to its end, and has no result."""
    MortalRanks.begin({("ps2", 9, Exchange): "after"})
    config = changed(config, strategy__name="partial", trace__path=None, data__max_train_samples=NUM_SAMPLES)
    with pytest.raises(RunFailed, match="expected only planned deaths of ranks, got 1 others"):
        run(config, tmp_path / "run", Parts(make_ranks=MortalRanks))
    assert not (tmp_path / "run" / "DONE").exists()


@pytest.mark.parametrize("number", range(20, 25))
def test_what_is_due_at_the_boundary_of_a_rollback_takes_place(config: Config, tmp_path: Path, number: int) -> None:
    """A death detected by any request around a boundary where a save and an evaluation are due: both are on record."""
    config = changed(config, strategy__name="full", strategy__interval_samples=80, data__max_train_samples=180)
    config, doom = changed(config, eval__every_steps=20), {("ps1", number, Exchange): "before"}
    finished = run_mortal(config, tmp_path / "run", doom)
    assert finished.num_unplanned == 1
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event.step for event in events if isinstance(event, Evaluated)] == [20, 40, 45]


def test_a_rank_that_dies_in_a_save_loses_since_the_checkpoint_before(config: Config, tmp_path: Path) -> None:
    """The save of step 20 was not committed when the rank died at step 25: PLS and updates count from step 10."""
    config = changed(config, data__max_train_samples=120, strategy__name="partial", strategy__interval_samples=40)
    doom: Doom = {("ps1", 28, Exchange): "after"}
    begun, waited = (run_mortal(changed(config, save__mode=mode), tmp_path / mode, doom) for mode in ("async", "sync"))
    assert begun.pls > waited.pls > 0
    assert (begun.lost_updates or 0) > (waited.lost_updates or 0) > 0


# --- deaths beside those of which ranks are told ----------------------------------------------------------------------


class Watched(MortalRanks):
    """Notes the requests that ps2 has served when ps1 alone is killed."""

    num_before = 0

    def kill(self, ranks: Sequence[str], hosts: Sequence[int] = ()) -> dict[str, Machine]:
        if [*ranks] == ["ps1"]:
            Watched.num_before = self.served["ps2", Exchange]
        return super().kill(ranks, hosts)


@pytest.mark.parametrize("name", ["partial", "full"])
@pytest.mark.parametrize("on_notice", ["save", "handover"])
def test_another_death_before_the_kill_makes_no_notice_void(
    config: Config, tmp_path: Path, name: str, on_notice: str
) -> None:
    """Law: ps2 dies in the evaluation between the notice of ps1 and its death; ps1 loses nothing."""
    config = changed(config, strategy__name=name, data__max_train_samples=NUM_SAMPLES, trace__allow_unplanned=True)
    config = changed(saving_every(config, 60), cluster__on_notice=on_notice, eval__at_recoveries=True)
    config = under(config, tmp_path, "hour,rank,notice_s\n9,ps1,1e6\n")
    MortalRanks.begin({})
    run(config, tmp_path / "calm", Parts(make_ranks=Watched))
    MortalRanks.begin({("ps2", Watched.num_before, Exchange): "before"})
    _, events = run(config, tmp_path / "run", Parts(make_ranks=Watched))
    own = {"full": "rollback", "partial": "checkpoint"}[name]
    found = [event for event in events if isinstance(event, Recovered)]
    assert [event.kinds for event in found] == [{"ps2": own}, {"ps1": {"save": "notice"}.get(on_notice, on_notice)}]
    assert found[1].lost_updates == 0


def test_another_death_before_a_save_is_interrupted_moves_the_clock(config: Config, tmp_path: Path) -> None:
    """Law: ps2 dies in the evaluation before ps1 does; the save is charged from the end of that recovery."""
    config = changed(config, strategy__name="partial", data__max_train_samples=NUM_SAMPLES, trace__allow_unplanned=True)
    config = changed(saving_every(config, 40), eval__at_recoveries=True, profile__o_save_h=1.0)
    clock = {"trace__clock": "wall", "trace__interrupts": True}
    config = under(config, tmp_path, "hour,rank\n19.5,ps1\n", **clock)
    MortalRanks.begin({})
    _, events = run(config, tmp_path / "calm", Parts(make_ranks=Watched))
    (before,) = (event for event in events if isinstance(event, Interrupted))
    MortalRanks.begin({("ps2", Watched.num_before, Exchange): "before"})
    _, events = run(config, tmp_path / "run", Parts(make_ranks=Watched))
    first, second = (event for event in events if isinstance(event, Recovered))
    assert (first.ranks, second.ranks) == (["ps2"], ["ps1"])
    (cut,) = (event for event in events if isinstance(event, Interrupted))
    assert cut.save_h == pytest.approx(before.save_h - first.load_h - first.reschedule_h)
    assert outstanding(events) == unsaved(), "ps2 saves again"


@pytest.mark.parametrize("name", ["partial", "full"])
def test_a_death_in_a_step_makes_no_failure_late(config: Config, tmp_path: Path, name: str) -> None:
    """Law: one whose hour falls into the recovery of ps2, after step 14, is on time at the next boundary."""
    config = changed(config, strategy__name=name, data__max_train_samples=NUM_SAMPLES, trace__allow_unplanned=True)
    config = changed(saving_every(config, 40), profile__o_load_h=1.0, profile__o_res_h=3.0)
    config = under(config, tmp_path, "hour,rank\n29.5,ps1\n", trace__clock="wall")
    MortalRanks.begin({("ps2", 18, Exchange): "after"})
    _, events = run(config, tmp_path / "run", Parts(make_ranks=MortalRanks))
    found = [(event.ranks, event.step) for event in events if isinstance(event, Recovered)]
    assert found == [(["ps2"], 14), (["ps1"], {"partial": 15, "full": 10}[name])]


@pytest.mark.parametrize("number", range(6, 10))
def test_a_failure_during_a_recovery_strikes_where_that_began(config: Config, tmp_path: Path, number: int) -> None:
    """Law: after the step that a cache is flushed for, if ps2 dies in the flush."""
    config = changed(config, strategy__name="partial", data__max_train_samples=NUM_SAMPLES, cache__mode="lookahead")
    config = changed(config, cache__lookahead=8, trace__allow_unplanned=True, profile__o_res_h=56.0)
    clock = {"trace__clock": "wall", "trace__interrupts": True}
    config = under(saving_every(config, 40), tmp_path, "hour,rank\n45,ps1\n", **clock)
    MortalRanks.begin({("ps2", number, Exchange): "after"})
    _, events = run(config, tmp_path / "run", Parts(make_ranks=MortalRanks))
    (cut,) = (event for event in events if isinstance(event, Interrupted))
    (struck,) = (event for event in events if isinstance(event, Injected))
    assert struck.step == cut.step


@pytest.mark.parametrize("name", ["partial", "full"])
def test_a_failure_that_is_due_strikes_once(config: Config, tmp_path: Path, name: str) -> None:
    """Law: if ps2 dies in the evaluation before it, with ``trace.interrupts`` during the recovery of ps2."""
    config = changed(config, strategy__name=name, data__max_train_samples=NUM_SAMPLES, trace__allow_unplanned=True)
    config = changed(saving_every(config, 40), eval__at_recoveries=True)
    clock = {"trace__clock": "wall", "trace__interrupts": True}
    config = under(config, tmp_path, "hour,rank\n15.5,ps1\n35.5,ps3\n", **clock)
    MortalRanks.begin({})
    run(config, tmp_path / "calm", Parts(make_ranks=Watched))
    MortalRanks.begin({("ps2", Watched.num_before, Exchange): "before"})
    _, events = run(config, tmp_path / "run", Parts(make_ranks=Watched))
    assert [event.ranks for event in events if isinstance(event, Recovered)] == [["ps1", "ps2"], ["ps3"]]


def test_a_shard_that_was_handed_over_keeps_its_unsaved_updates(config: Config, tmp_path: Path) -> None:
    """Law: so does the count of them from which `parity` restores it later."""
    config = changed(config, strategy__name="parity", strategy__group_size=2, cluster__on_notice="handover")
    config = saving_every(changed(config, data__max_train_samples=NUM_SAMPLES), 40)
    saved = []
    for deaths in ("", "4,ps0,1e6\n4,ps1,1e6\n10,ps1,\n"):
        _, events = run(under(config, tmp_path, f"hour,rank,notice_s\n{deaths}50,ps3,\n"), tmp_path / f"{len(deaths)}")
        saved.append([event.persisted_updates for event in events if isinstance(event, Saved)])
    assert saved[0] == saved[1]
