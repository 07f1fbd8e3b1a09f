"""What a step spends its time on: engine local, engine rpc, and rpc with the lookahead cache; a table and pictures.

    python benchmarks/step.py [--rounds 7] [--steps 100] [--lead 100] [--threads 2] [--rows-scale 1] [--ps 2]
                              [--batch-size 128] [--backend auto] [--pictures docs] [--json FILE]

The real trainer, ranks and data, set up as in throughput.py, with clocks put around their functions from outside. What
no clock saw is shown as such: the step loop itself, bookkeeping, and the clocks, which cost about a microsecond a call.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks._clocks import PARTS, clocked_trainer
from benchmarks._common import Spread, heading, machine, write_json
from benchmarks._gated import Parts, Variant, configure, start
from harness.model.dlrm import BACKENDS

UNSEEN, TOTAL = "unaccounted for", "step"
ROWS = (*PARTS, UNSEEN, TOTAL)
VARIANTS: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "rpc": {"engine": "rpc"},
    "rpc_lookahead": {"engine": "rpc", "cache": {"mode": "lookahead"}},
}


def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[Parts]]:
    """Milliseconds of a step by part, for each variant, one entry per round; the first round is left out."""
    base = configure(options, folder, (options.rounds + 2) * (options.lead + options.steps) + 1000)
    found: dict[str, list[Parts]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        workers = {}
        for name, settings in VARIANTS.items():
            trainer = {**base.trainer.model_dump(), "backend": options.backend}
            variant = Variant(clocked_trainer, {**settings, "cluster": {"num_ps": options.ps}, "trainer": trainer})
            workers[name] = start(variant, base, folder / name)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.wait_ready()
        for _ in range(options.rounds + 1):
            for name, worker in workers.items():
                seconds, parts = worker.run(options.lead, options.steps)
                parts = {**parts, UNSEEN: seconds - sum(parts.values()), TOTAL: seconds}
                found[name].append({part: 1e3 * parts[part] / options.steps for part in ROWS})
    return {name: rounds[1:] for name, rounds in found.items()}


def spreads(rounds: Sequence[Parts]) -> dict[str, Spread]:
    """By part, over the rounds."""
    return {part: Spread.of(each[part] for each in rounds) for part in ROWS}


def table(found: Mapping[str, Mapping[str, Spread]]) -> str:
    """One line per part, milliseconds."""
    lines = ["| ms a step | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
    for part in ROWS:
        cells = [f"**{s.median:.2f}** ({s.low:.2f}–{s.high:.2f})" for s in (each[part] for each in found.values())]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _color(part: str) -> object:
    """The same part has the same colour in every picture."""
    return "0.7" if part == UNSEEN else mpl.colormaps["tab20"](PARTS.index(part))


def draw(path: Path, name: str, parts: Mapping[str, Spread], subtitle: str) -> None:
    """One bar, stacked, a line to each part so that thin ones can be read; medians."""
    shown = [part for part in (*PARTS, UNSEEN) if parts[part].median > 0]
    figure = Figure(figsize=(8, 0.6 + 0.32 * len(shown)), layout="constrained")
    axes = figure.subplots()
    left = 0.0
    for number, part in enumerate(shown):
        width = parts[part].median
        axes.barh(number, width, left=left, color=_color(part))
        axes.annotate(f"{width:.2f}", (left + width, number), xytext=(4, 0), textcoords="offset points", va="center")
        left += width
    axes.set_yticks(range(len(shown)), shown)
    axes.invert_yaxis()
    axes.set_xlim(0, left * 1.08)
    axes.set_xlabel(f"ms; median step {parts[TOTAL].median:.2f}, {subtitle}")
    axes.set_title(name.replace("_", ", "), loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.hashsalt": "step", "svg.fonttype": "none"}):  # equal figures, equal bytes
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, print the table, perhaps draw it and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100, help="timed, of each variant in each round")
    parser.add_argument("--lead", type=int, default=100, help="steps before those, untimed")
    parser.add_argument("--threads", type=int, default=2, help="trainer.num_threads")
    parser.add_argument("--rows-scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--ps", type=int, default=2, help="PS ranks")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--backend", choices=["auto", *BACKENDS], default="auto", help="trainer.backend")
    parser.add_argument("--pictures", type=Path, help="folder for step_local.svg, step_rpc.svg, step_rpc_lookahead.svg")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    facts = machine(options.threads)
    with tempfile.TemporaryDirectory(prefix="step-") as folder:
        rounds = measure(options, Path(folder))
    facts["load_average_after"] = os.getloadavg()
    found = {name: spreads(each) for name, each in rounds.items()}
    sys.stdout.write(f"{table(found)}\n\n{heading(facts)}\n")
    if options.pictures is not None:
        for name, parts in found.items():
            subtitle = f"batch {options.batch_size}, {options.ps} PS ranks, {options.threads} threads"
            draw(options.pictures / f"step_{name}.svg", name, parts, subtitle)
    setting: dict[str, Any] = {k: str(v) for k, v in vars(options).items() if k != "json"}
    figures = {name: {part: asdict(spread) for part, spread in parts.items()} for name, parts in found.items()}
    write_json(options.json, {"machine": facts, "setting": setting, "ms": figures, "rounds": rounds})


if __name__ == "__main__":
    main()
