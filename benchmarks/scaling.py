"""How the time of a step grows with the batch, the PS ranks, the lookahead and the tables: one picture each.

    python benchmarks/scaling.py [--axes batch,ranks,lookahead,rows] [--rounds 3] [--steps 60] [--lead 60] [--threads 2]
                                 [--rows-scale 0.1] [--pictures docs] [--json FILE]

    batch      32 to 512 samples a step
    ranks      1 to 8 PS ranks
    lookahead  20 and 200 steps that the cache's oracle sees; the engines without a cache beside it
    rows       Kaggle's tables scaled by 0.01 to 1

Kaggle's dense network and skew; what is not on the axis is batch 128, 2 PS ranks, lookahead 200 and ``--rows-scale``.
Engines local, rpc, and rpc with the lookahead cache train as run.py would. At each point of an axis they stand ready
together and run in turn, ``--lead`` steps untimed and ``--steps`` timed, in an order that turns from round to round;
the first round is thrown away. Points of an axis come one after the other, so read a curve's shape with care and the
distance between curves at a point as it is.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks._common import Spread, heading, machine, write_json
from benchmarks._workers import trainer
from benchmarks.throughput import Variant, configure, start

ENGINES = ("local", "rpc", "rpc, lookahead")
DEFAULTS: dict[str, float] = {"batch": 128, "ranks": 2, "lookahead": 200}


@dataclass(frozen=True)
class Axis:
    """What grows: its points, and what it is called on a picture."""

    points: tuple[float, ...]
    label: str


AXES = {
    "batch": Axis((32, 128, 512), "samples a step"),
    "ranks": Axis((1, 2, 4, 8), "PS ranks"),
    "lookahead": Axis((20, 200), "steps that the oracle sees"),
    "rows": Axis((0.01, 0.1, 1.0), "rows, × Kaggle's 33.8 million"),
}

Curves = dict[str, dict[float, Spread]]
"""By engine: milliseconds of a step at each point."""


def settings_of(engine: str, at: Mapping[str, float]) -> dict[str, Any]:
    """The keys of ``engine`` at a point."""
    cache = {"mode": "lookahead", "lookahead": int(at["lookahead"])} if engine == ENGINES[2] else {"mode": "none"}
    return {"engine": engine.split(",", maxsplit=1)[0], "cluster": {"num_ps": int(at["ranks"])}, "cache": cache}


def measure(at: Mapping[str, float], options: argparse.Namespace) -> dict[str, Spread]:
    """Milliseconds of a step, by engine."""
    lead = max(options.lead, int(at["lookahead"]) // 2)  # a window of the cache, so that none is begun before its time
    changed = {"batch_size": int(at["batch"]), "rows_scale": at["rows"]}
    scaled = argparse.Namespace(**{**vars(options), **changed})
    rounds: list[dict[str, float]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaling-")))
        base = configure(scaled, folder, (options.rounds + 2) * (lead + options.steps) + 1000)
        workers = {}
        for number, engine in enumerate(ENGINES):
            workers[engine] = start(Variant(trainer, settings_of(engine, at)), base, folder / str(number))
            stack.callback(workers[engine].close)
        for worker in workers.values():
            worker.wait_ready()
        order = list(workers)
        for _ in range(options.rounds + 1):
            seconds = {engine: workers[engine].run(lead, options.steps)[0] for engine in order}
            rounds.append({engine: 1e3 * seconds[engine] / options.steps for engine in ENGINES})
            order = [*order[1:], order[0]]
    return {engine: Spread.of(each[engine] for each in rounds[1:]) for engine in ENGINES}


def curves_of(name: str, options: argparse.Namespace) -> Curves:
    """All points of an axis."""
    curves: Curves = {engine: {} for engine in ENGINES}
    for point in AXES[name].points:
        found = measure({**DEFAULTS, "rows": options.rows_scale, name: point}, options)
        for engine, spread in found.items():
            curves[engine][point] = spread
    return curves


def table(name: str, curves: Curves) -> str:
    """One line per engine."""
    points = AXES[name].points
    lines = [f"| {AXES[name].label} | " + " | ".join(f"{point:g}" for point in points) + " |"]
    lines.append("|---" * (len(points) + 1) + "|")
    for engine, spreads in curves.items():
        cells = [f"**{s.median:.2f}** ({s.low:.2f}–{s.high:.2f})" for s in (spreads[point] for point in points)]
        lines.append(f"| {engine} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(path: Path, name: str, curves: Curves, subtitle: str) -> None:
    """Medians, with the range over the rounds; both axes logarithmic, so that a straight line is a power."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for engine, spreads in curves.items():
        points = list(spreads)
        medians = [spread.median for spread in spreads.values()]
        axes.plot(points, medians, marker="o", label=engine)
        lows, highs = [s.low for s in spreads.values()], [s.high for s in spreads.values()]
        axes.fill_between(points, lows, highs, alpha=0.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(AXES[name].points, [f"{point:g}" for point in AXES[name].points])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{AXES[name].label}; {subtitle}")
    axes.set_ylabel("ms a step")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with mpl.rc_context({"svg.hashsalt": "scaling", "svg.fonttype": "none"}):  # equal figures, equal bytes
        figure.savefig(path, metadata={"Date": None})


def subtitle_of(name: str, options: argparse.Namespace) -> str:
    """What stands still while ``name`` grows."""
    still = {
        "batch": f"batch {DEFAULTS['batch']:g}",
        "ranks": f"{DEFAULTS['ranks']:g} PS ranks",
        "lookahead": f"lookahead {DEFAULTS['lookahead']:g}",
        "rows": f"{options.rows_scale:g} × Kaggle's rows",
    }
    return ", ".join(words for axis, words in still.items() if axis != name)


def main() -> None:
    """Measure, print the tables, perhaps draw them and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", default=",".join(AXES), help="which to measure")
    parser.add_argument("--points", help="points instead of an axis's own, of the one axis that is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60, help="timed, of each engine in each round")
    parser.add_argument("--lead", type=int, default=60, help="steps before those, untimed; at least a cache's window")
    parser.add_argument("--threads", type=int, default=2, help="trainer.num_threads")
    parser.add_argument("--rows-scale", type=float, default=0.1, help="of the tables, against Kaggle's")
    parser.add_argument("--pictures", type=Path, help="folder for scaling_AXIS.svg")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    names: Sequence[str] = options.axes.split(",")
    for name in names:
        if name not in AXES:
            parser.error(f"--axes: no axis {name!r}; there are {', '.join(AXES)}")
    if options.points is not None:
        if len(names) != 1:
            parser.error("--points: name one axis with --axes")
        AXES[names[0]] = Axis(tuple(float(point) for point in options.points.split(",")), AXES[names[0]].label)
    facts = machine(options.threads)
    found: dict[str, Curves] = {}
    for name in names:
        found[name] = curves_of(name, options)
        sys.stdout.write(f"{table(name, found[name])}\n\n")
        sys.stdout.flush()
        if options.pictures is not None:
            draw(options.pictures / f"scaling_{name}.svg", name, found[name], subtitle_of(name, options))
    facts["load_average_after"] = os.getloadavg()
    sys.stdout.write(f"{heading(facts)}\n")
    setting = {key: str(value) for key, value in vars(options).items() if key != "json"}
    figures = {
        name: {engine: {f"{at:g}": asdict(s) for at, s in spreads.items()} for engine, spreads in curves.items()}
        for name, curves in found.items()
    }
    write_json(options.json, {"machine": facts, "setting": setting, "ms": figures})


if __name__ == "__main__":
    main()
