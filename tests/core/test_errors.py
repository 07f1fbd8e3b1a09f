"""Errors cross processes."""

import pickle

from harness.core.errors import RankLost


def test_a_lost_rank_survives_pickling() -> None:
    """Who died, what the others answered and the transport's words reach another process unchanged."""
    lost = pickle.loads(pickle.dumps(RankLost(["ps3"], {"ps0": 1}, {"ps3": "eof"})))
    assert (lost.ranks, lost.replies, lost.detail) == (frozenset({"ps3"}), {"ps0": 1}, {"ps3": "eof"})
    assert str(lost) == "lost ps3 (eof)"


def test_what_a_dead_rank_had_answered_is_void() -> None:
    """Law: the replies of a loss are those of the ranks that live, on either engine."""
    assert RankLost(["ps1"], {"ps0": 0, "ps1": 1}).replies == {"ps0": 0}
