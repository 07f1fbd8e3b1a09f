"""What must hold after a round of chaos. Each judge returns what is wrong, one line each."""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import analysis
from harness.core.events import Event, Finished, Injected, Lost, Recovered, Regrouped
from harness.core.plans import buddy_of, is_ps, is_trainer, owner_of
from harness.record.rundir import read_config
from tests.soak.attempt import POLL_S, Attempt
from tests.soak.chaos_draws import CELLS, FAULT_TURNS, JOIN_TIMEOUT_S, RPC_TIMEOUT_S, Round
from tests.soak.rounds import DEADLINE_S

CHARGES = ("reschedule_h", "overhead_frac", "node_h", "num_failures", "num_lost_ranks")
"""Figures that the death of a trainer changes."""

MODEL = ("auc", "log_loss", "accuracy", "train_loss", "digests")
"""Figures that depend on the trained model alone."""

_CLEAN_UP_S = 2.0
_SLACK = 1.1  # of a deadline
_LOSES_NOTHING = ("none", "full", "buddy")
_SHARED_MEMORY = re.compile(r"_(\d+)_")  # torch names a segment by the process that made it


def judged_end(attempt: Attempt) -> list[str]:
    """Wait for the end; what is wrong with it."""
    wrong: list[str] = []
    if not attempt.wait(attempt.began_s + DEADLINE_S):
        wrong.append(f"hung for {DEADLINE_S:.0f} s: {attempt.last_line()}")
        attempt.end()
    text = attempt.output.read_text(errors="replace")
    if "Traceback" in text:
        wrong.append(f"a traceback: {attempt.last_line()}\n{text[text.index('Traceback') :]}")
    if attempt.code is not None and attempt.code > 0 and not text.strip():
        wrong.append(f"exit code {attempt.code} without a word")
    deadline_s = time.monotonic() + _CLEAN_UP_S
    while (left := attempt.left()) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    if left:
        wrong.append(f"left over {_CLEAN_UP_S:g} s after exit code {attempt.code}: {', '.join(left[:4])}")
        attempt.end()
        shutil.rmtree(attempt.temporary)
        attempt.temporary.mkdir()
    return wrong + late_detections(attempt.events(), attempt.paused_s)


def judged_result(attempt: Attempt, expected: Mapping[str, Any], names: Sequence[str] | None) -> list[str]:
    """Of a run that has to have ended well; of its figures, those of ``names`` must be as expected, None: all."""
    events, is_done = attempt.events(), (attempt.out / "DONE").exists()
    wrong = [f"record: {line}" for line in analysis.check(events, read_config(attempt.out))] if is_done else []
    if attempt.code or not is_done:
        return [f"exit code {attempt.code} without a result: {attempt.last_line()}", *wrong]
    if left := unfinished_files(attempt.out):
        wrong.append(f"left in the run's folder: {', '.join(left[:4])}")
    found = figures(events)
    differ = [name for name in (expected if names is None else names) if found.get(name) != expected[name]]
    lost = [
        f"{event.unplanned_ranks} at {event.step}"
        for event in events
        if isinstance(event, Lost) and event.unplanned_ranks
    ]
    unasked = f" (lost without a line of the trace: {', '.join(lost) or 'none'})"
    return wrong + [f"{name} is {found.get(name)}, not {expected[name]}"[:300] + unasked for name in differ[:2]]


def unfinished_files(out: Path) -> list[str]:
    """Temporary files and resume points that a finished run must not leave, wandb's own aside."""
    found = [path for path in out.rglob("*.tmp") if "wandb" not in path.relative_to(out).parts]
    found += [path for path in [out / "resume"] if path.exists()]
    return sorted(str(path.relative_to(out.parent)) for path in found)


