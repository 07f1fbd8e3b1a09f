"""Programs in the place of an agent: one without the run's key, one with other code. ``wrong_agents.py KIND``."""

import sys
from dataclasses import replace

from harness.core.errors import ConfigError
from harness.hosts.agent import Agent, AgentSettings

if __name__ == "__main__":
    settings = AgentSettings.of_line(sys.stdin.readline())
    if sys.argv[1] == "stranger":
        settings = replace(settings, authkey="00" * 32)
    try:
        Agent(settings, {"versions": {"torch": "1.0"}, "sources": {}, "roots": ["harness.run.assemble"]}).serve()
    except ConfigError as error:
        raise SystemExit(f"{error}") from None
