"""Figures of claims about caches and costs: each draws into two axes, side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.claims.caches import (
    embedding_pct,
    saved_pct,
    speedups,
    staleness_loss,
    staleness_values,
    trainers_of,
    wire_name,
)
from analysis.claims.figures import LETTERS, apart, common_legend, symlog
from analysis.figures import INK, THEMES, colour, log_scale
from analysis.load import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = THEMES[INK][0]
_MARKS = "os^Dv"
_HET_PCT = 88.0
_LINES = ("-", "--", "-.")  # of a length of jobs
_CYCLE = [colour(name) for name in ("full", "never_save", "cpr_mfu", "cpr_vanilla", "other")]  # the page knows them


def draw_accesses(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """The share of accesses by the fraction of rows: of all tables, and of the largest."""
    _colour(axes)
    for panel, (tables, words) in enumerate({"all": "all tables", "largest": "the seven largest tables"}.items()):
        for data in dict.fromkeys(each["data"] for each in results):
            own = [each for each in results if (each["data"], each["tables"]) == (data, tables)]
            fracs, shares = ([100 * each[key] for each in own] for key in ("frac", "share"))
            axes[panel].plot(fracs, shares, "o-", label=data)
        log_scale(axes[panel], "x")
        axes[panel].set_title(words, fontsize=LETTERS)
        axes[panel].set_xlabel("most accessed rows, % (log)")
        axes[panel].set_ylabel("share of the accesses, %")
        axes[panel].set_ylim(0, 105)
    axes[0].plot(
        [1], [92], "x", color=_INK, markeredgewidth=2, linestyle="none", label="BagPipe: 1 %, over 92 %", zorder=3
    )
    common_legend(axes)


def draw_step(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """Milliseconds of a step by part, and the part that is embedding access and synchronisation."""
    _colour(axes)
    names = [name for name in ("plain", "local", "rpc", "rpc_lookahead") if any(r["variant"] == name for r in results)]
    shares = [[embedding_pct(each) for each in results if each["variant"] == name] for name in names]
    for number, (key, words) in enumerate({"step": "whole step", "dense": "dense network alone"}.items()):
        medians = [float(np.median([each[key] for each in results if each["variant"] == name])) for name in names]
        places = [place + 0.4 * number - 0.2 for place in range(len(names))]
        axes[0].barh(places, medians, height=0.36, label=words)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_xlabel("ms")
    _bars(axes[1], range(len(names)), shares)
    axes[1].set_xticks(range(len(names)), names)
    axes[1].axhline(75, color=_INK, linestyle=":", label="BagPipe: about 75 %")
    axes[1].set_ylabel("the rest, % of a step")
    axes[0].invert_yaxis()
    common_legend(axes)


def draw_lookahead(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """Bytes saved with the most that can be saved, and the rows that are cached at once, by lookahead."""
    _colour(axes)
    steps = [each["lookahead"] for each in results]
    most = [100 * (1 - each["minimum_bytes"] / each["uncached_bytes"]) for each in results]
    axes[0].plot(steps, [100 * each["saved_frac"] for each in results], "o", markersize=9, label="bytes saved")
    axes[0].plot(steps, [100 * each["hit_rate"] for each in results], "s", markersize=4, label="rows not fetched")
    axes[0].plot(steps, most, ":", color=_INK, label="the most that a cache of this lookahead can save")
    axes[0].set_ylabel("saved, % of a run without a cache")
    common_legend(axes)
    axes[1].plot(steps, [each["peak_rows"] / 1e3 for each in results], "^-", color=_INK)
    axes[1].set_ylabel("most rows cached at once, 10³")
    for each in axes[:2]:
        each.set_xlabel("lookahead, steps")


def draw_wire(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """Milliseconds of a step by the rate of the wire, with the cache and without; and how much faster it is."""
    ends = ("low", "median", "high")
    steps = {
        variant: [[each[variant]["ms"][key] for key in ends] for each in results]
        for variant in ("uncached", "lookahead")
    }
    _draw_gain(axes, [wire_name(each) for each in results], steps, [each["ratios"] for each in results])


def draw_cached_trainers(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """Milliseconds of a step by the number of trainers, with the cache and without; and how much faster it is."""
    steps = {f"cache {cache}": [each["ms"][cache] for each in results] for cache in ("none", "lookahead")}
    _draw_gain(axes, [trainers_of(each) for each in results], steps, [speedups(each) for each in results])


def _draw_gain(
    axes: Sequence["Axes"],
    names: Sequence[str],
    steps: Mapping[str, Sequence[Sequence[float]]],
    ratios: Sequence[Sequence[float]],
) -> None:
    """Milliseconds of two kinds of steps in each setting of ``names``; and how many times faster the second is."""
    _colour(axes)
    places = np.arange(len(names))
    for offset, (label, ms) in zip((-0.1, 0.1), steps.items(), strict=True):
        _bars(axes[0], (places + offset).tolist(), ms, label)
    _bars(axes[1], places.tolist(), ratios, hue=_INK)
    axes[1].axhline(1, color=_INK, linestyle=":", label="as fast as without the cache")
    axes[0].set_ylabel("ms a step")
    axes[1].set_ylabel("speed-up by the lookahead cache")
    common_legend(axes)
    for each in axes:
        each.set_xticks(places, names)
        each.set_xlim(-0.5, len(names) - 0.5)
        each.set_ylim(bottom=0)


def draw_staleness(axes: Sequence["Axes"], cells: Sequence[Cell]) -> None:
    """AUC lost against bytes saved, a point for each staleness; and the bytes, with and without asking for versions."""
    _colour(axes)
    values = staleness_values(cells)
    for value in values:
        saved, loss = saved_pct(cells, value), staleness_loss(cells, value)
        if saved is not None:
            mean, half = (1e3 * loss.mean, 1e3 * (loss.half_width or 0)) if loss else (0.0, 0.0)
            axes[0].errorbar(saved.mean, mean, yerr=half, marker="o", capsize=3, color=colour("none"))
            is_left = value == values[0] or _HET_PCT - 25 < saved.mean <= _HET_PCT  # away from a neighbour, the line
            side, x_pt = ("right", -6) if is_left else ("left", 6)
            offset = {"xytext": (x_pt, 5), "textcoords": "offset points"}
            axes[0].annotate(f"s = {value}", (saved.mean, mean), fontsize=LETTERS, ha=side, **offset)
    axes[0].axvline(_HET_PCT, color=_INK, linestyle=":", label="HET: 88 %")
    axes[0].set_xlim(-18, 125)  # room for the words
    axes[0].set_xticks(range(0, 101, 20))
    axes[0].set_xlabel("bytes saved, %")
    axes[0].set_ylabel("AUC lost to s = 0, 10⁻³")
    for with_clocks, label in ((False, "versions not counted"), (True, "versions counted")):
        means = [each.mean for value in values if (each := saved_pct(cells, value, with_clocks=with_clocks))]
        axes[1].plot(range(len(means)), means, "o-", label=label)
    axes[1].set_xticks(range(len(values)), [str(value) for value in values])
    axes[1].set_xlabel("staleness s, updates")
    axes[1].set_ylabel("bytes saved, %")
    common_legend(axes)


def draw_trackers(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """Memory by embedding dim, and time as a part of a step. Trackers at one dim are moved apart by a little."""
    _colour(axes)
    names = [each["tracker"] for each in results]
    strategies = {"changed": "differential"}
    for number, each in enumerate(results):
        hue = colour(strategies.get(each["tracker"], f"cpr_{each['tracker']}"))
        dims = [int(dim) for dim in each["memory_fracs"]]
        moved = [dim * 2 ** (0.4 * apart(number, len(results))) for dim in dims]
        memory = [100 * frac for frac in each["memory_fracs"].values()]
        mark = _MARKS[number % len(_MARKS)]
        axes[0].plot(moved, memory, mark, linestyle="-", linewidth=1, color=hue, label=each["tracker"])
        _bars(axes[1], [number], [each["steps_pct"]], mark=mark, hue=hue)
    for name in ("x", "y"):
        log_scale(axes[0], name)
    axes[0].set_xticks(sorted({int(dim) for each in results for dim in each["memory_fracs"]}))
    axes[0].set_xlabel("embedding dim (log)")
    axes[0].set_ylabel("memory, % of the tracked tables (log)")
    common_legend(axes)
    axes[1].set_xticks(range(len(names)), names)
    axes[1].set_ylabel("tracking accesses, % of a step")


def draw_production(axes: Sequence["Axes"], results: Sequence[Cell]) -> None:
    """The distribution of overhead over jobs by strategy, and the P90 of full recovery by the spread of costs."""
    _colour(axes)
    drawn = [each for each in results if each["what"] == "population"]
    lengths = dict.fromkeys(each["length_h"] for each in drawn)
    for length_h, line in zip(lengths, _LINES, strict=False):
        for name in dict.fromkeys(each["strategy"] for each in drawn):
            own = [each for each in drawn if (each["length_h"], each["strategy"]) == (length_h, name)]
            over_J = np.sort(100 * np.concatenate([each["overheads"] for each in own]))
            label = f"{name}, jobs of {length_h:g} h"
            axes[0].plot(
                over_J, 100 * np.arange(1, len(over_J) + 1) / len(over_J), line, color=colour(name), label=label
            )
    symlog(axes[0], "x", 1, "overhead, % of the job")
    axes[0].set_xlim(0, 200)
    axes[0].plot([30], [90], "x", color=_INK, markeredgewidth=2, linestyle="none", label="published P90", zorder=3)
    axes[0].set_ylabel("jobs with at most this overhead, %")
    for length_h, line in zip(dict.fromkeys(each["length_h"] for each in results), _LINES, strict=False):
        own = [each for each in results if (each["what"], each["length_h"]) == ("search", length_h)]
        axes[1].plot(
            [e["sigma"] for e in own],
            [100 * e["p90"] for e in own],
            f"o{line}",
            color=colour("full"),
            label=f"full, jobs of {length_h:g} h",
        )
        if own and (best := max(own, key=lambda e: e["p90"])):
            ring = {"markersize": 14, "markerfacecolor": "none", "markeredgecolor": _INK, "linestyle": "none"}
            axes[1].plot([best["sigma"]], [100 * best["p90"]], "o", **ring)
    axes[1].axhline(30, color=_INK, linestyle=":", label="published P90: over 30 %")
    axes[1].set_xlabel("sigma, spread of the costs over jobs")
    axes[1].set_ylabel("P90 of the overhead, % of the job")
    common_legend(axes, columns=4)


def _colour(axes: Sequence["Axes"]) -> None:
    for each in axes:
        each.set_prop_cycle(color=_CYCLE)


def _bars(
    axes: "Axes",
    places: Sequence[float],
    values: Sequence[Sequence[float]],
    label: str | None = None,
    *,
    mark: str = "o",
    hue: str | None = None,
) -> None:
    """The median of each group of values, with a bar from the least to the greatest."""
    ends: list[Any] = [(np.median(own), min(own), max(own)) for own in values]
    middle, low, high = np.array(ends).T
    axes.errorbar(places, middle, yerr=[middle - low, high - middle], fmt=mark, color=hue, capsize=3, label=label)
