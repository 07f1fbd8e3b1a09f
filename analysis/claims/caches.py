"""What benchmarks and runs show of caches: skew of accesses, parts of a step, lookahead, a slow wire, staleness."""

import math
from collections.abc import Sequence

from analysis.claims.rows import Row, Verdict, joined, measured, middle, shown, within
from analysis.load import Cell
from analysis.stats import DEFAULT_MARGIN, Estimate, estimate

_SHOWN_FRACS = (0.001, 0.01, 0.1)
_PAPER_FRAC, _PAPER_SHARE = 0.01, 0.92
_PAPER = "over 92 [read]"
_LEAST_SAMPLES = 1_000_000  # of real data, for a share below the published one to count: it grows with the samples
_ASKED_FOR = "the generator was asked for the skew of each large table"


def accesses(results: Sequence[Cell]) -> list[Row]:
    """Shares of the most accessed rows. Synthetic data decide nothing, above or below: their skew was asked for."""
    rows: list[Row] = []
    for each in results:
        if each["tables"] != "all" or each["frac"] not in _SHOWN_FRACS:
            continue
        kind = "synthetic" if each["is_synthetic"] else "real"
        what = f"accesses of the top {100 * each['frac']:g} % of rows, % (`{each['data']}`, {kind})"
        ours, num = f"{100 * each['share']:.1f}", each["num_samples"]
        why = f"{each['num_rows']:,} rows, {num:,} samples"
        if each["frac"] != _PAPER_FRAC:
            rows.append(Row(what, "–", ours, num, "ours", why))
            continue
        verdict, reason = _share_verdict(each)
        rows.append(Row(what, _PAPER, ours, num, verdict, joined(reason, why)))
    return rows or [Row("accesses of the top 1 % of rows, %", _PAPER, "–", 0, "cannot be told", "no data")]


def _share_verdict(each: Cell) -> tuple[Verdict, str]:
    if each["is_synthetic"]:
        return "cannot be told", _ASKED_FOR
    if each["share"] > _PAPER_SHARE:
        return "reproduced", ""
    if each["num_samples"] < _LEAST_SAMPLES:
        return "cannot be told", f"fewer than {_LEAST_SAMPLES:,} samples, and the share grows with them"
    return "not reproduced", "the share is 92 % or less"


_ABOUT = "about 75 (65 to 85) [read]"
_STEPS = {  # by variant of benchmarks/step.py: what is measured, and BagPipe's part, which is without a cache
    "plain": ("plain DLRM in one process: lookups, their gradients and updates", _ABOUT),
    "local": ("`local`: all but the dense network", "–"),
    "rpc": ("`rpc`, 2 ranks, no cache: all but the dense network", _ABOUT),
    "rpc_lookahead": ("`rpc`, 2 ranks, lookahead cache: all but the dense network", "–"),
}


def embedding_share(results: Sequence[Cell]) -> list[Row]:
    """The part of a step that is embedding access and synchronisation. 65 to 85 % counts as about 75."""
    rows: list[Row] = []
    for variant, (what, paper) in _STEPS.items():
        own = [each for each in results if each["variant"] == variant]
        shares = [embedding_pct(each) for each in own]
        why = f"step {middle([each['step'] for each in own])} ms" if own else ""
        if own and "start" in own[0]:
            requests = [100 * (each["start"] + each["finish"]) / each["step"] for each in own]
            why += f"; requests alone {middle(requests)} %"
        if shares and min(shares) < 0:
            why += "; below 0: a round in which the dense network alone took longer than the step, so other work ran"
        rows.append(measured(f"{what}, % of a step", paper, shares, 65, 85, why=why))
    return rows


def embedding_pct(each: Cell) -> float:
    """Percent of a step: of the plain DLRM what is timed as such, else all that the dense network alone does not take.

    The latter has reading and planning of batches, and the cache.
    """
    spent = each["embedding"] if "embedding" in each else each["step"] - each["dense"]
    return 100 * spent / each["step"]


def lookahead(results: Sequence[Cell]) -> list[Row]:
    """What each lookahead saves, and whether the cache moves no more than it must."""
    rows = [
        Row(
            f"lookahead of {each['lookahead']} steps",
            "–",
            f"bytes saved {100 * each['saved_frac']:.1f} %; hits {100 * each['hit_rate']:.1f} %; "
            f"at most {each['peak_rows']:,} rows cached",
            1,
            "ours",
        )
        for each in results
    ]
    over_pct = [100 * each["over_minimum_frac"] for each in results]
    return [*rows, measured("bytes beyond the least possible, %", "0 (own claim)", over_pct, 0, 0.005)]


def cached_trainers(results: Sequence[Cell]) -> list[Row]:
    """What the cache moves and holds with several trainers, and how much faster steps are."""
    rows: list[Row] = []
    for each in results:
        cache, trainers = each["cache"], trainers_of(each)
        moved = f"hits {100 * cache['hit_rate']:.1f} %; {cache['bytes'] / 1e6:.1f} MB to and from PS ranks"
        held = f"{each['num_trainers'] * cache['peak_rows']:,.0f} rows held at most, of all together"
        rows.append(Row(trainers, "–", f"{moved}; {held}", 1, "ours"))
    for key, words in (("hit_rate", "hits"), ("bytes", "bytes to and from PS ranks")):
        more = [100 * (each["cache"][key] / results[0]["cache"][key] - 1) for each in results[1:]]
        rows.append(measured(f"more {words} than one trainer has, %", "0 (own claim)", more, 0, 0))
    for each in results:
        what = f"step without the cache over the step with it, {trainers_of(each)}"
        rows.append(measured(what, "–", speedups(each), 0, math.inf))
    return rows


