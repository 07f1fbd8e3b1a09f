"""Pairing of cells: the reference cell that each cell is compared with, and why some cells have none."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from analysis.load import Frame
from analysis.stats.estimates import BASELINE, DRAWN, relevant_to_none, setting_keys


def paired(cells: Frame, baseline: str = BASELINE) -> Frame:
    """``cells`` with columns ``partner``, ``auc_difference`` (AUC minus that of the partner) and ``draw``.

    ``partner`` is the index label of the finished cell of strategy ``baseline`` with equal seed and setting. ``draw``
    numbers the different traces (and ``trace.seed``). Missing is NaN.

    The result of strategy ``none``, which has no failures and no saves, does not depend on the engine, the trace, the
    profile, or a key of strategy, trace, profile or store. If ``none`` did not run under the same setting, a cell of
    ``none`` that differs only in these is the partner. If candidates differ in their AUC, there is no partner.
    """
    keys = setting_keys(cells)
    bases = cells[(cells["strategy"] == baseline) & (cells["status"] == "done")]
    found = None
    for own in [*([relevant_to_none(keys)] if baseline == BASELINE else []), keys]:  # the last one that is met counts
        place = cells.groupby(["seed", *own], dropna=False, sort=False).ngroup()
        matches = bases["auc"].groupby(place[bases.index])
        partner = bases.index.to_series().groupby(place[bases.index]).first().astype("Int64")
        of_place = place.map(partner.where(matches.nunique(dropna=False) == 1)).astype("Int64")
        found = of_place if found is None else of_place.where(place.isin(partner.index), found)
    assert found is not None
    drawn = ["trace", *(key for key in DRAWN if key in cells)]
    return cells.assign(
        partner=found,
        auc_difference=cells["auc"] - found.map(bases["auc"]).astype(float),
        draw=cells.groupby(drawn, dropna=False, sort=False).ngroup(),
    )


def reasons(unpaired: Frame, cells: Frame) -> Iterator[tuple[int, str]]:
    """(seed, reason) for each cell of ``unpaired``: why it has no partner of strategy ``none`` among ``cells``."""
    if unpaired.empty:
        return
    states = {seed: {*own} for seed, own in cells[cells["strategy"] == BASELINE].groupby("seed")["status"]}
    for seed, auc in zip(unpaired["seed"], unpaired["auc"].isna(), strict=True):
        if auc:
            yield seed, "its own AUC is unknown"
        elif seed not in states:
            yield seed, f"{BASELINE} has no result"
        elif others := sorted(states[seed] - {"done", "copy"}):
            yield seed, f"{BASELINE} has no result ({', '.join(others)})"
        else:
            yield seed, f"{BASELINE} has no result, or several, of the same setting"


def seeds_text(seeds: Iterable[int]) -> str:
    """``seed 3``, or ``seeds 0–2, 5``."""
    ordered = sorted(set(seeds))
    runs = [[seed for _, seed in run] for _, run in groupby(enumerate(ordered), key=lambda item: item[1] - item[0])]
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"seed{'' if len(ordered) == 1 else 's'} {text}"


def cells_text(cells: Frame) -> str:
    """Cells by strategy: ``full seeds 0–2, partial seed 1``."""
    groups = cells.groupby("strategy", sort=False)["seed"]
    return ", ".join(f"{strategy} {seeds_text(own)}" for strategy, own in groups)
