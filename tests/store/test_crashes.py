"""Law: whatever was saved before, and wherever processes or the power end, the last commit is found, and whole."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.store.lives import LIVES, Life, Step, live

ALL, HALF = Step(None, commits=True, reopens=False), Step(frozenset(range(4)), commits=True, reopens=False)
EVERY_KIND = [ALL, HALF, HALF, HALF, replace(HALF, commits=False), replace(HALF, reopens=True)]
WHOLE = 1000  # more calls than a life has


@pytest.mark.parametrize("fsync", [True, False])
@example(lives=[Life(EVERY_KIND, WHOLE, "kill")])
@example(lives=[Life([ALL, HALF, HALF], 60, "kill"), Life([HALF, ALL], 25, "late names"), Life([HALF], WHOLE, "kill")])
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(lives=LIVES)
def test_a_crash_at_any_call_leaves_the_last_commit(lives: list[Life], *, fsync: bool) -> None:
    """Saves, deltas, compactions and commits of processes that end and are followed by others, cut short at each call
    that changes a file; without fsync, by a kill."""
    assert live(lives, fsync=fsync) > 0