def trainers_of(each: Cell) -> str:
    """The number of trainers of a result, in words."""
    return f"{each['num_trainers']} trainer{'s' * (each['num_trainers'] > 1)}"


def speedups(each: Cell) -> list[float]:
    """By round, of the cache."""
    return [none / cached for none, cached in zip(each["ms"]["none"], each["ms"]["lookahead"], strict=True)]


def wire(results: Sequence[Cell]) -> list[Row]:
    """How much faster a step is with the cache, on loopback and on wires of limited rate."""
    paper = "up to 5.6 [read], over other baselines"
    if not results:
        return [Row("speed-up by the lookahead cache", paper, "–", 0, "cannot be told", "not run here")]
    rows = [
        measured(
            f"speed-up by the lookahead cache, {wire_name(each)}, {each['num_ps']} ranks",
            "–",
            each["ratios"],
            0,
            math.inf,
            why=f"{each['uncached']['passed'] / each['lookahead']['passed']:.1f} times fewer bytes",
        )
        for each in results
    ]
    best = max(results, key=lambda each: sorted(each["ratios"])[len(each["ratios"]) // 2])
    what = f"largest of these speed-ups, {wire_name(best)}; above 1"
    return [
        *rows,
        measured(what, paper, best["ratios"], 1, math.inf, why="one machine: its cores are shared by all ranks"),
    ]


def wire_name(each: Cell) -> str:
    """The wire of a result."""
    return f"{each['rate_mbit']:g} Mbit/s" if each["rate_mbit"] else "loopback"


_HET_PCT = 88.0


def staleness(cells: Sequence[Cell]) -> list[Row]:
    """Bytes saved and AUC lost by each staleness, and what of HET's saving is free here."""
    values = staleness_values(cells)
    losses = {value: staleness_loss(cells, value) for value in values}
    saved = {value: saved_pct(cells, value) for value in values}
    rows: list[Row] = []
    for value in values:
        loss, all_saved = losses[value], saved_pct(cells, value, with_clocks=True)
        ours = [f"bytes saved {_shown(saved[value])} %, versions counted {_shown(all_saved)} %"]
        ours.append(f"AUC loss {shown(loss, 1e3)}·10⁻³" if loss else "")
        rows.append(Row(f"staleness {value}", "–", "; ".join(filter(None, ours)), _num(saved[value]), "ours", ""))
    for with_clocks, how in ((False, "versions not counted"), (True, "versions counted")):
        found = [each for value in values if (each := saved_pct(cells, value, with_clocks=with_clocks))]
        most = max(found, key=lambda each: each.mean, default=None)
        rows.append(within(f"most embedding bytes saved, % ({how})", "up to 88 [read]", most, _HET_PCT, 100))
    enough = [value for value in values if (each := saved[value]) and each.mean >= _HET_PCT and losses[value]]
    if enough:
        loss = losses[enough[0]]
        assert loss is not None
        what = f"AUC loss at the least staleness that saves 88 %, {enough[0]}, 10⁻³"
        rows.append(Row(what, "–", shown(loss, 1e3), loss.num, "ours"))
    free = [value for value in values if _is_free(losses[value])]
    if free:
        what = f"bytes saved at the greatest staleness that loses less than {1e3 * DEFAULT_MARGIN:g}·10⁻³ of AUC, %"
        rows.append(Row(what, "–", _shown(saved[free[-1]]), _num(saved[free[-1]]), "ours", f"staleness {free[-1]}"))
    return rows


def staleness_values(cells: Sequence[Cell]) -> list[int]:
    """Values of the staleness that finished cells have."""
    return sorted({int(cell["cache.staleness"]) for cell in cells if cell["status"] == "done"})


def staleness_loss(cells: Sequence[Cell], value: int) -> Estimate | None:
    """AUC lost to staleness 0, which is bit-equal to no cache, paired by seed; None of staleness 0."""
    exact, own = ({cell["seed"]: cell["auc"] for cell in _of(cells, each)} for each in (0, value))
    return estimate([exact[seed] - own[seed] for seed in sorted(exact.keys() & own.keys())]) if value else None


def saved_pct(cells: Sequence[Cell], value: int, *, with_clocks: bool = False) -> Estimate | None:
    """Percent of the bytes of a run without a cache. ``with_clocks``: with what asking for versions would send."""
    return estimate(
        100 * (1 - (cell["cache_bytes"] + with_clocks * cell["cache_clock_bytes"]) / cell["cache_uncached_bytes"])
        for cell in _of(cells, value)
    )


def _of(cells: Sequence[Cell], value: int) -> list[Cell]:
    return [cell for cell in cells if cell["status"] == "done" and cell["cache.staleness"] == value]


def _is_free(loss: Estimate | None) -> bool:
    return loss is not None and loss.interval is not None and loss.interval[1] < DEFAULT_MARGIN


def _shown(value: Estimate | None) -> str:
    return shown(value, digits=1) if value else "–"


def _num(value: Estimate | None) -> int:
    return value.num if value else 0
