"""Samples per second of the engines, against a plain DLRM and against the matrix products alone.

    python benchmarks/throughput.py [--rounds 9] [--steps 100] [--lead 100] [--threads 2] [--rows-scale 1]
                                    [--batch-size 128] [--only rpc2,rpc8] [--memory-gb 12] [--json FILE]

Kaggle's 26 tables (33,762,577 rows x 16 at ``--rows-scale 1``), its dense network, skewed made-up clicks.

    floor    the matrix products of the dense network alone: forward, both backward ones, preallocated, torch.mm
    dense    the dense network alone, as this harness trains it: the same products and all between them
    plain    one process: 26 nn.EmbeddingBag(sparse=True), nn.Linear, autograd, torch.optim.SGD
    local    the trainer of this harness on engine local, two PS ranks
    rpcN     the same on engine rpc with N PS ranks; rpcN_lookahead: with cache.mode=lookahead

Every variant trains in processes of its own, from data on disk to applied gradients, planning included, and sleeps
while the others are measured. A round runs each of them in turn, ``--lead`` steps untimed and ``--steps`` timed, and
begins with another one each time; the first round is thrown away. What runs ahead in the background is finished in the
pause before the untimed steps, so these should be at least a window of the lookahead cache, which is 100. Ratios are of
samples per second, taken round by round. Where the tables of all variants do not fit into ``--memory-gb``, they come in
groups, each beside the first five.

Every variant sees the same OpenMP settings, the harness's own (harness/__init__.py) or those of the environment.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import KAGGLE_CARDINALITIES, Spread, heading, machine, make_data, write_json
from benchmarks._workers import Body, Worker, dense, floor, plain, products, trainer
from harness.config.model import Config
from harness.model.sizes import SIZES

ROW_BYTES = 16 * 4 + 4  # and a counter
WORLD_BYTES = 350_000_000  # of a variant with tables of no size


@dataclass(frozen=True)
class Variant:
    """A worker and the keys that make it different."""

    body: Body
    settings: Mapping[str, Any] = field(default_factory=dict)


def rpc(num_ps: int, **settings: Any) -> Variant:
    """The trainer with ``num_ps`` rank processes."""
    return Variant(trainer, {"engine": "rpc", "cluster": {"num_ps": num_ps}, **settings})


REFERENCES = {
    "floor": Variant(floor),
    "dense": Variant(dense),
    "plain": Variant(plain),
    "local": Variant(trainer, {"engine": "local", "cluster": {"num_ps": 2}}),
}
LOOKAHEAD: dict[str, Any] = {"cache": {"mode": "lookahead"}}
VARIANTS = {
    "rpc2": rpc(2),
    "rpc2_lookahead": rpc(2, **LOOKAHEAD),
    "rpc4": rpc(4),
    "rpc4_lookahead": rpc(4, **LOOKAHEAD),
    "rpc8": rpc(8),
    "rpc8_lookahead": rpc(8, **LOOKAHEAD),
}
ALL = {**REFERENCES, **VARIANTS}
RATIOS = (
    ("local", "plain"),
    ("floor", "local"),
    ("rpc2", "plain"),
    ("rpc4", "plain"),
    ("rpc8", "plain"),
    ("dense", "local"),
    *((f"rpc{num_ps}_lookahead", other) for num_ps in (2, 4, 8) for other in ("plain", "local", f"rpc{num_ps}")),
)
"""Samples per second of the first over those of the second."""
Round = dict[str, float]
"""Milliseconds of a step, by variant."""


def configure(options: argparse.Namespace, folder: Path, num_steps: int) -> Config:
    """Make the data; the config that all variants have in common."""
    cardinalities = [max(3, round(cardinality * options.rows_scale)) for cardinality in KAGGLE_CARDINALITIES]
    num_train = num_steps * options.batch_size
    make_data(folder / "data", cardinalities, num_train * 7 // 6 + 14, seed=1)
    return Config.model_validate(
        {
            "data": {"path": str(folder / "data"), "max_train_samples": num_train},
            "model": {"size": "kaggle"},
            "trainer": {"batch_size": options.batch_size, "num_threads": options.threads},
            "eval": {"max_samples": 256},
            "strategy": {"name": "none"},
            "wandb": {"mode": "disabled"},
        }
    )


def start(variant: Variant, base: Config, folder: Path) -> Worker:
    """The variant's worker, on its way to its first step."""
    return Worker(variant.body, Config.model_validate({**base.model_dump(), **variant.settings}), folder)


