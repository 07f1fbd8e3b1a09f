"""What a step takes and what it is made of, against a plain DLRM and against the matrix products alone.

    floor           the matrix products of the dense network alone: forward, both backward ones, preallocated, torch.mm
    dense           batches are read and planned, and the dense network trains on them, with rows of zeros
    plain           one process: 26 nn.EmbeddingBag(sparse=True), plain modules, autograd, torch.optim.SGD
    local           the trainer of this harness on engine local
    rpc             the same on engine rpc with ``--ps`` ranks; rpc_lookahead: with cache.mode=lookahead

Kaggle's 26 tables (33,762,577 rows x 16 at ``--rows-scale 1``), its dense network, skewed synthetic clicks. A variant
trains in processes of its own, from data on disk to applied gradients, and is stopped while others are measured. A
round runs each in turn, ``--steps`` steps untimed and as many timed; a multiple of 100, the lookahead cache's window,
counts whole windows. Ratios are of samples per second. Then the parts of a step. A run's cluster is wrapped to measure
its requests:

    read, plan   the batch from the data set, and its plan; the lookahead cache does this in the background
    dense        the network alone; parts as the compiled backend measures them on its first thread
    embedding    of plain: lookups, their gradients and updates
    start        requests are sent; on engine local, served
    finish       replies are waited for
    rest         the step less dense, start and finish: read, plan, cache, loop, and what dense takes more or less there

``--models tiny``: instead, each model in this size: ``plain``, ``local`` and ``rpc`` in turn, and their ratio.

``--trainers 2 4``: instead, the step of runs with 1, 2 and 4 trainers in turn, on rpc, without a cache and with
lookahead. Each of several trainers has one thread; one trainer has ``--threads``. Then a run with each number of
trainers, to its end: what its lookahead cache has hit, moved and held.
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import torch

from benchmarks import _turns
from benchmarks._common import Spread, config_of, parser, report, settings_of, table
from benchmarks._plain import floor, num_flops, plain, products
from harness.client.embedding_client import Batches
from harness.cluster.protocol import Cluster, Reply, Request
from harness.cluster.supervisor_client import SupervisorClient
from harness.config.model import Config
from harness.core.choices import CHOICES
from harness.core.events import Trained
from harness.core.faults import FaultTime
from harness.core.model_options import CRITEO
from harness.core.plans import Rank
from harness.model.backends import choose_backend
from harness.model.dlrm import BACKENDS
from harness.model.models import SIZES, model_size
from harness.run import assemble, trainer
from harness.run.spec import RunSpec
from harness.store import Store

ENGINES: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "rpc": {"engine": "rpc"},
    "rpc_lookahead": {"engine": "rpc", "cache": {"mode": "lookahead"}},
}
_WHOLE = 10  # of --steps: the length of the runs whose caches are counted


class TimedCluster(Cluster):
    """A cluster that notes the seconds of its requests."""

    def __init__(self, cluster: Cluster, spent_s: _turns.Parts) -> None:
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
    """SupervisorClient that write what was spent up to each event of finished steps."""

    def __init__(self, supervisor: SupervisorClient, spent_s: _turns.Parts, folder: Path) -> None:
        super().__init__(supervisor.channel)
        self._spent_s, self._folder = spent_s, folder

    def record(self, event: Any) -> None:
        if isinstance(event, Trained):
            _turns.write_parts(
                self._folder, {"start": 0.0, "finish": 0.0, **self._spent_s, "step": event.machine["seconds"]}
            )
            self._spent_s.clear()
        super().record(event)


def timed_train(
    config: Config, store: Store, faults: tuple[FaultTime, ...], cluster: Cluster, supervisor: SupervisorClient
) -> None:
    """The job of the trainer rank, with a cluster and a client of the supervisor that measure."""
    spent_s: _turns.Parts = defaultdict(float)
    assert store.root is not None, "it is of files"
    timed = TimedEffects(supervisor, spent_s, store.root.parent)
    trainer.train(config, store, faults, TimedCluster(cluster, spent_s), timed)


def dense(config: Config, folder: Path, tick: _turns.Tick) -> None:
    """Body: batches are read and planned, and the dense network trains on them, with rows of zeros."""
    torch.set_num_threads(config.trainer.num_threads)
    spec = RunSpec(config)
    size = model_size(spec.model)
    spent_s: _turns.Parts = defaultdict(float)
    batches = Batches(spec.dataset, spec.placement, batch_size=config.trainer.batch_size, sample_period=1)
    rows_AD = torch.zeros(config.trainer.batch_size * CRITEO.num_tables, size.embedding_dim)
    bottom, top = (
        [torch.randn(fan_in + 1, fan_out) * fan_in**-0.5 for fan_in, fan_out in pairwise(widths)]
        for widths in ((CRITEO.num_dense, *size.bottom_mlp), (size.top_inputs, *size.top_mlp))
    )
    name = choose_backend(config.trainer)
    if name == "compiled":
        from harness.model.compiled_backend import TeamPass  # noqa: PLC0415 - it cannot be imported everywhere

        team = TeamPass(bottom, top, num_samples=config.trainer.batch_size, learning_rate=0.1, is_eager=False)
        train, update, seconds = team.train, dict, team.seconds
    else:
        network = BACKENDS[name](bottom, top, learning_rate=0.1, is_eager=False)
        train, update, seconds = network.train, network.apply_pending, dict

    def step(number: int) -> None:
        began_s = time.perf_counter()
        batch, plan = batches(number)
        planned_s = time.perf_counter()
        train(batch.dense_BI, rows_AD[: len(plan.keys_N)], plan, batch.labels_B, None)
        update()
        parts = {"read, plan": planned_s - began_s, "dense": time.perf_counter() - planned_s, **seconds()}
        for part, part_s in parts.items():
            spent_s[part] += part_s

    _turns.chunks(config, folder, tick, step, spent_s)


VARIANTS: dict[str, _turns.Body] = {
    "floor": floor,
    "dense": dense,
    "plain": plain,
    **dict.fromkeys(ENGINES, partial(_turns.harness_run, parts=assemble.Parts(train=timed_train))),
}


def of_trainers(options: argparse.Namespace) -> None:
    """Runs with one and with several trainers in turn: milliseconds of a step, and samples/s relative to one."""
    counts = (1, *options.trainers)
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        folder, steps = Path(name), _turns.num_steps(options.rounds, options.steps)
        base = settings_of(folder, options.rows_scale, steps, batch_size=options.batch_size, backend="compiled")
        base |= {"engine": "rpc", "metrics": {"log_every_steps": options.steps}}

        def config(cache: str, number: int, **data: int) -> Config:
            threads = options.threads if number == 1 else 1
            cluster = {"num_ps": options.ps, "num_trainers": number}
            changes = {"cluster": cluster, "trainer": {"num_threads": threads}, "cache": {"mode": cache}, "data": data}
            return config_of(base, changes)

        variants: dict[str, tuple[_turns.Body, Config]] = {
            f"{cache}, {number}": (_turns.harness_run, config(cache, number))
            for cache in ("none", "lookahead")
            for number in counts
        }
        rounds = _turns.in_turn(variants, folder, options.rounds)
        whole = {"max_train_samples": _WHOLE * options.steps * options.batch_size}
        caches = [assemble.run(config("lookahead", each, **whole), folder / f"whole-{each}").cache for each in counts]
    rows: list[tuple[str, ...]] = []
    for variant in variants:
        ones = (f"{variant.partition(',')[0]}, 1", "none, 1")
        ratios = (_turns.ratio(rounds, one, variant).show() for one in ones)
        rows.append((variant, Spread.of(each[variant] for each in rounds).show(), *ratios))
    head = ("cache, trainers", "ms a step", "samples/s by those of one trainer", "and without a cache")
    results = [
        {
            "num_trainers": number,
            "ms": {cache: [each[f"{cache}, {number}"] for each in rounds] for cache in ("none", "lookahead")},
            "cache": cache,
        }
        for number, cache in zip(counts, caches, strict=True)
    ]
    report(options, table(head, rows), {"rounds": rounds, "results": results})


def of_models(options: argparse.Namespace) -> None:
    """Each model on ``local`` and ``rpc`` in turn with one process: milliseconds of a step, and ratios of samples/s."""
    rows: list[tuple[str, ...]] = []
    results: list[dict[str, Any]] = []
    for model in CHOICES["model"]:
        with tempfile.TemporaryDirectory(prefix="step-") as name:
            folder, steps = Path(name), _turns.num_steps(options.rounds, options.steps)
            base = settings_of(
                folder, options.rows_scale, steps, batch_size=options.batch_size, threads=options.threads
            ) | {"model": {"name": model, "size": options.models}}
            base |= {"cluster": {"num_ps": options.ps}, "metrics": {"log_every_steps": options.steps}}
            bodies = {"plain": plain, "local": _turns.harness_run, "rpc": _turns.harness_run}
            variants = {key: (body, config_of(base, ENGINES.get(key, {}))) for key, body in bodies.items()}
            rounds = _turns.in_turn(variants, folder, options.rounds)
        for variant in bodies:
            ms, over = Spread.of(each[variant] for each in rounds), _turns.ratio(rounds, "plain", variant)
            rows.append((model, variant, ms.show(), over.show()))
            results += [{"model": model, "variant": variant, "ms": each[variant]} for each in rounds]
    report(options, table(("model", "variant", "ms a step", "x plain"), rows), {"results": results})


def main() -> None:
    made = parser(__doc__, rounds=7, steps=100, threads=2, rows_scale=1.0, ps=2, batch_size=128, backend=None)
    made.add_argument("--trainers", type=int, nargs="+", metavar="T", help="numbers of trainers to measure, over 1")
    made.add_argument("--models", metavar="SIZE", help="measure each model, in this size")
    options = made.parse_args()
    if options.models:
        of_models(options)
        return
    if options.trainers:
        of_trainers(options)
        return
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        folder, steps = Path(name), _turns.num_steps(options.rounds, options.steps)
        run = {"batch_size": options.batch_size, "threads": options.threads, "backend": options.backend}
        base = settings_of(folder, options.rows_scale, steps, **run)
        base |= {"cluster": {"num_ps": options.ps}, "metrics": {"log_every_steps": options.steps}}
        variants = {variant: (body, config_of(base, ENGINES.get(variant, {}))) for variant, body in VARIANTS.items()}
        rounds = _turns.in_turn(variants, folder, options.rounds)
        parts = {variant: _turns.parts_of(folder / variant, options.rounds, options.steps) for variant in VARIANTS}
    for engine in ENGINES:
        for mine, alone in zip(parts[engine], parts["dense"], strict=True):
            mine["dense"] = alone["dense"]
            mine["rest"] = mine["step"] - mine["dense"] - mine["start"] - mine["finish"]
    speeds = []
    for variant in VARIANTS:
        ms = Spread.of(each[variant] for each in rounds)
        over = (_turns.ratio(rounds, other, variant).show() for other in ("plain", "local"))
        speeds.append((variant, ms.show(), f"{options.batch_size / ms.median * 1e3:,.0f}", *over))
    found = {name: {part: Spread.of(each[part] for each in of) for part in of[0]} for name, of in parts.items()}
    lines = [*table(("variant", "ms a step", "samples/s", "x plain", "x local"), speeds), ""]
    flops = num_flops(products(SIZES["kaggle"], options.batch_size))
    rate = flops / found["floor"]["step"].median / 1e6
    lines += [f"floor: {flops / 1e6:.0f} MFLOP a step, {rate:.0f} GFLOP/s", ""]
    for name in ("dense", "plain"):
        of_part = [(part, spread.show()) for part, spread in found[name].items() if part != "step"]
        lines += [*table((f"parts of {name}", "ms a step"), of_part), ""]
    of_engines = [
        (part, *(found[engine][part].show() for engine in ENGINES))
        for part in ("dense", "start", "finish", "rest", "step")
    ]
    lines += table(("ms a step", *ENGINES), of_engines)
    results = [{"variant": name, **each} for name, of in parts.items() for each in of]
    report(options, lines, {"ms": found, "rounds": rounds, "results": results})


if __name__ == "__main__":
    main()
