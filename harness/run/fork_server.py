"""The program of a fork server, ``python -m harness.run.fork_server``; on another host a start command starts it."""

# ruff: noqa: PLC0415 - the parent-death signal comes first, and plugins before the configuration's models

import gc
import os
import signal
import sys
from multiprocessing.connection import Connection

from harness.core.errors import HarnessError
from harness.processes.fork_server import ForkServerLoop, Settings
from harness.processes.parent_death import INTERRUPTS, end_with_parent


def main() -> None:
    """Read the settings from standard input, import everything, and serve."""
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    with open(0, "rb", buffering=0, closefd=False) as stream:
        line = stream.readline()
    try:
        settings = Settings.of_line(line)
        if settings.owner is not None:
            end_with_parent(settings.owner)
        _prepare_process(settings)
        ForkServerLoop(_connection(settings)).serve()
    except (HarnessError, OSError) as error:
        raise SystemExit(str(error)) from None


def _prepare_process(settings: Settings) -> None:
    gc.set_threshold(50_000, 20, 20)  # as in run.py
    sys.path += [folder for folder in settings.path if folder not in sys.path]
    os.chdir(settings.folder)
    from harness.config.plugins import load

    load(settings.plugins)
    import harness.run.assemble  # noqa: F401
    from harness.record.code import current_code

    current_code()  # computed once: forked processes inherit the digest of the code


def _connection(settings: Settings) -> Connection:
    """The connection to the process that it serves: the standard input or, on another host, a new one."""
    if settings.host:
        from harness.hosts.start import connect

        return connect(settings)
    connection = Connection(os.dup(0))
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    return connection


if __name__ == "__main__":
    main()
