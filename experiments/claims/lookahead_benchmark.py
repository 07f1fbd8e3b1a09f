"""What the lookahead cache moves, against a run without it and against the least possible; how much it holds.

One run on engine local for each lookahead, on Kaggle's 26 tables with log-uniform ids, which is Zipf's law with
exponent 1, 2 PS ranks. Figures are those of its last event: bytes of all tensors both ways, ids and counts included.

    without    one message a step and rank, rows deduplicated: ids, rows, gradients, counts
    least      what a cache cannot do without that knows this window and the next (harness/client/oracle.py)
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when started by path

from benchmarks._common import config_of, numbers_of, parser, report, settings_of, table
from harness.run import assemble

HEAD = ("lookahead", "hits", "MB", "least", "over least", "without", "saved", "peak rows")


def main() -> None:
    made = parser(__doc__, steps=2000, rows_scale=0.1)
    made.add_argument("--lookahead", type=numbers_of, default="10,25,50,100,200,400", help="steps that the oracle sees")
    options = made.parse_args()
    rows, results = [], []
    with tempfile.TemporaryDirectory(prefix="lookahead-") as name:
        base = settings_of(Path(name), options.rows_scale, options.steps) | {"cluster": {"num_ps": 2}}
        for lookahead in map(int, options.lookahead):
            config = config_of(base, {"cache": {"mode": "lookahead", "lookahead": lookahead}})
            found = assemble.run(config, Path(name) / str(lookahead)).cache
            assert found is not None, "a run with a cache"
            saved_frac = 1 - found["bytes"] / found["uncached_bytes"]
            over_frac = found["bytes"] / found["minimum_bytes"] - 1
            moved, least, without = (f"{found[key] / 1e6:,.1f}" for key in ("bytes", "minimum_bytes", "uncached_bytes"))
            shares = (moved, least, f"{over_frac:.2%}", without, f"**{saved_frac:.1%}**")
            rows.append((lookahead, f"{found['hit_rate']:.1%}", *shares, f"{found['peak_rows']:,.0f}"))
            results.append({"lookahead": lookahead, **found, "saved_frac": saved_frac, "over_minimum_frac": over_frac})
    report(options, table(HEAD, rows), {"results": results})


if __name__ == "__main__":
    main()
