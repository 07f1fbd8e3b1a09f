"""Rows of all ranks, cut into those of each."""

import numpy as np
import pytest

from harness.client.protocol import RankSpans
from harness.core.placement import Placement
from harness.core.plans import ps_rank


@pytest.mark.parametrize("kind", ["row", "table"])
@pytest.mark.parametrize("num_keys", [0, 1, 40])
def test_keys_are_cut_as_a_loop_over_them_would(kind, num_keys: int) -> None:
    """Every key goes to the rank whose span holds it, as the row that it is there; ranks without keys get none."""
    placement = Placement(kind, (30, 5, 20), 4)
    ranks = tuple(ps_rank(k) for k in range(4))
    spans = RankSpans(placement, ranks)
    keys = np.sort(np.random.Generator(np.random.PCG64(num_keys)).choice(55, num_keys, replace=False))
    expected: dict[str, list[int]] = {rank: [] for rank in ranks}
    for key in keys.tolist():
        rank = next(r for r in ranks if spans.span(r)[0] <= key < spans.span(r)[1])
        expected[rank].append(key - spans.span(rank)[0])
    assert {rank: rows.tolist() for rank, rows in spans.local(keys).items()} == expected
    assert [keys[part].size for part in spans.cut(keys)] == [len(rows) for rows in expected.values()]
    assert spans.num_keys == 55
