"""How processes of ours are started: forked, in milliseconds, from a server that has imported what they need."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_PRELOAD = ["harness.leash_parent", "torch", "harness.assemble"]


def fork_server() -> ForkServerContext:
    """The context to start processes with, its fork server running.

    The server, and so every process it forks, finds this package from whatever folder the command was given, dies with
    this process, and has SIGINT blocked: Ctrl-C on a terminal reaches the process that the user started, which decides.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so it must not start below
    with _import_path(), _interrupts_blocked():
        forkserver.ensure_running()
    return context


@contextmanager
def _import_path() -> Iterator[None]:
    """The fork server of Python 3.11 does not take over sys.path; the environment tells it where this package is."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), before]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