def groups(names: Sequence[str], options: argparse.Namespace) -> list[list[str]]:
    """``names``, cut where they and the references together would take more than ``options.memory_gb``."""
    one_bytes = sum(KAGGLE_CARDINALITIES) * ROW_BYTES * options.rows_scale + WORLD_BYTES
    num_beside = max(1, int(options.memory_gb * 1e9 / one_bytes) - 2)
    return [list(names[first : first + num_beside]) for first in range(0, len(names), num_beside)]


def measure(names: Sequence[str], options: argparse.Namespace, base: Config, folder: Path) -> list[Round]:
    """All rounds of one group, the first left out."""
    rounds: list[Round] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, variant in {**REFERENCES, **{name: ALL[name] for name in names}}.items():
            workers[name] = start(variant, base, folder / f"{names[0]}-{name}")
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.wait_ready()
        order = list(workers)
        for _ in range(options.rounds + 1):
            seconds = {name: workers[name].run(options.lead, options.steps)[0] for name in order}
            rounds.append({name: 1e3 * seconds[name] / options.steps for name in workers})
            order = [*order[1:], order[0]]
    return rounds[1:]


def ratios(rounds: Sequence[Round]) -> dict[str, Spread]:
    """Of samples per second, for each pair of RATIOS that was measured together."""
    found: dict[str, Spread] = {}
    for upper, lower in RATIOS:
        name = f"{upper}_over_{lower}"
        values = [each[lower] / each[upper] for each in rounds if upper in each and lower in each]
        if values:
            found[name] = Spread.of(values)
    return found


def table(rounds: Sequence[Round], batch_size: int) -> tuple[str, dict[str, dict[str, Any]]]:
    """One line per variant, and the same as values."""
    flops = sum(product.num_flops for product in products(SIZES["kaggle"], batch_size))
    lines = ["| variant | ms a step | samples/s | x plain | |", "|---" * 5 + "|"]
    values: dict[str, dict[str, Any]] = {}
    for name in [name for name in ALL if any(name in each for each in rounds)]:
        each_ms = [each[name] for each in rounds if name in each]
        spread = Spread.of(each_ms)
        speed = batch_size / spread.median * 1e3
        over_plain = statistics.median(each["plain"] / each[name] for each in rounds if name in each)
        values[name] = {"ms": each_ms, "ms_spread": asdict(spread), "samples_per_s": speed, "over_plain": over_plain}
        remark = ""
        if name.startswith("floor"):
            values[name]["gflops_per_s"] = flops / spread.median / 1e6
            remark = f"{flops / 1e6:.0f} MFLOP, {flops / spread.median / 1e6:.0f} GFLOP/s"
        ms = f"**{spread.median:.2f}** ({spread.low:.2f}–{spread.high:.2f})"
        lines.append(f"| {name} | {ms} | {speed:,.0f} | {over_plain:.2f} | {remark} |")
    return "\n".join(lines), values


def main() -> None:
    """Measure, print the tables, perhaps write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=100, help="timed, of each variant in each round")
    parser.add_argument("--lead", type=int, default=100, help="steps before those, untimed")
    parser.add_argument("--threads", type=int, default=2, help="trainer.num_threads")
    parser.add_argument("--rows-scale", type=float, default=1.0, help="of the tables, against Kaggle's")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--only", default=",".join(VARIANTS), help="variants beside the references")
    parser.add_argument("--memory-gb", type=float, default=12.0, help="that all tables at one time may take")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    names = options.only.split(",")
    for name in names:
        if name not in VARIANTS:
            parser.error(f"--only: no variant {name!r}; there are {', '.join(VARIANTS)}")
    facts = machine(options.threads)
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        # One round more is never asked for: no variant may reach its last step, which evaluates.
        num_steps = (options.rounds + 2) * (options.lead + options.steps) + 1000
        base = configure(options, Path(folder), num_steps)
        for group in groups(names, options):
            rounds += measure(group, options, base, Path(folder))
    facts["openmp"] = {key: value for key, value in os.environ.items() if key.startswith(("OMP_", "GOMP_"))}
    facts["load_average_after"] = os.getloadavg()
    text, variants = table(rounds, options.batch_size)
    found = ratios(rounds)
    lines = [f"{name:28} {s.median:5.2f}  ({s.low:.2f}–{s.high:.2f})" for name, s in found.items()]
    sys.stdout.write("\n".join([text, "", *lines, "", f"{heading(facts)}, {facts['openmp']}", ""]))
    setting = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(
        options.json,
        {
            "machine": facts,
            "setting": setting,
            "variants": variants,
            "ratios": {name: spread.median for name, spread in found.items()},
            "ratio_spreads": {name: asdict(spread) for name, spread in found.items()},
        },
    )


if __name__ == "__main__":
    main()
