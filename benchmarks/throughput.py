"""Samples per second of the engines, against a plain DLRM and against the matrix products alone.

    floor    the matrix products of the dense network alone: forward, both backward ones, preallocated, torch.mm
    plain    one process: 26 nn.EmbeddingBag(sparse=True), nn.Linear, autograd, torch.optim.SGD
    local    the trainer of this harness on engine local, two PS ranks
    rpcN     the same on engine rpc with N PS ranks; rpcN_lookahead: with cache.mode=lookahead

Kaggle's 26 tables (33,762,577 rows x 16 at ``--rows-scale 1``), its dense network, skewed synthetic clicks. A variant
trains in processes of its own, from data on disk to applied gradients, and is stopped while others are measured. A
round runs each in turn, ``--steps`` steps untimed and as many timed; a multiple of 100, the lookahead cache's window,
counts whole windows. Ratios are of samples per second, taken round by round. Where the tables of all variants do not
fit into ``--memory-gb``, variants come in groups, each beside the first three. All see the same OpenMP settings.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import ROW_BYTES, Spread, config_of, kaggle_tables, names_of, parser, report, settings_of, table
from benchmarks._plain import floor, num_flops, plain, products
from benchmarks._turns import Body, harness_run, in_turn, num_steps
from harness.model.sizes import SIZES

WORLD_BYTES = 350_000_000
"""Memory of a variant with tables of no size."""

Variant = tuple[Body, dict[str, Any]]


def _rpc(num_ps: int, cache: str) -> Variant:
    return harness_run, {"engine": "rpc", "cluster": {"num_ps": num_ps}, "cache": {"mode": cache}}


REFERENCES: dict[str, Variant] = {
    "floor": (floor, {}),
    "plain": (plain, {}),
    "local": (harness_run, {"engine": "local", "cluster": {"num_ps": 2}}),
}
VARIANTS: dict[str, Variant] = {
    name: _rpc(num_ps, cache)
    for num_ps in (2, 4, 8)
    for name, cache in ((f"rpc{num_ps}", "none"), (f"rpc{num_ps}_lookahead", "lookahead"))
}
ALL = {**REFERENCES, **VARIANTS}
RATIOS = (
    ("local", "plain"),
    ("floor", "local"),
    *((f"rpc{num_ps}", "plain") for num_ps in (2, 4, 8)),
    *((f"rpc{num_ps}_lookahead", other) for num_ps in (2, 4, 8) for other in ("plain", "local", f"rpc{num_ps}")),
)
"""Pairs: samples per second of the first over those of the second."""

Round = dict[str, float]


def groups(names: Sequence[str], rows_scale: float, memory_gb: float) -> list[list[str]]:
    """``names``, cut where they and the references together would take more than ``memory_gb``."""
    one_bytes = sum(kaggle_tables(rows_scale)) * (ROW_BYTES + 4) + WORLD_BYTES  # 4: the counter of a row
    num_beside = max(1, int(memory_gb * 1e9 / one_bytes) - 2)
    return [list(names[first : first + num_beside]) for first in range(0, len(names), num_beside)]


def ratios_of(rounds: Sequence[Round]) -> dict[str, Spread]:
    """Each pair of RATIOS that was measured together."""
    found: dict[str, Spread] = {}
    for upper, lower in RATIOS:
        values = [each[lower] / each[upper] for each in rounds if upper in each and lower in each]
        if values:
            found[f"{upper}_over_{lower}"] = Spread.of(values)
    return found


def main() -> None:
    """Measure, print the tables, write them as JSON if asked."""
    made = parser(__doc__, rounds=9, steps=100, threads=2, rows_scale=1.0, batch_size=128, backend=None)
    made.add_argument("--only", type=names_of(VARIANTS), default=list(VARIANTS), help="variants beside the references")
    made.add_argument("--memory-gb", type=float, default=12.0, help="memory for the tables of a group")
    options = made.parse_args()
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="throughput-") as name:
        steps, run = num_steps(options.rounds, options.steps), {"threads": options.threads, "backend": options.backend}
        base = settings_of(Path(name), options.rows_scale, steps, batch_size=options.batch_size, **run)
        base["metrics"] = {"log_every_steps": options.steps}
        for group in groups(options.only, options.rows_scale, options.memory_gb):
            chosen = {**REFERENCES, **{name: VARIANTS[name] for name in group}}
            configs = {name: (body, config_of(base, changes)) for name, (body, changes) in chosen.items()}
            rounds += in_turn(configs, Path(name) / group[0], options.rounds)
    flops = num_flops(products(SIZES["kaggle"], options.batch_size))
    rows, values = [], {}
    for variant in (variant for variant in ALL if any(variant in each for each in rounds)):
        each_ms = [each[variant] for each in rounds if variant in each]
        ms = Spread.of(each_ms)
        over_plain = Spread.of(each["plain"] / each[variant] for each in rounds if variant in each).median
        speed = options.batch_size / ms.median * 1e3
        values[variant] = {"ms": each_ms, "ms_spread": ms, "samples_per_s": speed, "over_plain": over_plain}
        rows.append((variant, ms.show(), f"{speed:,.0f}", f"{over_plain:.2f}"))
    rate = values["floor"]["gflops_per_s"] = flops / values["floor"]["ms_spread"].median / 1e6
    found = ratios_of(rounds)
    lines = [*table(("variant", "ms a step", "samples/s", "x plain"), rows), ""]
    lines += [*(f"{name:28} {s.median:5.2f}  ({s.low:.2f}–{s.high:.2f})" for name, s in found.items()), ""]
    medians = {name: spread.median for name, spread in found.items()}
    figures = {"variants": values, "ratios": medians, "ratio_spreads": found}
    report(options, [*lines, f"floor: {flops / 1e6:.0f} MFLOP a step, {rate:.0f} GFLOP/s"], figures)


if __name__ == "__main__":
    main()
