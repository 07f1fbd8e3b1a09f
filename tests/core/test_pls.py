"""The two ledgers of what partial recovery loses."""

import random
from typing import Literal

import pytest

from harness.core.pls import PlsLedger, UpdateLedger

QUARTERS: dict[str, float] = dict.fromkeys(("ps0", "ps1", "ps2", "ps3"), 0.25)


@pytest.mark.parametrize("since", ["save_or_restore", "save"])
def test_a_loss_is_what_came_since_the_last_save_or_restore(since: Literal["save_or_restore", "save"]) -> None:
    """Random saves, deaths and rollbacks, against one list of samples a rank; a rollback adds nothing."""
    rng, ledger = random.Random(2), PlsLedger(QUARTERS, 4000, since)
    from_R, samples, total = dict.fromkeys(QUARTERS, 0), 0, 0.0
    saved = 0
    for _ in range(300):
        samples += rng.randrange(1, 20)
        action = rng.choice(["save", "die", "die", "roll back"])
        if action == "save":
            ledger.saved(samples)
            saved = samples
            from_R = dict.fromkeys(QUARTERS, samples)
        elif action == "die":
            rank = rng.choice([*QUARTERS])
            lost = (samples - from_R[rank]) / 4000 / 4
            assert ledger.lost(rank, samples) == pytest.approx(lost, rel=1e-12)
            total += lost
            if since == "save_or_restore":
                from_R[rank] = samples
        else:
            ledger.rolled_back(saved)
            samples, from_R = saved, dict.fromkeys(QUARTERS, saved)
        assert ledger.total == pytest.approx(total, rel=1e-12)
    assert total > 0


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
    """Random sends, saves and deaths, replayed on per-row counters as a shard keeps them; at first no part is lost."""
    rng = random.Random(3)
    ledger = UpdateLedger(("ps0", "ps1"))
    assert (ledger.totals()["update_pls"], ledger.totals()["update_pls_tracked"]) == (None, None)
    pending = [0] * 20  # rows 0-9 are tracked
    sent = sent_tracked = lost = lost_tracked = 0
    for _ in range(500):
        action = rng.choice(["send", "send", "send", "save", "die"])
        if action == "send":
            row = rng.randrange(20)
            pending[row] += 3
            sent, sent_tracked = sent + 8, sent_tracked + 3 * (row < 10) + 2
            ledger.sent([3, 5], [3 if row < 10 else 0, 2])
        elif action == "save":
            rows = rng.sample(range(20), 8)
            ledger.persisted("ps0", sum(pending[r] for r in rows), sum(pending[r] for r in rows if r < 10))
            for row in rows:
                pending[row] = 0
        else:
            lost, lost_tracked = lost + sum(pending), lost_tracked + sum(pending[:10])
            assert ledger.lost("ps0") == (sum(pending), sum(pending[:10]))
            pending = [0] * 20
            assert ledger.lost("ps0") == (0, 0)
    assert lost_tracked > 0
    assert ledger.totals() == {
        "applied_updates": sent,
        "lost_updates": lost,
        "recovered_updates": 0,
        "update_pls": pytest.approx(lost / sent),
        "applied_tracked": sent_tracked,
        "lost_tracked": lost_tracked,
        "recovered_tracked": 0,
        "update_pls_tracked": pytest.approx(lost_tracked / sent_tracked),
    }
