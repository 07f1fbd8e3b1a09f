"""What a step takes and what it is made of, against a plain DLRM and against the matrix products alone.

    floor           the matrix products of the dense network alone: forward, both backward ones, preallocated, torch.mm
    dense           batches are read and planned, and the dense network trains on them, with rows of zeros
    plain           one process: 26 nn.EmbeddingBag(sparse=True), plain modules, autograd, torch.optim.SGD
    local           the trainer of this harness on engine local
    rpc             the same on engine rpc with ``--ps`` ranks; rpc_lookahead: with cache.mode=lookahead

Kaggle's 26 tables (33,762,577 rows x 16 at ``--rows-scale 1``), its dense network, skewed synthetic clicks, 2 threads.
A variant trains in processes of its own, from data on disk to applied gradients. A round runs each in turn: three
times ``--steps`` steps, of which the second third is timed; a multiple of 100, the lookahead cache's window, counts
whole windows. Ratios are of samples per second. Then the parts of a step. A run's cluster is wrapped to measure its
requests:

    dense        the network alone, as variant ``dense`` has it in the same round
    embedding    of plain: lookups, their gradients and updates
    start        requests are sent; on engine local, served
    finish       replies are waited for
    rest         the step less dense, start and finish: read, plan, cache, loop, and what dense takes more or less there

``--trainers 2 4``: instead, the step of runs with 1, 2 and 4 trainers in turn, on rpc, without a cache and with
lookahead. Each of several trainers has one thread.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch

from benchmarks._common import Spread, config_of, parser, report, table
from benchmarks._plain import floor, num_flops, plain, products
from benchmarks._turns import Body, Parts, Spent, chunked, harness_run, in_turn, loop
from harness.client.embedding_client import Batches
from harness.cluster.protocol import Cluster, Reply, Request
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import Config
from harness.core.events import Trained
from harness.core.faults import FaultTime
from harness.core.model_options import CRITEO, DlrmOptions
from harness.core.plans import Rank
from harness.model.network import make_network
from harness.run import assemble, trainer
from harness.run.spec import RunSpec
from harness.store import Store

ENGINES: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "rpc": {"engine": "rpc"},
    "rpc_lookahead": {"engine": "rpc", "cache": {"mode": "lookahead"}},
}
CACHES = ("none", "lookahead")
_THREADS = 2


class TimedCluster(Cluster):
    """A cluster that notes the seconds of its requests."""

    def __init__(self, cluster: Cluster, spent_s: Spent) -> None:
        self._cluster, self._spent_s = cluster, spent_s
        self.overlaps, self.ranks, self.compute_ranks = cluster.overlaps, cluster.ranks, cluster.compute_ranks
        self.expect_losses, self.replace = cluster.expect_losses, cluster.replace

    def start(self, requests: Mapping[Rank, Request]) -> Any:
        return self._timed("start", partial(self._cluster.start, requests))

    def finish(self, underway: Any) -> dict[Rank, Reply]:
        return self._timed("finish", partial(self._cluster.finish, underway))

    def _timed(self, part: str, action: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        try:
            return action()
        finally:
            self._spent_s[part] += time.perf_counter() - began_s


class TimedEffects(SupervisorClient):
    """A client of the supervisor that adds to events of finished steps what their requests took."""

    def __init__(self, supervisor: SupervisorClient, spent_s: Spent) -> None:
        super().__init__(supervisor.channel)
        self._spent_s = spent_s

    def record(self, event: Any) -> None:
        if isinstance(event, Trained):
            event = replace(event, machine={**event.machine, "start": 0.0, "finish": 0.0, **self._spent_s})
            self._spent_s.clear()
        super().record(event)


def timed_train(
    config: Config, store: Store, faults: tuple[FaultTime, ...], cluster: Cluster, supervisor: SupervisorClient
) -> None:
    """The job of the trainer rank, with a cluster and a client of the supervisor that measure."""
    spent_s = Spent(float)
    trainer.train(config, store, faults, TimedCluster(cluster, spent_s), TimedEffects(supervisor, spent_s))


def dense(config: Config, folder: Path) -> list[Parts]:
    """Body: batches are read and planned, and the dense network trains on them, with rows of zeros."""
    torch.set_num_threads(config.trainer.num_threads)
    spec, size = RunSpec(config), config.trainer.batch_size
    batches = Batches(spec.dataset, spec.placement, batch_size=size, sample_period=1)
    rows_AD = torch.zeros(size * CRITEO.num_tables, spec.model.dim)
    network = make_network(spec.model, CRITEO, config.trainer, seed=0, is_eager=False)

    def step(number: int, spent_s: Spent) -> None:
        batch, plan = batches(number)
        began_s = time.perf_counter()
        network.train(batch.dense_BI, rows_AD[: len(plan.keys_N)], plan, batch.labels_B)
        network.apply_pending()
        spent_s["dense"] += time.perf_counter() - began_s

    return loop(config, step)


VARIANTS: dict[str, Body] = {
    "floor": floor,
    "dense": dense,
    "plain": plain,
    **dict.fromkeys(ENGINES, partial(harness_run, parts=assemble.Parts(train=timed_train))),
}


def base_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Settings of all runs; makes their data in ``folder``."""
    size = {"batch_size": options.batch_size, "threads": _THREADS}
    return chunked(folder, options.rows_scale, options.steps, **size) | {"cluster": {"num_ps": options.ps}}


