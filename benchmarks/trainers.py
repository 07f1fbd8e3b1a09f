"""How the processor time of a step grows with the numbers of trainers and PS ranks, and what larger jobs would take.

For each number of trainers and of PS ranks a run on engine rpc, with Kaggle's dense network and nothing saved. Each
process has one thread. All share the cores of this machine, so only processor time is told, and not the time of a step;
and a process spins on each core, so that all runs meet the same contention:

    trainer     of a trainer for a step, mean of all
    PS rank     of a PS rank for a step, mean of all
    evenness    the trainer that takes least by the one that takes most

The second table takes the first apart, by least squares of relative errors. A trainer of T with N PS ranks has

    messages    in proportion to N / T: it asks so many ranks
    requests    to N: it plans the requests to all ranks, and reads all replies
    samples     to 1 / T: forward and backward of its part of the batch, less the parts of others that it takes in;
                below 0 where these cost more
    trainers    to T - 1: it gives its part to so many, and takes theirs
    whole       what each trainer does for the whole batch: plan, merge, the step of the dense network

A PS rank has a message, and its part of the rows: a + b / N, of the runs with the most trainers. Last, these runs are
foretold by the others, and jobs of other sizes (``--at``) by all. On hosts of their own the processes of a job work at
once: its step takes at least what one trainer and one PS rank take.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np
import torch

from benchmarks._common import Spread, config_of, numbers_of, parser, report, settings_of, table
from benchmarks._processes import busy_cores, processor_s
from harness.config.model import Config
from harness.core.events import Started
from harness.core.plans import is_ps, is_trainer
from harness.model.compiled_backend import TeamPass
from harness.model.sizes import NUM_INTEGERS, SIZES
from harness.record.event_log import read_events
from harness.run import assemble

PARTS = ("messages", "requests", "samples", "trainers", "whole")
_WARM_UP = 50  # steps that are not counted
_CHUNK = 10  # steps between two looks
Shape = tuple[int, int]
"""Numbers of trainers and of PS ranks."""
Found = Mapping[str, float]
"""Milliseconds of processor time a step, of a ``trainer`` and of a ``PS rank``; ``evenness`` of the trainers."""


def measure(config: Config, folder: Path, num_steps: int) -> Found:
    """Run once; what the processes take from step ``_WARM_UP`` on, for ``num_steps``."""
    looks: list[tuple[int, dict[str, float]]] = []

    def look(status: assemble.RunStatus) -> None:
        is_due = status.step >= (_WARM_UP if not looks else looks[0][0] + num_steps)
        if status.phase == "train" and is_due and len(looks) < 2:
            started = next(event for event in read_events(folder / "events.jsonl") if isinstance(event, Started))
            looks.append((status.step, {rank: processor_s(pid) for rank, pid in started.machine["pids"].items()}))

    assemble.run(config, folder, on_status=look)
    (first, before), (last, after) = looks
    trainers_ms, ps_ms = (
        [1e3 * (after[rank] - before[rank]) / (last - first) for rank in filter(is_one, after)]
        for is_one in (is_trainer, is_ps)
    )
    return {
        "trainer": sum(trainers_ms) / len(trainers_ms),
        "PS rank": sum(ps_ms) / len(ps_ms),
        "evenness": min(trainers_ms) / max(trainers_ms),
    }


def terms(shape: Shape) -> list[float]:
    """What each of ``PARTS`` is in proportion to."""
    num_trainers, num_ps = shape
    return [num_ps / num_trainers, num_ps, 1 / num_trainers, num_trainers - 1, 1]


def fit(found: Mapping[Shape, Found]) -> np.ndarray:
    """Milliseconds of each of ``PARTS`` for one unit, (5,) float64; all relative errors count alike."""
    wanted = np.array([each["trainer"] for each in found.values()])
    factors = np.array([terms(shape) for shape in found])
    return np.linalg.lstsq(factors / wanted[:, None], np.ones(len(wanted)), rcond=None)[0]


def foretold(found: Mapping[Shape, Found]) -> list[tuple[str, ...]]:
    """Rows: the runs with the most trainers, and what the others say of them."""
    most = max(num_trainers for num_trainers, _ in found)
    units = fit({shape: each for shape, each in found.items() if shape[0] < most})
    rows: list[tuple[str, ...]] = []
    for shape, each in found.items():
        if shape[0] == most:
            said = float(np.dot(units, terms(shape)))
            rows.append((_words(shape), f"{each['trainer']:.2f}", f"{said:.2f}", f"{said / each['trainer'] - 1:+.0%}"))
    return rows


def sample_bytes() -> int:
    """Bytes that trainers exchange of a sample."""
    size = SIZES["kaggle"]
    bottom, top = (
        [torch.zeros(fan_in + 1, fan_out) for fan_in, fan_out in pairwise(widths)]
        for widths in ((NUM_INTEGERS, *size.bottom_mlp), (size.top_inputs, *size.top_mlp))
    )
    return TeamPass(bottom, top, num_samples=1, learning_rate=0.1, is_eager=False).sample_bytes


def at_sizes(found: Mapping[Shape, Found], shapes: Sequence[Shape], batch_size: int) -> list[str]:
    """The table of other jobs, by all that was found."""
    units = fit(found)
    most = max(num_trainers for num_trainers, _ in found)
    of_most = {1 / num_ps: each["PS rank"] for (trainers, num_ps), each in found.items() if trainers == most}
    all_rows, a_message = (
        np.polyfit([*of_most], [*of_most.values()], 1) if len(of_most) > 1 else (0.0, min(of_most.values()))
    )
    rows: list[tuple[str, ...]] = []
    for shape in shapes:
        parts = [unit * term for unit, term in zip(units, terms(shape), strict=True)]
        sent_mb = sample_bytes() * batch_size * (shape[0] - 1) / shape[0] / 1e6
        cells = (
            *(f"{part:.2f}" for part in parts),
            f"{sum(parts):.2f}",
            f"{a_message + all_rows / shape[1]:.2f}",
            f"{sent_mb:.2f}",
        )
        rows.append((_words(shape), *cells))
    head = ("trainers + PS ranks", *PARTS, "trainer, ms a step", "PS rank, ms a step", "MB that a trainer sends a step")
    return table(head, rows)


def _words(shape: Shape) -> str:
    return " + ".join(map(str, shape))


def _shapes(text: str) -> list[Shape]:
    """The type of ``--at``: `20+18,64+128`."""
    try:
        shapes = [tuple(map(int, each.split("+"))) for each in text.split(",")]
        return [(num_trainers, num_ps) for num_trainers, num_ps in shapes]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of trainers and PS ranks, 20+18,64+128, got {text!r}"
        ) from None


def main() -> None:
    """Measure each shape, print the tables."""
    made = parser(__doc__, rounds=2, steps=300, rows_scale=0.1, batch_size=128)
    made.add_argument("--trainers", type=numbers_of, default="1,2,4,8", help="numbers of trainers")
    made.add_argument("--ps", type=numbers_of, default="2,8,16", help="numbers of PS ranks")
    made.add_argument("--at", type=_shapes, default="20+18,64+128", help="jobs to tell the time of")
    options = made.parse_args()
    shapes = [(int(trainers), int(ps)) for trainers in options.trainers for ps in options.ps]
    seen: dict[Shape, list[Found]] = {shape: [] for shape in shapes}
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainers-") as name:
        base = settings_of(
            Path(name),
            options.rows_scale,
            _WARM_UP + options.steps + 2 * _CHUNK,
            batch_size=options.batch_size,
            backend="compiled",
        )
        base |= {"engine": "rpc", "metrics": {"log_every_steps": _CHUNK}}
        with busy_cores():
            for number, shape in product(range(options.rounds), shapes):
                config = config_of(base, {"cluster": {"num_trainers": shape[0], "num_ps": shape[1]}})
                seen[shape].append(measure(config, Path(name) / f"{number}-{shape[0]}-{shape[1]}", options.steps))
    found = {shape: {kind: _median(each[kind] for each in of) for kind in of[0]} for shape, of in seen.items()}
    lines = table(
        ("trainers + PS ranks", "trainer, ms of processor a step", "PS rank, ms of processor a step", "evenness"),
        [
            (_words(shape), *(Spread.of(each[kind] for each in of).show() for kind in of[0]))
            for shape, of in seen.items()
        ],
    )
    if len(found) > len(PARTS):
        units = zip(PARTS, fit(found), strict=True)
        lines += ["", *table(("part of a trainer", "ms a unit"), [(part, f"{unit:.3f}") for part, unit in units])]
        lines += ["", *table(("left out", "measured ms", "foretold ms", "difference"), foretold(found))]
        lines += ["", *at_sizes(found, options.at, options.batch_size)]
    results: list[Any] = [{"trainers": shape[0], "num_ps": shape[1], "runs": of} for shape, of in seen.items()]
    report(options, lines, {"results": results, "seconds": time.monotonic() - began_s})


def _median(values: Any) -> float:
    return Spread.of(values).median


if __name__ == "__main__":
    main()
