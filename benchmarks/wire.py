"""What the lookahead cache is worth on a slow wire: a step with and without it, and the bytes that pass.

Runs on engine rpc in a network namespace whose loopback device passes ``--rate-mbit`` (tc, token bucket), both
directions together; 0 is loopback as it is. Both variants run in turn, ``--steps`` steps untimed and as many timed; a
multiple of the cache's window, half of ``--lookahead``, counts whole windows. Bytes are those of whole frames, as the
kernel counts them.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

from benchmarks._common import Spread, config_of, numbers_of, parser, report, settings_of, table

if TYPE_CHECKING:
    from harness.config.model import Config

_INSIDE = "--inside"
_UNCACHED, _CACHED = "uncached", "lookahead"

Round = dict[str, dict[str, float]]
"""By variant: ``ms`` and ``passed`` bytes of a step."""


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


def measure(configs: Mapping[str, "Config"], folder: Path, rounds: int) -> list[Round]:
    from benchmarks._turns import Worker, harness_run  # noqa: PLC0415 - torch, which the outer process does without
    from harness.processes.spawn import fork_own_server  # noqa: PLC0415

    fork_own_server()

    def one_turn(worker: Worker, steps: int) -> dict[str, float]:
        before_bytes, seconds = passed_bytes(), worker.run(lead=1, timed=1)
        return {"ms": 1e3 * seconds / steps, "passed": (passed_bytes() - before_bytes) / (2 * steps)}

    with ExitStack() as stack:
        workers = {name: Worker(harness_run, config, folder / name) for name, config in configs.items()}
        for worker in workers.values():
            stack.callback(worker.close)
        for worker in workers.values():
            worker.wait_ready()
        found = [
            {name: one_turn(worker, configs[name].metrics.log_every_steps) for name, worker in workers.items()}
            for _ in range(rounds + 1)
        ]
    return found[1:]


def main() -> None:
    made = parser(__doc__, rounds=3, steps=100, threads=2, batch_size=128, rows_scale=0.5)
    made.add_argument("--rate-mbit", type=numbers_of, default="200", help="of the wire, both directions together")
    made.add_argument("--ps", type=numbers_of, default="2,4", help="numbers of PS ranks")
    made.add_argument("--lookahead", type=int, default=200, help="cache.lookahead")
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
    from benchmarks._turns import num_steps  # noqa: PLC0415 - torch, which the outer process does without

    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="wire-") as name:
        folder, steps = Path(name), num_steps(options.rounds, options.steps)
        run = {"batch_size": options.batch_size, "threads": options.threads}
        base = settings_of(folder, options.rows_scale, steps, **run)
        base |= {"engine": "rpc", "metrics": {"log_every_steps": options.steps}}
        caches = {_UNCACHED: {"mode": "none"}, _CACHED: {"mode": "lookahead", "lookahead": options.lookahead}}
        for rate_mbit, num_ps in product(options.rate_mbit, map(int, options.ps)):
            limit(rate_mbit)
            # Initial values of all rows may take minutes where other work has the cores.
            cluster = {"num_ps": num_ps, "rpc_timeout_s": 600.0, "network": "open"}  # the namespace that tc limits
            change = {"cluster": cluster, "trainer": {"progress_timeout_s": None}}
            configs = {name: config_of(base, change, {"cache": cache}) for name, cache in caches.items()}
            rounds = measure(configs, folder / f"{rate_mbit:g}-{num_ps}", options.rounds)
            ratios = [each[_UNCACHED]["ms"] / each[_CACHED]["ms"] for each in rounds]
            found: dict[str, Any] = {"rate_mbit": rate_mbit, "num_ps": num_ps, "ratios": ratios}
            for variant in caches:
                ms, passed = (Spread.of(each[variant][key] for each in rounds) for key in ("ms", "passed"))
                found[variant] = {"ms": ms, "passed": passed.median}
            results.append(found)
    rows = [
        (
            f"{found['rate_mbit']:g}" if found["rate_mbit"] else "loopback",
            found["num_ps"],
            variant,
            found[variant]["ms"].show(),
            f"{found[variant]['passed'] / 1e3:.1f}",
            Spread.of(found["ratios"]).show() if variant == _CACHED else "",
        )
        for found in results
        for variant in (_UNCACHED, _CACHED)
    ]
    head = ("Mbit/s", "PS ranks", "variant", "ms a step", "kB passed", "uncached / lookahead")
    report(options, table(head, rows), {"results": results})


if __name__ == "__main__":
    main()