def of_trainers(options: argparse.Namespace, folder: Path) -> None:
    """Runs with one and with several trainers in turn: milliseconds of a step, and samples/s relative to one."""
    counts, base = (1, *options.trainers), base_of(options, folder)

    def config(cache: str, number: int) -> Config:
        changes = {"engine": "rpc", "cluster": {"num_trainers": number}, "cache": {"mode": cache}}
        return config_of(base, changes, {"trainer": {"num_threads": _THREADS if number == 1 else 1}})

    variants: dict[str, tuple[Body, Config]] = {
        f"{cache}, {number}": (harness_run, config(cache, number)) for cache in CACHES for number in counts
    }
    found = in_turn(variants, folder, options.rounds)
    ms = {variant: [each["step"] for each in rounds] for variant, rounds in found.items()}
    rows: list[tuple[str, ...]] = []
    for variant, own in ms.items():
        ones = (f"{variant.partition(',')[0]}, 1", "none, 1")
        rows.append((variant, Spread.of(own).show(), *(Spread.ratio(ms[one], own).show() for one in ones)))
    head = ("cache, trainers", "ms a step", "samples/s by those of one trainer", "and without a cache")
    report(options, table(head, rows), {"ms": ms}, threads=_THREADS)


def of_variants(options: argparse.Namespace, folder: Path) -> None:
    """All variants in turn: milliseconds of a step and its parts, and samples/s relative to ``plain`` and ``local``."""
    base = base_of(options, folder)
    variants = {variant: (body, config_of(base, ENGINES.get(variant, {}))) for variant, body in VARIANTS.items()}
    found = in_turn(variants, folder, options.rounds)
    for engine in ENGINES:
        for mine, alone in zip(found[engine], found["dense"], strict=True):
            mine["dense"] = alone["dense"]
            mine["rest"] = mine["step"] - mine["dense"] - mine["start"] - mine["finish"]
    ms = {variant: [each["step"] for each in rounds] for variant, rounds in found.items()}
    speeds: list[tuple[str, ...]] = []
    for variant, own in ms.items():
        speed = f"{options.batch_size / Spread.of(own).median * 1e3:,.0f}"
        over = (Spread.ratio(ms[other], own).show() for other in ("plain", "local"))
        speeds.append((variant, Spread.of(own).show(), speed, *over))
    mflop = num_flops(products(DlrmOptions(name="dlrm"), options.batch_size)) / 1e6
    rate = mflop / Spread.of(ms["floor"]).median
    shown = {name: found[name] for name in ("plain", *ENGINES)}
    of_parts = [
        (part, *(Spread.of(each[part] for each in own).show() if part in own[0] else "" for own in shown.values()))
        for part in ("read", "embedding", "dense", "start", "finish", "rest")
    ]
    lines = [*table(("variant", "ms a step", "samples/s", "x plain", "x local"), speeds), ""]
    lines += [f"floor: {mflop:.0f} MFLOP a step, {rate:.0f} GFLOP/s", "", *table(("part, ms", *shown), of_parts)]
    results = [{"variant": name, **each} for name, rounds in found.items() for each in rounds]
    report(options, lines, {"results": results}, threads=_THREADS)


def main() -> None:
    made = parser(__doc__, rounds=7, steps=100, rows_scale=1.0, ps=2, batch_size=128)
    made.add_argument("--trainers", type=int, nargs="+", metavar="T", help="numbers of trainers to measure, over 1")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        (of_trainers if options.trainers else of_variants)(options, Path(name))


if __name__ == "__main__":
    main()
