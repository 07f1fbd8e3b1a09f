"""Variants of a training loop, measured in turn, each in processes of its own.

A machine changes its speed by half from one minute to the next, so a time alone proves nothing. What is claimed is a
ratio of two things that were measured in turn in one run, taken round by round (``Spread.ratio``): a slow machine slows
both. A run of the harness is started by its public entry point. Its clock is the ``seconds`` of its ``train`` events,
each of which holds ``metrics.log_every_steps`` steps, here called a chunk.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks._common import settings_of
from benchmarks._processes import start
from harness.config.model import Config
from harness.core.events import Trained
from harness.processes.spawn import fork_own_server
from harness.record.event_log import read_events
from harness.run import assemble

Parts = dict[str, float]
"""Milliseconds of a chunk or of a step by part; the whole is part ``step``."""
Body = Callable[[Config, Path], list[Parts]]
"""What a variant does: (config, folder of its own). Returns the parts of each chunk."""
Spent = defaultdict[str, float]
"""Seconds by part, to which what is measured adds."""


def chunked(folder: Path, rows_scale: float, chunk_steps: int, num_chunks: int = 3, **more: Any) -> dict[str, Any]:
    """Settings of runs of so many chunks, which do nothing but train; makes their data in ``folder``.

    ``more``: as of ``settings_of``.
    """
    base = settings_of(folder, rows_scale, chunk_steps * num_chunks, **more)
    return base | {"metrics": {"log_every_steps": chunk_steps}}


def harness_run(config: Config, folder: Path, **options: Any) -> list[Parts]:
    """Body: a run of the harness. ``options``: of ``assemble.run``."""
    assemble.run(config, folder, **options)
    trained = (event.machine for event in read_events(folder / "events.jsonl") if isinstance(event, Trained))
    return [
        {"step": 1e3 * seconds.pop("seconds"), **{part: 1e3 * seconds[part] for part in seconds}}
        for seconds in map(dict, trained)
    ]


def loop(config: Config, action: Callable[[int, Spent], None]) -> list[Parts]:
    """Chunks of a loop that is not the harness's: ``action(step, spent_s)`` for each step of ``config``."""
    chunk_steps, found = config.metrics.log_every_steps, list[Parts]()
    num_steps = (config.data.max_train_samples or 0) // config.trainer.batch_size
    for first in range(0, num_steps, chunk_steps):
        spent_s, began_s = Spent(float), time.perf_counter()
        for step in range(first, first + chunk_steps):
            action(step, spent_s)
        spent_s["step"] = time.perf_counter() - began_s
        found.append({part: 1e3 * seconds for part, seconds in spent_s.items()})
    return found


def in_turn(variants: Mapping[str, tuple[Body, Config]], folder: Path, rounds: int) -> dict[str, list[Parts]]:
    """The parts of a step by variant, one entry a round; of all chunks but the first and the last.

    Each round begins with another variant. Folders of the runs are ``folder / name-round``.
    """
    found: dict[str, list[Parts]] = {name: [] for name in variants}
    order = list(variants)
    for number in range(rounds):
        for name in order:
            process, pipe = start(_measure, *variants[name], folder / f"{name}-{number}")
            _, *timed, _ = pipe.recv()
            process.join()
            steps = len(timed) * variants[name][1].metrics.log_every_steps
            found[name].append({part: sum(each[part] for each in timed) / steps for part in timed[0]})
        order = [*order[1:], order[0]]
    return found


def _measure(body: Body, config: Config, folder: Path, pipe: Connection) -> None:
    fork_own_server()  # before anything starts a thread: ranks are forked from here
    pipe.send(body(config, folder))
