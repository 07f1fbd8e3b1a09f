"""Programs in the place of a fork server: one without the run's key, one with other code. ``wrong_servers.py KIND``."""

import sys
from dataclasses import replace
from unittest.mock import Mock

from harness.core.errors import ConfigError
from harness.hosts import start
from harness.processes.fork_server import ForkServerLoop, Settings

if __name__ == "__main__":
    settings = Settings.of_line(sys.stdin.buffer.readline())
    if sys.argv[1] == "stranger":
        settings = replace(settings, authkey="00" * 32)
    code = {"versions": {"torch": "1.0"}, "sources": {}, "roots": ["harness.run.assemble"]}
    start.current_code = Mock(return_value=Mock(**{"to_json.return_value": code}))
    try:
        ForkServerLoop(start.connect(settings)).serve()
    except ConfigError as error:
        raise SystemExit(f"{error}") from None
