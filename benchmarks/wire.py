"""What the lookahead cache is worth on a slow wire: a step with and without it, and the bytes that pass.

    python benchmarks/wire.py [--rate-mbit 100] [--ps 2,4] [--rounds 3] [--steps 200] [--lead 100] [--lookahead 200]
                              [--threads 2] [--batch-size 128] [--rows-scale 0.5] [--json FILE]

Supervisor and trainer rank in one network namespace, all PS ranks in another, joined by a wire of ``--rate-mbit`` each
way (tc, token bucket). Kaggle's dense network, tables and skew. Both variants train as run.py would, in turn; before
each turn the wire falls silent. ``--lead`` and ``--steps`` should be multiples of the cache's window, half of
``--lookahead``.

Bytes are those of whole frames, as the kernel counts them at the trainer's end, beside those that the cache itself
accounts for: tensors alone, so that the rest is what messages, TCP and Ethernet add, and what the other end confirms.

Needs Linux, iproute2, util-linux, and root or user namespaces; where one is missing or refused it says so in a line
and exits with 0.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, heading, machine, write_json
from benchmarks._wire import INTERFACE, NEAR, NoWire, Wire, go_inside

if TYPE_CHECKING:
    from benchmarks._workers import Parts, Worker
    from harness.config.model import Config

UNCACHED, CACHED = "uncached", "lookahead"

Round = dict[str, dict[str, float]]
"""By variant: ``ms`` of a step, bytes ``sent`` and ``received`` a step, and what a cache ``accounted`` for."""


def start(num_ps: int, wire: Wire, base: "Config", folder: Path, lookahead: int) -> "dict[str, Worker]":
    """Both variants, on their way to their first steps."""
    from benchmarks._far import far_trainer  # noqa: PLC0415 - torch, which the first process does without
    from benchmarks.throughput import Variant, start  # noqa: PLC0415

    # Not a minute: initial values of all rows may take longer where other work has the cores.
    cluster = {"num_ps": num_ps, "host": NEAR, "interface": INTERFACE, "rpc_timeout_s": 600.0}
    caches = {UNCACHED: {"mode": "none"}, CACHED: {"mode": "lookahead", "lookahead": lookahead}}
    return {
        name: start(
            Variant(partial(far_trainer, wire.far_pid), {"engine": "rpc", "cluster": cluster, "cache": cache}),
            base,
            folder / f"{name}{num_ps}",
        )
        for name, cache in caches.items()
    }


def measure(num_ps: int, wire: Wire, base: "Config", folder: Path, options: argparse.Namespace) -> list[Round]:
    """All rounds with ``num_ps`` PS ranks, the first left out."""
    rounds: list[Round] = []
    totals: dict[str, Parts] = {UNCACHED: {}, CACHED: {}}
    with ExitStack() as stack:
        workers = start(num_ps, wire, base, folder, options.lookahead)
        for worker in workers.values():
            stack.callback(worker.close)
        for worker in workers.values():
            worker.wait_ready()
        order = list(workers)
        for _ in range(options.rounds + 1):
            seen: Round = {}
            for name in order:
                before = wire.finish_pending_save()
                seconds, total = workers[name].run(options.lead, options.steps)
                passed = wire.finish_pending_save() - before
                num_steps = options.lead + options.steps
                seen[name] = {
                    "ms": 1e3 * seconds / options.steps,
                    "sent": passed.sent / num_steps,
                    "received": passed.received / num_steps,
                }
                for key in ("bytes", "uncached_bytes") if total else ():
                    seen[name][f"accounted_{key}"] = (total[key] - totals[name].get(key, 0.0)) / num_steps
                totals[name] = total
            rounds.append(seen)
            order.reverse()
    return rounds[1:]


def table(found: dict[int, list[Round]]) -> tuple[str, dict[str, Any]]:
    """One line per variant, and the same as values."""
    columns = "| PS ranks | variant | ms a step | kB sent | kB received | kB accounted | uncached / lookahead |"
    lines = [columns, "|---" * 7 + "|"]
    values: dict[str, Any] = {}
    for num_ps, rounds in found.items():
        ratio = Spread.of(each[UNCACHED]["ms"] / each[CACHED]["ms"] for each in rounds)
        accounted = {UNCACHED: "accounted_uncached_bytes", CACHED: "accounted_bytes"}  # both are told by the cache
        values[str(num_ps)] = {"ratio": asdict(ratio)}
        for name in (UNCACHED, CACHED):
            ms = Spread.of(each[name]["ms"] for each in rounds)
            sent, received = (statistics.median(each[name][way] for each in rounds) for way in ("sent", "received"))
            told = statistics.median(each[CACHED][accounted[name]] for each in rounds)
            values[str(num_ps)][name] = {"ms": asdict(ms), "sent": sent, "received": received, "accounted": told}
            shown = "" if name == UNCACHED else f"**{ratio.median:.2f}** ({ratio.low:.2f}–{ratio.high:.2f})"
            cells = f"{sent / 1e3:.1f} | {received / 1e3:.1f} | {told / 1e3:.1f} | {shown}"
            lines.append(f"| {num_ps} | {name} | **{ms.median:.2f}** ({ms.low:.2f}–{ms.high:.2f}) | {cells} |")
    return "\n".join(lines), values


def run(options: argparse.Namespace, counts: Sequence[int]) -> dict[int, list[Round]]:
    """All rounds, by number of PS ranks. Raises NoWire."""
    with Wire(options.rate_mbit) as wire, tempfile.TemporaryDirectory(prefix="wire-") as name:
        from benchmarks.throughput import configure  # noqa: PLC0415 - torch

        base = configure(options, Path(name), (options.rounds + 2) * (options.lead + options.steps) + 1000)
        return {num_ps: measure(num_ps, wire, base, Path(name), options) for num_ps in counts}


def main() -> None:
    """Measure, print, perhaps write as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    try:
        go_inside()
    except NoWire as error:
        sys.stdout.write(f"skipped: {error}\n")
        return
    parser.add_argument("--rate-mbit", type=float, default=100.0, help="of the wire, each way")
    parser.add_argument("--ps", default="2,4", help="numbers of PS ranks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="timed, of each variant in each round")
    parser.add_argument("--lead", type=int, default=100, help="steps before those, untimed")
    parser.add_argument("--lookahead", type=int, default=200, help="cache.lookahead")
    parser.add_argument("--threads", type=int, default=2, help="trainer.num_threads")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rows-scale", type=float, default=0.5, help="of the tables, against Kaggle's")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    facts = machine(options.threads)
    try:
        found = run(options, [int(count) for count in options.ps.split(",")])
    except NoWire as error:
        sys.stdout.write(f"skipped: {error}\n")
        return
    facts["load_average_after"] = os.getloadavg()
    text, values = table(found)
    sys.stdout.write(f"{text}\n\n{options.rate_mbit:g} Mbit/s each way; {heading(facts)}\n")
    setting = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, {"machine": facts, "setting": setting, "ranks": values, "rounds": found})


if __name__ == "__main__":
    main()
