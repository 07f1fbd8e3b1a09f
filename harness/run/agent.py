"""The program of a host's agent, ``python -m harness.run.agent``; the command ``cluster.start_agent`` starts it."""

# ruff: noqa: PLC0415 - plugins are loaded before the configuration's models are made

import os
import sys

from harness.config.plugins import load
from harness.core.errors import HarnessError
from harness.processes.leash import ignore_interrupts


def main() -> None:
    """Read the settings from standard input, import everything, fork a fork server, and serve the supervisor."""
    ignore_interrupts()
    try:
        _serve(sys.stdin.readline())
    except (HarnessError, OSError) as error:
        raise SystemExit(str(error)) from None


def _serve(line: str) -> None:
    from harness.hosts.agent import Agent, AgentSettings

    settings = AgentSettings.of_line(line)
    os.chdir(settings.folder)
    sys.path += [folder for folder in settings.path if folder not in sys.path]
    load(settings.plugins)
    from harness.record.code import current_code
    from harness.run.assemble import prepare_fork_server

    prepare_fork_server()
    Agent(settings, current_code().to_json()).serve()


if __name__ == "__main__":
    main()
