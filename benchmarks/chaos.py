"""Runs under faults that nobody announced: a random run a round, random faults at random moments, and what must hold.

A round draws a strategy, an engine, a cache, a save mode, a trace (kills and ranks that hang, in phases of the run, and
slow ranks), and faults that no trace names: signals to a PS rank, the trainer, the fork server or the run's own
process. Checked after each round:

    end        the run ends within its deadline, with a line that says why if it failed, and never with a traceback
    left over  2 s later no process of it is left, no file in its temporary folder, no shared memory
    again      the same command, without faults, then ends well (with --resume, or --afresh if PS ranks were lost), and
               its figures are those of a calm run on engine local, to the bit; so are those of a run that lost ranks
               only, where the strategy loses nothing
    record     what the record claims follows from its events

    python benchmarks/chaos.py --rounds 1000 --seed 1
    python benchmarks/chaos.py --first 417 --rounds 1 --seed 1      one round again, by its number
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also when started by path

import numpy as np

import analysis
import run as command_line
from benchmarks._chaos import children_of, drawn_trace, in_session, last_line, parent_of
from benchmarks._common import config_of, parser, report, settings_of, table
from harness.cli import interrupts
from harness.config.yaml_file import to_yaml
from harness.core.errors import HarnessError
from harness.core.events import Event, Finished, Killed, Regrouped, Slowed, Started
from harness.core.seeds import generator
from harness.record.recorder import read_record
from harness.record.rundir import read_config

NUM_STEPS, BATCH_SIZE, JOB_H = 240, 8, 24.0
DEADLINE_S = 120.0
CLEAN_UP_S = 2.0
_POLL_S = 0.005
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STRATEGIES = ("none", "full", "partial", "cpr_vanilla", "cpr_mfu", "cpr_ssu", "cpr_scar", "cpr_mirror", "buddy")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TAIL_BYTES = 1 << 14
_PHASES = {"started": "start", "kill": "recover", "lost": "recover", "regroup": "recover"}
_LOSES_NOTHING = ("none", "full", "buddy")
_MODEL = ("auc", "log_loss", "accuracy", "train_loss", "digests")
_FAULTS: Mapping[str, tuple[str, signal.Signals]] = {
    "kill a PS rank": ("ps", signal.SIGKILL),
    "stop a PS rank": ("ps", signal.SIGSTOP),
    "kill the trainer": ("trainer", signal.SIGKILL),
    "stop the trainer": ("trainer", signal.SIGSTOP),
    "kill the fork server": ("fork server", signal.SIGKILL),
    "kill the run": ("run", signal.SIGKILL),
    "interrupt the run": ("run", signal.SIGINT),
    "terminate the run": ("run", signal.SIGTERM),
    "hang up the run": ("run", signal.SIGHUP),
}


@dataclass(frozen=True)
class Fault:
    """A signal, ``delay_s`` after the record says that the run has reached ``phase``, at ``step`` or later."""

    name: str
    phase: str
    step: int
    delay_s: float


@dataclass(frozen=True)
class Round:
    """What a round tries."""

    settings: Mapping[str, Any]
    trace: str
    faults: tuple[Fault, ...]

    @property
    def spares_the_run(self) -> bool:
        """Whether faults strike PS ranks alone, whose loss the run survives."""
        return all(_FAULTS[fault.name][0] == "ps" for fault in self.faults)


def drawn(rng: np.random.Generator) -> Round:
    """A random round."""
    num_ps = int(rng.integers(2, 5))
    strategy = str(rng.choice(_STRATEGIES))
    engine = "rpc" if rng.random() < 0.85 else "local"
    modes = ["none", "none", "lookahead"] + ([] if strategy == "cpr_mirror" else ["stale"])
    settings = {
        "engine": engine,
        "seed": int(rng.integers(1000)),
        "strategy": {"name": strategy},
        "cache": {"mode": str(rng.choice(modes))},
        "save": {"mode": str(rng.choice(["sync", "async"]))},
        "cluster": {"num_ps": num_ps, "spares": int(rng.integers(2)), "rpc_timeout_s": 3.0, "join_timeout_s": 5.0},
        "store": {"fsync": bool(rng.random() < 0.2)},
    }
    names = [name for name, (whom, _) in _FAULTS.items() if engine == "rpc" or whom == "run"]
    faults = [
        Fault(
            name=str(rng.choice(names)),
            phase=str(rng.choice(["start", "train", "save", "recover", "eval"], p=[0.1, 0.3, 0.2, 0.3, 0.1])),
            step=int(rng.integers(NUM_STEPS)),
            delay_s=float(rng.choice([0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.2)])),
        )
        for _ in range(int(rng.choice([0, 1, 1, 1, 2, 3])))
    ]
    return Round(
        settings,
        drawn_trace(rng, strategy, num_ps, job_h=JOB_H),
        tuple(sorted(faults, key=lambda fault: fault.step)),
    )


@dataclass
class Verdict:
    """What went wrong, which faults struck in which phase, and which of the trace did."""

    wrong: list[str] = field(default_factory=list)
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    planned: Counter[tuple[str, str]] = field(default_factory=Counter)


class Attempt:
    """One `run.py train` in a session of its own, with a temporary folder of its own."""

    def __init__(self, config: Path, folder: Path, *words: str) -> None:
        self.out = folder / "out"
        self.output = folder / "output.txt"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.output.write_bytes(b"")  # a signal may come before the process opens it
        self.began_s = time.monotonic()
        arguments = ["train", str(config), f"out={self.out}", *words]
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # until the command handles them
        self.pid = os.fork()
        if self.pid == 0:
            _command(arguments, self.output, self.temporary)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        self.code: int | None = None

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self, deadline_s: float) -> bool:
        """Wait until it has ended, or the deadline; whether it has."""
        while not self.poll() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return self.code is not None

    def strike(self, fault: Fault) -> str | None:
        """Send the signal and return the phase that the record was in; None if there was no process to send it to."""
        whom, number = _FAULTS[fault.name]
        pids = {"run": [self.pid], "fork server": self._fork_server()}.get(whom) or self._ranks(whom)
        if self.poll() or not pids:
            return None
        phase, _ = self._place()
        with suppress(ProcessLookupError):
            os.kill(pids[len(pids) // 2], number)
            return phase
        return None

    def events(self) -> list[Event]:
        """Of its record so far."""
        try:
            return read_record(self.out / "events.jsonl").events
        except HarnessError:
            return []

    def left(self) -> list[str]:
        """Processes, temporary files and shared memory that are left of it."""
        processes = [f"process {pid}" for pid in in_session(self.pid) if pid != self.pid]
        files = [f"file {path.relative_to(self.temporary)}" for path in self.temporary.rglob("*")]
        return processes + files

    def end(self) -> None:
        """Kill what is left of its session."""
        for pid in in_session(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _fork_server(self) -> list[int]:
        return [pid for pid in in_session(self.pid) if parent_of(pid) == self.pid and children_of(pid)]

    def _ranks(self, kind: str) -> list[int]:
        found: dict[str, int] = {}
        for event in self.events():
            if isinstance(event, Started | Regrouped):
                found |= event.machine.get("pids", {})
        return [pid for rank, pid in sorted(found.items()) if rank.startswith(kind)]

    def has_reached(self, fault: Fault) -> bool:
        """Whether the record's end says so; a run that has ended, or does not, has not."""
        phase, step = self._place()
        return phase == fault.phase and (step >= fault.step or phase == "start")

    def _place(self) -> tuple[str, int]:
        """What the record says last: the phase, and the step."""
        try:
            with (self.out / "events.jsonl").open("rb") as file:
                file.seek(-min(_TAIL_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_CUR)
                *_, line, _ = b"\n", *file.read().split(b"\n")
            event = json.loads(line)
        except (OSError, ValueError):  # no record yet, no whole line
            return "start", 0
        kind, step = str(event["event"]), int(event["step"])
        return _PHASES.get(kind, kind), step


def _command(arguments: list[str], output: Path, temporary: Path) -> None:
    """In the forked process: the command, as a user's shell starts it. Never returns."""
    code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a leash's thread would keep it from nesting
        with output.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        tempfile.tempdir = None
        os.environ["TMPDIR"] = str(temporary)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupts.install()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)  # a fork server may have them blocked, too
        code = command_line.main(arguments)
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter ends
        traceback.print_exc()
    finally:
        util._exit_function()  # pyright: ignore[reportAttributeAccessIssue] - what an interpreter's end does; other handlers are those of the parent
        sys.stderr.flush()
        os._exit(code)


