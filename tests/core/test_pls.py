"""The two ledgers of what partial recovery loses."""

import random

import pytest

from harness.core.placement import Placement
from harness.core.pls import PlsLedger, UpdateLedger, rank_weights

QUARTERS: dict[str, float] = dict.fromkeys(("ps0", "ps1", "ps2", "ps3"), 0.25)


def test_weights_are_equal_for_row_placement_and_shares_for_table_placement() -> None:
    """1/N though 10 rows do not divide by 4; by rows where a rank has whole tables."""
    assert rank_weights(Placement("row", (7, 3), 4)) == QUARTERS
    assert rank_weights(Placement("table", (7, 3), 2)) == {"ps0": 0.7, "ps1": 0.3}


def test_a_death_loses_what_came_since_the_last_save() -> None:
    """(1000 - 600) / 4000 of the samples, of a quarter of the model."""
    ledger = PlsLedger(QUARTERS, 4000)
    ledger.saved(600)
    assert ledger.lost("ps2", 1000) == pytest.approx(0.1 / 4, rel=1e-12)
    assert ledger.total == pytest.approx(0.1 / 4, rel=1e-12)


def test_samples_are_charged_once_to_a_rank_that_dies_twice() -> None:
    """Two deaths between two saves cost together what the later alone would: the losses telescope."""
    ledger = PlsLedger(QUARTERS, 4000)
    for samples in (1000, 1500):
        ledger.lost("ps1", samples)
    assert ledger.total == pytest.approx(1500 / 4000 / 4, rel=1e-12)


def test_since_save_charges_the_second_death_from_the_save() -> None:
    """With ``pls_since=save`` a restore does not count."""
    ledger = PlsLedger(QUARTERS, 4000, "save")
    for samples in (1000, 1500):
        ledger.lost("ps1", samples)
    assert ledger.total == pytest.approx(2500 / 4000 / 4, rel=1e-12)


@pytest.mark.parametrize("since", ["save_or_restore", "save"])
def test_a_later_save_is_what_counts_after_a_restore(since: str) -> None:
    """The later of save and restore: here the save."""
    ledger = PlsLedger(QUARTERS, 4000, since)  # pyright: ignore[reportArgumentType]  # both are of the Literal
    ledger.lost("ps0", 1000)
    ledger.saved(2000)
    assert ledger.lost("ps0", 2400) == pytest.approx(0.1 / 4, rel=1e-12)


def test_ranks_that_survive_are_charged_nothing_new() -> None:
    """A restore of ps0 leaves ps1's count from the last save."""
    ledger = PlsLedger(QUARTERS, 4000)
    ledger.lost("ps0", 1000)
    assert ledger.lost("ps1", 1200) == pytest.approx(0.3 / 4, rel=1e-12)


def test_full_recovery_adds_nothing() -> None:
    """A rollback leaves PLS as it was, and every shard as if saved where it went back to."""
    ledger = PlsLedger(QUARTERS, 4000)
    ledger.saved(800)
    ledger.rolled_back(800)
    assert ledger.total == 0
    assert ledger.lost("ps3", 1200) == pytest.approx(0.1 / 4, rel=1e-12)


def test_lost_updates_are_those_neither_persisted_nor_already_lost() -> None:
    """sent - persisted - already lost, and a second death at once loses nothing more."""
    ledger = UpdateLedger(("ps0", "ps1"))
    ledger.sent([100, 100], [60, 60])
    ledger.persisted("ps0", 30, 10)
    assert ledger.lost("ps0") == (70, 50)
    assert ledger.lost("ps0") == (0, 0)
    ledger.sent([5, 0], [4, 0])
    assert ledger.lost("ps0") == (5, 4)
    assert ledger.totals() == {
        "applied_updates": 205,
        "lost_updates": 75,
        "recovered_updates": 0,
        "update_pls": pytest.approx(75 / 205),
        "applied_tracked": 124,
        "lost_tracked": 54,
        "recovered_tracked": 0,
        "update_pls_tracked": pytest.approx(54 / 124),
    }


def test_update_pls_of_nothing_is_missing() -> None:
    """Before the first update there is no portion: None, not 0."""
    ledger = UpdateLedger(("ps0",))
    assert ledger.totals()["update_pls"] is None
    assert ledger.totals()["update_pls_tracked"] is None


def test_a_rollback_counts_rerun_updates_once() -> None:
    """With full recovery every update ends up applied once and none lost, as in a run without failure."""
    ledger = UpdateLedger(("ps0",))
    ledger.sent([10], [5])
    ledger.saving()
    ledger.sent([7], [2])  # while the save is written
    ledger.persisted("ps0", 10, 5)
    ledger.committed()
    ledger.rolled_back()
    for _ in range(3):  # fails three times on the way
        ledger.sent([7], [2])
        ledger.rolled_back()
    ledger.sent([7], [2])
    assert [ledger.totals()[name] for name in ("applied_updates", "lost_updates")] == [17, 0]
    assert ledger.lost("ps0") == (7, 2)


def test_the_ledger_agrees_with_counting_rows_one_by_one() -> None:
    """Random sends, saves and deaths, replayed on per-row counters as a shard keeps them."""
    rng = random.Random(3)
    ledger = UpdateLedger(("ps0",))
    pending = [0] * 20  # rows 0-9 are tracked
    lost = lost_tracked = 0
    for _ in range(500):
        action = rng.choice(["send", "send", "send", "save", "die"])
        if action == "send":
            row = rng.randrange(20)
            pending[row] += 3
            ledger.sent([3], [3 if row < 10 else 0])
        elif action == "save":
            rows = rng.sample(range(20), 8)
            ledger.persisted("ps0", sum(pending[r] for r in rows), sum(pending[r] for r in rows if r < 10))
            for row in rows:
                pending[row] = 0
        else:
            lost, lost_tracked = lost + sum(pending), lost_tracked + sum(pending[:10])
            assert ledger.lost("ps0") == (sum(pending), sum(pending[:10]))
            pending = [0] * 20
    assert lost_tracked > 0
    assert [ledger.totals()[name] for name in ("lost_updates", "lost_tracked")] == [lost, lost_tracked]
