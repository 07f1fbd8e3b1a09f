"""What the lookahead cache is worth on a slow wire: a step with and without it, and the bytes that pass.

Runs on engine rpc, 2 PS ranks and 2 threads, in a network namespace whose loopback device passes ``--rate-mbit`` (tc,
token bucket), both directions together; 0 is loopback as it is. Both variants run in turn: five times ``--steps``
steps, of which the middle three fifths are timed; a multiple of the cache's window of 100 steps counts whole windows.
Bytes are those of whole frames, as the kernel counts them.

Needs iproute2, util-linux, and root or user namespaces; otherwise it prints why it is skipped, and exits with 0. The
JSON file then has no results.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # also when started by path

from benchmarks._common import Spread, config_of, numbers_of, parser, report, table

if TYPE_CHECKING:
    from benchmarks._turns import Parts
    from harness.config.model import Config
    from harness.run.assemble import RunStatus

_INSIDE = "--inside"
CACHES = {"uncached": {"mode": "none"}, "lookahead": {"mode": "lookahead", "lookahead": 200}}


class NoWire(Exception):
    """The machine or the user cannot have a namespace of limited rate; the message says why."""


def go_inside() -> None:
    """Start this program anew in a network namespace of its own, and return there. Raises NoWire."""
    if _INSIDE not in sys.argv:
        for tool in ("unshare", "ip", "tc"):
            if shutil.which(tool) is None:
                raise NoWire(f"no {tool} on this machine (util-linux, iproute2)")
        command = ["unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user"))]
        _run([*command, "true"])
        os.execvp(command[0], [*command, sys.executable, *sys.argv, _INSIDE])
    _run(["ip", "link", "set", "lo", "up", "mtu", "1500"])


def limit(rate_mbit: float) -> None:
    """Limit the loopback of this namespace to a rate; 0: not at all. Raises NoWire."""
    bucket = ["tbf", "burst", "64kb", "latency", "400ms", "rate", f"{rate_mbit}mbit"] if rate_mbit else ["noqueue"]
    _run(["tc", "qdisc", "replace", "dev", "lo", "root", *bucket])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoWire(f"{' '.join(command)}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return done.stdout


def passed_bytes() -> int:
    """Bytes of whole frames that have passed the loopback device."""
    (link,) = json.loads(_run(["ip", "-json", "-statistics", "link", "show", "lo"]))
    return link["stats64"]["tx"]["bytes"]


def wire_run(config: "Config", folder: Path) -> "list[Parts]":
    """Body: a run of the harness; part ``passed`` has the bytes of a chunk."""
    from benchmarks._turns import harness_run  # noqa: PLC0415 - torch, which the outer process does without

    seen = {0: passed_bytes()}

    def on_status(status: "RunStatus") -> None:
        if status.step not in seen:
            seen[status.step] = passed_bytes()

    found = harness_run(config, folder, on_status=on_status)
    return [
        {**parts, "passed": after - before}
        for parts, (before, after) in zip(found, pairwise(seen.values()), strict=True)
    ]


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """An entry for each rate: ratios of the rounds; milliseconds of a step and bytes that pass, by variant."""
    from benchmarks._turns import chunked, in_turn  # noqa: PLC0415 - as above
    from harness.processes.spawn import fork_own_server  # noqa: PLC0415

    fork_own_server()
    # Initial values of all rows may take minutes where other work has the cores.
    cluster = {"num_ps": 2, "rpc_timeout_s": 600.0, "network": "open"}  # the namespace that tc limits
    base = chunked(folder, options.rows_scale, options.steps, 5, threads=2) | {"engine": "rpc", "cluster": cluster}
    base["trainer"]["progress_timeout_s"] = None
    variants = {name: (wire_run, config_of(base, {"cache": cache})) for name, cache in CACHES.items()}
    results: list[dict[str, Any]] = []
    for rate_mbit in options.rate_mbit:
        limit(rate_mbit)
        found = in_turn(variants, folder / f"{rate_mbit:g}", options.rounds)
        ms, passed = (
            {name: [each[part] for each in own] for name, own in found.items()} for part in ("step", "passed")
        )
        ratios = [slow / fast for slow, fast in zip(ms["uncached"], ms["lookahead"], strict=True)]
        own = {name: {"ms": Spread.of(ms[name]), "passed": Spread.of(passed[name]).median} for name in CACHES}
        results.append({"rate_mbit": rate_mbit, "ratios": ratios, **own})
    return results


def main() -> None:
    made = parser(__doc__, rounds=5, steps=100, rows_scale=0.1)
    made.add_argument(
        "--rate-mbit", type=numbers_of, default="0,1000,200", help="of the wire, both directions together"
    )
    made.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = made.parse_args()
    try:
        go_inside()
        for rate_mbit in options.rate_mbit:
            limit(rate_mbit)
    except NoWire as error:
        sys.stdout.write(f"skipped: {error}\n")
        if options.json is not None:
            options.json.write_text(json.dumps({"skipped": str(error), "results": []}) + "\n")
        return
    with tempfile.TemporaryDirectory(prefix="wire-") as name:
        results = measure(options, Path(name))
    rows = [
        (
            f"{found['rate_mbit']:g}" if found["rate_mbit"] else "loopback",
            *(f"{found[name]['ms'].show()} ms, {found[name]['passed'] / 1e3:.1f} kB" for name in CACHES),
            Spread.of(found["ratios"]).show(),
        )
        for found in results
    ]
    report(options, table(("Mbit/s", *CACHES, "uncached / lookahead"), rows), {"results": results}, threads=2)


if __name__ == "__main__":
    main()
