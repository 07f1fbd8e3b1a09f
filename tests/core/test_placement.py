"""Laws of which rank owns which row. T tables, R ranks."""

from itertools import product
from math import floor
from typing import Literal

import numpy as np
import pytest

from harness.core.clock import exact
from harness.core.criteo_sizes import KAGGLE_CARDINALITIES, TERABYTE_CARDINALITIES
from harness.core.lookup import plan_batch
from harness.core.placement import Placement, budget_rows, tracked_tables
from harness.core.pls import rank_weights

KAGGLE, TERABYTE = KAGGLE_CARDINALITIES, TERABYTE_CARDINALITIES
SMALL = (5, 1, 17, 2, 40, 17, 3)

Kind = Literal["row", "table"]


def positions(placement: Placement, ids_BF: np.ndarray) -> np.ndarray:
    """The place of each access's row in the rank-major order of all rows, (B, F)."""
    plan = plan_batch(ids_BF, placement, np.zeros(len(ids_BF), bool))
    return plan.keys_N[plan.inverse_A].reshape(ids_BF.shape)


@pytest.mark.parametrize("kind", ["row", "table"])
@pytest.mark.parametrize("num_ps", [1, 2, 3, 8, 50])  # 50: more than any table has rows
def test_all_descriptions_of_a_place_agree(kind: Kind, num_ps: int) -> None:
    """Local row j of a table on a rank is table row ``first + j * stride``, at ``rank_base + offset + j``: one place
    of its own for each row, of which a rank has ``num_rows``. A rank's weight in PLS is 1/N exactly under row
    placement, its part of all rows under table placement.
    """
    placement = Placement(kind, SMALL, num_ps)
    found, places = [], []
    for rank, table in product(range(num_ps), range(len(SMALL))):
        first, stride = placement.table_rows(rank, table)
        start = placement.rank_base_R[rank] + placement.offsets_RT[rank, table]
        for local in range(placement.num_local_rows(rank, table)):
            ids_BF = np.zeros((1, len(SMALL)), dtype=np.int32)
            ids_BF[0, table] = first + local * stride
            assert positions(placement, ids_BF)[0, table] == start + local
            found.append((table, first + local * stride))
            places.append(start + local)
    assert sorted(found) == [(table, row) for table, size in enumerate(SMALL) for row in range(size)]
    assert sorted(places) == list(range(sum(SMALL)))
    assert sum(map(placement.num_rows, range(num_ps))) == placement.rank_base_R[-1] == sum(SMALL)
    shares = [*rank_weights(placement).values()]
    if kind == "row":
        assert np.ptp(placement.num_local_rows_RT, axis=0).max() <= 1, "a dead rank is 1/N of each table"
        assert shares == [1 / num_ps] * num_ps
    else:
        assert shares == [placement.num_rows(rank) / sum(SMALL) for rank in range(num_ps)]


@pytest.mark.parametrize("cardinalities", [KAGGLE, TERABYTE, SMALL])
@pytest.mark.parametrize("num_ps", [2, 4, 7])
def test_table_placement_puts_the_largest_onto_the_lightest(cardinalities: tuple[int, ...], num_ps: int) -> None:
    """Each table lies whole on one rank, and no rank could give its smallest table away to lighten the heaviest:
    without it, it is no heavier than the lightest.
    """
    placement = Placement("table", cardinalities, num_ps)
    assert ((placement.num_local_rows_RT > 0).sum(axis=0) == 1).all()
    lightest = min(placement.num_rows(rank) for rank in range(num_ps))
    for rows_T in placement.num_local_rows_RT:
        if rows_T.any():
            assert rows_T.sum() - rows_T[rows_T > 0].min() <= lightest
    ties = Placement("table", (7, 7, 7, 7, 9), 3).table_owner_T.tolist()
    assert ties == [1, 2, 1, 2, 0], "equal tables go round the ranks in order"


@pytest.mark.parametrize(
    ("cardinalities", "total", "held_percent"), [(KAGGLE, 33_762_577, 99.584), (TERABYTE, 49_126_297, 99.124)]
)
def test_seven_tables_hold_what_the_paper_says(cardinalities: tuple[int, ...], total: int, held_percent: float) -> None:
    """7 of 26 tables hold 99.58 % of Kaggle's rows and 99.12 % of Terabyte's (CPR: 99.6 and 99.1), in table order."""
    tracked = tracked_tables(cardinalities, 7)
    assert sum(cardinalities) == total
    assert len(tracked) == 7
    assert list(tracked) == sorted(tracked)
    assert min(cardinalities[t] for t in tracked) >= max(cardinalities[t] for t in {*range(26)} - {*tracked})
    assert round(100 * sum(cardinalities[t] for t in tracked) / total, 3) == held_percent
    assert tracked_tables((4, 9, 4, 4), 2) == (0, 1), "of equal tables the lower is tracked"
    assert tracked_tables((4, 9), 7) == (0, 1)


def test_budget_is_the_floor_of_the_decimal_that_was_written() -> None:
    """K = max(1, floor(r * rows)), r being the decimal in the config: 0.29 of 100 rows are 29; of no rows none."""
    assert budget_rows(0, 0.5) == 0
    for percent, rows in product(range(1, 101), [1, 2, 7, 8, 50, 100, 1000, 1_266_404]):
        assert budget_rows(rows, percent / 100) == max(1, percent * rows // 100), (percent, rows)
    assert budget_rows(1_266_404, 0.125) == floor(exact(0.125) * 1_266_404) == 158_300