def tried(number: int, seed: int, folder: Path, settings: Mapping[str, Any]) -> Verdict:
    """Carry out round ``number`` in ``folder``."""
    each = drawn(generator(seed, "chaos", number))
    verdict, strategy = Verdict(), each.settings["strategy"]["name"]
    config = folder / "config.yaml"
    (folder / "trace.csv").write_text(each.trace)
    trace = {"path": str(folder / "trace.csv"), "allow_unplanned": True}
    values = config_of(settings, each.settings, {"trace": trace}).model_dump(mode="json", exclude={"out", "name"})
    config.write_text(to_yaml(values))
    memory = set(os.listdir("/dev/shm"))
    calm_folder = folder / "calm"
    calm_folder.mkdir()
    calm = Attempt(config, calm_folder, "engine=local")
    if not calm.wait(time.monotonic() + DEADLINE_S) or calm.code:
        verdict.wrong.append(f"calm run: exit code {calm.code}: {last_line(calm.output)}")
        calm.end()
        return verdict
    expected = figures(calm.events())
    attempt = Attempt(config, folder)
    for fault in each.faults:
        while not attempt.has_reached(fault) and time.monotonic() < attempt.began_s + DEADLINE_S:
            if attempt.wait(time.monotonic() + _POLL_S):
                break
        attempt.wait(time.monotonic() + fault.delay_s)
        if (phase := attempt.strike(fault)) is not None:
            verdict.struck[fault.name, phase] += 1
    verdict.wrong += judged_end(attempt)
    verdict.planned += planned_faults(attempt.events())
    if attempt.code == 0 and not verdict.wrong:
        names = None if not verdict.struck else _MODEL if strategy in _LOSES_NOTHING else ()
        verdict.wrong += judged_result(attempt, expected, names)
    elif not verdict.wrong:
        if not verdict.struck:
            verdict.wrong.append(f"failed without a fault: {last_line(attempt.output)}")
        # What a run lost with a rank that no trace named it has lost in its resume points too.
        lost_ranks = any(_FAULTS[name][0] == "ps" for name, _ in verdict.struck)
        attempt = Attempt(config, folder, "--afresh" if lost_ranks else "--resume")
        verdict.wrong += [f"again: {words}" for words in judged_end(attempt) or judged_result(attempt, expected)]
    if new := set(os.listdir("/dev/shm")) - memory:
        verdict.wrong.append(f"left shared memory: {', '.join(sorted(new))}")
    return verdict


