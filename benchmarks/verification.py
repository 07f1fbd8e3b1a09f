"""What it costs to verify the bytes that decide a result, as a share of the run that they belong to.

Runs of the size of `make demo` (250,000 rows, tables of 5 MB, ten failures) on engine local, each in turn. After a run
the work of its digests is done once more and timed:

    data         the digest of the whole data folder. A run does it once for a file: a later run of the same folder
                 looks whether it is the same file ("again")
    checkpoints  xxh3 of all bytes that the run saved, and of all checkpoint files on disk for each recovery
    record       the digests of config.yaml, env.json and events.jsonl, twice: when they are sealed and when read

Seconds are those of the processor, as other work on the machine hardly changes them. A run waits for its disk besides,
so the share of its time is smaller.

    python benchmarks/verification.py
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import xxhash

from benchmarks._common import Spread, config_of, names_of, parser, report, settings_of, table
from harness.core.events import Event, Recovered, Saved
from harness.core.strategies import STRATEGIES
from harness.data.digest import VERIFIED_NAME
from harness.record import seal
from harness.record.event_log import read_events
from harness.record.rundir import RunDir
from harness.run import assemble
from harness.run.spec import RunSpec

_TRACE = Path(__file__).resolve().parents[1] / "failure_traces" / "poisson-0.csv"
_TABLES = [100] * 13 + [6000] * 13  # rows: 5 MB at 16 float32
_BATCH_SIZE = 128


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a run, and of the digests in it."""

    run_s: float
    data_s: float
    again_s: float
    checkpoints_s: float
    record_s: float

    def frac(self, *, is_first: bool) -> float:
        """The share of all digests. ``is_first``: whether the data were not verified before."""
        data_s = self.data_s if is_first else self.again_s
        return (data_s + self.checkpoints_s + self.record_s) / self.run_s


def measured(settings: Mapping[str, Any], strategy: str, out: Path) -> Cost:
    """Carry out a run of ``strategy`` in ``out``, and the work of its digests."""
    config = config_of(settings, {"strategy": {"name": strategy}})
    run_s = _seconds(lambda: assemble.run(config, out))
    dataset = RunSpec(config).dataset
    (Path(config.data.path) / VERIFIED_NAME).unlink()
    data_s, again_s = _seconds(dataset.verify), _seconds(dataset.verify)
    run = RunDir(out)
    events = read_events(run.events)
    return Cost(run_s, data_s, again_s, _checkpoints_s(run.checkpoints, events), 2 * _seconds(lambda: seal.verify(run)))


def _checkpoints_s(folder: Path, events: Sequence[Event]) -> float:
    """Seconds of the checksums: of what was saved, and of all files on disk, which is more than one recovery reads."""
    contents = [path.read_bytes() for path in folder.rglob("*.bin")]
    num_bytes = sum(map(len, contents))
    if not num_bytes:
        return 0.0
    recoveries = sum(isinstance(event, Recovered) for event in events)
    saved_bytes = sum(event.payload_bytes for event in events if isinstance(event, Saved))
    seconds = _seconds(lambda: [xxhash.xxh3_64(content).digest() for content in contents])
    return seconds * (recoveries + saved_bytes / num_bytes)


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def _cells(costs: Sequence[Cost]) -> list[str]:
    """A row of the table."""
    parts_ms = [
        [1e3 * getattr(cost, part) for cost in costs] for part in ("data_s", "again_s", "checkpoints_s", "record_s")
    ]
    fracs = [[100 * cost.frac(is_first=is_first) for cost in costs] for is_first in (True, False)]
    return [
        Spread.of(cost.run_s for cost in costs).show(2),
        *(Spread.of(part).show(1) for part in parts_ms),
        *(Spread.of(frac).show(2) for frac in fracs),
    ]


def main() -> None:
    """Measure, print, write as JSON if asked."""
    made = parser(__doc__, rounds=3)
    made.add_argument("--rows", type=int, default=250_000, help="rows of data (default: 250000)")
    made.add_argument("--strategies", type=names_of(STRATEGIES), default=["none", "full", "cpr_mfu"])
    options = made.parse_args()
    found: dict[str, list[Cost]] = {name: [] for name in options.strategies}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = settings_of(folder, _TABLES, options.rows * 6 // 7 // _BATCH_SIZE, batch_size=_BATCH_SIZE)
        settings |= {"engine": "local", "profile": "busy", "model": {"size": "tiny"}, "cluster": {"num_ps": 4}}
        settings |= {"eval": {}, "trace": {"path": str(_TRACE)}}
        for turn in range(options.rounds + 1):  # the first is thrown away
            for strategy in options.strategies:
                cost = measured(settings, strategy, folder / f"{strategy}-{turn}")
                found[strategy] += [cost] if turn else []
    rows = [(strategy, *_cells(costs)) for strategy, costs in found.items()]
    head = ("strategy", "run s", "data ms", "again ms", "checkpoints ms", "record ms", "first run %", "later runs %")
    report(options, table(head, rows), {"costs": found})


if __name__ == "__main__":
    main()
