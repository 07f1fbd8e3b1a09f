"""Runs under faults that nobody announced: a random run a round, random faults at random moments, and what must hold.

What a round draws and what is checked after it: docs/RELIABILITY.md, "All of it at once". The exit code is 1 if
anything was wrong, or if a signal or fault came too rarely in one of its phases (--at-least).

    python -m tests.soak.chaos --rounds 1000 --seed 1
    python -m tests.soak.chaos --first 417 --rounds 1 --seed 1      one round again, by its number
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import table
from harness.core.events import Injected
from tests.soak import chaos_judges as judges
from tests.soak.attempt import Attempt
from tests.soak.chaos_draws import HARMLESS, LOSES_A_RANK, LOSES_A_TRAINER, Fault, Round, drawn
from tests.soak.chaos_strike import Striker
from tests.soak.rounds import Verdict, carried_out, rounds_parser, write_config

_LONG = 1000  # rounds from which on each cell has to come
_LEAST = 20  # times


def tried(number: int, rng: np.random.Generator, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    """Carry out a round in ``folder``."""
    each, verdict = drawn(rng, number), Verdict()
    (folder / "trace.csv").write_text(each.trace)
    trace = {"path": str(folder / "trace.csv"), "allow_unplanned": True, **each.settings.get("trace", {})}
    config = write_config(folder, settings, each.settings, {"trace": trace})
    (folder / "calm").mkdir()
    calm = Attempt(config, folder / "calm", "engine=local", "trace.inject=boundary", "wandb.mode=disabled")
    if (wrong := judges.judged_end(calm)) or (calm.code and not judges.met_a_flip(calm)):
        return Verdict(wrong=[f"calm run: exit code {calm.code}: {calm.last_line()}", *wrong])
    attempt = _attempt(Attempt(config, folder), each.faults[0], rng if each.pauses else None, verdict)
    if not verdict.wrong and not calm.code:
        attempt = _to_its_end(each, config, attempt, judges.figures(calm.events()), verdict)
    elif not verdict.wrong and not judges.met_a_flip(attempt):
        ends = f"exit code {attempt.code}: {attempt.last_line()}; the calm run ended with {calm.last_line()}"
        verdict.wrong.append(ends)
    verdict.counts += Counter(
        ("trace", event.fault, event.phase) for event in attempt.events() if isinstance(event, Injected)
    )
    if left := judges.shared_memory_left():
        verdict.wrong.append(f"left shared memory: {', '.join(left)}")
    return verdict


def _attempt(attempt: Attempt, faults: Sequence[Fault], rng: np.random.Generator | None, verdict: Verdict) -> Attempt:
    """The attempt after its faults and its end. ``rng``: of the moments at which its processes pause; None: never."""
    striker = Striker(attempt, rng)
    striker.strike(faults)
    verdict.counts += striker.counts
    verdict.wrong += judges.judged_end(attempt)
    return attempt


def _to_its_end(each: Round, config: Path, attempt: Attempt, expected: Mapping[str, Any], verdict: Verdict) -> Attempt:
    """The attempt that ended well, the first or one after it; what is wrong with its result is added to the verdict."""
    struck = {name for kind, name, _ in verdict.counts if kind == "signal"}
    if attempt.code and struck <= {*HARMLESS}:
        verdict.wrong.append(f"failed without a fault: {attempt.last_line()}")
        return attempt
    lost_ranks = bool(struck & {*LOSES_A_RANK})
    lost_trainers = bool(struck & {*LOSES_A_TRAINER}) and each.settings["cluster"]["num_trainers"] > 1
    if attempt.code == 0 or (lost_ranks and (attempt.out / "DONE").exists()):  # the signal may have come after it
        names = _names(each, attempt, expected, lost_ranks=lost_ranks, lost_trainers=lost_trainers)
        verdict.wrong += judges.judged_result(attempt, expected, names)
        return attempt
    # What a run lost with a rank that no trace named it has lost in its resume points too.
    options = ["--afresh"] if lost_ranks else []
    found = Verdict()
    for faults in (each.faults[1], ()):
        if attempt.code:
            attempt = _attempt(Attempt(config, attempt.out.parent, *options), faults, None, found)
    names = _names(each, attempt, expected, lost_ranks=False, lost_trainers=lost_trainers)
    verdict.counts += found.counts
    verdict.wrong += [f"again: {line}" for line in [*found.wrong, *judges.judged_result(attempt, expected, names)]]
    return attempt


def _names(
    each: Round, attempt: Attempt, expected: Mapping[str, Any], *, lost_ranks: bool, lost_trainers: bool
) -> Sequence[str]:
    """Names of the judges.figures that must be those of the calm run."""
    trace = each.settings.get("trace", {})
    if trace.get("inject") == "wall":  # deaths between other steps than those of the calm run
        return judges.MODEL if each.settings["strategy"]["name"] in ("none", "full") else ()
    if lost_trainers and trace.get("clock") == "wall":  # their hours come before failures of the trace
        return ()
    if lost_ranks:
        return judges.MODEL if judges.loses_nothing(each, attempt.events()) else ()
    return [name for name in expected if name not in judges.CHARGES or not lost_trainers]


def _counted(found: Counter[tuple[str, ...]], kind: str) -> list[str]:
    """A table of faults of a kind by phase."""
    names, phases = (sorted({key[at] for key in found if key[0] == kind}) for at in (1, 2))
    return [*table((kind, *phases), [[name, *(found[kind, name, phase] for phase in phases)] for name in names]), ""]


def main() -> None:
    """Carry out the rounds, print tables of faults by phase, what was wrong and what came too rarely."""
    made = rounds_parser(__doc__, rounds=100)
    least = f"(default: {_LEAST} with {_LONG:,} rounds or more, else 0)"
    made.add_argument("--at-least", type=int, help=f"times that each signal and fault must come in its phases {least}")
    options = made.parse_args()
    if options.at_least is None:
        options.at_least = _LEAST if options.rounds >= _LONG else 0
    total = carried_out(options, "chaos", tried)
    rare = judges.too_rare(total.counts, options.at_least)
    signals, faults, pauses = (
        sum(count for key, count in total.counts.items() if key[0] == kind) for kind in ("signal", "trace", "pause")
    )
    summary = (
        f"{options.rounds:,} rounds of seed {options.seed}: {signals:,} signals, {faults:,} faults of traces, "
        f"{pauses:,} pauses, {len(total.wrong)} wrong, {len(rare)} too rare"
    )
    lines = [*_counted(total.counts, "signal"), *_counted(total.counts, "trace"), summary, *total.wrong, *rare]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.exit(1 if total.wrong or rare else 0)


if __name__ == "__main__":
    main()
