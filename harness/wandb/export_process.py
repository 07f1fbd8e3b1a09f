"""The process that exports runs to wandb, one after another: ``python -m harness.wandb.export_process``.

Input: two JSON objects for each run, each on a line. The first is an :class:`Export`, which says what to export. The
process reads the run's events until the second arrives, which says how the run ended: ``is_ok``, and ``summary``,
figures that are added to the run's summary.

Output: JSON arrays ``[kind, text]``, each on a line: ``opened`` with the address of the run's page (null offline), or
``offline`` with the reason why the first mode failed; ``logged`` when all events have been read; ``sent`` when
everything is sent, with the address. A run without events has ``sent`` alone. After ``failed``, with the reason, no
line follows for that run.

Offline, the process makes no network connection. Online, no call blocks longer than ``LIMITS_S`` on a server that does
not answer. If wandb-core, its child, does not answer, calls may block for ever, so the owner kills both. Verified for
wandb 0.31: wandb-core ends within 0.1 s of a SIGKILL of its owner.
"""

import json
import os
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import FileIO
from itertools import chain
from typing import IO, Any

from harness.core.events import Event, from_json
from harness.wandb.history import AXES, History
from harness.wandb.server import LIMITS_S, WandbError, import_wandb, one_line_errors, server_problem, server_url

_POLL_S = 0.5  # between looks for new events
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("silent", "disable_git", "disable_code", "disable_job_creation"), True),
    **{f"x_disable_{name}": True for name in ("stats", "meta", "machine_info", "viewer")},
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
    "console": "off",
    "x_transaction_log_flush_interval": 1.0,  # seconds
    "program": "run.py",
    "finish_timeout_raises": True,
}

Tell = Callable[..., None]
"""Writes ``[kind, text]``."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A request to export a run.

    Attributes:
        facts: arguments of ``wandb.init``.
        events: the run's ``events.jsonl``.
        modes: wandb's modes (online, offline) in the order in which they are tried until one works.
        folder: the folder in which wandb makes its folder ``wandb``.
        limits_s: new values of ``harness.wandb.server.LIMITS_S``.
    """

    facts: dict[str, Any]
    events: str
    modes: tuple[str, ...]
    folder: str
    limits_s: dict[str, float]


def main() -> None:
    """Export the runs that the standard input names, until it ends."""
    requests, answers = FileIO(0), FileIO(os.dup(1), "w")  # wandb-core does not inherit the copy
    os.dup2(2, 1)

    def tell(kind: str, text: str | None = None) -> None:
        answers.write(json.dumps([kind, text]).encode() + b"\n")

    for line in iter(requests.readline, b""):
        try:
            with one_line_errors():
                _export(Export(**json.loads(line)), requests, tell)
        except WandbError as error:
            tell("failed", str(error))


def _export(export: Export, requests: FileIO, tell: Tell) -> None:
    """Export one run. wandb starts at the run's first event."""
    LIMITS_S.update(export.limits_s)
    with open(export.events, "rb") as stream:
        events = _events(stream, partial(select.select, [requests], [], [], _POLL_S))
        if (first := next(events, None)) is None:
            requests.readline()
            tell("sent")
            return
        profile = export.facts["config"]["profile"]
        run, history = _open(export, tell), History(profile["job_h"], profile["step_frac"])
        for event in chain([first], events):
            for row in history.rows(event):
                run.log({key: value for key, value in row.items() if value is not None})
            if summary := history.summary(event):
                run.summary.update(summary)
    tell("logged")
    end = json.loads(requests.readline())
    if end["summary"]:
        run.summary.update(end["summary"])
    run.finish(exit_code=0 if end["is_ok"] else 1)
    tell("sent", run.url)


def _events(stream: IO[bytes], await_end: Callable[[], tuple[list[Any], ...]]) -> Iterator[Event]:
    """The events of a running run, in order, until ``await_end`` returns a first list that is not empty.

    A line that is not yet complete waits for its rest.
    """
    rest, is_over = b"", False
    while not is_over:
        is_over = bool(await_end()[0])
        *lines, rest = (rest + stream.read()).split(b"\n")
        yield from (from_json(json.loads(line)) for line in lines)


def _open(export: Export, tell: Tell) -> Any:
    """Start the wandb run in the first of ``export.modes`` that works. Raises WandbError if none works."""
    problems: list[str] = []
    for mode in export.modes:
        try:
            with one_line_errors():
                run = _begin(export, mode)
        except WandbError as error:
            problems.append(str(error))
            continue
        tell("offline", problems[0]) if problems else tell("opened", run.url)
        return run
    raise WandbError("; ".join(problems))


def _begin(export: Export, mode: str) -> Any:
    if mode == "online" and (problem := server_problem(server_url())):
        raise WandbError(problem.removeprefix("wandb: "))
    wandb = import_wandb()
    limits_s = {f"{name}_timeout": LIMITS_S[name] for name in ("init", "finish")}
    run = wandb.init(
        mode=mode,
        **export.facts,
        dir=export.folder,
        settings=wandb.Settings(root_dir=export.folder, **_SETTINGS, **limits_s),
        reinit="create_new",
    )
    for axis in AXES:
        run.define_metric(axis, hidden=True)
    run.define_metric("*", step_metric=AXES[0])
    return run


if __name__ == "__main__":
    main()
