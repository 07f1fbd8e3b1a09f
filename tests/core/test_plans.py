"""Names of ranks."""

from harness.core.faults import PlannedFault, Strike, merge_faults
from harness.core.plans import all_ranks, ps_rank, rank_order


def test_ranks_are_sorted_by_number_and_trainers_come_last() -> None:
    ranks = [*map(ps_rank, range(12)), *(f"trainer{k}" for k in range(12))]
    assert sorted(sorted(ranks), key=rank_order) == ranks
    assert all_ranks(2) == ("ps0", "ps1", "trainer0")


def test_a_kill_may_name_trainers() -> None:
    kills = [PlannedFault(step=1, strikes={rank: Strike(1.0, 2)}) for rank in ("trainer1", "ps10", "ps9")]
    assert merge_faults(1, kills).ranks == ("ps9", "ps10", "trainer1")
