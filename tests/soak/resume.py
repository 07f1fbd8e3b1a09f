"""Runs that are ended at random steps and go on: a random run a round, and its record against that of a whole run.

A round takes a strategy in its turn, and draws an engine, a cache, a save mode, an optimizer, the clock of a trace of
planned kills, and how often resume points are written. The command is ended one to three times, by SIGKILL (two of
three) or SIGTERM, at drawn steps, and started again by the same command. Then it runs to its end. Checked:

    record     every event (machine parts aside), and so every loss, charge and digest, equals that of the same run on
               engine local that was not ended
    SIGTERM    its line names a step, at most one below the last one recorded; the next start goes on from there

    python -m tests.soak.resume --rounds 50 --seed 1
    python -m tests.soak.resume --first 17 --rounds 1 --seed 1      one round again, by its number
"""

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import table, write_trace
from harness.core.events import Event, Recovered
from harness.core.strategies import STRATEGIES
from harness.run.verify import compare_records
from tests.soak import rounds
from tests.soak.attempt import POLL_S, Attempt

_GOES_ON = re.compile(r"goes on from step (\d+)")


@dataclass(frozen=True)
class Round:
    """What a round tries. ``endings``: signals, each sent once the record has reached its step."""

    settings: Mapping[str, Any]
    kills: tuple[tuple[float, str], ...]
    clock: str
    endings: tuple[tuple[signal.Signals, int], ...]

    def __str__(self) -> str:
        """In words."""
        modes = [self.settings[group]["mode"] for group in ("cache", "save")]
        names = (self.settings["strategy"]["name"], self.settings["engine"], *modes, self.clock)
        return f"{' '.join(names)} ({', '.join(f'{number.name} at {step}' for number, step in self.endings)})"


def drawn(rng: np.random.Generator, number: int) -> Round:
    """The random round of a number."""
    num_ps = int(rng.integers(2, 5))
    strategy = [*STRATEGIES][number % len(STRATEGIES)]
    caches = ["none", "lookahead"] + ([] if strategy == "cpr_mirror" else ["stale"])
    mode = str(rng.choice(["sync", "async"]))
    kills = [] if strategy == "none" else sorted(rng.uniform(0, rounds.JOB_H, rng.integers(0, 5)).round(3).tolist())
    settings = {
        "engine": str(rng.choice(["local", "rpc"])),
        "seed": int(rng.integers(1000)),
        "strategy": {"name": strategy},
        "trainer": {
            "batch_size": rounds.BATCH_SIZE,
            "optimizer": "adagrad" if strategy == "cpr_state" else str(rng.choice(["sgd", "adagrad", "adam"])),
            "dense_optimizer": str(rng.choice(["sgd", "adagrad"])),
        },
        "cache": {
            "mode": str(rng.choice(caches)),
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
        (signal.SIGKILL if rng.random() < 2 / 3 else signal.SIGTERM, int(rng.integers(1, rounds.NUM_STEPS)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    return Round(
        settings,
        tuple((hour, f"ps{rng.integers(num_ps)}") for hour in kills),
        "wall" if mode == "sync" and rng.random() < 0.3 else "samples",
        tuple(sorted(endings, key=lambda ending: ending[1])),
    )


def tried(number: int, rng: np.random.Generator, folder: Path, settings: Mapping[str, Any]) -> rounds.Verdict:
    """Carry out a round in ``folder``."""
    each, verdict = drawn(rng, number), rounds.Verdict()
    write_trace(folder / "trace.csv", each.kills)
    trace = {"path": str(folder / "trace.csv"), "clock": each.clock}
    config = rounds.write_config(folder, settings, each.settings, {"trace": trace})
    (folder / "whole").mkdir()
    whole = Attempt(config, folder / "whole", "engine=local", "resume.every_s=null")
    if not whole.wait(whole.began_s + rounds.DEADLINE_S) or whole.code:
        verdict.wrong.append(f"whole run: exit code {whole.code}: {whole.last_line()}")
        whole.end()
        return verdict
    attempt, wrong = _ended_and_run_again(each, config, folder, verdict.counts)
    if attempt.code is None:
        attempt.end()
    else:
        wrong += compare_records(whole.out, attempt.out)
        wrong += ["the finished run has resume points"] if (attempt.out / "resume").exists() else []
    verdict.wrong = [f"{each}: {line}" for line in wrong]
    return verdict


def _ended_and_run_again(
    each: Round, config: Path, folder: Path, counts: Counter[tuple[str, ...]]
) -> tuple[Attempt, list[str]]:
    """The last attempt, and what is wrong with those before it and with how they went on."""
    wrong: list[str] = []
    last: signal.Signals | None = None
    attempt = Attempt(config, folder)
    for number, step in each.endings:
        if not _ended(attempt, number, step):
            break
        last = number
        counts["ended by", number.name] += 1
        if number == signal.SIGTERM:
            wrong += judged_stop(attempt.last_line(), attempt.events())
        attempt = Attempt(config, folder)
    if not attempt.wait(time.monotonic() + rounds.DEADLINE_S) or attempt.code:
        return attempt, [*wrong, f"exit code {attempt.code}: {attempt.last_line()}"]
    said = attempt.text()
    if last is not None:
        went_on = bool(_GOES_ON.search(said))
        counts["went on", "from a resume point" if went_on else "afresh"] += 1
        if last == signal.SIGTERM and not went_on:
            wrong.append("it started afresh after SIGTERM")
    return attempt, wrong + [f"unusable: {line}" for line in said.splitlines() if line.endswith("; not used")]


def _ended(attempt: Attempt, number: signal.Signals, step: int) -> bool:
    """End the command once it has recorded that step or a later one; False if it ended before."""
    while (last := attempt.last_event()) is None or last[1] < step:
        if attempt.wait(time.monotonic() + POLL_S) or time.monotonic() > attempt.began_s + rounds.DEADLINE_S:
            return False
    with suppress(ProcessLookupError):
        os.kill(attempt.pid, number)
    return attempt.wait(time.monotonic() + rounds.DEADLINE_S) and attempt.code != 0


def judged_stop(line: str, events: Sequence[Event]) -> list[str]:
    """What is wrong with the last line of a command that SIGTERM ended, by the record that it left."""
    step = 0
    for event in events:
        step = event.resume_step if isinstance(event, Recovered) and event.rollback else max(step, event.step)
    named = _GOES_ON.search(line)
    if named is None:
        return [f"SIGTERM at step {step}: no step is named: {line}"]
    if int(named[1]) < step - 1:
        return [f"SIGTERM at step {step}: it goes on from step {named[1]}, so more than one step is lost"]
    return []


def main() -> None:
    """Carry out the rounds, print counts and what was wrong; exit code 1 if anything was."""
    options = rounds.rounds_parser(__doc__, rounds=50).parse_args()
    total = rounds.carried_out(options, "resume", tried)
    lines = table(("what", "", "rounds"), [[*what, number] for what, number in sorted(total.counts.items())])
    summary = f"{options.rounds:,} rounds of seed {options.seed}: {len(total.wrong)} wrong"
    sys.stdout.write("\n".join([*lines, "", summary, *total.wrong, ""]))
    sys.exit(1 if total.wrong else 0)


if __name__ == "__main__":
    main()
