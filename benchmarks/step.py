"""What a step is made of: the dense network by its parts, and the requests of each engine; a table and a picture.

Runs on engine local, on rpc, and on rpc with the lookahead cache, set up as in throughput.py, take turns with a loop
that reads and plans batches and trains the dense network alone. A run's cluster is wrapped to measure its requests.

    read, plan   the batch from the data set, and its plan; the lookahead cache does this in the background
    dense        the network alone; parts as the compiled backend measures them on its first thread
    start        requests are sent; on engine local, served
    finish       replies are waited for
    rest         the step less dense, start and finish: read, plan, cache, loop, and what dense takes more or less there

The plain DLRM of throughput.py takes turns too; its step is reading, embeddings and dense:

    embedding    lookups, their gradients and updates: nn.EmbeddingBag, autograd, torch.optim.SGD of the tables

``--trainers 2 4``: instead, the step of runs with 1, 2 and 4 trainers in turn, on rpc, without a cache and with
lookahead. Each of several trainers has one thread; one trainer has ``--threads``. Then a run with each number of
trainers, to its end: what its lookahead cache has hit, moved and held.
"""

import argparse
import json
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

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch.nn import functional

from benchmarks._common import Spread, config_of, parser, report, settings_of, table
from benchmarks._plain import PlainDlrm
from benchmarks._turns import Body, Tick, chunks, harness_run, in_turn, num_steps
from harness.client.embedding_client import Batches
from harness.cluster.effects import Effects
from harness.cluster.protocol import Cluster, Reply, Request
from harness.config.model import Config
from harness.core.events import Trained
from harness.core.faults import FaultTime
from harness.core.plans import Rank
from harness.model.backends import choose_backend
from harness.model.dlrm import BACKENDS
from harness.model.sizes import NUM_INTEGERS, NUM_TABLES
from harness.run import assemble, trainer
from harness.run.spec import RunSpec

ENGINES: dict[str, dict[str, Any]] = {
    "local": {"engine": "local"},
    "rpc": {"engine": "rpc"},
    "rpc_lookahead": {"engine": "rpc", "cache": {"mode": "lookahead"}},
}
Parts = defaultdict[str, float]
"""Seconds by part of a step."""

BARS = ("dense", "start", "finish", "rest")
_WHOLE = 10  # of --steps: the length of the runs whose caches are counted
_FILE = "parts.jsonl"  # a line for each chunk: seconds by part