def planned_faults(events: list[Event]) -> Counter[tuple[str, str]]:
    """Faults of the trace that a record holds, by phase."""
    kills = Counter((f"planned {event.fault}", event.phase) for event in events if isinstance(event, Killed))
    return kills + Counter(("planned slow", "boundary") for event in events if isinstance(event, Slowed))


def judged_end(attempt: Attempt) -> list[str]:
    """Wait for the end; what is wrong with it."""
    wrong: list[str] = []
    if not attempt.wait(attempt.began_s + DEADLINE_S):
        wrong.append(f"hung for {DEADLINE_S:.0f} s: {last_line(attempt.output)}")
        attempt.end()
    text = attempt.output.read_text(errors="replace")
    if "Traceback" in text:
        wrong.append(f"a traceback: {last_line(attempt.output)}")
    if attempt.code is not None and attempt.code > 0 and not text.strip():
        wrong.append(f"exit code {attempt.code} without a word")
    deadline_s = time.monotonic() + CLEAN_UP_S
    while (left := attempt.left()) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    if left:
        wrong.append(f"left over {CLEAN_UP_S:g} s after exit code {attempt.code}: {', '.join(left[:4])}")
        attempt.end()
        shutil.rmtree(attempt.temporary)
        attempt.temporary.mkdir()
    return wrong


