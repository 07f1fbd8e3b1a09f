"""How far lost updates had moved their rows, by strategy: of `experiments/updates.yaml` or another experiment file.

An update's mass is the L2 norm of the change that it made to its row. Lost mass is that of the updates that no save
held when their shard died, as a share of the mass of all updates; lost updates are counted as in every run. Each
strategy keeps its own tracker, which here adds up masses besides. In one process a dead rank's tracker can still be
read: cells run on engine `local`, with partial recovery and without a mirror or replicas, which bring updates back.

    run.py data synth --rows 250000 --seed 0 --scale 0.0005 --out demo/small.tsv
    run.py data prepare demo/small.tsv --out demo/small
    python benchmarks/update_mass.py --grid experiments/updates.yaml

± is half of the 95 % interval over seeds and traces; differences are paired. Nothing is written but with ``--json``.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from analysis.stats import Pair, estimate_pairs
from benchmarks._common import parser, report, table
from harness import api
from harness.config.experiment import load_experiment
from harness.config.model import Config
from harness.core.errors import UserError
from harness.core.plans import Progress
from harness.core.shard import Shard
from harness.core.tracker import TrackerSpec
from harness.core.trackers import TRACKERS
from harness.recovery.recoveries import rolls_back
from harness.run.spec import RunSpec, cell_hash

COLUMNS = ("tracked updates", "tracked mass", "all updates", "all mass")


@dataclass
class Masses:
    """Masses of one run: made and lost, of each table; and the present tracker of each rank."""

    made_T: NDArray[np.float64]
    lost_T: NDArray[np.float64]
    present: dict[int, "MassesOfRank"] = field(default_factory=dict)


class MassesOfRank:
    """The mass of each row's updates since the row was saved: M rows of the shard."""

    run: ClassVar[Masses]

    def __init__(self, shard: Shard) -> None:
        num_tables = len(self.run.made_T)
        sizes_T = [shard.span(table).stop - shard.span(table).start for table in range(num_tables)]
        self._table_M = np.repeat(np.arange(num_tables), sizes_T)
        self._unsaved_M = np.zeros(len(shard.rows_MD))
        if (former := self.run.present.get(shard.rank_index)) is not None:  # it died, and this is its replacement's
            self.run.lost_T += self._by_table(slice(None), former._unsaved_M)
        self.run.present[shard.rank_index] = self

    def moved(self, rows_N: Tensor, norms_N: Tensor) -> None:
        """Count the updates of a step."""
        rows, norms = rows_N.numpy(), norms_N.numpy().astype(np.float64)
        self._unsaved_M[rows] += norms
        self.run.made_T += self._by_table(rows, norms)

    def saved(self, rows: Tensor | slice) -> None:
        """These rows have no unsaved update."""
        self._unsaved_M[rows if isinstance(rows, slice) else rows.numpy()] = 0

    def _by_table(self, rows: NDArray[np.int64] | slice, masses: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(self._table_M[rows], masses, len(self.run.made_T)).astype(np.float64)


def measured(kind: type[Any]) -> type[Any]:
    """A tracker of this class that also adds up masses."""

    class Measured(kind):
        needs_norms: ClassVar[bool] = True

        def __init__(self, shard: Shard, spec: TrackerSpec) -> None:
            self._masses = MassesOfRank(shard)
            super().__init__(shard, spec)

        def moved(self, step: int, rows_N: Tensor, norms_N: Tensor) -> None:
            self._masses.moved(rows_N, norms_N)
            super().moved(step, rows_N, norms_N)

        def saved(self, table: int, rows: Tensor | slice) -> None:
            self._masses.saved(rows)
            super().saved(table, rows)

    return Measured


def measure(config: Config) -> tuple[list[float], float]:
    """Percentages that a run loses, in the order of ``COLUMNS``, and the bytes that its saves wrote."""
    spec = RunSpec(config)
    num_tables, tracked, kind = len(spec.placement.cardinalities), list(spec.tracked), spec.strategy.tracker
    masses = MassesOfRank.run = Masses(np.zeros(num_tables), np.zeros(num_tables))
    plain = TRACKERS[kind]
    TRACKERS[kind] = measured(plain)
    try:
        with tempfile.TemporaryDirectory() as folder:
            finished = api.run(config.model_copy(update={"out": f"{folder}/run"}))
    finally:
        TRACKERS[kind] = plain
    assert finished.update_pls is not None
    assert finished.update_pls_tracked is not None
    lost_tracked = masses.lost_T[tracked].sum() / masses.made_T[tracked].sum()
    lost = masses.lost_T.sum() / masses.made_T.sum()
    shares = (finished.update_pls_tracked, lost_tracked, finished.update_pls, lost)
    return [100 * float(share) for share in shares], finished.payload_bytes


def refused(config: Config) -> str | None:
    """Why the mass that a rank's tracker had when it died would not be what the run lost; None if it would."""
    run_spec = RunSpec(config)
    strategy = run_spec.strategy
    if config.engine != "local":
        return "on another engine than local"
    if strategy.mirror or run_spec.keeps_replicas:
        return "which keeps other copies of rows"
    plan = strategy.plan_recovery(frozenset({"ps0"}), Progress(step=1, samples=1, previous_samples=0, total_samples=2))
    return "which rolls back" if rolls_back(plan) else None


Shares = dict[tuple[int, str], list[float]]
"""What the runs of a strategy lost, by seed and trace."""


def shown(found: Shares, i: int, other: Shares | None = None) -> str:
    """The mean of column ``i``, or of its differences from the run of ``other`` with the same seed and trace."""
    both = found.keys() if other is None else found.keys() & other.keys()
    value = estimate_pairs(
        [Pair(key[0], key[1:], found[key][i] - (0.0 if other is None else other[key][i])) for key in sorted(both)]
    )
    if value is None:
        return ""
    return f"{value.mean:.2f}" + ("" if value.half_width is None else f" ± {value.half_width:.2f}")


def main() -> None:
    """Run all cells, print a line for each strategy, write as JSON if asked."""
    made = parser(__doc__)
    made.add_argument("--grid", type=Path, required=True, help="an experiment file")
    made.add_argument("overrides", nargs="*", help="key=value, as for run.py grid")
    made.add_argument("--to", default="cpr_mfu", help="the strategy that the tracked mass of others is compared with")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at once")
    options = made.parse_args()
    given = ["wandb.mode=disabled", "store.fsync=false", "eval.points=0", "trainer.num_threads=1", *options.overrides]
    try:
        cells = load_experiment(options.grid, given, cell_hash=cell_hash).cells
    except UserError as error:
        sys.exit(str(error))
    configs = [cell.config for cell in cells if RunSpec(cell.config).strategy.saves_initially]
    for config in configs:
        if (reason := refused(config)) is not None:
            sys.exit(f"strategy.name: expected one whose lost updates stay lost, got {config.strategy.name}, {reason}")
    found: dict[str, Shares] = defaultdict(dict)
    mb: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        pool = (
            stack.enter_context(multiprocessing.get_context("spawn").Pool(options.jobs)) if options.jobs > 1 else None
        )
        results = pool.imap(measure, configs) if pool else map(measure, configs)
        for config, (shares, num_bytes) in zip(configs, track(results, "cells", len(configs)), strict=True):
            found[config.strategy.name][config.seed, str(config.trace.path)] = shares
            mb[config.strategy.name].append(num_bytes / 1e6)
    rows = []
    for name in sorted(found, key=lambda name: statistics.mean(shares[1] for shares in found[name].values())):
        columns = [shown(found[name], i) for i in range(len(COLUMNS))]
        against = "" if name == options.to else shown(found[name], 1, found.get(options.to))
        rows.append((f"`{name}`", len(mb[name]), f"{statistics.mean(mb[name]):.1f}", *columns, against))
    head = ("strategy", "runs", "MB", *(f"{name} lost %" for name in COLUMNS), f"tracked mass, less {options.to}")
    runs = {name: [[*key, *shares] for key, shares in runs.items()] for name, runs in found.items()}
    report(options, table(head, rows), {"columns": ["seed", "trace", *COLUMNS], "lost": runs, "mb": dict(mb)})


if __name__ == "__main__":
    main()
