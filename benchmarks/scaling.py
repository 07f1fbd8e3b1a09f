"""How the time of a step grows with the batch, the PS ranks, the lookahead and the tables: one picture each.

    batch      32 to 512 samples a step
    ranks      1 to 8 PS ranks
    lookahead  20 and 200 steps that the cache's oracle sees; the engines without a cache beside it
    rows       Kaggle's tables scaled by 0.01 to 1

Kaggle's dense network and skew; what is not on the axis is batch 128, 2 PS ranks, lookahead 200 and ``--rows-scale``.
Engines local, rpc, and rpc with the lookahead cache are measured in turn at each point, as in throughput.py. Points of
an axis come one after the other: the distance between curves at a point is a measurement, the shape of a curve also
holds what the machine did meanwhile.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks._common import Spread, config_of, names_of, numbers_of, parser, report, settings_of, table
from benchmarks._turns import harness_run, in_turn, num_steps

ENGINES = {"local": ("local", "none"), "rpc": ("rpc", "none"), "rpc, lookahead": ("rpc", "lookahead")}
"""(engine, cache.mode) by the name of the curve."""
AXES: dict[str, tuple[tuple[float, ...], str]] = {
    "batch": ((32, 128, 512), "samples a step"),
    "ranks": ((1, 2, 4, 8), "PS ranks"),
    "lookahead": ((20, 200), "steps that the oracle sees"),
    "rows": ((0.01, 0.1, 1.0), "rows, × Kaggle's 33.8 million"),
}
"""Points, and the label on a picture."""
WORDS = {"batch": "batch {:g}", "ranks": "{:g} PS ranks", "lookahead": "lookahead {:g}", "rows": "{:g} × Kaggle's rows"}

Curves = dict[str, dict[float, Spread]]
"""By engine: milliseconds of a step at each point."""


def measure(at: Mapping[str, float], options: argparse.Namespace) -> dict[str, Spread]:
    """Milliseconds of a step, by engine, at one point of all axes."""
    batch_size, lead = int(at["batch"]), max(1, -(-int(at["lookahead"]) // 2 // options.steps))  # a window at least
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        steps = num_steps(options.rounds, options.steps, lead=lead)
        base = settings_of(Path(name), at["rows"], steps, batch_size=batch_size, threads=options.threads)
        base |= {"cluster": {"num_ps": int(at["ranks"])}, "metrics": {"log_every_steps": options.steps}}
        configs = {
            curve: config_of(base, {"engine": engine, "cache": {"mode": mode, "lookahead": int(at["lookahead"])}})
            for curve, (engine, mode) in ENGINES.items()
        }
        variants = {curve: (harness_run, config) for curve, config in configs.items()}
        rounds = in_turn(variants, Path(name), options.rounds, lead=lead)
    return {curve: Spread.of(each[curve] for each in rounds) for curve in ENGINES}


def draw(path: Path, axis: str, curves: Curves, subtitle: str) -> None:
    """A line per engine, its range as a band."""
    points, label = list(curves["local"]), AXES[axis][1]
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for engine, spreads in curves.items():
        axes.plot(points, [s.median for s in spreads.values()], marker="o", label=engine)
        lows, highs = [s.low for s in spreads.values()], [s.high for s in spreads.values()]
        axes.fill_between(points, lows, highs, alpha=0.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(points, [f"{point:g}" for point in points])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{label}; {subtitle}")
    axes.set_ylabel("ms a step")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with mpl.rc_context({"svg.hashsalt": "scaling", "svg.fonttype": "none"}):  # equal figures, equal bytes
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print the tables, draw them and write them as JSON if asked."""
    made = parser(__doc__, rounds=3, steps=100, threads=2, rows_scale=0.1)
    made.add_argument("--axes", type=names_of(AXES), default=list(AXES), help="which to measure")
    made.add_argument(
        "--points", type=numbers_of, help="points instead of an axis's own, of the one axis that is measured"
    )
    made.add_argument("--pictures", type=Path, help="folder for scaling_AXIS.svg")
    options = made.parse_args()
    if options.points and len(options.axes) != 1:
        made.error("--points: expected one axis in --axes")
    defaults = {"batch": 128.0, "ranks": 2.0, "lookahead": 200.0, "rows": options.rows_scale}
    lines, found = [], {}
    for axis in options.axes:
        points = options.points or AXES[axis][0]
        measured = {point: measure({**defaults, axis: point}, options) for point in points}
        curves: Curves = {engine: {point: at[engine] for point, at in measured.items()} for engine in ENGINES}
        rows = [(engine, *(spread.show() for spread in spreads.values())) for engine, spreads in curves.items()]
        lines += [*table((AXES[axis][1], *(f"{point:g}" for point in points)), rows), ""]
        found[axis] = {engine: {f"{at:g}": s for at, s in spreads.items()} for engine, spreads in curves.items()}
        if options.pictures is not None:
            still = ", ".join(WORDS[other].format(value) for other, value in defaults.items() if other != axis)
            draw(options.pictures / f"scaling_{axis}.svg", axis, curves, still)
    report(options, lines[:-1], {"ms": found})


if __name__ == "__main__":
    main()