def judged_result(attempt: Attempt, expected: Mapping[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """What is wrong with a run that has to have ended well; of its figures, those of ``names`` must be as expected."""
    if attempt.code or not (attempt.out / "DONE").exists():
        return [f"exit code {attempt.code} without a result: {last_line(attempt.output)}"]
    events = attempt.events()
    wrong = [f"record: {line}" for line in analysis.check(events, read_config(attempt.out))]
    found = figures(events)
    differ = [name for name in (expected if names is None else names) if found.get(name) != expected[name]]
    return wrong + [f"{name} is {found.get(name)}, not {expected[name]}"[:300] for name in differ[:2]]


def figures(events: list[Event]) -> dict[str, Any]:
    """What the last event says, this machine's part aside."""
    finished = events[-1]
    if not isinstance(finished, Finished):
        return {}
    values = finished.to_json()
    return {name: value for name, value in values.items() if name not in ("machine", "num_unplanned", "generation")}


def rounds(first: int, num_rounds: int, seed: int, folder: Path) -> Iterator[tuple[int, Verdict]]:
    """Rounds by number, one after another."""
    settings = settings_of(folder, [20] * 13 + [400] * 13, NUM_STEPS, batch_size=BATCH_SIZE)
    settings |= {
        "model": {"size": "tiny"},
        "profile": {"base": "busy", "job_h": JOB_H},
        "metrics": {"log_every_steps": 5},
    }
    for number in range(first, first + num_rounds):
        own = folder / f"round{number}"
        own.mkdir()
        yield number, tried(number, seed, own, settings)
        shutil.rmtree(own)


def counted(found: Counter[tuple[str, str]]) -> list[str]:
    """A table of faults by phase."""
    names, phases = (sorted({key[place] for key in found}) for place in (0, 1))
    return table(("fault", *phases), [[name, *(str(found[name, phase]) for phase in phases)] for name in names])


def main() -> None:
    """Carry out the rounds, print a table of faults by phase and what was wrong; exit code 1 if anything was."""
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=100, help="rounds (default: 100)")
    made.add_argument("--seed", type=int, default=1, help="of the rounds (default: 1)")
    made.add_argument("--first", type=int, default=0, help="number of the first round (default: 0)")
    options = made.parse_args()
    struck: Counter[tuple[str, str]] = Counter()
    planned: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        for number, verdict in rounds(options.first, options.rounds, options.seed, Path(name)):
            struck += verdict.struck
            planned += verdict.planned
            wrong += [f"round {number}: {words}" for words in verdict.wrong]
            sys.stderr.write("".join(f"round {number}: {words}\n" for words in verdict.wrong))
            if (number + 1 - options.first) % 25 == 0:
                pace_s = (time.monotonic() - began_s) / (number + 1 - options.first)
                sys.stderr.write(f"{number + 1 - options.first} rounds, {pace_s:.1f} s a round, {len(wrong)} wrong\n")
    lines = [*counted(struck), "", *counted(planned)]
    summary = (
        f"{options.rounds:,} rounds of seed {options.seed}: {sum(struck.values()):,} faults, "
        f"{sum(planned.values()):,} of traces, {len(wrong)} wrong"
    )
    found = [*struck.items(), *planned.items()]
    counts = [{"fault": name, "phase": phase, "count": count} for (name, phase), count in found]
    report(options, [*lines, "", summary, *wrong], {"results": counts, "wrong": wrong})
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