class TimedCluster(Cluster):
    """A cluster that notes the seconds of its requests."""

    def __init__(self, cluster: Cluster, spent_s: Parts) -> None:
        self._cluster, self._spent_s = cluster, spent_s
        self.overlaps, self.ranks = cluster.overlaps, cluster.ranks
        self.expect_losses, self.replace = cluster.expect_losses, cluster.replace

    def start(self, requests: Mapping[Rank, Request]) -> Any:
        """See Cluster."""
        return self._timed("start", partial(self._cluster.start, requests))

    def finish(self, underway: Any) -> dict[Rank, Reply]:
        """See Cluster."""
        return self._timed("finish", partial(self._cluster.finish, underway))

    def _timed(self, part: str, action: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        try:
            return action()
        finally:
            self._spent_s[part] += time.perf_counter() - began_s


class TimedEffects(Effects):
    """Effects that write what was spent up to each event of finished steps."""

    def __init__(self, effects: Effects, spent_s: Parts, path: Path) -> None:
        super().__init__(effects.channel, group=effects.group)
        self._spent_s, self._path = spent_s, path

    def record(self, event: Any) -> None:
        """See Effects."""
        if isinstance(event, Trained):
            _write(self._path, {"start": 0.0, "finish": 0.0, **self._spent_s, "step": event.machine["seconds"]})
            self._spent_s.clear()
        super().record(event)


def _write(path: Path, parts: Mapping[str, float]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(parts) + "\n")


def timed_train(
    config: Config, checkpoints: Path, faults: tuple[FaultTime, ...], cluster: Cluster, effects: Effects
) -> None:
    """The job of the trainer rank, with a cluster and effects that measure."""
    spent_s: Parts = defaultdict(float)
    timed = TimedEffects(effects, spent_s, checkpoints.parent / _FILE)
    trainer.train(config, checkpoints, faults, TimedCluster(cluster, spent_s), timed)


def dense(config: Config, folder: Path, tick: Tick) -> None:
    """Body: batches are read and planned, and the dense network trains on them, with rows of zeros."""
    torch.set_num_threads(config.trainer.num_threads)
    spec, size = RunSpec(config), RunSpec(config).size
    spent_s: Parts = defaultdict(float)
    batches = Batches(spec.dataset, spec.placement, batch_size=config.trainer.batch_size, sample_period=1)
    rows_AD = torch.zeros(config.trainer.batch_size * NUM_TABLES, size.embedding_dim)
    bottom, top = (
        [torch.randn(fan_in + 1, fan_out) * fan_in**-0.5 for fan_in, fan_out in pairwise(widths)]
        for widths in ((NUM_INTEGERS, *size.bottom_mlp), (size.top_inputs, *size.top_mlp))
    )
    name = choose_backend(config.trainer)
    if name == "compiled":
        from harness.model.compiled_backend import TeamPass  # noqa: PLC0415 - it cannot be imported everywhere

        team = TeamPass(bottom, top, num_samples=config.trainer.batch_size, learning_rate=0.1, is_eager=False)
        train, update, seconds = team.train, dict, team.seconds
    else:
        network = BACKENDS[name](bottom, top, learning_rate=0.1, is_eager=False)
        train, update, seconds = network.train, network.step, dict

    def step(number: int) -> None:
        began_s = time.perf_counter()
        batch, plan = batches(number)
        planned_s = time.perf_counter()
        train(batch.dense_BI, rows_AD[: len(plan.keys_N)], plan, batch.labels_B, None)
        update()
        parts = {"read, plan": planned_s - began_s, "dense": time.perf_counter() - planned_s, **seconds()}
        for part, part_s in parts.items():
            spent_s[part] += part_s

    _run(config, step, spent_s, folder, tick)


def plain_parts(config: Config, folder: Path, tick: Tick) -> None:
    """Body: the step of ``_plain.plain``, its gradients in two halves so that embeddings are timed apart."""
    torch.set_num_threads(config.trainer.num_threads)
    spec, size = RunSpec(config), config.trainer.batch_size
    model = PlainDlrm(spec.size, spec.dataset.cardinalities)
    tables, networks = (
        torch.optim.SGD(parameters, lr=config.trainer.learning_rate)
        for parameters in (model.tables.parameters(), [*model.bottom.parameters(), *model.top.parameters()])
    )
    offsets_B = torch.arange(size, dtype=torch.int32)
    spent_s: Parts = defaultdict(float)

    def step(number: int) -> None:
        times = [time.perf_counter()]
        batch = spec.dataset.train_batch(number, size)
        ids_FB = torch.from_numpy(batch.ids_BF).t().contiguous()
        times.append(time.perf_counter())
        tables.zero_grad()
        rows = model.look_up(ids_FB, offsets_B)
        leaves = [rows_BD.detach().requires_grad_() for rows_BD in rows]
        times.append(time.perf_counter())
        networks.zero_grad()
        logits_B = model.predict(batch.dense_BI, leaves)
        loss = functional.binary_cross_entropy_with_logits(logits_B, batch.labels_B)
        loss.backward()
        networks.step()
        loss.item()
        times.append(time.perf_counter())
        torch.autograd.backward(rows, [leaf.grad for leaf in leaves])
        tables.step()
        times.append(time.perf_counter())
        read_s, forward_s, dense_s, backward_s = (end - begin for begin, end in pairwise(times))
        for part, part_s in (("read", read_s), ("embedding", forward_s + backward_s), ("dense", dense_s)):
            spent_s[part] += part_s

    _run(config, step, spent_s, folder, tick)


def _run(config: Config, step: Callable[[int], None], spent_s: Parts, folder: Path, tick: Tick) -> None:
    """Run the steps; after each chunk of them its parts, which ``step`` adds to ``spent_s``, are written."""

    def write(chunk_s: float) -> None:
        _write(folder / _FILE, {**spent_s, "step": chunk_s})
        spent_s.clear()
        tick(chunk_s)

    folder.mkdir()
    chunks(config, step, write)


def draw(path: Path, found: Mapping[str, Mapping[str, Spread]], subtitle: str) -> None:
    """A stacked bar for each engine; medians."""
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.subplots()
    left = dict.fromkeys(ENGINES, 0.0)
    for part in BARS:
        widths = [max(0.0, found[engine][part].median) for engine in ENGINES]
        axes.barh(list(ENGINES), widths, left=list(left.values()), label=part)
        left = {engine: left[engine] + width for engine, width in zip(ENGINES, widths, strict=True)}
    axes.invert_yaxis()
    axes.set_xlabel(f"ms a step; {subtitle}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with mpl.rc_context({"svg.hashsalt": "step", "svg.fonttype": "none"}):  # equal figures, equal bytes
        figure.savefig(path, metadata={"Date": None})


def of_trainers(options: argparse.Namespace) -> None:
    """Runs with one and with several trainers in turn: milliseconds of a step, and samples/s relative to one."""
    counts = (1, *options.trainers)
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        folder, steps = Path(name), num_steps(options.rounds, options.steps)
        base = settings_of(folder, options.rows_scale, steps, batch_size=options.batch_size, backend="compiled")
        base |= {"engine": "rpc", "metrics": {"log_every_steps": options.steps}}

        def config(cache: str, number: int, **data: int) -> Config:
            threads = options.threads if number == 1 else 1
            cluster = {"num_ps": options.ps, "num_trainers": number}
            changes = {"cluster": cluster, "trainer": {"num_threads": threads}, "cache": {"mode": cache}, "data": data}
            return config_of(base, changes)

        variants: dict[str, tuple[Body, Config]] = {
            f"{cache}, {number}": (harness_run, config(cache, number))
            for cache in ("none", "lookahead")
            for number in counts
        }
        rounds = in_turn(variants, folder, options.rounds)
        whole = {"max_train_samples": _WHOLE * options.steps * options.batch_size}
        caches = [assemble.run(config("lookahead", each, **whole), folder / f"whole-{each}").cache for each in counts]
    rows: list[tuple[str, ...]] = []
    for variant in variants:
        cache = variant.partition(",")[0]
        ratios = [Spread.of(each[base] / each[variant] for each in rounds) for base in (f"{cache}, 1", "none, 1")]
        rows.append((variant, Spread.of(each[variant] for each in rounds).show(), *(ratio.show() for ratio in ratios)))
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


def main() -> None:
    """Measure, print the tables, draw them and write them as JSON if asked."""
    made = parser(__doc__, rounds=7, steps=100, threads=2, rows_scale=1.0, ps=2, batch_size=128, backend=None)
    made.add_argument("--picture", type=Path, help="file for a picture of the second table")
    made.add_argument("--trainers", type=int, nargs="+", metavar="T", help="numbers of trainers to measure, over 1")
    options = made.parse_args()
    if options.trainers:
        of_trainers(options)
        return
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        folder, steps = Path(name), num_steps(options.rounds, options.steps)
        run = {"batch_size": options.batch_size, "threads": options.threads, "backend": options.backend}
        base = settings_of(folder, options.rows_scale, steps, **run)
        base |= {"cluster": {"num_ps": options.ps}, "metrics": {"log_every_steps": options.steps}}
        body = partial(harness_run, parts=assemble.Parts(train=timed_train))
        variants = {engine: (body, config_of(base, changes)) for engine, changes in ENGINES.items()}
        alone = {"dense": (dense, config_of(base)), "plain": (plain_parts, config_of(base))}
        in_turn({**alone, **variants}, folder, options.rounds)
        rounds = {variant: _rounds(folder / variant / _FILE, options) for variant in (*alone, *ENGINES)}
    for engine in ENGINES:
        for mine, alone in zip(rounds[engine], rounds["dense"], strict=True):
            mine["dense"] = alone["dense"]
            mine["rest"] = mine["step"] - mine["dense"] - mine["start"] - mine["finish"]
    found = {name: {part: Spread.of(each[part] for each in of) for part in of[0]} for name, of in rounds.items()}
    parts = [(part, spread.show()) for part, spread in found["dense"].items() if part != "step"]
    lines = [*table(("alone", "ms a step"), parts), ""]
    lines += [*table(("plain", "ms a step"), [(part, spread.show()) for part, spread in found["plain"].items()]), ""]
    lines += table(
        ("ms a step", *ENGINES),
        [(part, *(found[engine][part].show() for engine in ENGINES)) for part in (*BARS, "step")],
    )
    if options.picture is not None:
        draw(options.picture, found, f"batch {options.batch_size}, {options.ps} PS ranks, {options.threads} threads")
    results = [{"variant": name, **parts} for name, of in rounds.items() for parts in of]
    report(options, lines, {"ms": found, "rounds": rounds, "results": results})


def _rounds(path: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Milliseconds of a step by part: the second chunk of each round, the first round left out."""
    seen = [json.loads(line) for line in path.read_text().splitlines()]
    timed = seen[4 : 2 * options.rounds + 3 : 2]
    return [{part: 1e3 * seconds / options.steps for part, seconds in each.items()} for each in timed]


if __name__ == "__main__":
    main()
