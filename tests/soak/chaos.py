"""Runs under faults that nobody announced: a random run a round, random faults at random moments, and what must hold.

A round draws a strategy with its options, an engine, a cache, a save mode, one to three trainers, the clock of a
trace, sometimes wandb's offline view, a trace (ranks, also trainers, that are killed, hang or are cut off, in phases of
the run, and all trainers between two steps; slow ranks; writes that fail; bits that flip), and faults that no trace
names: signals to a PS rank, a trainer, the fork server or the run's own process, in each phase of a run in turn, also
to the attempt after the first. The run and its fork server may stand still for up to 2 s; in some rounds all processes
are stopped for moments, one after another, as a busy machine does. Not drawn: grids, and several hosts. Checked after
each attempt and round:

    end        the run ends within its deadline, with a line that says why if it failed, and never with a traceback
    left over  2 s later no process of it is left, whatever its session, no listening socket, no file in its temporary
               folder, no shared memory; in the folder of a finished run no temporary file or resume point
    detection  a rank that the trace stops or cuts off is found within its deadline and a tenth of it
    again      the same command, without faults, then ends well (with --afresh if PS ranks were lost), and
               its figures are those of a calm run on engine local, to the bit; so are those of a run that lost ranks
               only, where the strategy loses nothing (buddy: unless a rank and its replica were lost together), and,
               but for charges, of one that lost some of its trainers
    record     what the record claims follows from its events
    bit flip   a run that meets it ends as the calm run does, with the line that names file and line of the trace

With kills at real seconds the model is compared where the strategy repeats all lost steps, and else no figure.
The exit code is 1 if anything was wrong, or if a signal or fault came too rarely in one of its phases (--at-least).

    python -m tests.soak.chaos --rounds 1000 --seed 1
    python -m tests.soak.chaos --first 417 --rounds 1 --seed 1      one round again, by its number
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import table
from harness.core.events import Injected
from tests.soak.attempt import Attempt
from tests.soak.chaos_draws import HARMLESS, LOSES_A_RANK, LOSES_A_TRAINER, Fault, Round, drawn
from tests.soak.chaos_judges import (
    CHARGES,
    MODEL,
    figures,
    judged_end,
    judged_result,
    loses_nothing,
    met_a_flip,
    shared_memory_left,
    too_rare,
)
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
    if (wrong := judged_end(calm)) or (calm.code and not met_a_flip(calm)):
        return Verdict(wrong=[f"calm run: exit code {calm.code}: {calm.last_line()}", *wrong])
    attempt = _attempt(Attempt(config, folder), each.faults[0], rng if each.pauses else None, verdict)
    if not verdict.wrong and not calm.code:
        attempt = _to_its_end(each, config, attempt, figures(calm.events()), verdict)
    elif not verdict.wrong and not met_a_flip(attempt):
        ends = f"exit code {attempt.code}: {attempt.last_line()}; the calm run ended with {calm.last_line()}"
        verdict.wrong.append(ends)
    verdict.counts += Counter(
        ("trace", event.fault, event.phase) for event in attempt.events() if isinstance(event, Injected)
    )
    if left := shared_memory_left():
        verdict.wrong.append(f"left shared memory: {', '.join(left)}")
    return verdict


def _attempt(attempt: Attempt, faults: Sequence[Fault], rng: np.random.Generator | None, verdict: Verdict) -> Attempt:
    """The attempt after its faults and its end. ``rng``: of the moments at which its processes pause; None: never."""
    striker = Striker(attempt, rng)
    striker.strike(faults)
    verdict.counts += striker.counts
    verdict.wrong += judged_end(attempt)
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
        verdict.wrong += judged_result(attempt, expected, names)
        return attempt
    # What a run lost with a rank that no trace named it has lost in its resume points too.
    options = ["--afresh"] if lost_ranks else []
    found = Verdict()
    for faults in (each.faults[1], ()):
        if attempt.code:
            attempt = _attempt(Attempt(config, attempt.out.parent, *options), faults, None, found)
    names = _names(each, attempt, expected, lost_ranks=False, lost_trainers=lost_trainers)
    verdict.counts += found.counts
    verdict.wrong += [f"again: {line}" for line in [*found.wrong, *judged_result(attempt, expected, names)]]
    return attempt


def _names(
    each: Round, attempt: Attempt, expected: Mapping[str, Any], *, lost_ranks: bool, lost_trainers: bool
) -> Sequence[str]:
    """Names of the figures that must be those of the calm run."""
    trace = each.settings.get("trace", {})
    if trace.get("inject") == "wall":  # deaths between other steps than those of the calm run
        return MODEL if each.settings["strategy"]["name"] in ("none", "full") else ()
    if lost_trainers and trace.get("clock") == "wall":  # their hours come before failures of the trace
        return ()
    if lost_ranks:
        return MODEL if loses_nothing(each, attempt.events()) else ()
    return [name for name in expected if name not in CHARGES or not lost_trainers]


def _counted(found: Counter[tuple[str, ...]], kind: str) -> list[str]:
    """A table of faults of a kind by phase."""
    names, phases = (sorted({key[at] for key in found if key[0] == kind}) for at in (1, 2))
    return [*table((kind, *phases), [[name, *(found[kind, name, phase] for phase in phases)] for name in names]), ""]


def _options() -> argparse.Namespace:
    made = rounds_parser(__doc__, rounds=100)
    made.add_argument(
        "--at-least",
        type=int,
        help=f"times that each signal and fault must come in each of its phases (default: {_LEAST} with {_LONG:,} "
        "rounds or more, else 0)",
    )
    options = made.parse_args()
    if options.at_least is None:
        options.at_least = _LEAST if options.rounds >= _LONG else 0
    return options


def main() -> None:
    """Carry out the rounds, print tables of faults by phase, what was wrong and what came too rarely."""
    options = _options()
    total = carried_out(options, "chaos", tried)
    rare = too_rare(total.counts, options.at_least)
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