def late_detections(events: Sequence[Event], paused_s: float) -> list[str]:
    """Ranks that were stopped or cut off, and found later than their deadline and a tenth of it.

    A PS rank and a trainer that are mute at once have two deadlines: if no other trainer asks the PS rank, its deadline
    begins when another one asks for the dead trainer. ``paused_s``: seconds in which a process of the run was stopped
    besides.
    """
    mute: dict[str, Injected] = {}
    found: list[tuple[str, float, float]] = []
    for event in events:
        if isinstance(event, Injected) and event.loss == "mute":
            mute[event.rank] = event
        elif isinstance(event, Lost):
            kills = [kill for rank in event.ranks if (kill := mute.pop(rank, None))]
            # A rank that is mute while a world is formed has the other deadline, below.
            if event.unplanned_ranks or not kills or any(kill.phase == "regroup" for kill in kills):
                continue
            names = ", ".join(f"{kill.rank} ({kill.fault} in {kill.phase})" for kill in kills)
            deadline_s = RPC_TIMEOUT_S * len({is_ps(kill.rank) for kill in kills})
            found.append((f"step {event.step}: {names}", event.machine["seconds"], deadline_s))
        elif isinstance(event, Regrouped):
            for rank, machine in event.machine.get("mute", {}).items():
                missed, deadline_s = ("to join", JOIN_TIMEOUT_S) if is_ps(rank) else ("a sign of life", RPC_TIMEOUT_S)
                found.append((f"step {event.step}: {rank}, {missed}", machine.get("seconds", 0.0), deadline_s))
    return [
        f"{words}: found after {seconds:.2f} s, the deadline is {deadline_s:g} s (and {paused_s:.2f} s of pauses)"
        for words, seconds, deadline_s in found
        if seconds > _SLACK * deadline_s + paused_s
    ]


def met_a_flip(attempt: Attempt) -> bool:
    """Whether it ended since it read a file of which the trace flipped a bit."""
    flips = [event for event in attempt.events() if isinstance(event, Injected) and event.fault == "bitflip"]
    return attempt.code == 1 and any(Path(str(flip.details["path"])).name in attempt.last_line() for flip in flips)


def loses_nothing(each: Round, events: Sequence[Event]) -> bool:
    """Whether the loss of ranks costs its strategy no update: of `buddy`, unless a rank and its replica are lost."""
    name = each.settings["strategy"]["name"]
    return name in _LOSES_NOTHING and not (name == "buddy" and _lost_a_pair(events, each.settings["cluster"]["num_ps"]))


def _lost_a_pair(events: Sequence[Event], num_ps: int) -> bool:
    """Whether a rank that no trace named was lost together with its buddy, or with the rank whose buddy it is."""
    unplanned = {rank for event in events if isinstance(event, Lost) for rank in filter(is_ps, event.unplanned_ranks)}
    pairs = [{rank, other(rank, num_ps)} for rank in unplanned for other in (buddy_of, owner_of)]
    together = [{*event.ranks} for event in events if isinstance(event, Recovered) and unplanned & {*event.ranks}]
    return any(pair <= ranks for pair in pairs for ranks in together)


def shared_memory_left() -> list[str]:
    """Segments of processes that have ended."""
    names = [(name, _SHARED_MEMORY.search(name)) for name in os.listdir("/dev/shm")]
    return sorted(name for name, found in names if found and not Path(f"/proc/{found[1]}").exists())


def figures(events: Sequence[Event]) -> dict[str, Any]:
    """What the last event says, this machine's part aside; digests of trainers, which must be equal, as one."""
    if not events or not isinstance(finished := events[-1], Finished):
        return {}
    values = finished.to_json()
    replicas = {digest for rank, digest in finished.digests.items() if is_trainer(rank)}
    shards = {rank: digest for rank, digest in finished.digests.items() if is_ps(rank)}
    values["digests"] = {**shards, "trainers": sorted(replicas)}
    return {name: value for name, value in values.items() if name not in ("machine", "num_unplanned", "generation")}


def too_rare(counts: Counter[tuple[str, ...]], least: int) -> list[str]:
    """Signals and faults of traces that came fewer than ``least`` times in a phase."""
    cells = [("signal", *cell) for cell in CELLS] + [
        ("trace", *cell) for cell in (*FAULT_TURNS, ("bitflip", "boundary"))
    ]
    return [
        f"{name} in {phase}: {counts[kind, name, phase]} times, expected {least}"
        for kind, name, phase in cells
        if counts[kind, name, phase] < least
    ]
