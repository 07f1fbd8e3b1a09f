"""Variants of a training loop in processes of their own, measured in turn and stopped (SIGSTOP) in between.

A machine changes its speed by half from one minute to the next, so a time alone proves nothing. What is claimed is a
ratio of two things that were measured in turn in one run, taken round by round: its median, least and greatest
(:func:`ratio`): a slow machine slows all. A run of the harness is started by its public entry point. Its clock is the
``seconds`` of its ``train`` events, each of which holds ``metrics.log_every_steps`` steps, here called a chunk.
"""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks._common import Spread
from harness.config.model import Config
from harness.processes.spawn import fork_own_server, fork_server
from harness.run import assemble

SLACK_STEPS = 1000
"""Steps that a run needs beyond those it is asked for: a stopped run has gone on a little, and none may end."""

Tick = Callable[[float], None]
"""To be called after every chunk with the seconds that it took."""
Body = Callable[[Config, Path, Tick], None]
"""What a worker process does: (config, folder of its own, tick)."""

Parts = defaultdict[str, float]
"""Seconds by part of a step."""

_TAIL_BYTES = 1 << 16
_PARTS = "parts.jsonl"  # a line for each chunk: seconds by part


class Worker:
    """A process group that runs ``body``, stopped except during :meth:`run`.

    The group is killed when this process closes it; the kernel ends it (SIGHUP) when this process dies.
    """

    def __init__(self, body: Body, config: Config, folder: Path) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = fork_server().fork(_main, body, config, folder, theirs)

    def wait_ready(self) -> None:
        """Wait until the first chunk is done and the group is stopped. Raises EOFError if the process ended."""
        self._pipe.recv()
        self._wait_stopped()

    def run(self, lead: int, timed: int, tail: int = 0) -> float:
        """Run ``lead + timed + tail`` chunks; seconds of the ``timed`` ones. The first chunk holds the pause."""
        self._pipe.send(lead + timed + tail)
        os.killpg(self._pid, signal.SIGCONT)
        seconds = self._pipe.recv()
        self._wait_stopped()
        return sum(seconds[lead : lead + timed])

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    @property
    def _pid(self) -> int:
        return self._process.pid

    def _wait_stopped(self) -> None:
        stat = Path(f"/proc/{self._pid}/stat")
        while stat.read_text().rsplit(")", 1)[1].split()[0] not in "TZX":
            time.sleep(0.001)


def _main(body: Body, config: Config, folder: Path, pipe: Connection) -> None:
    os.setpgid(0, 0)
    fork_own_server()  # before anything starts a thread: ranks are forked from here
    ordered, seen = 1, []

    def tick(seconds: float) -> None:
        nonlocal ordered, seen
        seen.append(seconds)
        if len(seen) == ordered:
            pipe.send(seen)
            os.killpg(0, signal.SIGSTOP)
            ordered, seen = pipe.recv(), []

    body(config, folder, tick)


def harness_run(config: Config, folder: Path, tick: Tick, *, parts: assemble.Parts = assemble.DEFAULT) -> None:
    step = 0

    def on_status(status: assemble.RunStatus) -> None:
        nonlocal step
        if status.step > step:
            step = status.step
            tick(_last_seconds(folder / "events.jsonl"))

    assemble.run(config, folder, on_status=on_status, parts=parts)


def _last_seconds(events: Path) -> float:
    with events.open("rb") as file:
        file.seek(max(0, events.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    last = next(line for line in reversed(lines) if line.startswith(b'{"event":"train"'))
    return json.loads(last)["machine"]["seconds"]


def chunks(
    config: Config, folder: Path, tick: Tick, action: Callable[[int], None], spent_s: Parts | None = None
) -> None:
    """Body of a loop that is not the harness's: ``action(step)`` again and again, in chunks.

    ``spent_s``: of the parts of a step, to which ``action`` adds; they are written to ``folder``, chunk by chunk.
    """
    step, spent_s = 0, defaultdict(float) if spent_s is None else spent_s
    while True:
        began_s = time.perf_counter()
        for _ in range(config.metrics.log_every_steps):
            action(step)
            step += 1
        seconds = time.perf_counter() - began_s
        write_parts(folder, {**spent_s, "step": seconds})
        spent_s.clear()
        tick(seconds)


def write_parts(folder: Path, parts_s: Mapping[str, float]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / _PARTS).open("a") as file:
        file.write(json.dumps(parts_s) + "\n")


def parts_of(folder: Path, rounds: int, chunk_steps: int) -> list[dict[str, float]]:
    """Milliseconds of a step by part, one entry a round of :func:`in_turn` with a lead of one and one timed chunk."""
    seen = [json.loads(line) for line in (folder / _PARTS).read_text().splitlines()]
    timed = seen[4 : 2 * rounds + 3 : 2]
    return [{part: 1e3 * seconds / chunk_steps for part, seconds in each.items()} for each in timed]


def num_steps(rounds: int, chunk_steps: int, *, lead: int = 1, timed: int = 1, tail: int = 0) -> int:
    return (1 + (rounds + 1) * (lead + timed + tail)) * chunk_steps + SLACK_STEPS


def in_turn(
    variants: Mapping[str, tuple[Body, Config]],
    folder: Path,
    rounds: int,
    *,
    lead: int = 1,
    timed: int = 1,
    tail: int = 0,
) -> list[dict[str, float]]:
    """Milliseconds of a step by variant, one entry a round; the first round is left out.

    Each round begins with another variant. Folders of the runs are ``folder / name``.
    """
    found: list[dict[str, float]] = []
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, (body, config) in variants.items():
            workers[name] = Worker(body, config, folder / name)
            stack.callback(workers[name].close)
        for worker in workers.values():
            worker.wait_ready()
        order = list(workers)
        for _ in range(rounds + 1):
            seconds = {name: workers[name].run(lead, timed, tail) for name in order}
            found.append(
                {
                    name: 1e3 * seconds[name] / (timed * config.metrics.log_every_steps)
                    for name, (_, config) in variants.items()
                }
            )
            order = [*order[1:], order[0]]
    return found[1:]


def ratio(rounds: Sequence[Mapping[str, float]], upper: str, lower: str, *, unit: float = 1.0) -> Spread:
    """One figure over another one of the same round, in ``unit`` (0.01: percent)."""
    return Spread.of(each[upper] / each[lower] / unit for each in rounds)
