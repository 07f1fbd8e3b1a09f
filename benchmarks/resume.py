"""Runs that are ended at random steps and go on: a random run a round, and its record against that of a whole run.

A round draws a strategy, an engine, a cache, a save mode, an optimizer, the clock of a trace of planned kills, and how
often resume points are written. The command is ended one to three times, by SIGKILL (two of three) or SIGTERM, at drawn
steps, and started again with `--resume`. Then it runs to its end. Checked: every event of its record (machine parts
aside), and so every loss, charge and digest, equals that of the same run on engine local that was not ended.

    python benchmarks/resume.py --rounds 50 --seed 1
    python benchmarks/resume.py --first 17 --rounds 1 --seed 1      one round again, by its number
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np

from benchmarks._attempt import Attempt
from benchmarks._common import report, table, write_trace
from benchmarks._rounds import (
    BATCH_SIZE,
    DEADLINE_S,
    JOB_H,
    NUM_STEPS,
    Verdict,
    carried_out,
    rounds_parser,
    write_config,
)
from harness.run.verify import compare_records

_STRATEGIES = (
    *("none", "never_save", "full", "partial", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_random", "cpr_mass"),
    *("cpr_scar", "cpr_mirror", "differential", "buddy"),
)
_POLL_S = 0.002


@dataclass(frozen=True)
class Ending:
    """A signal, once the record has reached ``step``."""

    number: signal.Signals
    step: int


@dataclass(frozen=True)
class Round:
    """What a round tries."""

    settings: Mapping[str, Any]
    kills: tuple[tuple[float, str], ...]
    clock: str
    endings: tuple[Ending, ...]


def drawn(rng: np.random.Generator) -> Round:
    """A random round."""
    num_ps = int(rng.integers(2, 5))
    strategy = str(rng.choice(_STRATEGIES))
    modes = ["none", "lookahead"] + ([] if strategy == "cpr_mirror" else ["stale"])
    mode = str(rng.choice(["sync", "async"]))
    kills = [] if strategy == "none" else sorted(rng.uniform(0, JOB_H, rng.integers(0, 5)).round(3).tolist())
    settings = {
        "engine": str(rng.choice(["local", "rpc"])),
        "seed": int(rng.integers(1000)),
        "strategy": {"name": strategy},
        "trainer": {
            "batch_size": BATCH_SIZE,
            "optimizer": str(rng.choice(["sgd", "adagrad"])),
            "dense_optimizer": str(rng.choice(["sgd", "adagrad"])),
        },
        "cache": {
            "mode": str(rng.choice(modes)),
            "lookahead": int(rng.integers(4, 40)),
            "staleness": int(rng.integers(0, 10)),
            "max_rows": None if rng.random() < 0.5 else int(rng.integers(300, 2000)),
        },
        "save": {"mode": mode},
        "cluster": {"num_ps": num_ps, "spares": int(rng.integers(2))},
        "store": {"fsync": bool(rng.random() < 0.2)},
        "resume": {"every_s": float(rng.choice([0.0, 1e-9, 0.05]))},
    }
    endings = [
        Ending(signal.SIGKILL if rng.random() < 2 / 3 else signal.SIGTERM, int(rng.integers(1, NUM_STEPS)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    return Round(
        settings,
        tuple((hour, f"ps{rng.integers(num_ps)}") for hour in kills),
        "wall" if mode == "sync" and rng.random() < 0.3 else "samples",
        tuple(sorted(endings, key=lambda ending: ending.step)),
    )


def tried(number: int, rng: np.random.Generator, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    """Carry out a round in ``folder``."""
    each, verdict = drawn(rng), Verdict()
    write_trace(folder / "trace.csv", each.kills)
    trace = {"path": str(folder / "trace.csv"), "clock": each.clock}
    config = write_config(folder, settings, each.settings, {"trace": trace})
    (folder / "whole").mkdir()
    whole = Attempt(config, folder / "whole", "engine=local", "resume.every_s=null")
    if not whole.wait(whole.began_s + DEADLINE_S) or whole.code:
        verdict.wrong.append(f"whole run: exit code {whole.code}: {whole.last_line()}")
        whole.end()
        return verdict
    attempt = Attempt(config, folder, "--resume")
    for ending in each.endings:
        if not _ended(attempt, ending):
            break
        verdict.counts[f"ended by {ending.number.name}",] += 1
        attempt = Attempt(config, folder, "--resume")
    if not attempt.wait(time.monotonic() + DEADLINE_S) or attempt.code:
        verdict.wrong.append(f"{_words(each)}: exit code {attempt.code}: {attempt.last_line()}")
        attempt.end()
        return verdict
    said = attempt.output.read_text(errors="replace")
    if verdict.counts:
        went_on = "went on from a resume point" if "goes on from step" in said else "started afresh"
        verdict.counts[went_on,] += 1
    verdict.wrong += [f"unusable: {line}" for line in said.splitlines() if line.endswith("; not used")]
    verdict.wrong += [f"{_words(each)}: {line}" for line in compare_records(whole.out, attempt.out)]
    if (attempt.out / "resume").exists():
        verdict.wrong.append(f"{_words(each)}: the finished run has resume points")
    return verdict


def _ended(attempt: Attempt, ending: Ending) -> bool:
    """End the command at its step; False if it ended before."""
    while _step(attempt) < ending.step:
        if attempt.wait(time.monotonic() + _POLL_S) or time.monotonic() > attempt.began_s + DEADLINE_S:
            return False
    with suppress(ProcessLookupError):
        os.kill(attempt.pid, ending.number)
    return attempt.wait(time.monotonic() + DEADLINE_S) and attempt.code != 0


def _step(attempt: Attempt) -> int:
    events = attempt.events()
    return events[-1].step if events else 0


def _words(each: Round) -> str:
    """The round, in words."""
    values = each.settings
    names = (values["strategy"]["name"], values["engine"], values["cache"]["mode"], values["save"]["mode"], each.clock)
    steps = ", ".join(f"{ending.number.name} at {ending.step}" for ending in each.endings)
    return f"{' '.join(names)} ({steps})"


def main() -> None:
    """Carry out the rounds, print counts and what differed; exit code 1 if anything did."""
    options = rounds_parser(__doc__, rounds=50).parse_args()
    total = carried_out(options, "resume", tried)
    lines = table(("what", "number"), [[what, str(number)] for (what,), number in sorted(total.counts.items())])
    summary = f"{options.rounds:,} rounds of seed {options.seed}: {len(total.wrong)} differences"
    counts = {what: number for (what,), number in total.counts.items()}
    report(options, [*lines, "", summary, *total.wrong], {"results": counts, "wrong": total.wrong})
    sys.exit(1 if total.wrong else 0)


if __name__ == "__main__":
    main()
